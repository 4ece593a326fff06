"""The twins of ``flashrt_ros bench trees``, of BehaviorTree.CPP."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from flashrt_ros.trees.bench_peer import EVERY, Tick, Twins
from flashrt_ros.trees.btcpp.factory import Tree, TreeFactory
from flashrt_ros.trees.btcpp.leaf import Steps
from flashrt_ros.trees.btcpp.ports import Ports

VERBS = (
    '<Snapshot capsule="bench" replace="true"/>',
    '<Fork source="bench" names="branch"/>',
    '<Preview branches="branch"/>',
    '<Restore capsule="branch" publish="true"/>',
    "<ListCapsules/>",
    '<DropCapsule capsule="branch"/>',
    '<Rollback steps="1" publish="true"/>',
    '<GetCapsule capsule="bench"/>',
    "<ResetEpisode/>",
)
"""As in the twins of py_trees."""


def empty(ports: Ports) -> Steps:
    """What is left of a verb without its call: RUNNING for one tick, then SUCCESS."""
    yield
    return True


def rest(ports: Ports) -> Steps:
    """Until the next verb begins."""
    for _ in range(EVERY - 2):
        yield
    return True


def make(node: Any) -> Twins:
    """Makes both.

    Args:
        node: ROS node.
    """
    factory = TreeFactory(node)
    factory.leaf("Empty", empty)
    factory.leaf("Rest", rest)
    with tempfile.TemporaryDirectory() as folder:
        trees = [
            _load(factory, Path(folder) / "tree.xml", leaves)
            for leaves in (VERBS, ["<Empty/>"] * len(VERBS))
        ]

    def close() -> None:
        for tree in trees:
            tree.close()

    verbs, twin = trees
    return Twins(_ticker(verbs), _ticker(twin), verbs.link, len(VERBS), close)


def _load(factory: TreeFactory, path: Path, leaves: Any) -> Tree:
    body = "".join(f"{leaf}<Rest/>" for leaf in leaves)
    tree = f'<BehaviorTree ID="Bench"><Sequence>{body}</Sequence></BehaviorTree>'
    path.write_text(f'<root BTCPP_format="4">{tree}</root>')
    return factory.load(path)


def _ticker(tree: Tree) -> Tick:
    def tick() -> str:
        failed = tree.tick() == "FAILURE"
        return f"{tree.outcomes[-1].name}: {tree.outcomes[-1].message}" if failed else ""

    return tick
