"""The trees of the experiment: one episode for each way to go on after the disturbance.

pause, home, reset_episode, resume        a fresh episode, the arm at home
show the cue, hide it, snapshot           the true target has been seen: that is the capsule
bump, show and hide the false cue         the arm is off course, its memory spoilt
pause, home                               the retreat
restore | reset_episode | nothing         the three ways
resume, reach                             only the restored policy should reach the true target

All times are the policy's own: it counts control steps, and so does whoever shows it something or
waits for it to act. A machine that keeps it waiting makes an episode longer and no different.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from py_trees.behaviour import Behaviour
from py_trees.composites import Selector, Sequence

from flashrt_ros.demo.arm import CONTROL_HZ
from flashrt_ros.demo.behaviour import Do, Home, Until
from flashrt_ros.demo.task import CUE_S, Array
from flashrt_ros.demo.trial import BUMP_S, TIME_LIMIT_S, Judge, Trial, Way
from flashrt_ros.trees import Fork, Pause, ResetEpisode, Restore, Resume, Snapshot

LINGER_S = 0.08
"""A cue that is taken away is seen for so long yet: the contract lets its last message count."""
CUE = "observation.cue"
"""Port of the policy."""
LIMIT_S = 60.0
"""A generous limit of everything here; it only decides how long a fault takes."""
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

    def show_cue(self, point_m: Array) -> None:
        """Has a point ``(2,)`` shown until ``hide_cue``."""

    def hide_cue(self) -> None:
        """Has it taken away."""

    def seen(self, port: str) -> int:
        """In how many control steps in a row, the newest the last, the policy had an input."""

    def count_steps(self) -> None:
        """From now on control steps count for ``steps``."""

    def steps(self) -> int:
        """How many control steps with a command the policy has taken."""

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

    def __init__(self, stage: Stage, rate_hz: float = CONTROL_HZ) -> None:
        """Prepares them.

        Args:
            stage: Where the episodes play.
            rate_hz: The policy's control steps in a second.
        """
        self.stage, self.rate_hz = stage, rate_hz

    def until(self, name: str, condition: Callable[[], bool], **options: Any) -> Until:
        """RUNNING until a condition holds."""
        return Until(name, condition, LIMIT_S, self.stage.clock, **options)

    def wait(self, name: str, duration_s: float) -> Until:
        """RUNNING while the policy takes the control steps of so many seconds."""
        stage, wanted = self.stage, round(duration_s * self.rate_hz)
        return self.until(
            name,
            lambda: stage.steps() >= wanted,
            begin=stage.count_steps,
            found=lambda: self._taken(wanted),
        )

    def _taken(self, wanted: int) -> str:
        return f"the policy took {self.stage.steps()} of {wanted} control steps"

    def retreat(self) -> Behaviour:
        """Policy on hold, arm home."""
        return _sequence("retreat", [Pause(timeout_s=LIMIT_S), self.home()])

    def home(self) -> Behaviour:
        """Sends the arm home and waits until it is there."""
        stage = self.stage
        there = self.until("at home", stage.at_home, begin=stage.look_for_home)
        return _sequence("way home", [Home(), there])

    def resume(self) -> Behaviour:
        """Goes on; where the start is refused as unsafe, retreats nearer and asks once more."""
        again = _sequence("nearer", [self.home(), Resume("resume again", timeout_s=LIMIT_S)])
        selector = Selector("go on", memory=True)
        selector.add_children([Resume(timeout_s=LIMIT_S), again])
        return selector

    def fresh(self, seed: int) -> Behaviour:
        """A new episode with the arm at home."""
        reset = ResetEpisode(seed=seed, hold=True, timeout_s=LIMIT_S)
        return _sequence("begin", [self.retreat(), reset, self.resume()])

    def seen_steps(self, duration_s: float) -> int:
        """In how many control steps something is seen when it is time to take it away."""
        return max(1, round((duration_s - LINGER_S) * self.rate_hz))

    def see(self, name: str, point_m: Array, duration_s: float = CUE_S) -> Behaviour:
        """A point is shown until the policy has seen it for so long, and sees it no more.

        Args:
            name: Of what is shown.
            point_m: ``(2,)`` x and y, metres.
            duration_s: How long, in the policy's time.
        """
        stage, wanted = self.stage, self.seen_steps(duration_s)
        return _sequence(
            f"see the {name}",
            [
                # One that an episode left behind when it was broken off must not count.
                Do("show none", stage.hide_cue),
                self.until("none is seen", lambda: stage.seen(CUE) == 0),
                Do(f"show the {name}", lambda: stage.show_cue(point_m)),
                self.until(
                    "it is seen",
                    lambda: stage.seen(CUE) >= wanted,
                    found=lambda: f"it is in {stage.seen(CUE)} of {wanted} control steps",
                ),
                Do(f"hide the {name}", stage.hide_cue),
                self.until("it is seen no more", lambda: stage.seen(CUE) == 0),
            ],
        )

    def disturb(self, trial: Trial) -> Behaviour:
        """The clumsy passer-by."""
        return _sequence(
            "disturbance",
            [
                self.wait("on the way", trial.bump_after_s),
                Do("bump", lambda: self.stage.bump(trial.bump_nm, BUMP_S)),
                self.wait("thrown off course", BUMP_S),
                self.see("false cue", trial.false_target_m),
            ],
        )

    def reach(self, target_m: Array, limit_s: float = TIME_LIMIT_S) -> Behaviour:
        """Waits for a target to be reached; FAILURE once the policy has had the time for it.

        Args:
            target_m: ``(2,)`` x and y, metres.
            limit_s: In the policy's time.
        """
        stage, judge, wanted = self.stage, Judge(target_m), round(limit_s * self.rate_hz)

        def begin() -> None:
            stage.watch(judge)
            stage.count_steps()

        return self.until(
            REACH,
            stage.content,
            begin=begin,
            hopeless=lambda: stage.steps() >= wanted,
            found=lambda: self._taken(wanted),
        )

    def episode(self, trial: Trial, way: Way, capsule: str) -> Behaviour:
        """One episode of the experiment.

        Args:
            trial: What chance decides.
            way: How to go on after the retreat.
            capsule: Name for the capsule.
        """
        ways: dict[Way, list[Behaviour]] = {
            Way.RESTORE: [Restore(capsule=capsule, timeout_s=LIMIT_S)],
            Way.RESET: [ResetEpisode("reset plainly", hold=True, timeout_s=LIMIT_S)],
            Way.AS_IT_IS: [],
        }
        return _sequence(
            f"episode, {way.value}",
            [
                self.fresh(trial.seed),
                self.see("cue", trial.target_m),
                Snapshot(capsule=capsule, replace=True, timeout_s=LIMIT_S),
                self.disturb(trial),
                self.retreat(),
                *ways[way],
                self.resume(),
                self.reach(trial.target_m),
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
                self.see("cue", trial.target_m),
                Pause(timeout_s=LIMIT_S),
                Fork(branches=names, seeds=seeds, timeout_s=LIMIT_S),
            ],
        )

    def branch(self, trial: Trial, name: str) -> Behaviour:
        """Runs one branch from home."""
        return _sequence(
            name,
            [
                self.retreat(),
                Restore(capsule=name, timeout_s=LIMIT_S),
                self.resume(),
                self.reach(trial.target_m),
            ],
        )


def _sequence(name: str, children: list[Behaviour]) -> Sequence:
    sequence = Sequence(name, memory=True)
    sequence.add_children(children)
    return sequence
