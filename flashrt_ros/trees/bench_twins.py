"""The twins of ``flashrt_ros bench trees``, of py_trees."""

from __future__ import annotations

from typing import Any

import py_trees
from py_trees.behaviour import Behaviour
from py_trees.behaviours import TickCounter
from py_trees.common import Status
from py_trees.composites import Sequence

from flashrt_ros.trees.bench_peer import EVERY, Tick, Twins
from flashrt_ros.trees.housekeeping import DropCapsule, GetCapsule, ListCapsules
from flashrt_ros.trees.linked import Linked
from flashrt_ros.trees.verb import Fork, Preview, ResetEpisode, Restore, Rollback, Snapshot


class Empty(Behaviour):
    """What is left of a verb without its call: RUNNING for one tick, then SUCCESS."""

    def initialise(self) -> None:
        """Called at the first tick."""
        self._asked = False

    def update(self) -> Status:
        """Called at each tick."""
        before, self._asked = self._asked, True
        return Status.SUCCESS if before else Status.RUNNING


def verbs() -> list[Behaviour]:
    """Each changes what the others find; none of them lets the node wait."""
    return [
        Snapshot(capsule="bench", replace=True),
        Fork(source="bench", branches=["branch"]),
        Preview(branches=["branch"]),
        Restore(capsule="branch", publish=True),
        ListCapsules(),
        DropCapsule(capsule="branch"),
        Rollback(steps=1, publish=True),
        GetCapsule(capsule="bench"),
        ResetEpisode(),
    ]


def spaced(leaves: list[Behaviour]) -> Behaviour:
    """The leaves in turn, so that one begins in every ``EVERY``-th tick."""
    tree = Sequence("bench", memory=True)
    for leaf in leaves:
        rest = TickCounter(f"after {leaf.name}", EVERY - 2, Status.SUCCESS)
        tree.add_children([leaf, rest])
    return tree


def make(node: Any) -> Twins:
    """Sets both up.

    Args:
        node: ROS node.
    """
    leaves = verbs()
    root, twin = spaced(leaves), spaced([Empty(leaf.name) for leaf in leaves])
    py_trees.trees.setup(root, node=node)
    (first, *_) = (leaf.link for leaf in leaves if isinstance(leaf, Linked))
    assert first is not None

    def close() -> None:
        root.stop(Status.INVALID)
        for behaviour in root.iterate():
            behaviour.shutdown()

    return Twins(_ticker(root), _ticker(twin), first, len(leaves), close)


def _ticker(root: Behaviour) -> Tick:
    def tick() -> str:
        root.tick_once()
        tip = root.tip() if root.status is Status.FAILURE else None
        return "" if tip is None else f"{tip.name}: {tip.feedback_message}"

    return tick
