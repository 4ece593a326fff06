"""The recall task: three places are shown one after the other, later one is asked for by number.

A question says "the second": the arm must go to the place that was shown second. So a policy has
to count what it is shown, to keep where each was, and to find the right one again. Until it is
asked the arm stays at home; what was asked last holds when the question has gone.

Besides the joint targets an action says where the arm is going, which is what has been recalled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashrt_ros.demo.arm import CONTROL_HZ, JOINTS
from flashrt_ros.demo.task import RING_CENTRE_M, TARGET_COUNT, Array, targets
from flashrt_ros.policies.recurrent_config import VectorConfig

RATE_HZ = 25.0
"""Of control steps; the arm's physics takes two of its steps for each."""
SUBSTEPS = round(CONTROL_HZ / RATE_HZ)
PLACES = 3
HOME = TARGET_COUNT
"""Index of the goal of an arm that has not been asked."""
SHOWN_STEPS, GAP_STEPS, ASKED_STEPS = (6, 10), (3, 7), (6, 11)
"""Least number of control steps, and one more than the most."""
FIRST_WAIT_STEPS = 4
"""Between the last place and the question there are at least so many."""

STATE, CUE, QUESTION = "observation.state", "observation.cue", "observation.question"
OBSERVATIONS = (
    VectorConfig(
        STATE,
        4,
        ("joint1.position", "joint2.position", "joint1.velocity", "joint2.velocity"),
        normalisation="mean_std",
    ),
    VectorConfig(CUE, 3, ("x", "y", "present"), required=False, normalisation="mean_std"),
    VectorConfig(QUESTION, 2, ("number", "present"), required=False, normalisation="mean_std"),
)
ACTION = VectorConfig("action", 4, ("goal.x", "goal.y", *JOINTS), normalisation="min_max")
GOAL_BOUNDS_M = ((0.3, -0.25), (0.8, 0.25))
"""Least and greatest x and y of a goal."""


def goals() -> Array:
    """``(9, 2)`` float64: the targets, then home, metres in the base frame."""
    return np.concatenate((targets(), [RING_CENTRE_M]))


def observation(
    position_rad: Array, velocity_rad_s: Array, place_m: Array | None, number: int
) -> dict[str, npt.NDArray[np.float32]]:
    """What the policy sees, as the contract assembles it from the topics.

    Args:
        position_rad: ``(2,)``.
        velocity_rad_s: ``(2,)``.
        place_m: ``(2,)`` x and y in the base frame of the place shown, or None.
        number: What is asked for, from 1; 0: nothing.
    """
    cue = (0.0, 0.0, 0.0) if place_m is None else (place_m[0], place_m[1], 1.0)
    return {
        STATE: np.concatenate((position_rad, velocity_rad_s)).astype(np.float32),
        CUE: np.asarray(cue, np.float32),
        QUESTION: np.asarray((number, float(number > 0)), np.float32),
    }


@dataclass(frozen=True)
class Recall:
    """What chance decides about one episode.

    Attributes:
        places: Indices of the places shown, all different, in their order.
        shown_steps: How long each is shown, control steps.
        gap_steps: From the end of each to the next; the last: to the question.
        number: What is asked for, from 1.
        asked_steps: How long the question stands.
        seed: Of the noise on what is measured.
    """

    places: tuple[int, ...]
    shown_steps: tuple[int, ...]
    gap_steps: tuple[int, ...]
    number: int
    asked_steps: int
    seed: int

    @property
    def goal(self) -> int:
        """Index of the place asked for."""
        return self.places[self.number - 1]


def draw_recalls(seed: int, count: int, longest_wait: int = 40) -> list[Recall]:
    """Draws episodes; every place is asked for in turn.

    Args:
        seed: The first ``n`` episodes of a seed are the same for every count of at least ``n``.
        count: How many.
        longest_wait: Most control steps from the last place to the question.
    """
    found = []
    for index in range(count):
        rng = np.random.default_rng((seed, index))
        number = 1 + index % PLACES
        places = [int(place) for place in rng.permutation(TARGET_COUNT)[:PLACES]]
        shown = rng.integers(*SHOWN_STEPS, PLACES)
        gaps = [*rng.integers(*GAP_STEPS, PLACES - 1)]
        gaps.append(rng.integers(FIRST_WAIT_STEPS, longest_wait + 1))
        found.append(
            Recall(
                tuple(places),
                tuple(int(steps) for steps in shown),
                tuple(int(steps) for steps in gaps),
                number,
                int(rng.integers(*ASKED_STEPS)),
                int(rng.integers(1, 2**31)),
            )
        )
    return found
