"""The processes that stand around the node in a benchmark.

Run as ``python -m flashrt_ros.ros.bench_peer ROLE OPTIONS`` with options as one JSON object:

``arm``      publishes ``joint_states`` and takes ``joint_command`` for its position, until killed
``camera``   publishes images of noise, until killed
``trigger``  a bare std_srvs/Trigger server, until killed
``record``   collects ``policy/policy_step`` for some seconds
``call``     calls services in turn and times them
``configure`` configures the node
``start``    configures and activates the node, and times its first command

The last four print one JSON line and end.
"""

from __future__ import annotations

import array
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import Image, JointState
from std_srvs.srv import Trigger

from flashrt_ros.msg import PolicyStep
from flashrt_ros.ros.allocator import keep_memory
from flashrt_ros.ros.runner import make_executor, spin_once
from flashrt_ros.srv import ResetEpisode, Restore, Snapshot

RELIABLE = QoSProfile(depth=10)
SENSOR = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
PATIENCE_S = 60.0
CAPSULE = "bench"
LATENESS = "late_ms p50 p99 max"
"""Key of the node's diagnostics."""


@contextmanager
def spinning(name: str) -> Iterator[Node]:
    """Makes a node whose callbacks run in a thread of their own.

    Ends in order, on SIGTERM too: else each process would leave its shared memory behind.
    """
    keep_memory()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node(name)
    executor = make_executor()
    executor.add_node(node)
    ended = threading.Event()
    thread = threading.Thread(target=_spin, args=(executor, node, ended))
    thread.start()
    try:
        yield node
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ended.set()
        executor.create_task(lambda: None)  # makes spin_once return
        thread.join()
        executor.remove_node(node)
        node.destroy_node()
        executor.shutdown()
        rclpy.try_shutdown()


def _spin(executor: Any, node: Node, ended: threading.Event) -> None:
    while not ended.is_set():
        spin_once(executor, node)


def arm(names: list[str], rate_hz: float, at: float = 0.0) -> None:
    """Stands where it was last told to, ``at`` first, and says so at a steady rate."""
    position = dict.fromkeys(names, at)

    def obey(command: JointState) -> None:
        position.update(zip(command.name, command.position, strict=False))

    with spinning("arm") as node:
        node.create_subscription(JointState, "joint_command", obey, RELIABLE)
        publisher = node.create_publisher(JointState, "joint_states", RELIABLE)
        message = JointState(name=names, velocity=[0.0] * len(names))
        deadline_s = time.monotonic()
        while True:
            message.header.stamp = node.get_clock().now().to_msg()
            message.position = [position[name] for name in names]
            publisher.publish(message)
            deadline_s += 1.0 / rate_hz
            time.sleep(max(deadline_s - time.monotonic(), 0.0))


