"""The trees of the experiment: one episode for each way to go on after the disturbance.

pause, home, reset_episode, resume        a fresh episode, the arm at home
show the cue, wait, snapshot              the true target has been seen: that is the capsule
bump, show the false cue, wait            the arm is off course, its memory spoilt
pause, home                               the retreat
restore | reset_episode | nothing         the three ways
resume, reach                             only the restored policy should reach the true target
"""

from __future__ import annotations

from typing import Any, Protocol

from py_trees.behaviour import Behaviour
from py_trees.composites import Selector, Sequence

from flashrt_ros.demo.behaviour import Do, Home, Until, Wait
from flashrt_ros.demo.task import CUE_S, Array
from flashrt_ros.demo.trial import BUMP_S, TIME_LIMIT_S, Judge, Trial, Way
from flashrt_ros.trees import Fork, Pause, ResetEpisode, Restore, Resume, Snapshot

SETTLE_S = 0.06
"""After a cue: the contract calls one present until its last message is this old."""
HOME_S = 10.0
"""Time limit of the way home, which takes half a second."""
REACH = "reach"
"""Name of the behaviour that fails if the target was not reached."""


class Stage(Protocol):
    """What an episode plays on: what the passer-by does, and who sees the arm.

    Attributes:
        node: ROS node through which the trees call services.
    """

    node: Any

    def clock(self) -> float:
        """Seconds on a steady clock."""

    def show_cue(self, point_m: Array, duration_s: float) -> None:
        """Has a point ``(2,)`` shown."""

    def bump(self, torque_nm: tuple[float, float], duration_s: float) -> None:
        """Has the arm pushed."""

    def look_for_home(self) -> None:
        """From now on measurements count for ``at_home``."""

    def at_home(self) -> bool:
        """Whether the arm has been measured at home and at rest."""

    def watch(self, judge: Judge) -> None:
        """Gives each measurement from now on to a judge."""

    def content(self) -> bool:
        """Whether that judge has seen the target reached."""


class Builder:
    """Makes the trees of one stage."""

    def __init__(self, stage: Stage) -> None:
        """Args: stage: where the episodes play."""
        self.stage = stage

    def wait(self, name: str, duration_s: float) -> Wait:
        """A wait."""
        return Wait(name, duration_s, self.stage.clock)

    def retreat(self) -> Behaviour:
        """Policy on hold, arm home."""
        return _sequence("retreat", [Pause(), self.home()])

    def home(self) -> Behaviour:
        """Sends the arm home and waits until it is there."""
        stage = self.stage
        there = Until("at home", stage.at_home, HOME_S, stage.clock, begin=stage.look_for_home)
        return _sequence("way home", [Home(), there])

    def resume(self) -> Behaviour:
        """Goes on; where the start is refused as unsafe, retreats nearer and asks once more."""
        again = _sequence("nearer", [self.home(), Resume("resume again")])
        selector = Selector("go on", memory=True)
        selector.add_children([Resume(), again])
        return selector

    def fresh(self, seed: int) -> Behaviour:
        """A new episode with the arm at home."""
        reset = ResetEpisode(seed=seed, hold=True)
        return _sequence("begin", [self.retreat(), reset, self.resume()])

    def see_cue(self, trial: Trial) -> Behaviour:
        """The true target is shown, and seen."""
        return _sequence(
            "see the cue",
            [
                Do("show the cue", lambda: self.stage.show_cue(trial.target_m, CUE_S)),
                self.wait("while it is shown", CUE_S + SETTLE_S),
            ],
        )

    def disturb(self, trial: Trial) -> Behaviour:
        """The clumsy passer-by."""
        false_m = trial.false_target_m
        return _sequence(
            "disturbance",
            [
                self.wait("on the way", trial.bump_after_s),
                Do("bump", lambda: self.stage.bump(trial.bump_nm, BUMP_S)),
                self.wait("thrown off course", BUMP_S),
                Do("show a false cue", lambda: self.stage.show_cue(false_m, CUE_S)),
                self.wait("while that is shown", CUE_S + SETTLE_S),
            ],
        )

    def reach(self, trial: Trial) -> Behaviour:
        """Waits for the true target to be reached."""
        judge = Judge(trial.target_m)
        return Until(
            REACH,
            self.stage.content,
            TIME_LIMIT_S,
            self.stage.clock,
            begin=lambda: self.stage.watch(judge),
        )

    def episode(self, trial: Trial, way: Way, capsule: str) -> Behaviour:
        """One episode of the experiment.

        Args:
            trial: What chance decides.
            way: How to go on after the retreat.
            capsule: Name for the capsule.
        """
        ways: dict[Way, list[Behaviour]] = {
            Way.RESTORE: [Restore(capsule=capsule)],
            Way.RESET: [ResetEpisode("reset plainly", hold=True)],
            Way.AS_IT_IS: [],
        }
        return _sequence(
            f"episode, {way.value}",
            [
                self.fresh(trial.seed),
                self.see_cue(trial),
                Snapshot(capsule=capsule, replace=True),
                self.disturb(trial),
                self.retreat(),
                *ways[way],
                self.resume(),
                self.reach(trial),
            ],
        )

    def fork(self, trial: Trial, names: list[str], seeds: list[int]) -> Behaviour:
        """Sees the cue and makes branches of the live state.

        Args:
            trial: What chance decides.
            names: Of the branches.
            seeds: Their noise keys.
        """
        return _sequence(
            "fork",
            [
                self.fresh(trial.seed),
                self.see_cue(trial),
                Pause(),
                Fork(branches=names, seeds=seeds),
            ],
        )

    def branch(self, trial: Trial, name: str) -> Behaviour:
        """Runs one branch from home."""
        return _sequence(
            name,
            [
                self.retreat(),
                Restore(capsule=name),
                self.resume(),
                self.reach(trial),
            ],
        )


def _sequence(name: str, children: list[Behaviour]) -> Sequence:
    sequence = Sequence(name, memory=True)
    sequence.add_children(children)
    return sequence
