"""Publishes a recording: raw bytes out as they were recorded, pause by key and by service."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Collection, Iterator

import rclpy
from builtin_interfaces.msg import Time
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from rosgraph_msgs.msg import Clock
from std_srvs.srv import Trigger

from flashrt_ros.bag.message import Message
from flashrt_ros.bag.player import Player
from flashrt_ros.bag.reader import BagReader

# What is offered here satisfies every subscription, whatever it asks for.
QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=10,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
KEY_POLL_S = 0.1
SPIN_S = 0.1


class RosSink:
    """Publishers for the topics of a recording whose types are installed.

    Args:
        node: Owner of the publishers.
        reader: The recording.
        topics: Names of the topics wanted; None for all.

    Attributes:
        playable: Names of the topics that have a publisher.
        left_out: Why the others have none, in words.
    """

    def __init__(self, node: Node, reader: BagReader, topics: Collection[str] | None) -> None:
        self.left_out: list[str] = []
        self._publishers: dict[str, Publisher] = {}
        self._clock = node.create_publisher(Clock, "/clock", QOS)
        for topic in reader.topics:
            if topic.count == 0 or (topics is not None and topic.name not in topics):
                continue
            package, _, name = topic.type.partition("/msg/")
            try:
                kind = getattr(importlib.import_module(f"{package}.msg"), name)
                self._publishers[topic.name] = node.create_publisher(kind, topic.name, QOS)
            except (ImportError, AttributeError, ValueError):
                self.left_out.append(
                    f"{topic.name}: {_counted(topic.count, 'message')} of {topic.type}, which is "
                    "not installed"
                )
            except Exception as error:  # rclpy refuses names and types in many ways
                self.left_out.append(f"{topic.name}: {error}")
        self.playable = set(self._publishers)

    def publish(self, message: Message) -> None:
        """See ``Sink.publish``."""
        self._publishers[message.topic].publish(message.cdr)

    def tell_time(self, time_ns: int) -> None:
        """See ``Sink.tell_time``."""
        stamp = Time(sec=time_ns // 1_000_000_000, nanosec=time_ns % 1_000_000_000)
        self._clock.publish(Clock(clock=stamp))


def play(
    reader: BagReader,
    topics: Collection[str] | None = None,
    rate: float = 1.0,
    loop: bool = False,
    paused: bool = False,
    tell_time: bool = False,
) -> int:
    """Plays until the end, SIGINT, SIGTERM or the key q.

    Args:
        reader: The recording, open.
        topics: Names of the topics wanted; None for all.
        rate: Recorded seconds per second.
        loop: Begin again at the end.
        paused: Begin paused.
        tell_time: Publish the recorded time on ``/clock``.

    Returns:
        0, or 1 where nothing could be played.

    Raises:
        InvalidArgumentError: The rate is not above 0, or there is nothing to play.
    """
    context = rclpy.Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node("flashrt_ros_play", context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    try:
        sink = RosSink(node, reader, topics)
        for words in sink.left_out:
            print(f"  not played: {words}")
        if not sink.playable:
            print("nothing can be played")
            return 1
        player = Player(
            reader, sink, sink.playable, rate=rate, loop=loop, paused=paused, tell_time=tell_time
        )
        _offer_services(node, player)
        with _signals(player.stop), _keys(player), _spinning(executor):
            state = "paused" if paused else "playing"
            keys = "; space pauses, q ends" if sys.stdin.isatty() else ""
            print(f"{state}: {_counted(len(sink.playable), 'topic')} at rate {rate:g}{keys}")
            sys.stdout.flush()
            played = player.run()
    finally:
        executor.shutdown()
        node.destroy_node()
        context.try_shutdown()
    loops = f" in {_counted(played.loops, 'loop')}" if loop else ""
    print(
        f"played {_counted(played.messages, 'message')}{loops}; "
        f"latest {played.latest_ms:.1f} ms after its time"
    )
    return 0


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _offer_services(node: Node, player: Player) -> None:
    def answer(act: Callable[[], None]) -> Callable[[Trigger.Request, Trigger.Response], object]:
        def respond(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
            act()
            response.success = True
            response.message = "paused" if player.paused else "playing"
            return response

        return respond

    node.create_service(Trigger, "~/pause", answer(player.pause))
    node.create_service(Trigger, "~/resume", answer(player.resume))
    node.create_service(Trigger, "~/toggle", answer(player.toggle))


@contextlib.contextmanager
def _spinning(executor: SingleThreadedExecutor) -> Iterator[None]:
    """Services are answered meanwhile, in a thread of their own.

    It has ended before anything is torn down: a node that is destroyed under it ends the process.
    """
    ended = threading.Event()

    def spin() -> None:
        with contextlib.suppress(ExternalShutdownException):
            while not ended.is_set():
                executor.spin_once(timeout_sec=SPIN_S)

    thread = threading.Thread(target=spin, name="services", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        executor.wake()
        thread.join()


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Ends the playing at SIGINT and SIGTERM; both work as before afterwards."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    # The handler runs in the thread that plays, which may hold the player's lock: another stops.
    handler = lambda *_: threading.Thread(target=stop).start()  # noqa: E731
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)


@contextlib.contextmanager
def _keys(player: Player) -> Iterator[None]:
    """Obeys the space and q keys where a terminal is there, and puts it back as it was."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            if not select.select([descriptor], [], [], KEY_POLL_S)[0]:
                continue
            key = os.read(descriptor, 1).decode("ascii", "replace")
            if key == " ":
                player.toggle()
                print("paused" if player.paused else "playing", flush=True)
            elif key == "q":
                player.stop()

    watcher = threading.Thread(target=watch, daemon=True)
    tty.setcbreak(descriptor)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
