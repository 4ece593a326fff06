"""From command values to the fields of ROS messages, as plain dictionaries.

Values are lists, numbers and dictionaries only: the node fills rclpy messages from them, a bag
writer rosbags messages. A message type is one entry of ``OUTPUT_TYPES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.schema import Output

Fields = dict[str, Any]
Values = npt.NDArray[np.float64]

GRIPPER = "control_msgs/msg/GripperCommand"
JOINT_FIELDS = ("position", "velocity", "effort")


@dataclass(frozen=True)
class OutputType:
    """How commands of one message type are written.

    Attributes:
        encode: ``(output, values, stamp_ns, resting)`` to fields; ``resting`` adds zero
            velocities to positions where the type has room for them; types that are ``timed``
            take several rows of values.
        fields: What the values may be.
        labels: Names that the type fixes, else empty.
        count: Names that it needs; 0: any number.
        stamped: Whether it has a header.
        timed: Whether ``time_from_start_s`` applies.
    """

    encode: Callable[[Output, Values, int, bool], Fields]
    fields: tuple[str, ...] = JOINT_FIELDS
    labels: tuple[str, ...] = ()
    count: int = 0
    stamped: bool = True
    timed: bool = False


def duration(time_ns: int) -> Fields:
    """Fields of ``builtin_interfaces`` Time and Duration."""
    sec, nanosec = divmod(int(time_ns), 1_000_000_000)
    return {"sec": sec, "nanosec": nanosec}


def _header(output: Output, stamp_ns: int) -> Fields:
    return {"stamp": duration(stamp_ns), "frame_id": output.frame_id}


def _joint_values(output: Output, values: Values, resting: bool) -> dict[str, list[float]]:
    fields: dict[str, list[float]] = {name: [] for name in JOINT_FIELDS}
    fields[output.field] = [float(value) for value in values]
    if resting and output.field == "position":
        fields["velocity"] = [0.0] * len(values)
    return fields


def _joint_state(output: Output, values: Values, stamp_ns: int, resting: bool) -> Fields:
    return {
        "header": _header(output, stamp_ns),
        "name": list(output.names),
        **_joint_values(output, values, resting),
    }


def _joint_trajectory(output: Output, values: Values, stamp_ns: int, resting: bool) -> Fields:
    points = []
    for row, row_values in enumerate(values.reshape(-1, len(output.names))):
        fields = _joint_values(output, row_values, resting)
        after_s = output.time_from_start_s + row * output.period_s
        points.append(
            {
                "positions": fields["position"],
                "velocities": fields["velocity"],
                "accelerations": [],
                "effort": fields["effort"],
                "time_from_start": duration(round(after_s * 1e9)),
            }
        )
    # Controllers read a zero stamp as "begin now". With a real one, a single point that arrives a
    # period late would be a trajectory that lies in the past, which they drop.
    stamped = output.stamp == "now" and len(points) > 1
    return {
        "header": _header(output, stamp_ns if stamped else 0),
        "joint_names": list(output.names),
        "points": points,
    }


def _float64_multi_array(output: Output, values: Values, stamp_ns: int, resting: bool) -> Fields:
    return {"layout": {"dim": [], "data_offset": 0}, "data": [float(value) for value in values]}


def _float64(output: Output, values: Values, stamp_ns: int, resting: bool) -> Fields:
    return {"data": float(values[0])}


def _gripper_command(output: Output, values: Values, stamp_ns: int, resting: bool) -> Fields:
    return {"position": float(values[0]), "max_effort": output.max_effort}


def _pose_stamped(output: Output, values: Values, stamp_ns: int, resting: bool) -> Fields:
    x, y, z, qx, qy, qz, qw = (float(value) for value in values)
    return {
        "header": _header(output, stamp_ns),
        "pose": {
            "position": {"x": x, "y": y, "z": z},
            "orientation": {"x": qx, "y": qy, "z": qz, "w": qw},
        },
    }


def _twist(output: Output, values: Values, stamp_ns: int, resting: bool) -> Fields:
    twist = {part: dict.fromkeys(("x", "y", "z"), 0.0) for part in ("linear", "angular")}
    for name, value in zip(output.names, values, strict=True):
        part, axis = name.split(".")
        twist[part][axis] = float(value)
    return twist


def _twist_stamped(output: Output, values: Values, stamp_ns: int, resting: bool) -> Fields:
    twist = _twist(output, values, stamp_ns, resting)
    return {"header": _header(output, stamp_ns), "twist": twist}


_TWIST_LABELS = tuple(f"{part}.{axis}" for part in ("linear", "angular") for axis in "xyz")


OUTPUT_TYPES: Mapping[str, OutputType] = {
    "sensor_msgs/msg/JointState": OutputType(_joint_state),
    "trajectory_msgs/msg/JointTrajectory": OutputType(_joint_trajectory, timed=True),
    "std_msgs/msg/Float64MultiArray": OutputType(_float64_multi_array, stamped=False),
    "geometry_msgs/msg/TwistStamped": OutputType(
        _twist_stamped,
        fields=("twist",),
        labels=_TWIST_LABELS,
    ),
    "geometry_msgs/msg/Twist": OutputType(
        _twist, fields=("twist",), labels=_TWIST_LABELS, stamped=False
    ),
    "geometry_msgs/msg/PoseStamped": OutputType(_pose_stamped, fields=("pose",)),
    "std_msgs/msg/Float64": OutputType(_float64, count=1, stamped=False),
    GRIPPER: OutputType(_gripper_command, fields=("position",), count=1, stamped=False),
}
"""Every message type that a command can leave in."""
