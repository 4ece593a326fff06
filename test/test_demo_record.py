"""The bag of a run: an MCAP that rosbags opens again with nothing but what is in it.

The messages of this package are in no standard set of types, so their definitions must be in the
bag; and the bytes must be those that were received, or the digests in `policy_step` would not fit.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from default_context import default_context

from flashrt_ros.errors import StorageError

rclpy = pytest.importorskip("rclpy")
pytestmark = pytest.mark.ros


@pytest.fixture
def node(tmp_path: Path) -> Any:
    with default_context(tmp_path):
        node = rclpy.create_node("recorder")
        yield node
        node.destroy_node()


def test_a_bag_is_read_again_with_its_own_definitions(node: Any, tmp_path: Path) -> None:
    from flashrt_ros.msg import ObservationStamp, PolicyStatus, PolicyStep
    from rclpy.qos import DurabilityPolicy, QoSProfile
    from rosbags.highlevel import AnyReader
    from sensor_msgs.msg import JointState

    from flashrt_ros.demo.client import Spinner
    from flashrt_ros.demo.record import TOPICS, Recorder

    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    status = node.create_publisher(PolicyStatus, "policy/status", latched)
    status.publish(PolicyStatus(mode=PolicyStatus.RUNNING, policy="recurrent"))
    steps = node.create_publisher(PolicyStep, "policy/policy_step", 10)
    states = node.create_publisher(JointState, "joint_states", 10)
    recorder = Recorder(node, tmp_path / "run")
    with recorder, Spinner(node):
        deadline_s = time.monotonic() + 60.0
        while not (steps.get_subscription_count() and states.get_subscription_count()):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        step = PolicyStep(tick=7, step=3, action=[0.25, -0.5], names=["joint1", "joint2"])
        step.observations = [ObservationStamp(observation="observation.state", age_ms=4.0)]
        steps.publish(step)
        states.publish(JointState(name=["joint1"], position=[1.5]))
        wanted = ("policy/status", "policy/policy_step", "joint_states")
        while not all(recorder.counts[name] for name in wanted):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    assert (tmp_path / "run" / "metadata.yaml").is_file()
    # No typestore is handed in: everything must come from the bag.
    with AnyReader([tmp_path / "run"]) as reader:
        types = {connection.topic: connection.msgtype for connection in reader.connections}
        assert types["/policy/policy_step"] == "flashrt_ros/msg/PolicyStep"
        assert len(types) == len(TOPICS)
        found = {
            connection.topic: reader.deserialize(data, connection.msgtype)
            for connection, _, data in reader.messages()
        }
    assert found["/policy/policy_step"].tick == 7
    assert found["/policy/policy_step"].action.tolist() == [0.25, -0.5]
    assert found["/policy/policy_step"].observations[0].age_ms == 4.0
    assert found["/joint_states"].position.tolist() == [1.5]
    assert found["/policy/status"].policy == "recurrent"


def test_an_existing_directory_is_refused(node: Any, tmp_path: Path) -> None:
    from flashrt_ros.demo.record import Recorder

    (tmp_path / "run").mkdir()
    with pytest.raises(StorageError, match="run: exists; name a directory that does not"):
        Recorder(node, tmp_path / "run").__enter__()


def test_a_full_disk_ends_the_recording_and_is_said_at_the_end(
    node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rosbags.rosbag2 import Writer
    from sensor_msgs.msg import JointState

    from flashrt_ros.demo.client import Spinner
    from flashrt_ros.demo.record import Recorder, Topic

    write, room = Writer.write, 3

    def full(self: Any, *arguments: Any) -> None:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room -= 1
        write(self, *arguments)

    monkeypatch.setattr(Writer, "write", full)
    states = node.create_publisher(JointState, "joint_states", 10)
    recorder = Recorder(node, tmp_path / "run", [Topic("joint_states", JointState)])

    def record() -> None:
        with recorder, Spinner(node):
            deadline_s = time.monotonic() + 60.0
            while recorder._open:
                assert time.monotonic() < deadline_s
                states.publish(JointState(name=["joint1"], position=[1.5]))
                time.sleep(0.01)
            # Messages that come later are nobody's fault any more.
            states.publish(JointState(name=["joint1"], position=[2.5]))

    with pytest.raises(StorageError, match=r"not whole: after 3 messages: .*No space left"):
        record()
    assert recorder.counts == {"joint_states": 3}
    assert list((tmp_path / "run").iterdir()), "what was recorded stays"


def test_what_has_come_is_written_though_no_executor_took_it(node: Any, tmp_path: Path) -> None:
    """Or a control step would be in the bag without the input that came before it."""
    from sensor_msgs.msg import JointState

    from flashrt_ros.demo.record import Recorder, Topic

    states = node.create_publisher(JointState, "joint_states", 100)
    with Recorder(node, tmp_path / "run", [Topic("joint_states", JointState)]) as recorder:
        deadline_s = time.monotonic() + 60.0
        while not states.get_subscription_count():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        for number in range(50):
            states.publish(JointState(name=["joint1"], position=[float(number)]))
        assert recorder.counts == {"joint_states": 0}, "control: nobody spins"
        while recorder.counts["joint_states"] < 50:
            assert time.monotonic() < deadline_s, recorder.counts
            recorder.drain()
            time.sleep(0.01)


def test_it_says_what_is_not_heard_from_its_first_message_on(node: Any, tmp_path: Path) -> None:
    from flashrt_ros.msg import CapsuleEvent, PolicyStep, Provenance
    from geometry_msgs.msg import PointStamped
    from rclpy.qos import DurabilityPolicy, QoSProfile
    from sensor_msgs.msg import JointState

    from flashrt_ros.demo.client import Spinner
    from flashrt_ros.demo.record import Recorder

    with Recorder(node, tmp_path / "run") as recorder, Spinner(node):
        assert len(recorder.unheard()) == 5
        assert "publisher of policy/policy_step that the recorder knows" in recorder.unheard()
        states = node.create_publisher(JointState, "joint_states", 10)
        node.create_publisher(PointStamped, "cue", 10)
        node.create_publisher(CapsuleEvent, "policy/capsule_event", 10)
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        node.create_publisher(Provenance, "policy/provenance", latched).publish(Provenance())
        deadline_s = time.monotonic() + 60.0
        missing = ["publisher of policy/policy_step that the recorder knows"]
        while recorder.unheard() != missing:
            states.publish(JointState())
            assert time.monotonic() < deadline_s, recorder.unheard()
            time.sleep(0.01)
        node.create_publisher(PolicyStep, "policy/policy_step", 10)
        while recorder.unheard():
            assert time.monotonic() < deadline_s, recorder.unheard()
            time.sleep(0.01)


def test_the_policy_is_activated_only_once_all_is_heard(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lifecycle_msgs.msg import Transition
    from lifecycle_msgs.srv import ChangeState

    from flashrt_ros.demo.client import Client, Spinner
    from flashrt_ros.errors import DeadlineError

    asked: list[str] = []
    names = {
        Transition.TRANSITION_CONFIGURE: "configure",
        Transition.TRANSITION_ACTIVATE: "activate",
    }

    def change(request: Any, response: Any) -> Any:
        asked.append(names[request.transition.id])
        # Refused in the end: what follows would need a whole arm.
        response.success = asked[-1] == "configure"
        return response

    waits = iter([["first"], ["first"], []])

    def unheard() -> list[str]:
        asked.append("heard?")
        return next(waits)

    def never() -> list[str]:
        # Only now the time is up: until here it may take as long as it likes.
        monkeypatch.setattr(client, "clock", lambda: float("inf"))
        return ["first"]

    node.create_service(ChangeState, "policy/change_state", change)
    client = Client()
    try:
        with Spinner(node), Spinner(client), pytest.raises(DeadlineError, match="still inactive"):
            client.bring_up(30.0, lambda: None, unheard)
        assert asked == ["configure", "heard?", "heard?", "heard?", "activate"]
        with Spinner(node), Spinner(client), pytest.raises(DeadlineError, match="no first"):
            client.bring_up(30.0, lambda: None, never)
        assert asked[5:] == ["configure"]  # never activated
    finally:
        client.destroy_node()
