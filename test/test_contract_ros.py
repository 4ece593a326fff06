"""rclpy's own messages and bytes decode to the bits that rosbags' do: live and bag agree."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
from contract_examples import cdr, contract_dict, joint_state

from flashrt_ros.contract import ActionShaper, Contract, decode
from flashrt_ros.contract.schema import Part

pytestmark = pytest.mark.ros


def messages() -> list[tuple[Part, Any]]:
    from geometry_msgs.msg import PointStamped, PoseStamped
    from sensor_msgs.msg import JointState
    from std_msgs.msg import Float64MultiArray, MultiArrayDimension

    joints = JointState(name=["b", "a", "gripper"], position=[0.1, 1 / 3, 9.0])
    joints.header.stamp.sec, joints.header.frame_id = 3, "base"
    array_message = Float64MultiArray(data=array.array("d", [1 / 7, 2.0]))
    array_message.layout.dim.append(MultiArrayDimension(label="row", size=2, stride=2))
    point = PointStamped()
    point.point.x, point.point.y = 1 / 3, -4.0
    pose = PoseStamped()
    pose.pose.position.z, pose.pose.orientation.w = 1 / 9, 0.5
    pose.header.stamp.nanosec = 17
    labels = ("x", "y", "z", "qx", "qy", "qz", "qw")
    return [
        (Part("j", "sensor_msgs/msg/JointState", "position", ("a", "b")), joints),
        (Part("f", "std_msgs/msg/Float64MultiArray", "data", ("u", "v")), array_message),
        (Part("p", "geometry_msgs/msg/PointStamped", "point", ("y", "x")), point),
        (Part("q", "geometry_msgs/msg/PoseStamped", "pose", labels), pose),
    ]


@pytest.mark.parametrize("index", range(4))
def test_object_and_bytes_agree(index: int) -> None:
    from rclpy.serialization import serialize_message

    part, message = messages()[index]
    raw = serialize_message(message)
    one, other = decode(part.type, message), decode(part.type, raw)
    assert one.stamp_ns == other.stamp_ns
    assert one.vector(part).tobytes() == other.vector(part).tobytes()
    assert np.any(one.vector(part) != 0)


def test_bytes_behind_empty_arrays_are_forgiven() -> None:
    from rclpy.serialization import serialize_message
    from sensor_msgs.msg import JointState

    part = Part("j", "sensor_msgs/msg/JointState", "position", ("a",))
    for names in (["a"], ["a", "bb"], ["a", "bb", "ccc"]):
        raw = serialize_message(JointState(name=names, position=[1.0] * len(names)))
        assert decode(part.type, raw).vector(part).tolist() == [1.0]


def test_rosbags_writes_what_rclpy_reads() -> None:
    from rclpy.serialization import deserialize_message
    from sensor_msgs.msg import JointState

    part = Part("j", "sensor_msgs/msg/JointState", "position", ("a", "b"))
    ours = joint_state(["b", "a"], [1 / 3, 0.1])
    theirs = deserialize_message(cdr(ours), JointState)
    assert decode(part.type, theirs).vector(part).tobytes() == (
        decode(part.type, ours).vector(part).tobytes()
    )


def _fill(message: Any, fields: dict[str, Any], kinds: dict[str, Any]) -> Any:
    """Slow, obviously right: sets each field by name; rclpy checks that it exists and its type."""
    for name, value in fields.items():
        if isinstance(value, dict):
            _fill(getattr(message, name), value, kinds)
        elif value and isinstance(value[0] if isinstance(value, list) else None, dict):
            setattr(message, name, [_fill(kinds[name](), inner, kinds) for inner in value])
        else:
            setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("type_name", "field", "names"),
    [
        ("sensor_msgs/msg/JointState", "position", ["a", "b"]),
        ("trajectory_msgs/msg/JointTrajectory", "position", ["a", "b"]),
        ("std_msgs/msg/Float64MultiArray", "position", ["a", "b"]),
        ("geometry_msgs/msg/TwistStamped", "twist", ["linear.x", "angular.z"]),
    ],
)
def test_encoded_fields_fit_the_ros_message(type_name: str, field: str, names: list[str]) -> None:
    import importlib

    from trajectory_msgs.msg import JointTrajectoryPoint

    action = {"topic": "c", "type": type_name, "field": field, "names": names}
    contract = Contract.from_dict(contract_dict(actions=[action], start="unchecked"))
    shaper = ActionShaper(contract)
    package, _, name = type_name.split("/")
    cls = getattr(importlib.import_module(f"{package}.msg"), name)
    fields = shaper.encode(contract.actions[0], [1.5, 2.5], 3_000_000_004)
    message = _fill(cls(), fields, {"points": JointTrajectoryPoint})
    assert "1.5" in str(message)
    assert "2.5" in str(message)
    for command in shaper.stop_messages({"c": np.array([1.5, 2.5])}, 5):
        _fill(cls(), command.fields, {"points": JointTrajectoryPoint})
