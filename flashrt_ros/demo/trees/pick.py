"""Pick and retry: the block is knocked away under the hand, and the policy does not know it.

snapshot, try; on FAILURE restore, reseed, try again     the block is picked where it lies now
try; on FAILURE try again                                 the policy goes on putting down nothing
"""

from __future__ import annotations

from py_trees.behaviour import Behaviour
from py_trees.composites import Sequence
from py_trees.decorators import Retry

from flashrt_ros.demo.behaviour import Do
from flashrt_ros.demo.trees.episode import GOAL_M, Episode, begun
from flashrt_ros.demo.trees.onlooker import Onlooker
from flashrt_ros.trees import Pause, Resume, RetryFromCapsule

WALL = False
SEED, UNLUCKY_SEED = 0, 12
"""With the second the policy puts its hand 25 mm off the middle of the block, and misses."""
KNOCK_M_S = (0.9, 0.3)
TRIES = 2


def attempt(onlooker: Onlooker) -> Behaviour:
    """One try, from wherever the last one left the arm."""
    return Sequence(
        "attempt",
        memory=True,
        children=[
            Pause(),
            onlooker.home(),
            Resume(),
            onlooker.until_lifted(),
            onlooker.until_placed(GOAL_M),
        ],
    )


def episodes(onlooker: Onlooker) -> list[Episode]:
    """With a capsule, and as a control without."""

    def ambush() -> Behaviour:
        return Do("somebody lies in wait", lambda: onlooker.knock(KNOCK_M_S))

    retry = RetryFromCapsule("pick", attempt(onlooker), attempts=TRIES, seed=SEED)
    reseeded = RetryFromCapsule("pick", attempt(onlooker), attempts=TRIES, seed=SEED)
    control = Retry("pick again", attempt(onlooker), num_failures=TRIES)
    return [
        Episode(
            "knocked, then from its capsule",
            begun("knocked", onlooker, SEED, [ambush(), retry]),
            succeeds=True,
            facts=lambda: {"attempts": retry.attempt},
            expected={"attempts": 2},
        ),
        Episode(
            "an unlucky seed, then another",
            begun("unlucky", onlooker, UNLUCKY_SEED, [reseeded]),
            succeeds=True,
            facts=lambda: {"attempts": reseeded.attempt},
            expected={"attempts": 2},
        ),
        Episode(
            "control: knocked, then just again",
            begun("no capsule", onlooker, SEED, [ambush(), control]),
            succeeds=False,
        ),
    ]
