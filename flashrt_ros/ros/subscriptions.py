"""Subscriptions of the inputs: bytes go to the intake as they come, undecoded."""

from __future__ import annotations

from typing import Any

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node

from flashrt_ros.contract import Contract
from flashrt_ros.errors import UnsupportedError
from flashrt_ros.ros import messages
from flashrt_ros.ros.intake import Intake
from flashrt_ros.ros.qos_watch import QosWatch


def subscription(node: Node, word: str, cls: Any, topic: str, *rest: Any, **options: Any) -> Any:
    """``node.create_subscription``, whose refusal says of what.

    Raises:
        UnsupportedError: The middleware refused it, which names neither topic nor cause.
    """
    try:
        return node.create_subscription(cls, topic, *rest, **options)
    except RuntimeError as error:
        raise UnsupportedError(
            f"{word} {topic!r}: expected a subscription, and the middleware refused it: {error};"
            " with ROS_SECURITY_ENABLE the node's enclave must permit it (docs/security.md)"
        ) from error


def subscribe(node: Node, contract: Contract, intake: Intake, watch: QosWatch) -> dict[str, Any]:
    """Makes the subscriptions of a contract.

    Args:
        node: Their node.
        contract: Says topics, types and QoS.
        intake: Gets the bytes, and the count of what the middleware lost.
        watch: Told of QoS that does not fit.

    Returns:
        Subscriptions by topic as the contract writes it.

    Raises:
        UnsupportedError: See ``subscription``.
    """
    subscriptions = {}
    for topic, type_name, qos in contract.topics():

        def receive(cdr: bytes, topic: str = topic) -> None:
            intake.receive(topic, cdr)

        def lose(event: Any, topic: str = topic) -> None:
            intake.figures[topic].arrivals.lost = event.total_count

        profile, incompatible = watch.endpoint("input", topic, qos)
        subscriptions[topic] = subscription(
            node,
            "input",
            messages.interface(type_name),
            topic,
            receive,
            profile,
            raw=True,
            event_callbacks=SubscriptionEventCallbacks(
                incompatible_qos=incompatible, message_lost=lose
            ),
        )
    return subscriptions
