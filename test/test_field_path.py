"""Any message type by field path, worked out from its definition, the same for bytes and objects.

A path that leads to the neighbour of the wanted number gives a vector of the right length; so
every step of it is checked against the definition when the contract is read.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_examples import JOINTS, cdr, contract_dict, header, rosbags_class

from flashrt_ros.contract import Contract, Sampler, decode
from flashrt_ros.contract.definitions import add_definitions, require_type, typestore
from flashrt_ros.contract.schema import Part
from flashrt_ros.errors import ContractError


def numbered(type_name: str, start: int = 0) -> tuple[Any, int]:
    """A message whose every number is one more than the one before it; and the next number."""
    values: list[Any] = []
    for _, (kind, detail) in typestore().fielddefs[type_name][1]:
        if kind.name == "NAME" and detail == "std_msgs/msg/Header":
            values.append(header(7))
        elif kind.name == "NAME":
            value, start = numbered(detail, start)
            values.append(value)
        elif kind.name == "BASE":
            values.append("text" if detail[0] == "string" else start)
            start += detail[0] != "string"
        elif kind.name == "ARRAY":
            (_, (word, _)), size = detail
            values.append(np.arange(start, start + size, dtype=word))
            start += size
        else:
            values.append([])
    return rosbags_class(type_name)(*values), start


def values(message: Any, field: str, *names: str, **keys: Any) -> list[float]:
    part = Part("t", message.__msgtype__, field, names, **keys)
    found = [decode(part.type, given).vector(part).tolist() for given in (message, cdr(message))]
    assert found[0] == found[1]
    return found[0]


def test_members_of_members_come_by_their_names() -> None:
    odometry, _ = numbered("nav_msgs/msg/Odometry")
    position = odometry.pose.pose.position
    assert values(odometry, "pose.pose.position", "z", "x") == [position.z, position.x]
    pose = ("position.x", "orientation.w", "orientation.x")
    assert values(odometry, "pose.pose", *pose) == [0.0, 6.0, 3.0]
    assert values(odometry, "twist.twist", "angular.z") == [odometry.twist.twist.angular.z]
    assert values(odometry, "pose.pose.position.y", "height") == [1.0]
    labels = tuple(f"c{number}" for number in range(36))
    assert values(odometry, "pose.covariance", "c35", positional=labels) == [42.0]
    wrench, _ = numbered("geometry_msgs/msg/WrenchStamped")
    assert values(wrench, "wrench", "torque.y", "force.z") == [4.0, 2.0]
    twist, _ = numbered("geometry_msgs/msg/TwistStamped")
    assert values(twist, "twist", "linear.x", "angular.x") == [0.0, 3.0]
    pose_stamped, _ = numbered("geometry_msgs/msg/PoseStamped")
    assert values(pose_stamped, "pose.position", "y") == [1.0]


def test_imu_and_what_it_does_not_measure() -> None:
    imu, _ = numbered("sensor_msgs/msg/Imu")
    assert values(imu, "orientation", "w", "x") == [3.0, 0.0]
    assert values(imu, "angular_velocity", "x", "y", "z") == [13.0, 14.0, 15.0]
    assert values(imu, "linear_acceleration", "z") == [27.0]
    imu.orientation_covariance = np.array([-1.0] + [0.0] * 8)
    assert values(imu, "angular_velocity", "x") == [13.0]
    with pytest.raises(ContractError, match=r"orientation_covariance\[0\] = -1.*it has none"):
        values(imu, "orientation", "w")


def multi_array(word: str, data: list[float], offset: int = 0) -> Any:
    layout = rosbags_class("std_msgs/msg/MultiArrayLayout")([], offset)
    array = np.array(data, dtype=word.lower())
    return rosbags_class(f"std_msgs/msg/{word}MultiArray")(layout, array)


def test_arrays_and_single_numbers() -> None:
    assert values(multi_array("Float32", [1.5, 2.5]), "data", "u", "v") == [1.5, 2.5]
    assert values(multi_array("Float64", [1.5, 2.5]), "data", "v", positional=("u", "v")) == [2.5]
    assert values(multi_array("Int32", [7]), "data", "count") == [7.0]
    with pytest.raises(ContractError, match="data_offset 0, found 2"):
        values(multi_array("Float32", [1.0], offset=2), "data", "u")
    with pytest.raises(ContractError, match=r"expected 1 values in `data`.*found 2"):
        values(multi_array("Float32", [1.0, 2.0]), "data", "u")
    number = rosbags_class("std_msgs/msg/Float64")(2.5)
    assert values(number, "data", "force") == [2.5]
    assert values(rosbags_class("std_msgs/msg/Bool")(True), "data", "closed") == [1.0]


def multi_dof() -> Any:
    name = "sensor_msgs/msg/MultiDOFJointState"
    transforms = [numbered("geometry_msgs/msg/Transform", start)[0] for start in (0, 10)]
    twists = [numbered("geometry_msgs/msg/Twist", start)[0] for start in (20, 30)]
    return rosbags_class(name)(header(7), ["base", "head"], transforms, twists, [])


def test_arrays_of_messages_go_by_the_names_of_their_elements() -> None:
    message = multi_dof()
    wanted = ("head/translation.y", "base/rotation.w")
    assert values(message, "transforms", *wanted) == [11.0, 6.0]
    message.joint_names.reverse()
    message.transforms.reverse()
    assert values(message, "transforms", *wanted) == [11.0, 6.0], "by name, not by position"
    assert values(message, "transforms[0].translation", "y") == [11.0]
    assert values(multi_dof(), "twist", "base/linear.x") == [20.0]
    with pytest.raises(ContractError, match=r"expected \['tail/linear.x'\], found only"):
        values(message, "twist", "tail/linear.x")
    message.transforms.pop()
    with pytest.raises(ContractError, match=r"expected 14 values in `transforms`.*found 7"):
        values(message, "transforms", *wanted)
    with pytest.raises(ContractError, match="expected at least 2 elements in `transforms`"):
        values(message, "transforms[1].translation", "y")


def test_names_from_another_field() -> None:
    trajectory = rosbags_class("trajectory_msgs/msg/JointTrajectory")
    point = rosbags_class("trajectory_msgs/msg/JointTrajectoryPoint")
    moment = rosbags_class("builtin_interfaces/msg/Duration")(0, 0)
    empty = np.zeros(0)
    goal = point(np.array([1.0, 2.0]), empty, empty, empty, moment)
    message = trajectory(header(7), ["b", "a"], [goal])
    path = "points[0].positions"
    assert values(message, path, "a", "b", names_field="joint_names") == [2.0, 1.0]
    message.points.clear()
    with pytest.raises(ContractError, match=r"topic 't'.*expected at least 1 elements in `points"):
        values(message, path, "a", names_field="joint_names")


def refused(part: dict[str, Any], **top: Any) -> str:
    part = {"topic": "t", "names": ["a"], **part}
    observation = {"key": "o", "max_age_ms": 1, "parts": [part]}
    fields = contract_dict(observations=[observation], start="unchecked", **top)
    with pytest.raises(ContractError) as caught:
        Contract.from_dict(fields, "arm.yaml")
    return str(caught.value)


ODOMETRY = "nav_msgs/msg/Odometry"


@pytest.mark.parametrize(
    ("type_name", "field", "words"),
    [
        (
            ODOMETRY,
            "pose.poze",
            "found 'poze', which geometry_msgs/msg/PoseWithCov",
        ),
        (ODOMETRY, "pose.poze", "it has pose, covariance"),
        (ODOMETRY, "pose", "'covariance', a text or an array; name one of pose.pose, pose.cov"),
        (ODOMETRY, "child_frame_id", "expected numbers in child_frame_id, found text"),
        (ODOMETRY, "pose.covariance[36]", "covariance: expected an index below 36, found 36"),
        (ODOMETRY, "pose[0].pose", "expected no index behind 'pose'"),
        (ODOMETRY, "pose.pose.position.x.y", "found 'y', which a number has not"),
        (ODOMETRY, "pose..pose", "found ''"),
        (ODOMETRY, "__class__", "found '__class__'"),
        ("sensor_msgs/msg/MultiDOFJointState", "joint_names", "found text"),
        ("tf2_msgs/msg/TFMessage", "transforms", "found 'frame_id', a text or an array"),
        ("sensor_msgs/msg/Image", "data", "use the key `image`"),
        ("sensor_msgs/msg/Imus", "data", "did you mean 'sensor_msgs/msg/Imu'"),
        ("my_msgs/msg/Hand", "data", "no definition; .*give its .msg file, or the folder"),
        ("../../msg/x", "data", "no definition"),
    ],
)
def test_paths_that_lead_nowhere_are_refused_with_what_there_is(
    type_name: str, field: str, words: str
) -> None:
    import re

    found = refused({"type": type_name, "field": field})
    assert found.startswith("arm.yaml: observations[0].parts[0].")
    assert re.search(words, found), found


def test_counts_of_names_are_checked_where_the_type_fixes_them() -> None:
    found = refused({"type": ODOMETRY, "field": "pose.covariance"})
    assert "names: expected 36 names, one for each number in pose.covariance" in found
    found = refused({"type": "std_msgs/msg/Float64", "field": "data", "names": ["a", "b"]})
    assert "names: expected 1 names" in found
    found = refused({"type": ODOMETRY, "field": "pose.pose"})
    assert "names among position.x, position.y" in found
    keys = {"type": JOINTS["type"], "field": "position", "names_field": "velocity"}
    assert "names_field: expected an array of texts, found velocity" in refused(keys)


def test_a_pose_in_another_frame_is_a_fault() -> None:
    pose, _ = numbered("geometry_msgs/msg/PoseStamped")
    assert values(pose, "position", "x", frame_id="") == [0.0]
    for found in ("", "world", "/base_link"):
        pose.header.frame_id = found
        words = f"expected frame_id 'base_link', found '{found}': nothing is transformed"
        with pytest.raises(ContractError, match=words):
            values(pose, "position", "x", frame_id="base_link")
    pose.header.frame_id = "base_link"
    assert values(pose, "position", "x", frame_id="base_link") == [0.0]
    keys = {"type": "std_msgs/msg/Float64", "field": "data", "frame_id": "base_link"}
    assert "frame_id: expected no such key for std_msgs/msg/Float64" in refused(keys)


HAND = """\
# A hand.
uint8 OPEN=1
std_msgs/Header header
string[] finger
float32[] angle
Tip[2] tips
"""


def package(root: Path, name: str = "hand_msgs") -> Path:
    folder = root / name / "msg"
    folder.mkdir(parents=True)
    (folder / "Hand.msg").write_text(HAND)
    (folder / "Tip.msg").write_text("float64 force\ngeometry_msgs/Point at\n")
    return root / name


def hand(type_name: str) -> Any:
    tip = rosbags_class(type_name.replace("Hand", "Tip"))
    at = rosbags_class("geometry_msgs/msg/Point")(1.0, 2.0, 3.0)
    angles = np.array([0.5, 0.25], np.float32)
    tips = [tip(4.0, at), tip(5.0, at)]
    return rosbags_class(type_name)(header(9), ["thumb", "index"], angles, tips)


def test_definitions_come_from_files_that_the_contract_names(tmp_path: Path) -> None:
    package(tmp_path)
    type_name = "hand_msgs/msg/Hand"
    part = {
        "topic": "hand",
        "type": type_name,
        "field": "angle",
        "names_field": "finger",
        "names": ["index", "thumb"],
    }
    tip = {**part, "field": "tips[1]", "names": ["force", "at.z"]}
    del tip["names_field"]
    observation = {"key": "o", "max_age_ms": 100, "parts": [part, tip]}
    fields = contract_dict(observations=[observation], start="unchecked")
    with pytest.raises(ContractError, match="no definition"):
        Contract.from_dict(fields, str(tmp_path / "hand.yaml"))
    fields["message_definitions"] = ["hand_msgs"]
    contract = Contract.from_dict(fields, str(tmp_path / "hand.yaml"))
    sampler = Sampler(contract)
    message = hand(type_name)
    for given in (message, cdr(message)):
        assert sampler.put("hand", given, 0).fault == ""
        sample = sampler.sample(0)
        assert sample.observations["o"].tolist() == [0.25, 0.5, 5.0, 3.0]
        assert sample.stamps[0].stamp_ns == 9


def test_definitions_come_from_sourced_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path / "share", "paw_msgs")
    with pytest.raises(ContractError, match="no definition"):
        require_type("paw_msgs/msg/Hand")
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"/nowhere:{tmp_path}")
    require_type("paw_msgs/msg/Hand")
    assert values(hand("paw_msgs/msg/Hand"), "tips[0].at", "y") == [2.0]


def test_definitions_that_cannot_be_used(tmp_path: Path) -> None:
    folder = tmp_path / "std_msgs" / "msg"
    folder.mkdir(parents=True)
    (folder / "Bool.msg").write_text("float64 data\n")
    (folder / "Broken.msg").write_text("float64 [data\n")
    (tmp_path / "Loose.msg").write_text("float64 data\n")
    lonely = tmp_path / "lonely_msgs" / "msg"
    lonely.mkdir(parents=True)
    (lonely / "Outer.msg").write_text("absent_msgs/Inner inner\n")
    for path, words in [
        (folder / "Bool.msg", "definition of std_msgs/msg/Bool: .*different definition"),
        (folder / "Broken.msg", "expected the definition of std_msgs/msg/Broken"),
        (folder / "None.msg", "expected a readable .msg file"),
        (tmp_path / "Loose.msg", r"ends in PACKAGE/msg/NAME.msg"),
        (tmp_path, "expected a folder msg with .msg files, found none"),
    ]:
        with pytest.raises(ContractError, match=words):
            add_definitions([path])
    add_definitions([tmp_path / "lonely_msgs"])
    with pytest.raises(ContractError, match="'absent_msgs/msg/Inner', which lonely_msgs/msg"):
        require_type("lonely_msgs/msg/Outer")
    assert dataclasses.is_dataclass(rosbags_class("std_msgs/msg/Bool"))
