"""The shipped contracts for ros2_control at a running node: controllers take every message.

ros2_control itself is not among what the tests can install, so ``trajectory_controller`` applies
its rules; the controls show that it does refuse.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from flashrt_ros.msg import PolicyStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import GetState
from node_peer import DEADLINE_S, JOINTS, Log
from stage import Stage, arm_contract
from std_msgs.msg import Float64MultiArray
from trajectory_controller import forward_fault, trajectory_fault
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

pytestmark = pytest.mark.ros
FOLDER = Path(__file__).parents[1] / "config" / "ros2_control"
TRAJECTORY, FORWARD = "joint_trajectory_controller", "forward_position_controller"


def controllers() -> Any:
    return yaml.safe_load((FOLDER / "controllers.yaml").read_text())


def shipped(name: str) -> dict[str, Any]:
    """A shipped contract for the robot and the policy of the tests: two joints, a and b."""
    text = (FOLDER / f"{name}.contract.yaml").read_text()
    for ours, theirs in zip(("shoulder", "elbow"), JOINTS, strict=True):
        text = text.replace(ours, theirs)
    fields: dict[str, Any] = yaml.safe_load(text)
    parts = [
        {
            "topic": "joint_states",
            "type": "sensor_msgs/msg/JointState",
            "field": field,
            "names": list(JOINTS),
            "unit": unit,
        }
        for field, unit in (("position", "rad"), ("velocity", "rad/s"))
    ]
    fields["observations"][0].update({"parts": parts, "max_age_ms": 10_000})
    fields["actions"] = fields["actions"][:1]
    fields["actions"][0]["unit"] = "rad"
    # Every message is counted here, however late the reader is.
    fields["actions"][0]["qos"] = {"depth": 1000}
    fields["start"]["measured"] = parts[0]
    fields["start"]["max_distance"] = 0.2
    return fields


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("controllers")) as stage:
        yield stage


def record(stage: Stage, kind: Any, topic: str) -> Log:
    """Keeps all that the node will send on a topic: returns once it knows the reader.

    Readers are announced in order, so it knows those made before one that it has answered.
    """
    found, peer = stage.peer.record(kind, topic), stage.peer
    client = peer.node.create_client(GetState, stage.name("get_state"))
    peer.wait(client.service_is_ready, "service get_state")
    # It does not answer whom it does not know yet.
    answers: list[Any] = []
    end_s = time.monotonic() + DEADLINE_S
    while not any(answer.done() for answer in answers):
        assert time.monotonic() < end_s, peer.quote()
        answers.append(client.call_async(GetState.Request()))
        with contextlib.suppress(AssertionError):
            peer.wait(answers[-1].done, "an answer", timeout_s=1.0)
    peer.node.destroy_client(client)
    return found


def test_the_controllers_are_those_of_the_contracts() -> None:
    managed = controllers()
    joints = {
        name: managed[name]["ros__parameters"]["joints"]
        for name in managed
        if "_" in name and name != "controller_manager"
    }
    for name in ("trajectory", "chunk", "forward"):
        fields = yaml.safe_load((FOLDER / f"{name}.contract.yaml").read_text())
        for action in fields["actions"]:
            controller, _, interface = action["topic"].partition("/")
            assert action["names"] == joints[controller]
            kind = managed["controller_manager"]["ros__parameters"][controller]["type"]
            wanted = {
                "joint_trajectory_controller/JointTrajectoryController": "joint_trajectory",
                "forward_command_controller/ForwardCommandController": "commands",
            }
            assert interface == wanted[kind]


def test_a_trajectory_controller_takes_every_message(stage: Stage) -> None:
    found = record(stage, JointTrajectory, f"/{TRAJECTORY}/joint_trajectory")
    stage.run(contract=shipped("trajectory"))
    stage.wait_steps(10)
    stage.do("stop")
    stage.peer.wait(lambda: found and len(found[-1].points[0].velocities), "the stop message")
    now_s = stage.peer.node.get_clock().now().nanoseconds * 1e-9
    faults = [trajectory_fault(message, JOINTS, now_s) for message in found]
    assert set(faults) == {""}
    assert len(found) > 10
    assert list(found[-1].points[0].velocities) == [0.0, 0.0], "the stop comes to rest"
    moved = [list(message.points[0].positions) for message in found]
    assert np.abs(np.diff(moved, axis=0)).max() <= 0.1 + 1e-9


def test_a_trajectory_controller_takes_whole_chunks_and_a_stop_cuts_them(stage: Stage) -> None:
    found = record(stage, JointTrajectory, f"/{TRAJECTORY}/joint_trajectory")
    stage.run("puppet:Planner", contract=shipped("chunk"))
    stage.wait_steps(20)
    stage.do("stop")
    stage.wait_all_steps()
    stage.peer.wait(lambda: found and len(found[-1].points[0].velocities), "the stop message")
    now_s = stage.peer.node.get_clock().now().nanoseconds * 1e-9
    assert {trajectory_fault(message, JOINTS, now_s) for message in found} == {""}
    lengths = [len(message.points) for message in found]
    assert max(lengths) == 4, "all rows of a chunk"
    assert lengths[-1] == 1, "the stop message is a point at rest"
    assert list(found[-1].points[0].velocities) == [0.0, 0.0]
    published = sum(step.published for step in stage.steps)
    assert sum(length > 1 for length in lengths) < published / 2
    for message in found:
        rows = np.array([list(point.positions) for point in message.points])
        assert np.abs(np.diff(rows, axis=0)).max(initial=0.0) <= 0.1 + 1e-9


def test_control_of_the_above_what_would_be_dropped_is_named() -> None:
    def message(**changes: Any) -> JointTrajectory:
        point = JointTrajectoryPoint(positions=[0.0, 0.0], **changes.pop("point", {}))
        return JointTrajectory(**{"joint_names": ["a", "b"], "points": [point], **changes})

    assert trajectory_fault(message(), JOINTS, 10.0) == ""
    assert trajectory_fault(message(joint_names=["b", "a"]), JOINTS, 10.0) == ""
    assert "not those" in trajectory_fault(message(joint_names=["a"]), JOINTS, 10.0)
    assert trajectory_fault(message(points=[]), JOINTS, 10.0) == "no points"
    assert "velocity" in trajectory_fault(message(point={"velocities": [0.1, 0.0]}), JOINTS, 10.0)
    assert "effort" in trajectory_fault(message(point={"effort": [0.1, 0.0]}), JOINTS, 10.0)
    twice = JointTrajectoryPoint(positions=[0.0, 0.0])
    assert "increase" in trajectory_fault(message(points=[twice, twice]), JOINTS, 10.0)
    past = message()
    past.header.stamp.sec = 3
    assert trajectory_fault(past, JOINTS, 10.0) == "it lies in the past"
    assert forward_fault(Float64MultiArray(data=[1.0]), JOINTS) == "1 numbers for 2 joints"


def test_a_forward_controller_gets_its_samples_and_a_stop_cuts_them(stage: Stage) -> None:
    found = record(stage, Float64MultiArray, f"/{FORWARD}/commands")
    stage.run(contract=shipped("forward"))
    stage.wait_steps(20)
    stage.do("stop")
    now = stage.peer.node.get_clock().now().to_msg()
    stage.wait_status(PolicyStatus.STOPPED)

    def counted() -> int:
        """Samples, by the newest diagnostics since the stop."""
        values = [
            int(pair.value)
            for array in stage.diagnostics
            if (array.header.stamp.sec, array.header.stamp.nanosec) > (now.sec, now.nanosec)
            for status in array.status
            if status.name == "/policy: relay"
            for pair in status.values
            if pair.key == "samples"
        ]
        return values[-1] if values else 0

    stage.peer.wait(
        lambda: counted() == len(found) - 1,
        "all samples are counted; the stop message is none",
        seen=lambda: (counted(), len(found)),
    )
    steps = sum(step.published for step in stage.steps)
    sent = len(found)
    assert {forward_fault(message, JOINTS) for message in found} == {""}
    # Ten samples for each control step; on a busy machine some are left out, and counted.
    assert sent > 2 * steps
    moved = np.array([list(message.data) for message in found])
    assert np.abs(np.diff(moved, axis=0)).max() <= 0.1 + 1e-9
    last = list(found[-1].data)
    assert last == list(found[-2].data), "the stop message repeats the last sample"
    stage.diagnostics.clear()
    entry = stage.wait_diagnostic("output /forward_position_controller/commands", "ok", level=0)
    assert entry.message == "ok"
    assert len(found) == sent, "and then there is silence"


def test_names_of_the_command_that_differ_from_those_of_the_state_are_mapped(
    stage: Stage,
) -> None:
    """Servos counted from 0 in the state and from 1 in the command, listed in another order."""
    contract = arm_contract(
        names=["motor_2", "motor_1"],
        index=[1, 0],
        limits={"motor_1": [-3.0, 3.0], "motor_2": [-2.0, 2.0]},
    )
    stage.prepare(contract=contract)
    stage.robot.position = [0.5, -0.5]  # before the node listens, which then sees no other
    stage.transit(Transition.TRANSITION_CONFIGURE)
    stage.clear()
    stage.transit(Transition.TRANSITION_ACTIVATE)
    stage.wait_running()
    stage.peer.wait(lambda: len(stage.commands) > 5, "commands")
    for command in list(stage.commands):
        by_name = dict(zip(command.name, command.position, strict=True))
        # The puppet stays within 0.05 rad of what it sees, so the two cannot be confused.
        assert by_name["motor_1"] == pytest.approx(0.5, abs=0.06)
        assert by_name["motor_2"] == pytest.approx(-0.5, abs=0.06)
    stage.robot.reset()
