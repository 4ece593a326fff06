"""The hybrid policy's success without ROS: ``python -m flashrt_ros.demo.rollout_hybrid``.

Beside the policy stand the same weights with one kind of state taken away at each step, and
without drafts. With ``--experiment`` an episode is interrupted while places are being shown:
another one runs, then the first is restored, whole or in part.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from flashrt_ros.demo.arm import Arm
from flashrt_ros.demo.hybrid_policy import make
from flashrt_ros.demo.recall import (
    QUESTION,
    RATE_HZ,
    SUBSTEPS,
    Recall,
    draw_recalls,
    goals,
    observation,
)
from flashrt_ros.demo.rollout import NOISE_RAD
from flashrt_ros.demo.task import HOME_RAD, Array
from flashrt_ros.demo.trial import TIME_LIMIT_S, Judge, episodes, wilson
from flashrt_ros.exit_code import in_words
from flashrt_ros.policies.hybrid.decode import ACCEPTED, LAST
from flashrt_ros.policies.hybrid.policy import HybridPolicy
from flashrt_ros.runtime.buffers import ROWS_LENGTH
from flashrt_ros.runtime.session import PolicySession

WHOLE, NO_RECURRENT, NO_ROWS, NO_DRAFTS = (
    "policy",
    "recurrent and convolution state zeroed",
    "rows zeroed",
    "without drafts",
)
RESTORES = ("restored whole", "rows alone restored", "all but rows restored", "not restored")
Shown = tuple[Array | None, int]
"""Place in metres, and number asked for."""


def timetable(recall: Recall) -> Iterator[Shown]:
    """What is shown and asked in each control step; ends with the question."""
    for place, shown, gap in zip(recall.places, recall.shown_steps, recall.gap_steps, strict=True):
        yield from [(goals()[place], 0)] * shown
        yield from [(None, 0)] * gap
    yield from [(None, recall.number)] * recall.asked_steps


class Rollout:
    """One arm driven by one session.

    Args:
        session: Of the policy.
        without: ``NO_RECURRENT`` or ``NO_ROWS`` takes that state away before each step.
    """

    def __init__(self, session: PolicySession, without: str = "") -> None:
        self.session, self.arm, self.without = session, Arm(), without
        self.seen: list[dict[str, torch.Tensor]] = []

    def begin(self, recall: Recall) -> None:
        """Arm at home, a new episode."""
        self._rng = np.random.default_rng(recall.seed)
        self.seen = []
        self.arm.place(HOME_RAD + self._rng.normal(0.0, 0.005, 2))
        self.session.reset_(seed=recall.seed)

    def step(self, place_m: Array | None, number: int) -> None:
        """One control step."""
        noise = self._rng.normal(0.0, NOISE_RAD, 4) * (1.0, 1.0, 10.0, 10.0)
        position = self.arm.position_rad + noise[:2]
        seen = observation(position, self.arm.velocity_rad_s + noise[2:], place_m, number)
        self._take_away()
        action_A = self.session.step(seen).values.numpy()
        self.seen.append({key: torch.from_numpy(value) for key, value in seen.items()})
        self.arm.command(action_A[2:])
        for _ in range(SUBSTEPS):
            self.arm.step()

    def finish(self, recall: Recall, shown: Sequence[Shown]) -> bool:
        """Goes through the rest of a timetable; whether the arm then reaches the right place.

        Args:
            recall: Of the timetable.
            shown: What is left of it, the question included.
        """
        judge = Judge(goals()[recall.goal])
        left = [*shown, *[(None, 0)] * round(TIME_LIMIT_S * RATE_HZ)]
        for index, (place_m, number) in enumerate(left):
            self.step(place_m, number)
            asked = index >= len(shown) - recall.asked_steps
            if asked and judge.see(self.arm.position_rad, 1.0 / RATE_HZ):
                return True
        return False

    def bare(self, recall: Recall) -> bool:
        """Places, a wait, a question: whether the right place was reached."""
        self.begin(recall)
        return self.finish(recall, list(timetable(recall)))

    def interrupted(self, recall: Recall, other: Recall, way: str) -> bool:
        """A new episode begins while places are shown; then the first goes on in some way.

        Args:
            recall: The episode; it is cut when its second place has just appeared.
            other: Runs for as long, without anything being shown yet.
            way: How the first is restored, one of ``RESTORES``.
        """
        shown, cut = list(timetable(recall)), recall.shown_steps[0] + recall.gap_steps[0] + 3
        self.begin(other)
        for _ in range(cut):
            self.step(None, 0)
        arena, rows = self.session.arena, self.session.host.rows
        fixed, written = arena.fixed.clone(), arena.rows[:rows].clone()
        capsule = self.session.snapshot("other", replace=True)
        self.begin(recall)
        for place_m, number in shown[:cut]:
            self.step(place_m, number)
        self.session.snapshot("cut", replace=True)
        # Of another lineage, so that the restore copies every row.
        self.session.restore(capsule)
        if way != RESTORES[3]:
            self.session.restore("cut")
        rows = min(rows, self.session.host.rows)
        if way == RESTORES[1]:
            kept = {name: arena.state[name].clone() for name in (ROWS_LENGTH, LAST)}
            arena.fixed.copy_(fixed)
            for name, value in kept.items():
                arena.state[name].copy_(value)
        elif way == RESTORES[2]:
            arena.rows[:rows].copy_(written[:rows])
        self.arm.place(HOME_RAD)
        return self.finish(recall, shown[cut:])

    def _take_away(self) -> None:
        arena = self.session.arena
        if self.without == NO_ROWS:
            arena.rows[: self.session.host.rows].zero_()
        elif self.without == NO_RECURRENT:
            for name, tensor in arena.state.items():
                if name.endswith((".recurrent", ".conv")):
                    tensor.zero_()


def session_of(policy: HybridPolicy) -> PolicySession:
    """A session with room for two capsules."""
    return PolicySession(policy, store_bytes=64 << 20, rollback_depth=0, preview_sets=0)


def undrafted(policy: HybridPolicy) -> HybridPolicy:
    """The same weights, decoding plainly."""
    network = policy.module()
    return HybridPolicy(dataclasses.replace(network.config, drafts=0), network)


def measure(
    episodes: int, seed: int, experiment: bool, directory: Path | None = None
) -> tuple[dict[str, int], float]:
    """Counts successes.

    Args:
        episodes: For each of the cases.
        seed: Of the episodes.
        experiment: With the interrupted episodes.
        directory: Of other weights.

    Returns:
        Successes by case, and the share of the drafts looked at that were accepted.
    """
    recalls, counts = draw_recalls(seed, episodes), {}
    right = looked = 0
    for name in (WHOLE, NO_RECURRENT, NO_ROWS, NO_DRAFTS):
        policy = make(directory)
        session = session_of(undrafted(policy) if name == NO_DRAFTS else policy)
        rollout = Rollout(session, name)
        counts[name] = 0
        for recall in recalls:
            counts[name] += rollout.bare(recall)
            if name == WHOLE:
                rounds = session.arena.state[ACCEPTED].tolist()
                accepted = sum(n * count for n, count in enumerate(rounds))
                right, looked = right + accepted, looked + accepted + sum(rounds[:-1])
    if experiment:
        rollout = Rollout(session_of(make(directory)))
        pairs = list(zip(recalls, draw_recalls(seed + 1, episodes), strict=True))
        for way in RESTORES:
            counts[way] = sum(rollout.interrupted(*pair, way) for pair in pairs)
    return counts, right / max(1, looked)


def recorded(index: int, steps: int) -> list[dict[str, torch.Tensor]]:
    """Observations of an episode that the policy has driven itself, at rest after its end.

    In those of odd number nothing is shown at first, so that they differ in what is counted.
    """
    rollout = Rollout(session_of(make()))
    recall = draw_recalls(100, index + 1, longest_wait=8)[index]
    rollout.begin(recall)
    still: list[Shown] = [(None, 0)] * (steps if index % 2 else 0)
    shown = [*still, *timetable(recall), *[(None, 0)] * steps][:steps]
    for place_m, number in shown:
        rollout.step(place_m, number)
    assert {QUESTION} < set(rollout.seen[0])
    return rollout.seen


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the module.

    Args:
        argv: Arguments; None for those of the process.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(description="Success of the hybrid policy.")
    parser.add_argument("--episodes", type=episodes, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--experiment", action="store_true", help="also interrupted episodes")
    parser.add_argument("--policy", type=Path, help="directory of other weights")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    counts, accepted = measure(options.episodes, options.seed, options.experiment, options.policy)
    if options.json:
        found = {"episodes": options.episodes, "successes": counts, "accepted": accepted}
        print(json.dumps(found))
        return 0
    for name, successes in counts.items():
        low, high = wilson(successes, options.episodes)
        print(
            f"{name:40} {successes:4d} of {options.episodes}  "
            f"{successes / options.episodes:6.1%}  (95 %: {low:.1%} to {high:.1%})"
        )
    print(f"drafts accepted: {accepted:.1%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(in_words(main))
