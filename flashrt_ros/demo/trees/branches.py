"""Two ways round a post from one capsule; a wall that the policy cannot see closes one of them.

fork; restore the first, try; on FAILURE restore the second, try     the second gets there
try; on FAILURE try again                                             the same way again
"""

from __future__ import annotations

from py_trees.behaviour import Behaviour
from py_trees.composites import Sequence

from flashrt_ros.demo.trees.episode import GOAL_M, Episode, begun
from flashrt_ros.demo.trees.onlooker import Onlooker
from flashrt_ros.trees import Pause, Resume, RetryFromCapsule, TryBranches

WALL = True
NEAR_SEED, FAR_SEED = 2, 0
"""The policy draws from its noise which way it goes."""
PASSED_M = 0.1
"""y of the hand when it has passed the post."""


def way(name: str, onlooker: Onlooker) -> Behaviour:
    """Goes round the post and does the rest."""
    return Sequence(
        name,
        memory=True,
        children=[
            Pause(),
            onlooker.home(),
            Resume(),
            onlooker.until_past("past the post", PASSED_M),
            onlooker.until_placed(GOAL_M),
        ],
    )


def episodes(onlooker: Onlooker) -> list[Episode]:
    """With branches, and as a control without: the same noise chooses the same way."""
    either = TryBranches(
        "either way",
        [way("one way", onlooker), way("the other", onlooker)],
        seeds=[NEAR_SEED, FAR_SEED],
    )
    control = RetryFromCapsule("again", way("a way", onlooker), attempts=2, reseed=False)
    return [
        Episode(
            "two branches of one capsule",
            begun("branched", onlooker, NEAR_SEED, [either]),
            succeeds=True,
            facts=lambda: {"winner": either.winner},
            expected={"winner": 1},
        ),
        Episode(
            "control: the same way again",
            begun("no branches", onlooker, NEAR_SEED, [control]),
            succeeds=False,
            facts=lambda: {"attempts": control.attempt},
            expected={"attempts": 2},
        ),
    ]
