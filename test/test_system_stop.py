"""The stop input in real DDS: the arm stops by the message itself, and peers that cannot be heard.

Times are the stamps that node and peer recorded, compared with each other; nothing is measured
here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flashrt_ros.msg import PolicyStatus
from node_peer import BEST_EFFORT
from rclpy.qos import QoSProfile
from sensor_msgs.msg import JointState
from stage import Stage, arm_contract
from std_msgs.msg import Bool

from flashrt_ros.errors import ErrorCode

pytestmark = pytest.mark.ros
RELIABLE = QoSProfile(depth=10)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stop")) as stage:
        yield stage


def contract(**stop: Any) -> dict[str, Any]:
    return {**arm_contract(), "stop": {"topic": "e_stop", **stop}}


def stamp_ns(message: JointState) -> int:
    return int(message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec)


def rests(message: JointState) -> bool:
    return list(message.velocity) == [0.0, 0.0]


class Switch:
    """Publishes what it says ten times a second, as a switch that is held does."""

    def __init__(self, stage: Stage) -> None:
        self.says = True
        self._publisher = stage.peer.node.create_publisher(Bool, "/e_stop", RELIABLE)
        self._closing = threading.Event()
        self._node = stage.peer.node
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(0.1):
            self._publisher.publish(Bool(data=self.says))

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._node.destroy_publisher(self._publisher)


def test_the_arm_stops_in_the_period_in_which_the_message_comes(stage: Stage) -> None:
    stage.run(contract=contract())
    publisher = stage.peer.node.create_publisher(Bool, "/e_stop", RELIABLE)
    try:
        stage.peer.wait(lambda: publisher.get_subscription_count(), "the stop input")
        publisher.publish(Bool(data=False))
        stage.wait_steps(3)
        publisher.publish(Bool(data=True))
        stage.wait_status(PolicyStatus.STOPPED, "a message on e_stop")
        entry = stage.wait_diagnostic("stop input e_stop", "ok", level=0)
        stage.peer.wait(lambda: any(map(rests, stage.commands)), "the stop message")
        values: dict[str, str] = {}

        def heard() -> bool:
            for array in stage.diagnostics:
                for status in array.status:
                    if status.name == entry.name:
                        values.update({pair.key: pair.value for pair in status.values})
            return values.get("stops") == "1"

        stage.peer.wait(heard, "the stop in /diagnostics")
        heard_ns = int(values["last stop, ROS clock, ns"])
        commands = list(stage.commands)
        (last,) = [i for i, command in enumerate(commands) if rests(command)]
        assert last == len(commands) - 1, "nothing follows the stop message"
        later = [c for c in commands if stamp_ns(c) >= heard_ns]
        assert len(later) <= 1, "after the message was received only the stop message left"
        # Control: the node goes on with its periods all the while, and it did command before.
        assert len(commands) > 3
        response = stage.ask("resume")
        assert response.error_code == ErrorCode.STOPPED
    finally:
        stage.peer.node.destroy_publisher(publisher)
    stage.do("clear_stop")
    stage.do("resume")
    stage.wait_running()


def test_dead_man_switch_that_falls_silent_or_is_released(stage: Stage) -> None:
    stage.activate(contract=contract(mode="dead_man", max_age_ms=60_000))
    stage.wait_status(PolicyStatus.HOLDING, "no message yet")
    assert not stage.commands
    switch = Switch(stage)
    try:
        stage.wait_running()
        switch.says = False
        stage.wait_status(PolicyStatus.HOLDING, "released")
        stage.peer.wait(lambda: stage.commands and rests(stage.commands[-1]), "the stop message")
        sent = len(stage.commands)
        switch.says = True
        stage.wait_status(PolicyStatus.HOLDING, "call ~/resume")
        assert len(stage.commands) == sent
        stage.do("resume")
        stage.wait_running()
    finally:
        switch.close()

    stage.activate(contract=contract(mode="dead_man", max_age_ms=500))
    switch = Switch(stage)

    def moves_or_waits() -> bool:
        return bool(stage.commands) or any(
            "call ~/resume" in s.reason for s in stage.statuses[-1:]
        )

    try:
        # A machine that stalls makes the switch fall silent, too: then it needs another word.
        while stage.peer.wait(moves_or_waits, "a command or a hold") and not stage.commands:
            stage.ask("resume")
    finally:
        switch.close()
    stage.wait_status(PolicyStatus.HOLDING, "no message for more than 500 ms")
    stage.peer.wait(lambda: rests(stage.commands[-1]), "the stop message")


def test_a_stop_that_cannot_be_heard_forbids_motion_until_it_is_gone(stage: Stage) -> None:
    stage.run(contract=contract())
    publisher = stage.peer.node.create_publisher(Bool, "/e_stop", BEST_EFFORT)
    try:
        stage.wait_status(PolicyStatus.HOLDING, "incompatible QoS policy reliability")
        stage.wait_diagnostic("stop input e_stop", "incompatible QoS policy reliability")
        reports = len(stage.diagnostics)
        stage.peer.wait(lambda: len(stage.diagnostics) >= reports + 3, "three more reports")
        assert stage.statuses[-1].mode == PolicyStatus.HOLDING, "as long as it is there"
        assert stage.ask("resume").error_code == ErrorCode.STOPPED
    finally:
        stage.peer.node.destroy_publisher(publisher)
    stage.wait_status(PolicyStatus.HOLDING, "call ~/resume")
    stage.do("resume")
    stage.wait_running()


def test_each_stop_and_each_release_is_logged_however_soon_the_next_one_comes(
    stage: Stage,
) -> None:
    stage.run(contract=arm_contract())
    stage.wait_steps(3)
    before = stage.process.output()
    for _ in range(3):
        stage.do("stop")
        stage.do("stop")  # control: a stop of one that stands is no news
        stage.do("clear_stop")
        stage.do("clear_stop")

    def new(words: str) -> int:
        return stage.process.output().count(words) - before.count(words)

    released = "stop cleared; on hold until ~/resume"
    stage.peer.wait(lambda: new(released) == 3, "three releases in the log")
    assert new("STOPPED: by ~/stop: call ~/clear_stop") == 3
