"""The examples in XML, run by BehaviorTree.CPP; its leaves are the onlooker's behaviours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import py_trees
from py_trees.behaviour import Behaviour
from py_trees.common import Status

from flashrt_ros.demo.behaviour import Do
from flashrt_ros.demo.trees.branches import PASSED_M
from flashrt_ros.demo.trees.episode import GOAL_M, Episode, Facts
from flashrt_ros.demo.trees.onlooker import Onlooker
from flashrt_ros.demo.trees.pick import KNOCK_M_S
from flashrt_ros.demo.trees.watchdog import SILENCE_S
from flashrt_ros.trees.btcpp import Ports, Steps, Tree, TreeFactory
from flashrt_ros.trees.linked import Linked

FAILED = "failed"
EXPECTED: dict[str, Facts] = {
    "pick": {"attempts": 2, FAILED: "BlockLifted"},
    "branches": {"winner": 1, FAILED: "PastThePost"},
    "watchdog": {FAILED: "running?"},
}
"""By example: entries of the blackboard at its end, and which leaf failed first."""


class XmlTree(Linked):
    """A tree of BehaviorTree.CPP as a behaviour, so that it is played like the others.

    Attributes:
        leaves: By ID in XML, what they are.
        facts: What is asked for, once it has ended.
    """

    def __init__(self, path: Path, leaves: dict[str, Behaviour], facts: Iterable[str]) -> None:
        """Prepares it.

        Args:
            path: XML file.
            leaves: See the class.
            facts: Entries of the blackboard that are whole numbers, and ``FAILED``.
        """
        super().__init__(path.name)
        self.path, self.leaves = path, leaves
        self.facts: Facts = dict.fromkeys(facts)
        self._tree: Tree | None = None

    def setup(self, **kwargs: Any) -> None:
        """Makes the tree; called once, before the first tick."""
        super().setup(**kwargs)
        factory = TreeFactory(kwargs["node"], self.policy)
        for name, leaf in self.leaves.items():
            py_trees.trees.setup(leaf, **kwargs)
            factory.leaf(name, steps_of(leaf))
        self._tree = factory.load(self.path)

    def shutdown(self) -> None:
        """Gives everything back; called once, after the last tick."""
        tree, self._tree = self._tree, None
        if tree is not None:
            tree.close()
            for leaf in self.leaves.values():
                for behaviour in leaf.iterate():
                    behaviour.shutdown()
        super().shutdown()

    def update(self) -> Status:
        """Ticks it; called at each tick."""
        assert self._tree is not None
        status = Status(self._tree.tick())
        if status is not Status.RUNNING:
            self._look(self._tree)
        return status

    def _look(self, tree: Tree) -> None:
        failed = [outcome for outcome in tree.outcomes if outcome.status == "FAILURE"]
        for name in self.facts:
            if name != FAILED:
                self.facts[name] = int(float(tree.entry(name)))
            elif failed:
                self.facts[name] = failed[0].name
        if failed:
            self.feedback_message = f"{failed[-1].name}: {failed[-1].message}"

    def terminate(self, new_status: Status) -> None:
        """Halts it where it was interrupted."""
        if new_status is Status.INVALID and self._tree is not None:
            self._tree.halt()

    def text(self) -> str:
        """Which leaves ended, in order, and how."""
        assert self._tree is not None
        words = [
            f"{outcome.status:8} {outcome.name}  {outcome.message}".rstrip()
            for outcome in self._tree.outcomes
        ]
        lines = [f"{self.name} {self.status.value}"]
        for line, same in groupby(words):
            count = len(list(same))
            lines.append(f"    {line}" + (f" ({count} times)" if count > 1 else ""))
        return "\n".join(lines) + "\n"


def steps_of(behaviour: Behaviour) -> Callable[[Ports], Steps]:
    """A behaviour of py_trees as a leaf of BehaviorTree.CPP."""

    def steps(ports: Ports) -> Steps:
        try:
            behaviour.tick_once()
            while behaviour.status is Status.RUNNING:
                yield
                behaviour.tick_once()
            return behaviour.status is Status.SUCCESS
        finally:
            if behaviour.status is Status.RUNNING:
                behaviour.stop(Status.INVALID)

    return steps


def episode(example: str, onlooker: Onlooker) -> Episode:
    """An example in XML.

    Args:
        example: Its name.
        onlooker: Who does what concerns the world.
    """
    leaves = {
        "SetUp": onlooker.set_up(),
        "SeeCue": onlooker.cue(GOAL_M),
        "HideCue": onlooker.hide_cue(GOAL_M),
        "GoHome": onlooker.home(),
        "PastThePost": onlooker.until_past("past the post", PASSED_M),
        "BlockLifted": onlooker.until_lifted(),
        "BlockPlaced": onlooker.until_placed(GOAL_M),
        "Ambush": Do("ambush", lambda: onlooker.knock(KNOCK_M_S)),
        "Silence": Do("silence", lambda: onlooker.silence(SILENCE_S)),
    }
    expected = EXPECTED[example]
    root = XmlTree(Path(__file__).with_name(f"{example}.xml"), leaves, expected)
    return Episode("in XML", root, True, lambda: root.facts, expected)
