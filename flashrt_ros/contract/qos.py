"""DDS settings of a topic, as the contract file gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Qos:
    """DDS settings of one topic; the values are the words of ``rclpy.qos``.

    Attributes:
        reliability: ``best_effort`` or ``reliable``.
        durability: ``volatile`` or ``transient_local``.
        depth: Messages kept.
        deadline_ms: Longest time between two messages that is offered; 0: none.
        liveliness: ``automatic``: alive as long as the process; ``manual_by_topic``: as long as
            the control thread keeps its period.
        lease_ms: Without a sign of life for so long it counts as gone; 0: never.
    """

    reliability: str = "best_effort"
    durability: str = "volatile"
    depth: int = 1
    deadline_ms: float = 0.0
    liveliness: str = "automatic"
    lease_ms: float = 0.0


KEYS = (
    *("profile", "reliability", "durability", "depth"),
    *("deadline_ms", "liveliness", "lease_ms"),
)
COMMAND_KEYS = ("deadline_ms", "liveliness", "lease_ms")
"""Of commands alone: what comes in is watched by ``max_age_ms``."""
PROFILES: Mapping[str, Qos] = {
    "default": Qos("reliable", "volatile", 10),
    "sensor_data": Qos("best_effort", "volatile", 5),
    "latched": Qos("reliable", "transient_local", 1),
}
"""By the names that ROS has for them, and its habit for what is said once."""
