"""Publishes a recording: raw bytes out of generic publishers, at the times a player gives.

What is played, and when, is decided elsewhere (``Playing``); here are publishers, the services
``~/pause`` and ``~/resume``, the space key, and an orderly end.
"""

from __future__ import annotations

import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from std_srvs.srv import Trigger

from flashrt_ros.ros import messages
from flashrt_ros.ros.runner import run

DEPTH = 10
LATCHED_NAMES = ("tf_static", "robot_description", "map")
"""Last words of topics that are published once for all who come later."""


class Recorded(Protocol):
    """One message to publish."""

    topic: str
    cdr: bytes


class Playing(Protocol):
    """Decides what is published when; ``run`` calls the node from a thread of its own."""

    @property
    def paused(self) -> bool:
        """Whether it holds still."""

    def run(self) -> Any:
        """Plays to the end, or until ``stop``; its result is printed."""

    def pause(self) -> None:
        """Holds still."""

    def resume(self) -> None:
        """Goes on."""

    def toggle(self) -> None:
        """Pauses or resumes."""

    def stop(self) -> None:
        """Ends ``run``."""


class PlayNode(Node):
    """The node ``player``: where played messages go.

    Attributes:
        finished: True when ``run`` of the player has returned.
        result: What it returned.
        skipped: Topics whose type is not installed here, with the type.
        error: What it raised.
    """

    def __init__(
        self, make_player: Callable[[PlayNode], Playing], topics: Iterable[tuple[str, str]]
    ) -> None:
        """Makes publishers and services, and starts to play.

        Args:
            make_player: Makes the player, which calls ``publish`` and ``tell_time``.
            topics: Names and full type names of the topics to play.
        """
        super().__init__("player")
        self.finished = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.skipped: dict[str, str] = {}
        self._publishers_by_topic: dict[str, Any] = {}
        self._clock_publisher: Any = None
        for topic, type_name in topics:
            self._open(topic, type_name)
        self.player = make_player(self)
        self.create_service(Trigger, "~/pause", self._pause)
        self.create_service(Trigger, "~/resume", self._resume)
        self._thread = threading.Thread(target=self._play, name="player", daemon=True)
        self._thread.start()

    def _open(self, topic: str, type_name: str) -> None:
        try:
            cls = messages.interface(type_name)
        except (ImportError, AttributeError, ValueError):
            self.skipped[topic] = type_name
            self.get_logger().warning(
                f"{topic} is not played: expected its type {type_name} to be installed here"
            )
            return
        latched = topic.rsplit("/", 1)[-1] in LATCHED_NAMES
        # Reliable is what every subscriber accepts.
        qos = QoSProfile(
            depth=DEPTH,
            reliability=ReliabilityPolicy.RELIABLE,
            durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
        )
        self._publishers_by_topic[topic] = self.create_publisher(cls, topic, qos)

    def publish(self, message: Recorded) -> None:
        """Sends one message as it was recorded; of a skipped topic, nothing."""
        publisher = self._publishers_by_topic.get(message.topic)
        if publisher is not None:
            publisher.publish(bytes(message.cdr))

    def tell_time(self, time_ns: int) -> None:
        """Sends the recorded time on ``/clock``."""
        if self._clock_publisher is None:
            self._clock_publisher = self.create_publisher(Clock, "/clock", 1)
        self._clock_publisher.publish(Clock(clock=messages.time_of(time_ns)))

    def _play(self) -> None:
        try:
            self.result = self.player.run()
        except BaseException as error:
            self.error = error
        self.finished = True

    def _pause(self, request: Any, response: Any) -> Any:
        self.player.pause()
        response.success, response.message = True, "paused"
        return response

    def _resume(self, request: Any, response: Any) -> Any:
        self.player.resume()
        response.success, response.message = True, "playing"
        return response

    def destroy_node(self) -> None:
        """Ends the player first."""
        self.player.stop()
        self._thread.join()
        super().destroy_node()


def play(
    make_player: Callable[[PlayNode], Playing],
    topics: Iterable[tuple[str, str]],
    args: list[str] | None = None,
) -> int:
    """Plays until the end, SIGINT or SIGTERM.

    Args:
        make_player: See ``PlayNode``.
        topics: See ``PlayNode``.
        args: For rclpy; None: the command line of the process.

    Returns:
        Exit code.
    """
    nodes: list[PlayNode] = []

    def factory() -> PlayNode:
        nodes.append(PlayNode(make_player, topics))
        return nodes[0]

    with _space_key(lambda: nodes[0].player.toggle() if nodes else None):
        code = run(factory, args, until=lambda: nodes[0].finished)
    if not nodes:
        return code
    if nodes[0].error is not None:
        raise nodes[0].error
    if nodes[0].result is not None:
        print(nodes[0].result)
    return code


@contextmanager
def _space_key(pressed: Callable[[], None]) -> Iterator[None]:
    """Calls ``pressed`` for each space typed, where there is a terminal to type on."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    saved = termios.tcgetattr(sys.stdin)
    ended = threading.Event()

    def listen() -> None:
        while not ended.is_set():
            if select.select([sys.stdin], [], [], 0.1)[0] and sys.stdin.read(1) == " ":
                pressed()

    thread = threading.Thread(target=listen, name="space-key", daemon=True)
    tty.setcbreak(sys.stdin)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)
