"""The other side of a policy node, in the process of the tests: a client, an observer, a robot."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import rclpy
import xxhash
from contract_examples import cdr, joint_state
from node_process import NodeProcess
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.exceptions import InvalidHandle
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState

DEADLINE_S = 60.0
"""For anything that is waited for; it only decides how long a failure takes."""
START_S = 240.0
"""For a process that loads torch beside others that keep the machine busy."""
RELIABLE = QoSProfile(depth=2000)
BEST_EFFORT = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
JOINTS = ("a", "b")


class Log(list[Any]):
    """Messages of one topic in the order of their arrival; appended to by the peer's thread.

    Attributes:
        matches: Publishers that were found so far, those that have gone since included. What one
            sends before it is found is lost.
    """

    matches = 0


class Pending:
    """A service call under way."""

    def __init__(self, future: Any, what: str, settle: Callable[[], None] = lambda: None) -> None:
        self._done = threading.Event()
        self._future = future
        self._settle = settle
        self.what = what
        future.add_done_callback(lambda _: self._done.set())

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def result(self, quote: Callable[[], str], timeout_s: float = DEADLINE_S) -> Any:
        if not self._done.wait(timeout_s):
            raise AssertionError(f"{self.what}: no answer within {timeout_s} s{quote()}")
        self._settle()
        return self._future.result()


class _Executor(SingleThreadedExecutor):
    """Tells whether it found anything to do.

    Attributes:
        worked: Set when it did.
    """

    worked = False

    def wait_for_ready_callbacks(self, *args: Any, **kwargs: Any) -> Any:
        ready = super().wait_for_ready_callbacks(*args, **kwargs)
        self.worked = True
        return ready


class Peer:
    """A ROS node with a context and a thread of its own.

    Attributes:
        node: For publishers.
        quote: What the node under test printed; for the messages of failures.
    """

    def __init__(self, domain: int) -> None:
        self._context = rclpy.Context()
        rclpy.init(context=self._context, domain_id=domain)
        assert self._context.get_domain_id() == domain
        self.node = rclpy.create_node("peer", context=self._context)
        self.quote: Callable[[], str] = lambda: ""
        self.alive: Callable[[], bool] = lambda: True
        self._clients: dict[str, Any] = {}
        self._arrived = threading.Condition()
        self._executor = _Executor(context=self._context)
        self._executor.add_node(self.node)
        self._to_settle = self._settled = 0
        self._wake = self.node.create_guard_condition(lambda: None)
        self._closing = False
        self._thread = threading.Thread(target=self._spin, name="peer", daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        idle = 0
        while not self._closing:
            wanted = self._to_settle
            self._executor.worked = False
            try:
                self._executor.spin_once(timeout_sec=0.1 if wanted == self._settled else 0.0)
            except InvalidHandle:
                # A test destroyed an entity after this round had listed it and before it waited,
                # so nothing was taken. The next round lists anew.
                self._executor.worked = True
            # The first round without work may be the rest of one with some.
            idle = 0 if self._executor.worked else idle + 1
            if wanted != self._settled and idle >= 2:
                with self._arrived:
                    self._settled, idle = wanted, 0
                    self._arrived.notify_all()

    def settle(self) -> None:
        """Returns when all that has come to this process by now is in the logs.

        rclpy takes one message of each topic in turn, so on a busy machine the answer of a service
        overtakes whatever the node published long before it.
        """
        with self._arrived:
            self._to_settle += 1
            wanted = self._to_settle
            self._wake.trigger()
            done = self._arrived.wait_for(lambda: self._settled >= wanted, DEADLINE_S)
        assert done, "the peer's thread is always busy, or gone"

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self._executor.shutdown()
        self.node.destroy_node()
        self._context.try_shutdown()

    def record(self, kind: Any, topic: str, qos: QoSProfile = RELIABLE, raw: bool = False) -> Log:
        """Keeps what arrives on a topic from now on."""
        log = Log()

        def receive(message: Any) -> None:
            with self._arrived:
                log.append(message)
                self._arrived.notify_all()

        def match(info: Any) -> None:
            with self._arrived:
                log.matches = info.total_count
                self._arrived.notify_all()

        events = SubscriptionEventCallbacks(matched=match)
        self.node.create_subscription(kind, topic, receive, qos, raw=raw, event_callbacks=events)
        return log

    def wait(
        self,
        found: Callable[[], Any],
        what: str,
        timeout_s: float = DEADLINE_S,
        seen: Callable[[], Any] = lambda: "",
    ) -> Any:
        """Waits until ``found`` returns something true, and returns it; see also ``settle``.

        Args:
            found: Called after every message.
            what: Is expected, in words.
            timeout_s: For all of it.
            seen: What there is instead, for the message of a failure.

        Raises:
            AssertionError: It takes too long, or the node ended; with what it printed.
        """
        end_s = time.monotonic() + timeout_s
        with self._arrived:
            while not (result := found()):
                if time.monotonic() > end_s:
                    raise AssertionError(
                        f"expected within {timeout_s} s: {what}; found {seen()}{self.quote()}"
                    )
                if not self.alive():
                    raise AssertionError(f"while waiting for: {what}{self.quote()}")
                self._arrived.wait(0.02)
        self.settle()
        return result

    def client(self, kind: Any, service: str) -> Any:
        """The client of a service, made when it is first asked for."""
        if service not in self._clients:
            self._clients[service] = self.node.create_client(kind, service)
        return self._clients[service]

    def send(self, kind: Any, service: str, **fields: Any) -> Pending:
        """Sends a request, as soon as the service is there."""
        client = self.client(kind, service)
        self.wait(client.service_is_ready, f"service {service}")
        future = client.call_async(kind.Request(**fields))
        return Pending(future, f"{service} {fields}", self.settle)

    def call(self, kind: Any, service: str, **fields: Any) -> Any:
        """Sends a request and waits for the response."""
        return self.send(kind, service, **fields).result(self.quote)

    def introduce(self, kind: Any, service: str) -> None:
        """Waits until the node of a service knows all clients that were made so far.

        A server drops its answer to a client whose reader it has not discovered within 0.1 s,
        which happens on a busy machine. Readers are announced in order, so an answer for the
        client made last says that all are known.

        Args:
            kind: Of a service that may be called any number of times.
            service: Its full name.
        """
        last = self.node.create_client(kind, service)
        self.wait(last.service_is_ready, f"service {service}", START_S)
        for _ in range(20):
            pending = Pending(last.call_async(kind.Request()), service)
            with contextlib.suppress(AssertionError):
                pending.result(self.quote, timeout_s=3.0)
                break
        else:
            raise AssertionError(f"the node does not answer{self.quote()}")
        self.node.destroy_client(last)


class Robot:
    """Publishes joint states in a thread of its own.

    Attributes:
        position: Of both joints, rad.
        velocity: Of both joints, rad/s; the first one tells ``puppet.Puppet`` what to do.
        quiet: True: nothing is published, from the moment on that it is set.
        published: xxh3_64 of each serialized message, oldest first.
    """

    def __init__(self, peer: Peer, topic: str = "/joint_states", qos: QoSProfile = RELIABLE):
        self.position = [0.1, -0.1]
        self.velocity = [0.0, 0.0]
        self._quiet = False
        self.alter: Callable[[JointState], Any] = lambda message: None
        self.mangle: Callable[[bytes], bytes] = lambda data: data
        self.published: list[int] = []
        self._peer = peer
        self._lock = threading.RLock()  # held while a message is made and published
        self._publisher = peer.node.create_publisher(JointState, topic, qos)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="robot", daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """As it was made."""
        with self._lock:
            self.position, self.velocity = [0.1, -0.1], [0.0, 0.0]
            self.alter = lambda message: None
            self.mangle = lambda data: data
            self.quiet = False

    @property
    def quiet(self) -> bool:
        return self._quiet

    @quiet.setter
    def quiet(self, quiet: bool) -> None:
        with self._lock:
            self._quiet = quiet

    def count(self) -> int:
        """How many messages it has published; none of them is half made or on its way out."""
        with self._lock:
            return len(self.published)

    def message(self) -> JointState:
        message = JointState(
            name=list(JOINTS), position=list(self.position), velocity=list(self.velocity)
        )
        message.header.stamp = self._peer.node.get_clock().now().to_msg()
        self.alter(message)
        return message

    def publish(self) -> None:
        with self._lock:
            self._publish()

    def _publish(self) -> None:
        message = self.message()
        stamp = message.header.stamp
        # By ourselves: rclpy leaves the gaps between fields as they were in memory.
        data = self.mangle(
            cdr(
                joint_state(
                    list(message.name),
                    message.position,
                    message.velocity,
                    stamp_ns=stamp.sec * 1_000_000_000 + stamp.nanosec,
                )
            )
        )
        self.published.append(xxhash.xxh3_64_intdigest(data))
        self._publisher.publish(data)

    def _run(self) -> None:
        while not self._closing.wait(0.02):
            with self._lock:
                if not self.quiet:
                    self._publish()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._peer.node.destroy_publisher(self._publisher)


def watch(peer: Peer, process: NodeProcess) -> None:
    """Failures of ``peer`` quote ``process`` from now on, and come at once when it ends."""
    peer.quote = process.quote
    peer.alive = lambda: process.code is None
