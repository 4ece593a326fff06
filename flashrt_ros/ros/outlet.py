"""Publishers of the node; what the control thread reports becomes messages here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rclpy.duration import Duration
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, LivelinessPolicy, QoSProfile, ReliabilityPolicy

from flashrt_ros.contract import Command, Contract
from flashrt_ros.contract.recording import below
from flashrt_ros.contract.schema import Qos
from flashrt_ros.msg import ActionChunk, CapsuleEvent, PolicyStatus, PolicyStep, Provenance
from flashrt_ros.ros import messages
from flashrt_ros.ros.quiet import Quiet
from flashrt_ros.ros.records import (
    ChunkRecord,
    EventRecord,
    ProvenanceRecord,
    StatusRecord,
    StepRecord,
)

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
RECORD_DEPTH = 500
"""Steps, chunks and events that are kept for a recorder which gets no processor for some seconds:
without each of them what it has recorded proves nothing."""


def qos_profile(qos: Qos) -> QoSProfile:
    """The profile that a contract's words stand for."""
    return QoSProfile(
        depth=qos.depth,
        reliability=ReliabilityPolicy.RELIABLE
        if qos.reliability == "reliable"
        else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL
        if qos.durability == "transient_local"
        else DurabilityPolicy.VOLATILE,
        deadline=_duration(qos.deadline_ms),
        liveliness=LivelinessPolicy.MANUAL_BY_TOPIC
        if qos.liveliness == "manual_by_topic"
        else LivelinessPolicy.AUTOMATIC,
        liveliness_lease_duration=_duration(qos.lease_ms),
    )


def _duration(time_ms: float) -> Duration:
    """Zero stands for no limit, in ROS as in the contract."""
    return Duration(nanoseconds=round(time_ms * 1e6))


