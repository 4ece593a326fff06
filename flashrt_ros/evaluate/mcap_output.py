"""Predictions, errors and chunks as MCAP files, on recorded time, beside what was recorded.

For Foxglove and PlotJuggler: the definition of each message type lies in the file, so that neither
needs ROS. All topics stand below ``/evaluation``:

    recorded               sensor_msgs/JointState: the recorded command as of each control step
    LABEL/prediction       sensor_msgs/JointState: what the policy gave
    LABEL/sent             sensor_msgs/JointState: after limits, as the node would have sent it
    LABEL/error            sensor_msgs/JointState: prediction minus recorded
    LABEL/chunk            flashrt_ros/ActionChunk: each chunk, when it was adopted
    LABEL/latency_ms       std_msgs/Float64
    LABEL/fault            rcl_interfaces/Log: why no step was made, when that changes
    age_ms/INPUT           std_msgs/Float64: age of the newest message
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.bag.message import Definition, Message
from flashrt_ros.bag.reader import BagReader
from flashrt_ros.contract.definitions import require_type, typestore
from flashrt_ros.errors import AlreadyExistsError, StorageError
from flashrt_ros.evaluate.foxglove import layout
from flashrt_ros.evaluate.own_files import LIBRARY, refuse_others
from flashrt_ros.evaluate.track import Track

JOINT_STATE, FLOAT = "sensor_msgs/msg/JointState", "std_msgs/msg/Float64"
CHUNK, LOG = "flashrt_ros/msg/ActionChunk", "rcl_interfaces/msg/Log"
HEADER, TIME = "std_msgs/msg/Header", "builtin_interfaces/msg/Time"
WARN = 30
_STAMP = struct.Struct("<iI")
_FLOAT_CDR = struct.Struct("<4sd")
"""Head of the encapsulation, little endian, and the number."""
ROOT = "/evaluation"


def check(path: Path) -> None:
    """Raises if no file can be written there; called before a run.

    Raises:
        AlreadyExistsError: There is one that no evaluation wrote: it may be a recording.
        ContractError: A message type is not defined here.
    """
    refuse_others(path, ".mcap")
    # A layout has no mark: it is ours if the recording beside it is.
    if layout_path(path).exists() and not path.exists():
        raise AlreadyExistsError(
            f"{layout_path(path)}: exists, and no evaluation wrote it; name a file that does not"
        )
    for name in (JOINT_STATE, FLOAT, CHUNK, LOG):
        require_type(name)


def layout_path(path: Path) -> Path:
    """Returns where the Foxglove layout of an MCAP file stands."""
    return path.with_suffix(".foxglove.json")


def write_mcap(path: Path, tracks: Sequence[Track], recording: BagReader | None = None) -> Path:
    """Writes one recording's evaluation, and a Foxglove layout for it.

    Args:
        path: The MCAP file; takes the place of one that an evaluation has written.
        tracks: One a policy, all of one source.
        recording: Whose messages are copied beside, byte by byte; None: none are.

    Returns:
        Path of the layout.

    Raises:
        AlreadyExistsError: As ``check``.
        ContractError: As ``check``.
        StorageError: It cannot be written; nothing is left then.
    """
    check(path)
    taken = [topic.name for topic in recording.topics] if recording is not None else []
    roots = (f"{ROOT}{number}" if number else ROOT for number in itertools.count())
    root = next(r for r in roots if not any(f"{name}/".startswith(f"{r}/") for name in taken))
    labels = topic_words([track.policy for track in tracks])
    inputs = topic_words(list(tracks[0].ages_ms))
    streams: list[Iterable[Message]] = [_recorded(tracks[0], root), _ages(tracks[0], inputs, root)]
    for track, label in zip(tracks, labels, strict=True):
        base = f"{root}/{label}"
        streams += [_joints(track, base), _chunks(track, base), _faults(track, base)]
    definitions: dict[str, Definition] = {}
    if recording is not None:
        streams.append(recording.messages())
        definitions = recording.definitions
    unfinished = path.with_name(path.name + ".unfinished")
    beside = layout_path(unfinished)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(unfinished, heapq.merge(*streams, key=lambda m: m.time_ns), definitions)
        words = json.dumps(layout(root, tracks, labels, inputs), indent=1)
        beside.write_text(words + "\n", encoding="utf-8")
        os.replace(unfinished, path)
        os.replace(beside, layout_path(path))
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        beside.unlink(missing_ok=True)
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from None
    return layout_path(path)


def topic_words(names: Sequence[str]) -> list[str]:
    """Returns for each name a part of a topic name as ROS 2 allows it, no two alike.

    A part that begins with ``_`` would be hidden, and ``__`` is reserved.
    """
    found: list[str] = []
    for name in names:
        word = re.sub(r"[\W_]+", "_", name, flags=re.ASCII).strip("_") or "unnamed"
        word = f"n{word}" if word[0].isdigit() else word
        number = 2
        unique = word
        while unique in found:
            unique, number = f"{word}_{number}", number + 1
        found.append(unique)
    return found


def _write(path: Path, messages: Iterable[Message], recorded: dict[str, Definition]) -> None:
    from mcap.writer import Writer

    schemas: dict[str, int] = {}
    channels: dict[tuple[str, str], int] = {}
    with path.open("wb") as sink:
        writer = Writer(sink)
        writer.start("ros2", LIBRARY)
        for topic, kind, cdr, time_ns in messages:
            key = (topic, kind)
            if key not in channels:
                if kind not in schemas:
                    definition = recorded.get(kind) or _definition(kind)
                    text = definition.text.encode()
                    schemas[kind] = writer.register_schema(kind, definition.encoding, text)
                channels[key] = writer.register_channel(topic, "cdr", schemas[kind])
            writer.add_message(channels[key], time_ns, cdr, time_ns)
        writer.finish()


def _definition(kind: str) -> Definition:
    """The definition known here; an empty one for types that nobody defines."""
    if kind not in typestore().fielddefs:
        return Definition("", "")
    text, _ = typestore().generate_msgdef(kind, ros_version=2)
    return Definition("ros2msg", text)


def _message(topic: str, kind: str, time_ns: int, **fields: Any) -> Message:
    store = typestore()
    message = store.types[kind](**fields)
    return Message(topic, kind, bytes(store.serialize_cdr(message, kind)), time_ns)


def _stamp(time_ns: int) -> Any:
    return typestore().types[TIME](sec=time_ns // 10**9, nanosec=time_ns % 10**9)


class _JointStates:
    """Joint states of one topic, which differ in time and positions only.

    One is serialized; of the others only those bytes are written anew.

    Args:
        topic: Their topic.
        names: Of the joints.
    """

    def __init__(self, topic: str, names: Sequence[str]) -> None:
        self.topic = topic
        # Numbers that stand nowhere else in the message, so that they can be found in its bytes.
        sec, nanosec, positions = 0x5A5B5C5D, 0x1A2B3C4D, 1.2345e123 * (1 + np.arange(len(names)))
        stamp = typestore().types[TIME](sec=sec, nanosec=nanosec)
        header = typestore().types[HEADER](stamp=stamp, frame_id="")
        empty = np.zeros(0)
        fields = {"name": list(names), "position": positions, "velocity": empty, "effort": empty}
        pattern = _message(topic, JOINT_STATE, 0, header=header, **fields).cdr
        self._before, stamped, rest = pattern.partition(_STAMP.pack(sec, nanosec))
        self._between, placed, self._after = rest.partition(positions.astype("<f8").tobytes())
        assert stamped
        assert placed or not names

    def __call__(self, time_ns: int, values_A: npt.NDArray[np.float64]) -> Message:
        """Returns the message of one step."""
        stamp = _STAMP.pack(*divmod(time_ns, 10**9))
        values = values_A.astype("<f8").tobytes()
        cdr = b"".join((self._before, stamp, self._between, values, self._after))
        return Message(self.topic, JOINT_STATE, cdr, time_ns)


def _number(topic: str, time_ns: int, value: float) -> Message:
    return Message(topic, FLOAT, _FLOAT_CDR.pack(b"\0\1\0\0", value), time_ns)


def _times(track: Track) -> list[int]:
    times: list[int] = track.time_ns_T.tolist()
    return times


def _recorded(track: Track, root: str) -> Iterator[Message]:
    """The recorded command as of each step that has one."""
    message = _JointStates(f"{root}/recorded", track.names)
    known_T = np.isfinite(track.recorded_TA).any(axis=1)
    for step in np.flatnonzero(known_T).tolist():
        yield message(int(track.time_ns_T[step]), track.recorded_TA[step])


def _ages(track: Track, inputs: Sequence[str], root: str) -> Iterator[Message]:
    """Ages of each input that has a message."""
    topics = [f"{root}/age_ms/{word}" for word in inputs]
    ages = list(zip(topics, track.ages_ms.values(), strict=True))
    for step, time_ns in enumerate(_times(track)):
        for topic, ages_T in ages:
            if np.isfinite(ages_T[step]):
                yield _number(topic, time_ns, float(ages_T[step]))


def _joints(track: Track, base: str) -> Iterator[Message]:
    """Prediction, what would have been sent, error and latency of each step that was made."""
    error_TA = track.predicted_TA - track.recorded_TA
    series = [
        (_JointStates(f"{base}/{word}", track.names), values_TA)
        for word, values_TA in (
            ("prediction", track.predicted_TA),
            ("sent", track.sent_TA),
            ("error", error_TA),
        )
    ]
    latency = f"{base}/latency_ms"
    for step, time_ns in enumerate(_times(track)):
        for message, values_TA in series:
            if np.isfinite(values_TA[step]).any():
                yield message(time_ns, values_TA[step])
        if np.isfinite(track.latency_ms_T[step]):
            yield _number(latency, time_ns, float(track.latency_ms_T[step]))


def _chunks(track: Track, base: str) -> Iterator[Message]:
    """Each chunk at the step that adopted it, without the rows that only fill it up."""
    if not track.chunks_CHA.size:
        return
    steps = np.searchsorted(track.index_T, track.chunk_adopted_C).clip(0, track.steps - 1)
    for number in np.argsort(steps, kind="stable").tolist():
        time_ns = int(track.time_ns_T[steps[number]])
        rows_HA = track.chunks_CHA[number].astype(np.float64)
        rows_HA = rows_HA[np.isfinite(rows_HA).any(axis=1)]
        yield _message(
            f"{base}/chunk",
            CHUNK,
            time_ns,
            header=typestore().types[HEADER](stamp=_stamp(time_ns), frame_id=""),
            capsule="",
            generation=0,
            chunk_id=number + 1,
            period_s=track.period_s,
            names=list(track.names),
            horizon=len(rows_HA),
            data=np.ascontiguousarray(rows_HA).reshape(-1),
        )


def _faults(track: Track, base: str) -> Iterator[Message]:
    """Why no step was made, whenever that becomes another reason."""
    before = ""
    for time_ns, words in zip(_times(track), track.fault_T, strict=True):
        if words and words != before:
            fields = {"name": track.policy, "msg": words, "file": "", "function": "", "line": 0}
            yield _message(
                f"{base}/fault", LOG, time_ns, stamp=_stamp(time_ns), level=WARN, **fields
            )
        before = words
