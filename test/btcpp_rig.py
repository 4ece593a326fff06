"""Trees of BehaviorTree.CPP on a node without ROS, with a leaf that ends as told."""

from __future__ import annotations

from pathlib import Path

from tree_rig import FakeNode

from flashrt_ros.trees.btcpp import Ports, Steps, Tree, TreeFactory


class Plant:
    """A factory on a policy node that answers at once, with a leaf ``Try`` that ends as told.

    Attributes:
        outcomes: Of ``Try``, in turn.
        live: Of the policy whenever ``Try`` began.
    """

    def __init__(self, folder: Path) -> None:
        self.node = FakeNode()
        self.server = self.node.server
        self.factory = TreeFactory(self.node, "/policy")
        self.outcomes: list[bool] = []
        self.live: list[tuple[int, str]] = []
        self._path = folder / "tree.xml"
        self.factory.leaf("Try", self._try)

    def _try(self, ports: Ports) -> Steps:
        self.live.append(self.server.live)
        yield
        return self.outcomes.pop(0)

    def write(self, body: str, more: str = "") -> Path:
        tree = f'<BehaviorTree ID="Main">{body}</BehaviorTree>{more}'
        self._path.write_text(f'<root BTCPP_format="4" main_tree_to_execute="Main">{tree}</root>')
        return self._path

    def tree(self, body: str, more: str = "") -> Tree:
        tree = self.factory.load(self.write(body, more))
        tree.link.clock = lambda: self.node.now_s
        return tree

    def tick(self, tree: Tree) -> str:
        status = tree.tick()
        self.node.now_s += 0.1
        self.node.spin()
        return status

    def through(self, tree: Tree) -> str:
        for _ in range(200):
            if (status := self.tick(tree)) != "RUNNING":
                return status
        raise AssertionError(list(tree.outcomes))

    def run(self, body: str, more: str = "") -> tuple[str, Tree]:
        """Status of a tree, which is closed."""
        with self.tree(body, more) as tree:
            return self.through(tree), tree
