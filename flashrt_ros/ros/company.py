"""Others where a policy node should be alone: publishers on its action topics, and namesakes.

Two nodes that command one arm pull it to and fro, and ``~/stop`` of one leaves the other moving.
Two nodes of one name answer the same services, so a call reaches one of them, whichever it is.
The graph is looked at once a second, by the executor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rclpy.node import Node

from flashrt_ros.contract import Contract
from flashrt_ros.ros.diagnostics import Entry, Level
from flashrt_ros.ros.outlet import RosOutlet

STEPS = "policy_step"
"""Below its own name every policy node publishes this; that tells it from other publishers."""


def full_name(namespace: str, name: str) -> str:
    """As ``get_fully_qualified_name`` has it."""
    return f"{namespace.rstrip('/')}/{name}"


class Company:
    """What the graph has beside one node; used by its executor alone."""

    def __init__(self, node: Node, outlet: RosOutlet) -> None:
        """Begins alone.

        Args:
            node: Whose graph is looked at.
            outlet: For the log and names of topics.
        """
        self._node = node
        self._outlet = outlet
        self._name = node.get_fully_qualified_name()
        self._namesakes = 0
        self._others: dict[str, tuple[str, ...]] = {}
        self._policies: frozenset[str] = frozenset()

    def look(self, contract: Contract | None, dry_run: bool) -> None:
        """Finds who else is there; logs whoever is new.

        Args:
            contract: Of the configured node; None before.
            dry_run: Whether others are meant to command: then they are no news.
        """
        names = self._node.get_node_names_and_namespaces()
        namesakes = sum(full_name(space, name) == self._name for name, space in names) - 1
        if namesakes > self._namesakes:
            self._outlet.log("warn", self._namesake_words(namesakes))
        self._namesakes = max(namesakes, 0)
        outputs = contract.actions if contract is not None else ()
        topics = [self._outlet.topic_name(output.topic) for output in outputs]
        found = {topic: self._publishers(topic, n) for topic, n in Counter(topics).items()}
        self._policies = frozenset(
            name for others in found.values() for name in others if self._is_policy(name)
        )
        for topic, others in found.items():
            if not dry_run and set(others) - set(self._others.get(topic, ())):
                self._outlet.log("warn", f"output {topic}: {self._words(others)}")
        # What a dry run keeps quiet is news when it ends.
        self._others = {} if dry_run else found

    def mark(self, outputs: Sequence[Entry], active: bool) -> list[Entry]:
        """Output entries, worsened where others publish, see ``entry`` for namesakes.

        Args:
            outputs: Entries called ``output TOPIC``.
            active: Whether the node may command: then another policy is an error.
        """
        for entry in outputs:
            if others := self._others.get(entry.name.removeprefix("output "), ()):
                grave = active and not self._policies.isdisjoint(others)
                entry.worsen(Level.ERROR if grave else Level.WARN, self._words(others))
        return list(outputs)

    def entry(self) -> Entry:
        """Whether the name is ours alone."""
        entry = Entry("node name", values={"nodes of this name": str(self._namesakes + 1)})
        if self._namesakes:
            entry.worsen(Level.WARN, self._namesake_words(self._namesakes))
        return entry

    def _publishers(self, topic: str, ours: int) -> tuple[str, ...]:
        """Full names of the nodes that publish, without as many of our name as are ours."""
        peers = self._node.get_publishers_info_by_topic(topic)
        names = Counter(full_name(peer.node_namespace, peer.node_name) for peer in peers)
        names.subtract({self._name: ours})
        return tuple(sorted(name for name, count in names.items() if count > 0))

    def _is_policy(self, name: str) -> bool:
        # A namesake's topics cannot be told from ours: the graver of the two is assumed.
        return self._node.count_publishers(f"{name}/{STEPS}") > 0

    def _words(self, others: Sequence[str]) -> str:
        named = ", ".join(
            ("another " if name == self._name else "")
            + (f"policy node {name}" if name in self._policies else name)
            for name in others
        )
        return f"also published by {named}: ~/stop of this node does not stop what others command"

    def _namesake_words(self, count: int) -> str:
        others = "another node" if count == 1 else f"{count} other nodes"
        return (
            f"{others} of the name {self._name}: a service call reaches one of them only, ~/stop "
            "too; give each its own name or namespace (one that was killed stays for some seconds)"
        )