class RosOutlet:
    """See ``records.Outlet``. rclpy publishers may be used from any thread.

    Attributes:
        resolved: Topic of an input as the contract writes it to its name in the graph; filled by
            the subscriptions.
        on_fault: Called when diagnostics should be published at once.
        last_error: The last words logged as an error.
    """

    def __init__(self, node: Node) -> None:
        """Makes the publishers that exist in every lifecycle state."""
        self.resolved: dict[str, str] = {}
        self.on_fault: Callable[[], None] = lambda: None
        self.last_error = ""
        self._node = node
        self._clock = node.get_clock()
        self._logger = node.get_logger()
        self._quiet = Quiet()
        self._step = node.create_publisher(PolicyStep, "~/policy_step", RECORD_DEPTH)
        self._chunk = node.create_publisher(ActionChunk, "~/action_chunk", RECORD_DEPTH)
        self._event = node.create_publisher(CapsuleEvent, "~/capsule_event", RECORD_DEPTH)
        # Events come from the control thread and from the storage thread.
        self._event_lock = threading.Lock()
        self._events = 0
        self._status = node.create_publisher(PolicyStatus, "~/status", LATCHED)
        self._provenance = node.create_publisher(Provenance, "~/provenance", LATCHED)
        self._commands: dict[str, tuple[Any, Any]] = {}
        self._shadows: dict[str, Any] = {}
        self._manual: tuple[Any, ...] = ()

    def open(
        self,
        contract: Contract,
        create_publisher: Callable[..., Any],
        endpoint: Callable[[str, str, Qos], tuple[QoSProfile, Callable[[Any], None]]],
    ) -> None:
        """Makes the command publishers.

        Args:
            contract: Says topics, types and QoS.
            create_publisher: Of the lifecycle node, for lifecycle publishers.
            endpoint: The profile, and what is called when a subscriber asks for more than is
                offered, from ``output``, the topic and the contract's QoS.
        """
        for output in contract.actions:
            cls = messages.interface(output.type)
            profile, incompatible = endpoint("output", output.topic, output.qos)
            publisher = create_publisher(
                cls,
                output.topic,
                profile,
                event_callbacks=PublisherEventCallbacks(incompatible_qos=incompatible),
            )
            self._commands[output.topic] = (publisher, cls())
            name = f"~/shadow/{below(output.topic)}"
            self._shadows[output.topic] = self._node.create_publisher(cls, name, 10)
            if profile.liveliness == LivelinessPolicy.MANUAL_BY_TOPIC:
                self._manual = (*self._manual, publisher)

    def alive(self) -> None:
        """Tells subscribers that watch ``manual_by_topic`` that the control thread is at work."""
        for publisher in self._manual:
            publisher.assert_liveliness()

    def close(self, destroy_publisher: Callable[[Any], Any]) -> None:
        """Destroys the command publishers."""
        self._manual = ()
        for publisher, _ in self._commands.values():
            destroy_publisher(publisher)
        self._commands.clear()
        for publisher in self._shadows.values():
            self._node.destroy_publisher(publisher)
        self._shadows.clear()

    def topic_name(self, topic: str) -> str:
        """Name in the graph of an output as the contract writes it."""
        entry = self._commands.get(topic)
        return str(entry[0].topic_name) if entry else topic

    def stamp_ns(self) -> int:
        """ROS clock: simulated time where ``use_sim_time`` is set."""
        return int(self._clock.now().nanoseconds)

    def send(self, commands: Sequence[Command]) -> None:
        """Publishes commands."""
        for command in commands:
            publisher, message = self._commands[command.output.topic]
            # Always the same one: its fields are those of the contract, and all are written.
            publisher.publish(messages.fill(message, command.fields))

    def shadow(self, commands: Sequence[Command]) -> None:
        """Publishes below ``~/shadow``."""
        for command in commands:
            _, message = self._commands[command.output.topic]
            shadow = self._shadows[command.output.topic]
            shadow.publish(messages.fill(message, command.fields))

    def flush(self, timeout_s: float) -> bool:
        """Waits for acknowledgements of reliable subscribers, at most ``timeout_s`` in all."""
        until_s = time.monotonic() + timeout_s
        acked = True
        for publisher, _ in self._commands.values():
            left_s = max(until_s - time.monotonic(), 0.0)
            acked &= publisher.wait_for_all_acked(Duration(nanoseconds=int(left_s * 1e9)))
        return acked

    def step(self, record: StepRecord) -> None:
        """Publishes ``~/policy_step``."""
        self._step.publish(messages.policy_step(record, self.stamp_ns(), self.resolved))

    def chunk(self, record: ChunkRecord) -> None:
        """Publishes ``~/action_chunk``."""
        self._chunk.publish(messages.action_chunk(record, self.stamp_ns()))

    def event(self, record: EventRecord) -> None:
        """Publishes ``~/capsule_event``."""
        with self._event_lock:
            self._events += 1
            message = messages.capsule_event(record, self.stamp_ns(), self._events)
            self._event.publish(message)

    def provenance(self, record: ProvenanceRecord) -> None:
        """Publishes ``~/provenance``; events are counted anew."""
        with self._event_lock:
            self._events = 0
        self._provenance.publish(messages.provenance(record, self.stamp_ns()))

    def status(self, record: StatusRecord) -> None:
        """Publishes ``~/status``."""
        self._status.publish(messages.policy_status(record, self.stamp_ns()))

    def fault(self) -> None:
        """Publishes diagnostics now."""
        self.on_fault()

    def log(self, level: str, words: str) -> None:
        """Logs, unless the very same was said within a second."""
        if level == "error":
            self.last_error = words
        if words := self._quiet.heed(words):
            self.say(level, words)

    def say(self, level: str, words: str) -> None:
        """Logs in any case: what must stand in the log however often it is said."""
        # rclpy refuses two severities from one line of code.
        if level == "error":
            self._logger.error(words)
        elif level == "warn":
            self._logger.warning(words)
        else:
            self._logger.info(words)
