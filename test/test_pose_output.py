"""Poses and single numbers as commands: limits in metres and radians hold in every form.

The end of a chain of joints has no joint limits of its own, so what leaves here is all that keeps
a gripper from a jump.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from contract_examples import contract_dict
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.contract import ActionShaper, Contract, StartGate
from flashrt_ros.contract.check import cautions
from flashrt_ros.contract.pose import FORMS, POSE, angle, from_vector
from flashrt_ros.contract.start import distance_fault
from flashrt_ros.errors import ContractError
from flashrt_ros.ros.messages import fill, interface

MEASURED = {
    "topic": "tool_pose",
    "type": "geometry_msgs/msg/PoseStamped",
    "field": "pose",
    "names": list(POSE),
    "frame_id": "base",
}
TARGET: dict[str, Any] = {
    "topic": "target_pose",
    "type": "geometry_msgs/msg/PoseStamped",
    "field": "pose",
    "names": ["x", "y", "z", "rx", "ry", "rz"],
    "rotation": "axis_angle",
    "frame_id": "base",
    "limits": {"z": [0.05, 1.0]},
    "max_step": {"x": 0.02, "y": 0.02, "z": 0.02, "rotation": 0.1},
}
GRIPPER: dict[str, Any] = {
    "topic": "gripper",
    "type": "std_msgs/msg/Float64",
    "field": "position",
    "names": ["finger"],
    "index": [6],
    "limits": {"finger": [0.0, 0.08]},
}
START = {
    "measured": MEASURED,
    "index": [0, 1, 2, 3, 4, 5],
    "max_distance": {"x": 0.05, "y": 0.05, "z": 0.05, "rotation": 0.2},
}


def contract(start: Any = START, *, gripper: bool = True, **changes: Any) -> Contract:
    actions = [{**TARGET, **changes}, GRIPPER][: 1 + gripper]
    return Contract.from_dict(contract_dict(actions=actions, start=start))


def test_a_pose_and_a_gripper_leave_of_one_action() -> None:
    ours = ActionShaper(contract())
    shaped = ours.shape([0.1, 0.2, 0.3, 0.0, 0.0, math.pi / 2, 0.1])
    assert shaped.limited == ("finger 0.1 to 0.08 by limits [0.0, 0.08]",)
    pose, gripper = ours.messages(shaped, 2_000_000_003)
    half = math.sqrt(0.5)
    assert pose.fields["header"] == {"stamp": {"sec": 2, "nanosec": 3}, "frame_id": "base"}
    assert pose.fields["pose"]["position"] == {"x": 0.1, "y": 0.2, "z": 0.3}
    assert pose.fields["pose"]["orientation"] == pytest.approx(
        {"x": 0, "y": 0, "z": half, "w": half}
    )
    assert gripper.fields == {"data": 0.08}
    for command in (pose, gripper):
        fill(interface(command.output.type)(), command.fields)
    np.testing.assert_allclose(shaped.action, [0.1, 0.2, 0.3, 0.0, 0.0, math.pi / 2, 0.08])


def test_twist_without_a_header() -> None:
    twist = {
        "topic": "cmd_vel",
        "type": "geometry_msgs/msg/Twist",
        "field": "twist",
        "names": ["angular.z", "linear.x"],
    }
    ours = ActionShaper(Contract.from_dict(contract_dict(actions=[twist], start=None)))
    (command,) = ours.messages(ours.shape([0.5, 0.25]), 5)
    message = fill(interface(command.output.type)(), command.fields)
    assert (message.angular.z, message.linear.x, message.linear.y) == (0.5, 0.25, 0.0)
    (stop,) = ours.stop_messages(None)
    assert stop.fields["angular"]["z"] == 0.0


def test_gripper_command_has_its_effort_and_needs_its_package() -> None:
    gripper = {
        **GRIPPER,
        "type": "control_msgs/msg/GripperCommand",
        "index": [0],
        "max_effort": 20.0,
    }
    ours = ActionShaper(Contract.from_dict(contract_dict(actions=[gripper], start="unchecked")))
    (command,) = ours.messages(ours.shape([0.04]), 5)
    assert command.fields == {"position": 0.04, "max_effort": 20.0}
    (stop,) = ours.stop_messages({"gripper": np.array([0.04])})
    assert stop.fields["position"] == 0.04
    try:
        import control_msgs.msg  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        with pytest.raises(ContractError, match="expected Python package 'control_msgs'"):
            interface(command.output.type)
    else:
        fill(interface(command.output.type)(), command.fields)


NUMBERS = st.floats(-3.0, 3.0) | st.sampled_from([math.nan, math.inf])
EVERY_FORM = [(rotation, form) for rotation, forms in FORMS.items() for form in forms]


@pytest.mark.parametrize(("rotation", "form"), EVERY_FORM)
@given(data=st.data(), refuse=st.booleans())
def test_no_pose_leaves_limits_or_steps(
    rotation: str, form: tuple[str, ...], data: st.DataObject, refuse: bool
) -> None:
    names = ["x", "y", "z", *form]
    ours = ActionShaper(
        contract(
            "unchecked",
            gripper=False,
            names=names,
            rotation=rotation,
            on_limit="refuse" if refuse else "clamp",
        )
    )
    last = {"target_pose": np.array([0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0])}
    for _ in range(data.draw(st.integers(1, 8))):
        action = [data.draw(NUMBERS) for _ in names]
        shaped = ours.shape(action, last)
        assert bool(shaped.dropped) == (not shaped.commands)
        if shaped.dropped:
            continue
        pose, before = shaped.commands["target_pose"], last["target_pose"]
        assert np.linalg.norm(pose[3:]) == pytest.approx(1.0)
        assert np.abs(pose[:3] - before[:3]).max() <= 0.02 + 1e-12
        assert 0.05 - 1e-12 <= pose[2] <= 1.0 + 1e-12
        assert angle(pose[3:], before[3:]) <= 0.1 + 1e-6
        assert pose[3:] @ before[3:] >= 0.0
        assert ours.shape(shaped.action, last).dropped == "", "what is recorded may leave"
        last = shaped.commands


def test_a_long_turn_is_taken_the_short_way_or_refused() -> None:
    last = {"target_pose": np.array([0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0])}
    action = [0.0, 0.0, 0.5, 0.0, 0.0, 6.0]  # 6 rad one way are 0.28 rad the other
    clamped = ActionShaper(contract("unchecked", gripper=False)).shape(action, last)
    assert clamped.limited == ("rotation by 0.283185 to 0.1 rad by max_step",)
    np.testing.assert_allclose(
        clamped.commands["target_pose"][3:], from_vector(np.array([0, 0, -0.1])), atol=1e-9
    )
    refused = ActionShaper(contract("unchecked", gripper=False, on_limit="refuse"))
    assert "refused, rotation by 0.283185" in refused.shape(action, last).dropped
    none = ActionShaper(
        contract(
            "unchecked",
            gripper=False,
            rotation="quaternion",
            names=["x", "y", "z", "qw", "qx", "qy", "qz"],
        )
    ).shape([0.0] * 7, last)
    assert none.commands == {}
    assert none.dropped == "target_pose: quaternion of length 0, expected about 1"


def test_rest_and_stop_are_the_measured_and_the_last_pose() -> None:
    ours = ActionShaper(contract())
    rest = ours.at_rest([0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 2.0])
    assert rest["target_pose"].tolist() == [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0]
    assert np.isnan(rest["gripper"]).all()
    assert np.isnan(ours.at_rest(None)["target_pose"]).all()
    (stop,) = ours.stop_messages(rest)
    assert stop.fields["pose"]["position"]["z"] == 0.5
    (hold,) = [
        c
        for c in ActionShaper(contract(on_miss="hold")).miss_messages(rest)
        if c.output.topic == "target_pose"
    ]
    assert hold.repeat


HERE = [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0]


def test_the_first_pose_is_compared_in_metres_and_radians() -> None:
    ours = contract()
    near = [0.04, 0.0, 0.5, 0.0, 0.0, 0.15, 0.0]
    assert distance_fault(ours, near, HERE) == ""
    assert distance_fault(ours, near, [*HERE[:6], -1.0]) == "", "the same orientation"
    fault = distance_fault(ours, [0.0, 0.06, 0.5, 0.0, 0.0, 0.3, 0.0], HERE)
    assert fault == (
        "y: command is 0.06 m from the measured pose, more than max_distance 0.05; "
        "rotation: command is 0.3 rad from the measured pose, more than max_distance 0.2"
    )
    assert "measured pose unknown" in distance_fault(ours, near, None)
    assert "quaternion of length 0" in distance_fault(ours, near, [0.0] * 7)
    assert distance_fault(ours, [math.nan] * 7, HERE) != ""
    with pytest.raises(ContractError, match="expected 7 numbers"):
        distance_fault(ours, near, [0.0] * 6)


def test_the_ramp_leads_along_a_line_and_the_shortest_turn() -> None:
    ours = contract({**START, "ramp_s": 0.2})
    gate = StartGate(ours)
    target = [1.0, 0.0, 0.5, 0.0, 0.0, 1.0, 0.03]
    for step in range(1, 10):
        admitted = gate.admit(target, HERE, step * 20_000_000)
        assert admitted.blending
        assert admitted.action is not None
        np.testing.assert_allclose(
            admitted.action[:6],
            np.array([1, 0, 0, 0, 0, 1]) * step / 10 + [0, 0, 0.5, 0, 0, 0],
            atol=1e-9,
        )
        assert admitted.action[6] == 0.03
    last = gate.admit(target, HERE, 200_000_000)
    assert last.action is not None
    np.testing.assert_allclose(last.action, target, atol=1e-12)
    gate.arm_()
    assert gate.admit(target, [0.0] * 7, 0).action is None, "no way leads from a pose that is none"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rotation": "euler"}, "rotation: expected one of quaternion, axis_angle, 6d"),
        ({"rotation": "quaternion"}, r"names: expected for quaternion the names \[x, y, z, qx"),
        ({"rotation": "6d"}, r"r11, r21, r31, r12, r22, r32\] or \[x, y, z, r11, r12"),
        ({"frame_id": ""}, "frame_id: expected the frame that the pose is in"),
        ({"max_step": 0.1}, r"max_step: expected a mapping by name \(x, y, z in metres, rotation"),
        ({"max_step": {"rx": 0.1}}, "max_step.rx: expected one of the names x, y, z, rotation"),
        ({"limits": {"rx": [0, 1]}}, "limits.rx: expected one of the names x, y, z"),
        ({"on_miss": "zeros"}, "on_miss: expected hold or stop for poses"),
        ({"max_effort": 1.0}, "max_effort: expected no such key"),
    ],
)
def test_wrong_poses_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        contract("unchecked", **changes)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ({"index": [0, 1, 2]}, r"start.index: expected all elements of one pose"),
        (
            {"measured": {**MEASURED, "names": list(POSE[:6])}},
            "start.measured.names: expected the",
        ),
        ({"measured": {**MEASURED, "frame_id": "tool"}}, "measured.frame_id: expected 'base'"),
        ({"max_distance": 0.1, "index": None}, "start.index"),
        ({"max_distance": {"x": 1.0}}, "a distance for y, z, rotation"),
    ],
)
def test_wrong_checks_of_poses_are_named(start: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        contract({**START, **start})
    without = {key: value for key, value in START.items() if key != "index"}
    with pytest.raises(ContractError, match="also finger"):
        contract(without)


def test_other_wrong_entries_are_named() -> None:
    two = {**GRIPPER, "names": ["a", "b"], "index": [0, 1], "limits": {}}
    with pytest.raises(ContractError, match="1 name for a std_msgs/msg/Float64"):
        Contract.from_dict(contract_dict(actions=[two], start="unchecked"))
    turned = {**GRIPPER, "index": [0], "rotation": "6d"}
    with pytest.raises(ContractError, match="rotation: expected this key for poses only"):
        Contract.from_dict(contract_dict(actions=[turned], start="unchecked"))


def test_what_is_left_open_is_cautioned() -> None:
    words = cautions(contract())
    assert "actions[0].limits: none for x, y" in words
    assert "actions[1].max_step: none for finger" in words
    assert "start: the first command is not checked for action elements [6]" in words
