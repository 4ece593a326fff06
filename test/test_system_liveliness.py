"""A controller behind the command topic learns that the node was killed, by QoS events alone.

A killed process sends no stop message; what is left is that its silence is noticed, and when.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import puppet
import pytest
from flashrt_ros.msg import PolicyStatus
from rclpy.duration import Duration
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.qos import LivelinessPolicy, QoSProfile
from sensor_msgs.msg import JointState
from stage import Stage, arm_contract

pytestmark = pytest.mark.ros
LEASE_MS, DEADLINE_MS = 1500.0, 3000.0
"""Far longer than a busy machine stalls: the control below is that nothing is noticed before."""


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
        self.received += 1

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
        assert controller.alive[-1:] == [1]
        assert controller.missed == 0, "control: a node that is there is not missed"
        stage.process.send(signal.SIGKILL)
        stage.process.wait()
        stage.peer.alive = lambda: True
        received = controller.received
        stage.peer.wait(lambda: controller.alive[-1:] == [0], "the loss of the node")
        stage.peer.wait(lambda: controller.missed, "a missed deadline")
        assert controller.received <= received + 10, "no more than was on its way"
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
        stage.peer.wait(lambda: controller.missed, "a missed deadline while paused")
        assert controller.alive[-1:] == [1], "twice the lease has passed, and it is alive"
        stage.do("resume")
        stage.wait_running()
        stage.robot.velocity = [puppet.SLOW, 0.0]  # each step now takes longer than the lease
        stage.peer.wait(lambda: 0 in controller.alive, "the loss of a control thread that hangs")
    finally:
        stage.robot.reset()
        controller.close()
