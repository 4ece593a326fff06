"""Peers whose QoS does not fit: named while they are there, forgotten when they are gone.

The middleware tells when such a peer appears and not when it goes, so the graph is looked at once
a second, as long as there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible

from flashrt_ros.contract.schema import Qos
from flashrt_ros.ros.outlet import RosOutlet, qos_profile
from flashrt_ros.ros.parameters import overrides_of
from flashrt_ros.ros.qos_overrides import QosOverrides

OUTPUT = "output"
ENDLESS_NS = 2**62
"""The graph tells of no limit as a time of centuries; a profile that leaves it open has zero."""


@dataclass
class _Misfit:
    """A topic that some peer cannot share with us."""

    direction: str
    name: str
    policy: str
    ours: QoSProfile


class QosWatch:
    """Incompatible peers of one node; used by its executor alone."""

    def __init__(self, node: Node, outlet: RosOutlet, changed: Callable[[], None]) -> None:
        """Begins without any.

        Args:
            node: Whose graph is looked at.
            outlet: For the log.
            changed: Called when a peer came that does not fit, and when the last one is gone.
        """
        self._node = node
        self._outlet = outlet
        self._changed = changed
        self._found: dict[str, _Misfit] = {}
        self._told: dict[str, Callable[[str], None]] = {}
        self._overrides = QosOverrides(node)
        self._warned: set[str] = set()

    @property
    def incompatible(self) -> dict[str, str]:
        """Topic as the contract writes it to the QoS policy that does not fit."""
        return {topic: misfit.policy for topic, misfit in self._found.items()}

    def reset(self) -> None:
        """Forgets all, at clean-up."""
        self._found.clear()
        self._told.clear()
        self._warned.clear()
        self._overrides.forget()

    def endpoint(
        self,
        direction: str,
        topic: str,
        qos: Qos,
        tell: Callable[[str], None] | None = None,
    ) -> tuple[QoSProfile, Callable[[Any], None]]:
        """The profile of an endpoint, and what it calls with its event of an incompatible QoS.

        Args:
            direction: ``input``, ``output`` or other words for the log.
            topic: As the contract writes it.
            qos: As the contract has it; parameters overrule it.
            tell: Called with words when a peer does not fit, with none when all do again.

        Raises:
            InvalidArgumentError: Such a parameter is wrong.
        """
        kind = "publisher" if direction == OUTPUT else "subscription"
        ours = qos_profile(self._overrides.of(kind, topic, qos))
        if tell is not None:
            self._told[topic] = tell

        def incompatible(event: Any) -> None:
            policy = event.last_policy_kind.name.removeprefix("RMW_QOS_POLICY_").lower()
            name = self._node.resolve_topic_name(topic)
            self._found[topic] = _Misfit(direction, name, policy, ours)
            words = f"incompatible QoS policy {policy}; nothing is exchanged"
            self._outlet.log("error", f"{direction} {topic}: {words}")
            self._tell(topic, words)

        return ours, incompatible

    def look_again(self) -> None:
        """Forgets topics of which no peer is left that does not fit."""
        for name in self._overrides.unheeded(overrides_of(self._node)):
            if name not in self._warned:
                self._warned.add(name)
                words = f"parameter {name!r} has no effect: this node has no such endpoint"
                self._outlet.log("warn", words)
        for topic, misfit in list(self._found.items()):
            if not self._misfits(misfit):
                del self._found[topic]
                self._outlet.log(
                    "info", f"{misfit.direction} {topic}: every peer's QoS fits again"
                )
                self._tell(topic, "")

    def _misfits(self, misfit: _Misfit) -> bool:
        if misfit.direction == OUTPUT:
            peers = self._node.get_subscriptions_info_by_topic(misfit.name)
            pairs = [(misfit.ours, peer.qos_profile) for peer in peers]
        else:
            peers = self._node.get_publishers_info_by_topic(misfit.name)
            pairs = [(peer.qos_profile, misfit.ours) for peer in peers]
        return any(
            qos_check_compatible(_plain(offered), _plain(asked))[0] == QoSCompatibility.ERROR
            for offered, asked in pairs
        )

    def _tell(self, topic: str, words: str) -> None:
        if (tell := self._told.get(topic)) is not None:
            tell(words)
        self._changed()


def _plain(profile: QoSProfile) -> QoSProfile:
    """The profile with limits that are none left open."""

    def limit(duration: Duration) -> Duration:
        return Duration() if duration.nanoseconds > ENDLESS_NS else duration

    return QoSProfile(
        depth=1,
        reliability=profile.reliability,
        durability=profile.durability,
        deadline=limit(profile.deadline),
        liveliness=profile.liveliness,
        liveliness_lease_duration=limit(profile.liveliness_lease_duration),
    )
