"""One observation as of a moment: which messages count, and in which words they do not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flashrt_ros.contract.message import Array, Message
from flashrt_ros.contract.sample import InputStamp
from flashrt_ros.contract.schema import Observation
from flashrt_ros.errors import ContractError


def absence(message: Message | None, max_age_ms: float, now_ns: int, not_before_ns: int) -> str:
    """Why there is no fresh message; empty where there is one."""
    if message is None:
        return "no message"
    if message.received_ns < not_before_ns:
        return "older than the last activate, resume, restore or reset"
    age_ms = (now_ns - message.received_ns) * 1e-6
    return f"stale {age_ms:.0f} ms > {max_age_ms:g} ms" if age_ms > max_age_ms else ""


def observe(
    observation: Observation,
    newest: Mapping[str, Message | None],
    now_ns: int,
    not_before_ns: int,
) -> tuple[list[InputStamp], Array | None]:
    """Stamps of the topics of one observation, and its array unless something hinders.

    The array of an image is the decoded one itself and not to be written.
    """
    absences = {
        topic: absence(newest[topic], observation.max_age_ms, now_ns, not_before_ns)
        for topic in observation.topics
    }
    present = not any(absences.values())
    faults = dict.fromkeys(absences, "") if observation.optional else dict(absences)
    values: dict[int, Array] = {}
    for position, source in enumerate(observation.sources):
        message = newest[source.topic]
        if absences[source.topic] or message is None or faults[source.topic]:
            continue
        fault = message.faults.get(source, "")
        if not fault and present:
            try:
                values[position] = message.value(source)
            except ContractError as error:
                fault = str(error)
        faults[source.topic] = fault
    stamps = [
        _stamp(observation.key, topic, newest[topic], now_ns, present, fault)
        for topic, fault in faults.items()
    ]
    if any(faults.values()):
        return stamps, None
    if observation.image is not None:
        return stamps, values[0] if present else _filled_image(observation)
    vector = np.full(observation.size, observation.fill, dtype=np.float32)
    if present:
        place = 0
        for position, part in enumerate(observation.parts):
            vector[place : place + len(part.names)] = values[position]
            place += len(part.names)
    if observation.present_flag:
        vector[-1] = float(present)
    return stamps, vector


def _filled_image(observation: Observation) -> Array:
    assert observation.image is not None
    dtype = np.uint8 if observation.image.range == "byte" else np.float32
    return np.full(observation.shape, observation.fill, dtype)


def _stamp(
    key: str, topic: str, message: Message | None, now_ns: int, present: bool, fault: str
) -> InputStamp:
    if message is None:
        return InputStamp(key, topic, present=present, fault=fault)
    age_ms = (now_ns - message.received_ns) * 1e-6
    return InputStamp(
        key, topic, message.stamp_ns, age_ms, message.digest, message.sequence, present, fault
    )
