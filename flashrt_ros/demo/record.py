"""Writes a run as an MCAP bag: the bytes of each message as received, with their definitions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PointStamped
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from rosbags.interfaces import (
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from flashrt_ros.demo.client import POLICY
from flashrt_ros.errors import StorageError
from flashrt_ros.msg import ActionChunk, CapsuleEvent, PolicyStatus, PolicyStep, Provenance
from flashrt_ros.ros.share import PACKAGE, shared


@dataclass(frozen=True)
class Topic:
    """What is recorded.

    Attributes:
        name: Relative or absolute topic name.
        kind: Message class.
        latched: Whether its publisher keeps the last message for those who come late.
    """

    name: str
    kind: Any
    latched: bool = False

    @property
    def type_name(self) -> str:
        """Such as ``sensor_msgs/msg/JointState``."""
        return f"{self.kind.__module__.split('.')[0]}/msg/{self.kind.__name__}"


TOPICS = (
    Topic("cue", PointStamped),
    Topic("joint_states", JointState),
    Topic("joint_command", JointState),
    Topic(f"{POLICY}/policy_step", PolicyStep),
    Topic(f"{POLICY}/capsule_event", CapsuleEvent),
    Topic(f"{POLICY}/action_chunk", ActionChunk),
    Topic(f"{POLICY}/status", PolicyStatus, latched=True),
    Topic(f"{POLICY}/provenance", Provenance, latched=True),
    Topic("/diagnostics", DiagnosticArray),
    Topic("tree_snapshot", String),
)

DEPTH = 1000
"""Messages of a topic that may wait: several seconds of a machine that others keep busy."""
HEARD = ("joint_states", f"{POLICY}/provenance")
MATCHED = ("cue", f"{POLICY}/policy_step", f"{POLICY}/capsule_event")


def typestore() -> Typestore:
    """The types of Jazzy and those of this package.

    Raises:
        NotFoundError: The .msg files are nowhere; see ``shared``.
    """
    store = get_typestore(Stores.ROS2_JAZZY)
    types: dict[str, Any] = {}
    for file in sorted(shared("msg").glob("*.msg")):
        types.update(
            get_types_from_msg(file.read_text(encoding="utf-8"), f"{PACKAGE}/msg/{file.stem}")
        )
    store.register(types)
    return store


class Recorder:
    """Records topics while in a ``with`` block.

    Messages are written from the node's executor; leave the block only when that has stopped
    spinning, and ``drain`` it before, or the last messages are lost. A disk that is full ends the
    recording and not the run: it is said when the block is left.
    """

    def __init__(self, node: Node, path: Path, topics: Sequence[Topic] = TOPICS) -> None:
        """Prepares to record.

        Args:
            node: Whose subscriptions.
            path: Directory of the bag; must not exist.
            topics: What to record.
        """
        self.node, self.path, self.topics = node, path, topics
        self.counts = {topic.name: 0 for topic in topics}
        self._open = False
        self._fault = ""

    def __enter__(self) -> Recorder:
        """Opens the bag and subscribes.

        Raises:
            StorageError: The directory exists or cannot be made.
        """
        store = typestore()
        if self.path.exists():
            raise StorageError(f"bag {self.path}: exists; name a directory that does not")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = Writer(self.path, version=9, storage_plugin=StoragePlugin.MCAP)
            self._writer.open()
        except OSError as error:
            raise StorageError(f"bag {self.path}: cannot be made ({error})") from error
        self._open = True
        self.subscriptions = [self._subscribe(topic, store) for topic in self.topics]
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Closes the bag.

        Raises:
            StorageError: It is not whole; what was written before stays.
        """
        self._open = False
        try:
            self._writer.close()
        except OSError as error:
            self._fault = self._fault or f"its end could not be written ({error})"
        if self._fault and kind is None:
            raise StorageError(f"bag {self.path}: not whole: {self._fault}")

    def drain(self) -> None:
        """Writes what has come and no executor has taken; once nobody spins the node any more.

        An executor takes one message of each topic in turn. Where it is behind, a control step is
        taken before the input that it was computed from, and without that it proves nothing.
        """
        for subscription in self.subscriptions:
            with subscription.handle:
                while taken := subscription.handle.take_message(subscription.msg_type, True):
                    subscription.callback(taken[0])

    def unheard(self) -> list[str]:
        """What is not recorded from its first message on, in words; empty: all that comes will be.

        A publisher that has not yet discovered a subscription sends nothing to it, and what it
        sends to one that does not know it yet is lost. Both publishers whose messages are awaited
        have discovered the subscription to their topic, and so those that were made before it;
        ``TOPICS`` is in that order.
        """
        found = [f"message on {name}" for name in HEARD if not self.counts.get(name, 1)]
        for topic, subscription in zip(self.topics, self.subscriptions, strict=True):
            if topic.name in MATCHED and not subscription.get_publisher_count():
                found.append(f"publisher of {topic.name} that the recorder knows")
        return found

    def _subscribe(self, topic: Topic, store: Typestore) -> Any:
        name = self.node.resolve_topic_name(topic.name)
        connection = self._writer.add_connection(
            name, topic.type_name, typestore=store, offered_qos_profiles=[_qos(topic.latched)]
        )

        def write(data: bytes) -> None:
            if not self._open:
                return
            try:
                self._writer.write(connection, time.time_ns(), data)
            except OSError as error:
                self._open = False
                recorded = sum(self.counts.values())
                self._fault = f"after {recorded} messages: {error}"
                self.node.get_logger().error(f"recording ends {self._fault}")
                return
            self.counts[topic.name] += 1

        profile = QoSProfile(depth=DEPTH)
        if topic.latched:
            profile.durability = DurabilityPolicy.TRANSIENT_LOCAL
        return self.node.create_subscription(topic.kind, name, write, profile, raw=True)


def _qos(latched: bool) -> Qos:
    """As the publisher offers it, for those who play the bag again."""
    never = QosTime(2147483647, 4294967295)
    return Qos(
        QosHistory.KEEP_LAST,
        1 if latched else 10,
        QosReliability.RELIABLE,
        QosDurability.TRANSIENT_LOCAL if latched else QosDurability.VOLATILE,
        never,
        never,
        QosLiveliness.AUTOMATIC,
        never,
        False,
    )
