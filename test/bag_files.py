"""Small recordings for tests, written into a folder that the test gives."""

from pathlib import Path

import numpy as np
from mcap.writer import CompressionType, Writer
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as BagWriter
from rosbags.typesys import Stores, get_typestore

STORE = get_typestore(Stores.ROS2_JAZZY)
JOINT_STATE = "sensor_msgs/msg/JointState"
START_NS = 1_700_000_000_000_000_000
PERIOD_NS = 50_000_000


def joint_state(
    index: int, names: tuple[str, ...] = ("q0", "q1"), stamp_ns: int | None = None
) -> bytes:
    """Returns the CDR bytes of one joint state whose positions are all ``index``."""
    stamp_ns = START_NS + index * PERIOD_NS if stamp_ns is None else stamp_ns
    types = STORE.types
    message = types[JOINT_STATE](
        header=types["std_msgs/msg/Header"](
            stamp=types["builtin_interfaces/msg/Time"](
                sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9
            ),
            frame_id="",
        ),
        name=list(names),
        position=np.full(2, float(index)),
        velocity=np.zeros(2),
        effort=np.zeros(0),
    )
    return bytes(STORE.serialize_cdr(message, JOINT_STATE))


def float_message(value: float) -> bytes:
    """Returns the CDR bytes of one Float64."""
    kind = "std_msgs/msg/Float64"
    return bytes(STORE.serialize_cdr(STORE.types[kind](data=value), kind))


def write_folder(folder: Path, mcap: bool = True, count: int = 20) -> Path:
    """Writes a healthy recording: ``/joints`` and ``/load``, ``count`` messages each."""
    plugin = StoragePlugin.MCAP if mcap else StoragePlugin.SQLITE3
    with BagWriter(folder, version=9, storage_plugin=plugin) as bag:
        joints = bag.add_connection("/joints", JOINT_STATE, typestore=STORE)
        load = bag.add_connection("/load", "std_msgs/msg/Float64", typestore=STORE)
        for index in range(count):
            bag.write(joints, START_NS + index * PERIOD_NS, joint_state(index))
            bag.write(load, START_NS + index * PERIOD_NS + 1, float_message(index))
    return folder


def write_mcap(
    path: Path,
    rows: list[tuple[str, str, int, bytes]],
    schemas: dict[str, str] | None = None,
    encoding: str = "cdr",
    chunk_size: int = 1024,
    compression: CompressionType = CompressionType.ZSTD,
    use_chunking: bool = True,
    profile: str = "ros2",
) -> Path:
    """Writes one MCAP file of (topic, type, log time, bytes) rows."""
    with path.open("wb") as sink:
        writer = Writer(
            sink, chunk_size=chunk_size, compression=compression, use_chunking=use_chunking
        )
        writer.start(profile, "test")
        channels: dict[str, int] = {}
        for topic, kind, log_ns, data in rows:
            if topic not in channels:
                text = (schemas or {}).get(kind, "")
                schema = writer.register_schema(kind, "ros2msg" if text else "", text.encode())
                channels[topic] = writer.register_channel(topic, encoding, schema)
            writer.add_message(channels[topic], log_ns, data, log_ns)
        writer.finish()
    return path


def joint_rows(count: int = 40) -> list[tuple[str, str, int, bytes]]:
    """Returns ``count`` joint states on ``/joints`` as rows for ``write_mcap``."""
    return [
        ("/joints", JOINT_STATE, START_NS + index * PERIOD_NS, joint_state(index))
        for index in range(count)
    ]
