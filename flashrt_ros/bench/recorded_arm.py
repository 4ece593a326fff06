"""Writes recordings of an arm as large as wanted, for the benchmark of evaluation.

Nothing in them means anything. Numbers of 100 Hz and 50 Hz on four topics; with a camera, pictures
of noise, which no compression makes smaller.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from mcap.writer import CompressionType, Writer

from flashrt_ros.contract.cdr import typestore

START_NS = 1_700_000_000_000_000_000
RATE_HZ = 100
CONTROL_HZ = 50
CAMERA_HZ = 25
JOINTS = tuple(f"joint{number}" for number in range(1, 8))
IMAGE_HWC = (480, 640, 3)
JOINT_STATE = "sensor_msgs/msg/JointState"
WRENCH = "geometry_msgs/msg/WrenchStamped"
IMAGE = "sensor_msgs/msg/Image"
TOPICS = {
    "/joint_states": JOINT_STATE,
    "/gripper_state": JOINT_STATE,
    "/wrench": WRENCH,
    "/joint_command": JOINT_STATE,
    "/camera": IMAGE,
}


def contract(cameras: bool) -> dict[str, Any]:
    """A contract that reads all of it, as YAML would give it."""
    joints = {"topic": "joint_states", "type": JOINT_STATE, "field": "position"}
    gripper = {**joints, "topic": "gripper_state", "names": ["gripper"]}
    wrench = [
        {"topic": "wrench", "type": WRENCH, "field": f"wrench.{part}", "names": ["x", "y", "z"]}
        for part in ("force", "torque")
    ]
    observations: list[dict[str, Any]] = [
        {
            "key": "observation.state",
            "max_age_ms": 100,
            "parts": [{**joints, "names": list(JOINTS)}, gripper, *wrench],
        }
    ]
    if cameras:
        steps = [{"resize": [240, 320]}, {"crop": [224, 224]}]
        image = {"topic": "camera", "type": IMAGE, "size": [480, 640], "steps": steps}
        observations += [
            {"key": f"observation.images.{name}", "max_age_ms": 200, "image": image}
            for name in ("front", "wrist")
        ]
    return {
        "version": 1,
        "robot": "recorded_arm",
        "control_rate_hz": CONTROL_HZ,
        "observations": observations,
        "actions": [
            {
                **joints,
                "topic": "joint_command",
                "names": list(JOINTS),
                "limits": {name: [-3.0, 3.0] for name in JOINTS},
                "max_step": 0.5,
            }
        ],
        "start": "unchecked",
    }


def write_contract(path: Path, cameras: bool) -> Path:
    """Writes it; JSON is YAML."""
    path.write_text(json.dumps(contract(cameras)), encoding="utf-8")
    return path


def write(path: Path, seconds: float, cameras: bool = False) -> int:
    """Writes a recording.

    Args:
        path: An ``.mcap`` file that is made.
        seconds: Recorded time.
        cameras: With pictures, which are nearly all of it.

    Returns:
        Messages.
    """
    draw = np.random.default_rng(0)
    pictures = [draw.integers(0, 256, IMAGE_HWC, np.uint8).reshape(-1) for _ in range(4)]
    count = 0
    with path.open("wb") as sink:
        compression = CompressionType.NONE if cameras else CompressionType.LZ4
        writer = Writer(sink, chunk_size=4 << 20, compression=compression)
        writer.start("ros2", "flashrt_ros bench")
        channels = {
            topic: writer.register_channel(
                topic, "cdr", writer.register_schema(kind, "ros2msg", b"")
            )
            for topic, kind in TOPICS.items()
            if cameras or kind != IMAGE
        }
        for tick in range(round(seconds * RATE_HZ)):
            time_ns = START_NS + tick * (1_000_000_000 // RATE_HZ)
            for place, (topic, message) in enumerate(_messages(tick, pictures, time_ns)):
                if topic in channels:
                    kind = TOPICS[topic]
                    raw = bytes(typestore().serialize_cdr(message, kind))
                    writer.add_message(channels[topic], time_ns + place, raw, time_ns + place)
                    count += 1
        writer.finish()
    return count


def _messages(
    tick: int, pictures: list[np.ndarray[Any, Any]], time_ns: int
) -> list[tuple[str, Any]]:
    types = typestore().types
    stamp = types["builtin_interfaces/msg/Time"](*divmod(time_ns, 1_000_000_000))
    header = types["std_msgs/msg/Header"](stamp, "")
    none, pose = np.zeros(0), np.sin(0.4 * np.arange(1, 8) + 0.013 * tick)
    vector = types["geometry_msgs/msg/Vector3"]
    wrench = types["geometry_msgs/msg/Wrench"](vector(1.0, 2.0, 3.0), vector(0.1, 0.2, 0.3))

    def joints(names: tuple[str, ...], values: np.ndarray[Any, Any]) -> Any:
        return types[JOINT_STATE](header, list(names), values, none, none)

    found = [
        ("/joint_states", joints(JOINTS, pose)),
        ("/gripper_state", joints(("gripper",), pose[:1])),
        ("/wrench", types[WRENCH](header, wrench)),
    ]
    if tick % (RATE_HZ // CONTROL_HZ) == 0:
        found.append(("/joint_command", joints(JOINTS, pose + 0.02)))
    if tick % (RATE_HZ // CAMERA_HZ) == 0:
        height, width, channels = IMAGE_HWC
        data = pictures[(tick // (RATE_HZ // CAMERA_HZ)) % len(pictures)]
        image = types[IMAGE](header, height, width, "rgb8", 0, width * channels, data)
        found.append(("/camera", image))
    return found


def seconds_of(size_bytes: float) -> float:
    """Recorded time that fills so many bytes, with a camera."""
    return size_bytes / (CAMERA_HZ * float(np.prod(IMAGE_HWC)))
