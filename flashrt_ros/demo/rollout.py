"""The policy's success without ROS: ``python -m flashrt_ros.demo.rollout --episodes 200``.

Runs the policy as the node does, through a ``PolicySession``, against the same physics. Two
figures for the bare task (the policy, and the same network with its hidden state zeroed before
each step) and, with ``--experiment``, three for the experiment of ``tree``: restored, reset, as it
is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import numpy as np
import torch

from flashrt_ros.demo.arm import CONTROL_HZ, Arm
from flashrt_ros.demo.policy import make
from flashrt_ros.demo.task import CUE_S, HOME_RAD, Array, observation
from flashrt_ros.demo.trial import (
    BUMP_S,
    TIME_LIMIT_S,
    Judge,
    Trial,
    draw_trials,
    episodes,
    wilson,
)
from flashrt_ros.exit_code import in_words
from flashrt_ros.runtime.session import PolicySession

NOISE_RAD = 0.0005
"""As the simulated arm's node has it."""
WAYS = ("restore", "reset", "as it is")


class Rollout:
    """One arm driven by one session."""

    def __init__(self, session: PolicySession, zero_hidden: bool = False) -> None:
        """Takes over a session.

        Args:
            session: Of the ``cue_reach`` policy.
            zero_hidden: Zero the recurrent state before each step.
        """
        self.session, self.arm = session, Arm()
        self._hidden = [
            tensor
            for name, tensor in session.arena.state.items()
            if zero_hidden and name.startswith("rnn.")
        ]

    def begin(self, trial: Trial) -> None:
        """Arm at home, a new episode."""
        self._rng = np.random.default_rng(trial.seed)
        self.arm.place(HOME_RAD + self._rng.normal(0.0, 0.005, 2))
        self.session.reset_(seed=trial.seed)

    def run(
        self, duration_s: float, cue_m: Array | None = None, judge: Judge | None = None
    ) -> bool:
        """Lets the policy drive.

        Args:
            duration_s: How long.
            cue_m: ``(2,)`` cue visible all the while, or None.
            judge: Ends the run when it is content.

        Returns:
            Whether the judge was content.
        """
        for _ in range(round(duration_s * CONTROL_HZ)):
            noise = self._rng.normal(0.0, NOISE_RAD, 4) * (1.0, 1.0, 10.0, 10.0)
            position = self.arm.position_rad + noise[:2]
            velocity = self.arm.velocity_rad_s + noise[2:]
            for tensor in self._hidden:
                tensor.zero_()
            action = self.session.step(observation(position, velocity, cue_m))
            self.arm.command(action.values.numpy())
            self.arm.step()
            if judge is not None and judge.see(self.arm.position_rad):
                return True
        return False

    def bare(self, trial: Trial) -> bool:
        """Cue, then reach: whether the target was reached."""
        self.begin(trial)
        self.run(CUE_S, trial.target_m)
        return self.run(TIME_LIMIT_S, judge=Judge(trial.target_m))

    def disturbed(self, trial: Trial, way: str) -> bool:
        """The episode of the experiment, going on in one of ``WAYS`` after the retreat."""
        self.begin(trial)
        self.run(CUE_S, trial.target_m)
        capsule = self.session.snapshot()
        self.run(trial.bump_after_s)
        self.arm.bump(trial.bump_nm, BUMP_S)
        self.run(BUMP_S)
        self.run(CUE_S, trial.false_target_m)
        self.run(0.1)
        self.arm.place(HOME_RAD + self._rng.normal(0.0, 0.005, 2))
        if way == "restore":
            self.session.restore(capsule)
        elif way == "reset":
            self.session.reset_(seed=trial.seed + 1)
        self.session.drop(capsule.id)
        return self.run(TIME_LIMIT_S, judge=Judge(trial.target_m))


def measure(episodes: int, seed: int, experiment: bool) -> dict[str, int]:
    """Counts successes.

    Args:
        episodes: For each of the cases.
        seed: Of the trials.
        experiment: With the three ways of the experiment.

    Returns:
        Successes by case.
    """
    trials = draw_trials(seed, episodes)
    counts = {}
    for name, zero_hidden in (("policy", False), ("hidden state zeroed", True)):
        rollout = Rollout(PolicySession(make()), zero_hidden)
        counts[name] = sum(rollout.bare(trial) for trial in trials)
    if experiment:
        rollout = Rollout(PolicySession(make()))
        for way in WAYS:
            counts[way] = sum(rollout.disturbed(trial, way) for trial in trials)
    return counts


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the module.

    Args:
        argv: Arguments; None for those of the process.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(description="Success of the demonstration's policy.")
    parser.add_argument("--episodes", type=episodes, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--experiment", action="store_true", help="also restore, reset, as it is")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    counts = measure(options.episodes, options.seed, options.experiment)
    if options.json:
        print(json.dumps({"episodes": options.episodes, "successes": counts}))
        return 0
    for name, successes in counts.items():
        low, high = wilson(successes, options.episodes)
        print(
            f"{name:20} {successes:4d} of {options.episodes}  "
            f"{successes / options.episodes:6.1%}  (95 %: {low:.1%} to {high:.1%})"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(in_words(main))