def camera(topic: str, height: int, width: int, rate_hz: float) -> None:
    """Publishes rgb8 images, best effort as camera drivers do, each unlike the one before."""
    size = 3 * width * height
    noise = np.random.default_rng(0).integers(0, 256, 2 * size, np.uint8).tobytes()
    frames = [array.array("B", noise[begin : begin + size]) for begin in range(0, size, size // 8)]
    with spinning(topic.split("/")[0]) as node:
        publisher = node.create_publisher(Image, topic, SENSOR)
        message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
        deadline_s = time.monotonic()
        while True:
            message.data = frames[int(deadline_s * rate_hz) % len(frames)]
            message.header.stamp = node.get_clock().now().to_msg()
            publisher.publish(message)
            deadline_s += 1.0 / rate_hz
            time.sleep(max(deadline_s - time.monotonic(), 0.0))


def trigger() -> None:
    """Answers at once."""
    rclpy.init(args=[])
    node = rclpy.create_node("bare")

    def answer(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success = True
        return response

    node.create_service(Trigger, "~/trigger", answer)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    with suppress(ExternalShutdownException):
        executor.spin()
    node.destroy_node()
    rclpy.try_shutdown()


def record(seconds: float, settle_s: float) -> None:
    """Collects what the node says of its control steps, once it has run for ``settle_s``.

    Prints a line when it begins. Lateness comes from the node's diagnostics, since a period in
    which an action is waited for has no ``policy_step``: percentiles of its last ten seconds.
    """
    steps: list[PolicyStep] = []
    late: list[list[float]] = []
    inputs: dict[str, dict[str, str]] = {}
    plans: dict[str, str] = {}

    def diagnose(message: DiagnosticArray) -> None:
        for status in message.status:
            if ": input " in status.name:
                name = status.name.split(": input ")[1]
                inputs[name] = {pair.key: pair.value for pair in status.values}
            if status.name.endswith(": plans"):
                plans.update({pair.key: pair.value for pair in status.values})
            late.extend(
                [float(word) for word in pair.value.split()]
                for pair in status.values
                if pair.key == LATENESS
            )

    with spinning("recorder") as node:
        node.create_subscription(PolicyStep, "policy/policy_step", steps.append, 100)
        node.create_subscription(DiagnosticArray, "/diagnostics", diagnose, 10)
        wait_for(lambda: any(step.published for step in steps), "a published step")
        time.sleep(settle_s)
        print(json.dumps({"recording": True}), flush=True)
        steps.clear()
        time.sleep(seconds)
        seen = list(steps)
        wait_for(lambda: bool(late), "diagnostics")
        print(
            json.dumps(
                {
                    "period_ms": [step.period_ms for step in seen],
                    "latency_ms": [step.latency_ms for step in seen],
                    "late_ms": late[-1],
                    "inputs": inputs,
                    "plans": plans,
                    "image_age_ms": [
                        stamp.age_ms
                        for step in seen
                        for stamp in step.observations
                        if stamp.topic.endswith("image_raw")
                    ],
                    "published": sum(step.published for step in seen),
                    "reasons": sorted({step.hold_reason for step in seen if step.hold_reason}),
                }
            )
        )


def call(rounds: int, running: bool, settle_s: float, rest_s: float) -> None:
    """Calls Trigger, snapshot, reset_episode and restore in turn, over and over.

    Args:
        rounds: Calls of each.
        running: Wait until the node publishes commands, and look that it still does at the end.
        settle_s: Wait that long before the first call.
        rest_s: Wait that long after each round: a plan that a reset has overtaken begins anew, and
            without a rest none would ever end.
    """
    steps: list[PolicyStep] = []
    with spinning("caller") as node:
        node.create_subscription(PolicyStep, "policy/policy_step", steps.append, 100)
        calls: dict[str, tuple[Any, Any]] = {
            "Trigger": (node.create_client(Trigger, "bare/trigger"), Trigger.Request()),
            "snapshot": (
                node.create_client(Snapshot, "policy/snapshot"),
                Snapshot.Request(name=CAPSULE, replace=True),
            ),
            "reset_episode": (
                node.create_client(ResetEpisode, "policy/reset_episode"),
                ResetEpisode.Request(),
            ),
            "restore": (
                node.create_client(Restore, "policy/restore"),
                Restore.Request(name=CAPSULE, publish=running),
            ),
        }
        for client, _ in calls.values():
            if not client.wait_for_service(PATIENCE_S):
                raise TimeoutError(f"no service {client.srv_name}")
        if running:
            wait_for(lambda: any(step.published for step in steps), "a published step")
        time.sleep(settle_s)
        steps.clear()
        took: dict[str, list[float]] = {name: [] for name in calls}
        refused: list[str] = []
        for index in range(rounds + 1):
            for name, (client, request) in calls.items():
                answer, took_us = _call(client, request)
                if not answer.success and len(refused) < 5:
                    refused.append(f"{name}: {answer.message}")
                if index:  # the first round finds nothing prepared
                    took[name].append(took_us)
                # Calls that follow each other at once would all meet the same phase of a period.
                time.sleep(0.003 + 0.017 * (index * 0.6180339887 % 1.0))
            time.sleep(rest_s)
        time.sleep(1.0)
        latency_ms = [step.latency_ms for step in steps]
        tail = steps[-10:]
        print(
            json.dumps(
                {
                    "took_us": took,
                    "refused": refused,
                    "latency_ms": latency_ms,
                    "running_at_end": any(step.published for step in tail),
                }
            )
        )


def configure() -> None:
    """Configures the node and leaves it inactive."""
    with spinning("configurer") as node:
        _transition(node, Transition.TRANSITION_CONFIGURE)
        print(json.dumps({"configured": True}))


def start() -> None:
    """Configures and activates the node; prints milliseconds to the answers and first command."""
    first: list[float] = []
    came = threading.Event()

    def arrive(_: JointState) -> None:
        if not came.is_set():
            first.append(time.perf_counter())
            came.set()

    with spinning("starter") as node:
        node.create_subscription(JointState, "joint_command", arrive, RELIABLE)
        if not node.create_client(ChangeState, "policy/change_state").wait_for_service(PATIENCE_S):
            raise TimeoutError("no service policy/change_state")
        ready_ns = time.time_ns()
        begin_s = time.perf_counter()
        _transition(node, Transition.TRANSITION_CONFIGURE)
        configured_s = time.perf_counter()
        _transition(node, Transition.TRANSITION_ACTIVATE)
        if not came.wait(PATIENCE_S):
            raise TimeoutError("no command came")
        print(
            json.dumps(
                {
                    "ready_ns": ready_ns,
                    "configured_ms": (configured_s - begin_s) * 1e3,
                    "first_command_ms": (first[0] - begin_s) * 1e3,
                }
            )
        )


def _transition(node: Node, transition: int) -> None:
    client = node.create_client(ChangeState, "policy/change_state")
    if not client.wait_for_service(PATIENCE_S):
        raise TimeoutError("no service policy/change_state")
    answer, _ = _call(client, ChangeState.Request(transition=Transition(id=transition)))
    if not answer.success:
        raise RuntimeError(f"transition {transition} failed; see the node's words")


def _call(client: Any, request: Any) -> tuple[Any, float]:
    """Returns the response and the microseconds from the call to its arrival."""
    arrived = threading.Event()
    begin_s = time.perf_counter()
    future = client.call_async(request)
    future.add_done_callback(lambda _: arrived.set())
    if not arrived.wait(PATIENCE_S):
        raise TimeoutError(f"{client.srv_name}: no answer")
    return future.result(), (time.perf_counter() - begin_s) * 1e6


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Waits; raises TimeoutError with ``what`` did not come."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError(f"{what} did not come")
        time.sleep(0.02)


ROLES: dict[str, Callable[..., None]] = {
    "arm": arm,
    "camera": camera,
    "trigger": trigger,
    "record": record,
    "call": call,
    "configure": configure,
    "start": start,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](**json.loads(sys.argv[2]))
