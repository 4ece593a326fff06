"""A controller behind the command topic learns that the node was killed, by QoS events alone.

A killed process sends no stop message; what is left is that its silence is noticed, and when.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from flashrt_ros.msg import PolicyStatus
from held import held
from rclpy.duration import Duration
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.qos import LivelinessPolicy, QoSProfile
from rclpy.time import Time
from sensor_msgs.msg import JointState
from stage import Stage, arm_contract

pytestmark = pytest.mark.ros
LEASE_MS, DEADLINE_MS = 3000.0, 1500.0
"""Longer than a busy machine stalls as a rule: what is missed while it does is no fault. The lease
is the longer one: CycloneDDS misses no deadline of a publisher that it knows to be gone."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("liveliness")) as stage:
        yield stage


class Controller:
    """Subscribes to commands as a controller would, and keeps what the middleware tells."""

    def __init__(self, stage: Stage, liveliness: LivelinessPolicy) -> None:
        self.alive: list[int] = []
        self.missed = 0
        self.received = 0
        self.last_stamp_ns = 0
        self.longest_gap_s = 0.0
        self.begun = 0  # how long ``alive`` was at the first command
        self._last_s = math.inf
        qos = QoSProfile(
            depth=10,
            deadline=Duration(nanoseconds=int(DEADLINE_MS * 1e6)),
            liveliness=liveliness,
            liveliness_lease_duration=Duration(nanoseconds=int(LEASE_MS * 1e6)),
        )
        self._node = stage.peer.node
        self._subscription = self._node.create_subscription(
            JointState,
            "/joint_command",
            self._receive,
            qos,
            event_callbacks=SubscriptionEventCallbacks(
                deadline=self._miss, liveliness=lambda event: self.alive.append(event.alive_count)
            ),
        )

    def _receive(self, message: JointState) -> None:
        self.begun = self.begun if self.received else len(self.alive)
        self.received += 1
        self.last_stamp_ns = Time.from_msg(message.header.stamp).nanoseconds
        now_s = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
        self._last_s = now_s

    def _miss(self, event: Any) -> None:
        self.missed = event.total_count

    def close(self) -> None:
        self._node.destroy_subscription(self._subscription)


def contract(liveliness: str) -> dict[str, Any]:
    qos = {"deadline_ms": DEADLINE_MS, "liveliness": liveliness, "lease_ms": LEASE_MS}
    return arm_contract(qos=qos)


def test_a_killed_node_is_noticed_by_lease_and_deadline(stage: Stage) -> None:
    controller = Controller(stage, LivelinessPolicy.AUTOMATIC)
    try:
        stage.run(contract=contract("automatic"))
        stage.peer.wait(lambda: controller.received > 20, "commands at the controller")
        stage.peer.wait(lambda: controller.alive[-1:] == [1], "a node that is alive")
        missed = controller.missed
        stalled = controller.longest_gap_s > DEADLINE_MS / 1e3 / 2
        assert stalled or not missed, "control: a node that is there is not missed"
        assert stalled or 0 not in controller.alive[controller.begun :], (
            "control: nor is it found dead"
        )
        stage.process.send(signal.SIGKILL)
        stage.process.wait()
        stage.peer.alive = lambda: True
        killed_ns = stage.peer.node.get_clock().now().nanoseconds
        stage.peer.wait(lambda: controller.alive[-1:] == [0], "the loss of the node")
        stage.peer.wait(lambda: controller.missed > missed, "a missed deadline")
        assert controller.last_stamp_ns < killed_ns, "no more than was on its way"
    finally:
        controller.close()
        stage.start()


def test_a_control_thread_that_hangs_loses_its_manual_liveliness_and_a_hold_does_not(
    stage: Stage,
) -> None:
    controller = Controller(stage, LivelinessPolicy.MANUAL_BY_TOPIC)
    try:
        stage.run(contract=contract("manual_by_topic"), miss_limit_s=0.2)
        stage.peer.wait(lambda: controller.received > 5, "commands at the controller")
        stage.do("pause")
        stage.wait_status(PolicyStatus.PAUSED)
        missed = controller.missed
        stage.peer.wait(lambda: controller.missed > missed + 2, "missed deadlines while paused")
        # More than the lease has passed; who stalled for so long itself is found alive again.
        stage.peer.wait(lambda: controller.alive[-1:] == [1], "a node that is alive")
        stage.do("resume")
        stage.wait_running()
        told = len(controller.alive)
        with held(stage):
            stage.peer.wait(lambda: 0 in controller.alive[told:], "the loss of what hangs")
    finally:
        stage.robot.reset()
        controller.close()
