"""One observation as of a moment: which messages count, and in which words they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from flashrt_ros.contract.framed import Framed
from flashrt_ros.contract.history import past
from flashrt_ros.contract.image.reader import Frame
from flashrt_ros.contract.image.schema import CameraInfo, ImagePart
from flashrt_ros.contract.message import Array, Message
from flashrt_ros.contract.sample import InputStamp
from flashrt_ros.contract.schema import Observation, Part, Source
from flashrt_ros.errors import ContractError
from flashrt_ros.runtime.picture import BytePicture

NONE_YET = "no message"
TOO_EARLY = "older than the last activate, resume, restore or reset"
"""Faults of an input whose next message puts things right."""


def absence(message: Message | None, max_age_ms: float, now_ns: int, not_before_ns: int) -> str:
    """Why there is no fresh message; empty where there is one."""
    if message is None:
        return NONE_YET
    if message.received_ns < not_before_ns:
        return TOO_EARLY
    age_ms = (now_ns - message.received_ns) * 1e-6
    return f"stale {age_ms:.0f} ms > {max_age_ms:g} ms" if age_ms > max_age_ms else ""


def observe(
    observation: Observation,
    newest: Mapping[str, Message | None],
    earlier: Mapping[str, Sequence[Message]],
    infos: Mapping[CameraInfo, Message],
    now_ns: int,
    not_before_ns: int,
) -> tuple[list[InputStamp], Array | BytePicture | None]:
    """Stamps of the messages of one observation, and its array unless something hinders.

    The array of an image without a history is the decoded one itself and not to be written, or
    left in bytes.

    Args:
        observation: What is asked for.
        newest: By topic, as of ``now_ns``.
        earlier: By topic, for those that histories read.
        infos: What cameras said of themselves.
        now_ns: Steady clock.
        not_before_ns: Steady clock; messages received before do not count.
    """
    absences = {
        topic: absence(newest[topic], observation.max_age_ms, now_ns, not_before_ns)
        for topic in observation.topics
    }
    present = not any(absences.values())
    faults = dict.fromkeys(absences, "") if observation.optional else dict(absences)
    used: dict[str, list[Message]] = {}
    columns: list[list[Array]] = []
    picture: Array | BytePicture | None = None
    behind: dict[tuple[str, int], Message] = {}
    for source in observation.sources:
        message = newest[source.topic]
        if absences[source.topic] or message is None or faults[source.topic]:
            continue
        faults[source.topic] = message.faults.get(source, "")
        if faults[source.topic] or not present:
            continue
        steps = [message]
        try:
            if observation.history is not None:
                steps = past(
                    observation.history,
                    {each for each in observation.sources if each.topic == source.topic},
                    earlier[source.topic],
                    message,
                    not_before_ns,
                    observation.max_age_ms,
                )
            if observation.image is not None and observation.history is None:
                picture = message.seen(source)
            else:
                columns.append([step.value(source) for step in steps])
            used[source.topic] = steps
            behind |= _transforms(source, steps)
        except ContractError as error:
            faults[source.topic] = str(error)
    stamps = []
    for topic, fault in faults.items():
        for message in used.get(topic, [])[:-1]:
            stamps.append(_stamp(observation.key, topic, message, now_ns, present, ""))
        stamps.append(_stamp(observation.key, topic, newest[topic], now_ns, present, fault))
    for (topic, _), message in behind.items():
        stamp = _stamp(observation.key, topic, message, now_ns, present, "")
        stamps.append(replace(stamp, lasting=True))
    image = observation.image
    if present and image is not None and (info := image.camera_info) is not None:
        fault = _camera_fault(image, newest[image.topic], infos)
        faults[info.topic] = fault
        stamp = _stamp(observation.key, info.topic, infos.get(info), now_ns, present, fault)
        stamps.append(replace(stamp, lasting=True))
    if any(faults.values()):
        return stamps, None
    if picture is not None:
        return stamps, picture
    return stamps, join(observation, columns, present)


def _transforms(source: Source, steps: Sequence[Message]) -> dict[tuple[str, int], Message]:
    """The messages that brought values into the frame of their part, by topic and sequence."""
    if not isinstance(source, Part) or not source.transform:
        return {}
    values = [step.values[source] for step in steps]
    framed = [value for value in values if isinstance(value, Framed)]
    return {(topic, m.sequence): m for value in framed for topic, m in value.used}


def join(observation: Observation, columns: Sequence[Sequence[Array]], present: bool) -> Array:
    """Brings together what the sources gave.

    Args:
        observation: What is asked for.
        columns: Of each source, in order, an array for each moment, oldest first.
        present: False where an optional input was absent: ``columns`` are not looked at.
    """
    image = observation.image
    if image is not None:
        if not present:
            dtype = np.uint8 if image.range == "byte" else np.float32
            return np.full(observation.shape, observation.fill, dtype)
        (moments,) = columns
        return moments[0] if observation.history is None else np.stack(moments)
    vector = np.full(observation.shape, observation.fill, dtype=np.float32)
    if present:
        rows = vector[None] if observation.history is None else vector
        for row, parts in zip(rows, zip(*columns, strict=True), strict=True):
            row[: sum(map(len, parts))] = np.concatenate(parts)
    if observation.present_flag:
        vector[-1] = float(present)
    return vector


def _camera_fault(
    image: ImagePart, newest: Message | None, infos: Mapping[CameraInfo, Message]
) -> str:
    """Why the camera is not the expected one; empty where it is, or its image is at fault."""
    info = image.camera_info
    assert info is not None
    message = infos.get(info)
    if message is None:
        return "no camera info yet"
    if fault := message.faults.get(info, ""):
        return fault
    frame = newest.values.get(image) if newest is not None else None
    if not isinstance(frame, Frame):
        return ""
    height, width = (int(length) for length in message.value(info))
    if (height, width) != frame.size:
        return (
            f"expected images of {height} x {width} (height x width) as the camera info says, "
            f"found {frame.size[0]} x {frame.size[1]}"
        )
    return ""


def _stamp(
    key: str, topic: str, message: Message | None, now_ns: int, present: bool, fault: str
) -> InputStamp:
    if message is None:
        return InputStamp(key, topic, present=present, fault=fault)
    age_ms = (now_ns - message.received_ns) * 1e-6
    return InputStamp(
        key, topic, message.stamp_ns, age_ms, message.digest, message.sequence, present, fault
    )
