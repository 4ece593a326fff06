"""Messages and a small contract that the contract tests share."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from flashrt_ros.contract.cdr import typestore

JOINT_STATE = "sensor_msgs/msg/JointState"
MS = 1_000_000

JOINTS = {"topic": "joint_states", "type": JOINT_STATE, "field": "position"}

_CONTRACT: dict[str, Any] = {
    "version": 1,
    "robot": "test_arm",
    "control_rate_hz": 50.0,
    "observations": [
        {
            "key": "observation.state",
            "max_age_ms": 100,
            "parts": [
                {**JOINTS, "names": ["a", "b"], "unit": "rad"},
                {**JOINTS, "field": "velocity", "names": ["a", "b"], "unit": "rad/s"},
            ],
        },
        {
            "key": "observation.cue",
            "max_age_ms": 60,
            "optional": True,
            "fill": -1.0,
            "present_flag": True,
            "parts": [
                {
                    "topic": "cue",
                    "type": "geometry_msgs/msg/PointStamped",
                    "field": "point",
                    "names": ["x", "y"],
                }
            ],
        },
    ],
    "actions": [
        {
            "topic": "joint_command",
            "type": JOINT_STATE,
            "field": "position",
            "names": ["a", "b"],
            "unit": "rad",
            "limits": {"a": [-3.0, 3.0], "b": [-2.0, 2.0]},
            "max_step": 0.2,
            "on_miss": "hold",
        }
    ],
    "start": {"measured": {**JOINTS, "names": ["a", "b"]}, "max_distance": 0.3},
}


def contract_dict(**changes: Any) -> dict[str, Any]:
    """A fresh valid contract, with top-level keys replaced."""
    return {**copy.deepcopy(_CONTRACT), **changes}


def rosbags_class(type_name: str) -> Any:
    return typestore().types[type_name]


def header(stamp_ns: int = 5, frame_id: str = "") -> Any:
    sec, nanosec = divmod(stamp_ns, 1_000_000_000)
    time = rosbags_class("builtin_interfaces/msg/Time")(sec, nanosec)
    return rosbags_class("std_msgs/msg/Header")(time, frame_id)


def joint_state(
    names: list[str],
    position: Any = (),
    velocity: Any = (),
    effort: Any = (),
    stamp_ns: int = 5,
) -> Any:
    """A rosbags JointState."""
    arrays = [np.asarray(values, dtype=np.float64) for values in (position, velocity, effort)]
    return rosbags_class(JOINT_STATE)(header(stamp_ns), list(names), *arrays)


def point(x: float, y: float, z: float = 0.0, stamp_ns: int = 5) -> Any:
    """A rosbags PointStamped."""
    inner = rosbags_class("geometry_msgs/msg/Point")(x, y, z)
    return rosbags_class("geometry_msgs/msg/PointStamped")(header(stamp_ns), inner)


def cdr(message: Any, little_endian: bool = True) -> bytes:
    """The message serialized by rosbags."""
    return bytes(
        typestore().serialize_cdr(message, message.__msgtype__, little_endian=little_endian)
    )
