"""A sensor falls silent while the arm carries the block; a subtree pauses and goes on again.

running?  else pause, wait until the inputs are fresh, resume     the block arrives
the same, and the sensor stays silent                             the arm stands, and it says so
"""

from __future__ import annotations

from py_trees.behaviour import Behaviour
from py_trees.common import ParallelPolicy
from py_trees.composites import Parallel, Selector, Sequence
from py_trees.decorators import Count

from flashrt_ros.demo.behaviour import Do
from flashrt_ros.demo.trees.episode import GOAL_M, Episode, begun
from flashrt_ros.demo.trees.onlooker import LIMIT_S, Onlooker
from flashrt_ros.trees import Pause, Resume, WaitUntilFresh

WALL = False
SEED = 0
SILENCE_S, LONG_SILENCE_S = 1.0, 30.0
PATIENCE_S = 2.5


def watchdog(pause: Behaviour, patience_s: float) -> Behaviour:
    """SUCCESS while the policy runs; else RUNNING until it does again, FAILURE if it does not."""
    again = Sequence(
        "until it can go on",
        memory=True,
        children=[
            pause,
            WaitUntilFresh("inputs fresh", held=True, timeout_s=patience_s),
            Resume(),
            WaitUntilFresh(),
        ],
    )
    running = WaitUntilFresh("running?", timeout_s=0.0)
    return Selector("watchdog", memory=False, children=[running, again])


def watched(
    onlooker: Onlooker, pause: Behaviour, silence_s: float, patience_s: float
) -> Behaviour:
    """Carries the block, watched; the sensor falls silent on the way."""
    task = Sequence(
        "carry",
        memory=True,
        children=[
            onlooker.until_lifted(),
            Do("the sensor falls silent", lambda: onlooker.silence(silence_s)),
            onlooker.until_placed(GOAL_M, silence_s + LIMIT_S),
        ],
    )
    together = Parallel(
        "watched",
        # Its own outcome is that of the task; a watchdog that gives up ends both.
        policy=ParallelPolicy.SuccessOnSelected([task], synchronise=False),
        children=[watchdog(pause, patience_s), task],
    )
    return Sequence("go", memory=True, children=[Resume(), WaitUntilFresh(), together])


def episodes(onlooker: Onlooker) -> list[Episode]:
    """A silence that ends, and as a control one that does not."""
    pause, control = Count("pauses", Pause()), Count("pauses", Pause())
    return [
        Episode(
            "silent for a second",
            begun("silent", onlooker, SEED, [watched(onlooker, pause, SILENCE_S, 4 * PATIENCE_S)]),
            succeeds=True,
            facts=lambda: {"paused": pause.success_count > 0},
            expected={"paused": True},
        ),
        Episode(
            "control: silent for good",
            begun(
                "silent for good",
                onlooker,
                SEED,
                [watched(onlooker, control, LONG_SILENCE_S, PATIENCE_S)],
            ),
            succeeds=False,
            facts=lambda: {"paused": control.success_count > 0},
            expected={"paused": True},
        ),
    ]
