"""QoS by parameter, as ROS nodes have it: ``qos_overrides./TOPIC.subscription.reliability``.

For whoever deploys a node and may not change its contract. rclpy's own overrides cannot be taken
back when a node is cleaned up, and the next contract would inherit them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rcl_interfaces.msg import ParameterDescriptor
from rclpy.node import Node
from rclpy.parameter import Parameter

from flashrt_ros.contract.schema import Qos
from flashrt_ros.errors import InvalidArgumentError

PREFIX = "qos_overrides."
CHOICES: Mapping[str, tuple[str, ...]] = {
    "reliability": ("best_effort", "reliable"),
    "durability": ("volatile", "transient_local"),
    "liveliness": ("automatic", "manual_by_topic"),
}
WORDS = ("reliability", "durability", "depth")
PROMISES = ("deadline", "liveliness", "liveliness_lease_duration")
"""Of publishers alone; times in nanoseconds, as rclpy has them."""
FIELDS = {"deadline": "deadline_ms", "liveliness_lease_duration": "lease_ms"}
MOST = {"depth": 1000, "deadline": 60 * 10**9, "liveliness_lease_duration": 60 * 10**9}


class QosOverrides:
    """The overrides of one node, declared while it is configured."""

    def __init__(self, node: Node) -> None:
        """Begins without any."""
        self._node = node
        self._declared: list[str] = []

    def of(self, kind: str, topic: str, qos: Qos) -> Qos:
        """The QoS of an endpoint, with what parameters say.

        Args:
            kind: ``subscription`` or ``publisher``.
            topic: As the contract writes it.
            qos: Of the contract.

        Raises:
            InvalidArgumentError: A parameter's value is none of its policy.
        """
        resolved = self._node.resolve_topic_name(topic)
        changes: dict[str, Any] = {}
        for word in (*WORDS, *(PROMISES if kind == "publisher" else ())):
            field = FIELDS.get(word, word)
            default = getattr(qos, field)
            if word in FIELDS:
                default = round(default * 1e6)
            value = self._declare(f"{PREFIX}{resolved}.{kind}.{word}", default, word)
            changes[field] = value / 1e6 if word in FIELDS else value
        return dataclasses.replace(qos, **changes)

    def _declare(self, name: str, default: str | int, word: str) -> Any:
        if self._node.has_parameter(name):
            return self._node.get_parameter(name).value
        descriptor = ParameterDescriptor(
            description=f"QoS in place of the contract's: {word} (given at start)",
            dynamic_typing=True,
        )
        value = self._node.declare_parameter(name, default, descriptor).value
        self._declared.append(name)
        choices, most = CHOICES.get(word, ()), MOST.get(word, 0)
        least = 1 if word == "depth" else 0
        number = isinstance(value, int) and not isinstance(value, bool)
        if value in choices if choices else number and least <= value <= most:
            return value
        wanted = f"one of {', '.join(choices)}" if choices else f"a whole number {least} to {most}"
        raise InvalidArgumentError(f"parameter {name!r}: expected {wanted}, found {value!r}")

    def forget(self) -> None:
        """Takes the parameters back, at clean-up: the next contract may have other topics."""
        declared, self._declared = self._declared, []
        for name in declared:
            self._node.undeclare_parameter(name)

    def unheeded(self, given: Mapping[str, Parameter]) -> list[str]:
        """Overrides that were given and are of no topic of the configured node."""
        if not self._declared:
            return []
        return [n for n in given if n.startswith(PREFIX) and n not in self._declared]
