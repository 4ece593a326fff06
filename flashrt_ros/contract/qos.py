"""DDS settings of a topic, as the contract file gives them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Qos:
    """DDS settings of one topic; the values are the words of ``rclpy.qos``.

    Attributes:
        reliability: ``best_effort`` or ``reliable``.
        durability: ``volatile`` or ``transient_local``.
        depth: Messages kept.
    """

    reliability: str = "best_effort"
    durability: str = "volatile"
    depth: int = 1
