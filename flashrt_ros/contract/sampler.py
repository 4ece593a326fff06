"""Keeps the newest messages of each input and makes observations as of a moment.

Freshness is judged on the steady receive time alone: header clocks of other machines skew.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.conversions import Decoded, PartReader, Vector, decode
from flashrt_ros.contract.sample import InputStamp, Received, Sample
from flashrt_ros.contract.schema import Observation, Part
from flashrt_ros.errors import ContractError

JUMP_NS = 10_000_000
"""How far a header stamp must go back to count as a jump in time. Less is the jitter of drivers
that estimate their stamps, or a clock being set right; it does not make a message unusable."""
MAX_PADDING = 3
"""Trailing bytes that every middleware adds to reach a multiple of four; not worth a word."""


@dataclass
class _Message:
    received_ns: int
    stamp_ns: int
    digest: int
    sequence: int
    vectors: dict[Part, Vector]
    faults: dict[Part, str]


@dataclass
class _Topic:
    type: str
    readers: list[PartReader]
    messages: deque[_Message]
    stamp_ns: int = 0
    sequence: int = 0
    trailing_bytes: int = 0
    said: set[str] = field(default_factory=set)


class Sampler:
    """As-of sampler over all inputs of a contract.

    ``put`` may run in an intake thread and ``sample`` in the control thread: messages are decoded
    outside the lock, which is held for microseconds.
    """

    def __init__(self, contract: Contract, history: int = 64) -> None:
        """Makes an empty sampler.

        Args:
            contract: What to read.
            history: Messages kept for each topic, so that moments in the past can be sampled.
        """
        self.contract = contract
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}
        for topic, type_name, _ in contract.topics():
            parts = dict.fromkeys(part for part in contract.parts() if part.topic == topic)
            readers = [PartReader(part) for part in parts]
            self._topics[topic] = _Topic(type_name, readers, deque(maxlen=history))

    def put(self, topic: str, message: Any, received_ns: int, digest: int = 0) -> Received:
        """Takes one message in; never raises for what a publisher sent.

        Args:
            topic: As the contract writes it.
            message: CDR bytes, a ``Decoded``, or a rosbags or rclpy message object.
            received_ns: Steady clock.
            digest: Of the serialized message; passed on in ``InputStamp``.

        Raises:
            ContractError: The contract does not read this topic.
        """
        state = self._topics.get(topic)
        if state is None:
            raise ContractError(
                f"topic {topic!r}: expected one of the contract's inputs, {list(self._topics)}"
            )
        entry = _Message(received_ns, 0, digest, 0, {}, {})
        decoded, fault = self._decode(state, topic, message)
        if decoded is None:
            entry.faults = {reader.part: fault for reader in state.readers}
        else:
            entry.stamp_ns = decoded.stamp_ns
            self._read(state, decoded, entry)
            fault = next(iter(entry.faults.values()), "")
        with self._lock:
            jump = self._enter(topic, state, entry, decoded)
            notices = self._notices(topic, state, decoded)
        return Received(jump, fault, notices)

    def _decode(self, state: _Topic, topic: str, message: Any) -> tuple[Decoded | None, str]:
        try:
            decoded = message if isinstance(message, Decoded) else decode(state.type, message)
        except ContractError as error:
            return None, f"topic {topic!r}: {error}"
        if decoded.type != state.type:
            return None, f"topic {topic!r}: expected {state.type}, found {decoded.type}"
        return decoded, ""

    def _read(self, state: _Topic, decoded: Decoded, entry: _Message) -> None:
        for reader in state.readers:
            part = reader.part
            try:
                vector = reader(decoded)
            except ContractError as error:
                entry.faults[part] = str(error)
                continue
            if np.isfinite(vector).all():
                entry.vectors[part] = vector
            else:
                bad = [n for n, v in zip(part.names, vector, strict=True) if not np.isfinite(v)]
                entry.faults[part] = f"non-finite {part.field} of {', '.join(bad)}"

    def _enter(self, topic: str, state: _Topic, entry: _Message, decoded: Decoded | None) -> str:
        jump = ""
        if entry.stamp_ns and state.stamp_ns - entry.stamp_ns >= JUMP_NS:
            back_s = (state.stamp_ns - entry.stamp_ns) * 1e-9
            jump = f"topic {topic!r}: header stamps went back by {back_s:.3f} s"
            # All topics: what came before the jump belongs to another time. Their stamps are
            # forgotten too, so that a looped bag is one jump and not one for each topic.
            for other in self._topics.values():
                other.messages.clear()
                other.stamp_ns = 0
        # The highest so far: many small steps back add up to a jump.
        state.stamp_ns = max(entry.stamp_ns, state.stamp_ns)
        state.sequence += 1
        entry.sequence = state.sequence
        state.trailing_bytes += decoded.trailing_bytes if decoded else 0
        state.messages.append(entry)
        return jump

    def _notices(self, topic: str, state: _Topic, decoded: Decoded | None) -> tuple[str, ...]:
        if decoded is None:
            return ()
        found = []
        if decoded.stamp_ns == 0:
            found.append(f"topic {topic!r}: unstamped, the receive time is used")
        if not decoded.carries_names() and any(r.part.positional for r in state.readers):
            found.append(f"topic {topic!r}: no joint names in the message, `positional` is used")
        if decoded.trailing_bytes > MAX_PADDING:
            found.append(f"topic {topic!r}: {decoded.trailing_bytes} bytes behind the message")
        new = tuple(words for words in found if words not in state.said)
        state.said.update(new)
        return new

    def trailing_bytes(self) -> dict[str, int]:
        """Bytes found behind serialized messages since the start, padding included, by topic."""
        with self._lock:
            return {topic: state.trailing_bytes for topic, state in self._topics.items()}

    def clear(self) -> None:
        """Drops every message and forgets the stamps; sequence counters go on."""
        with self._lock:
            for state in self._topics.values():
                state.messages.clear()
                state.stamp_ns = 0
                state.said.clear()

    def sample(self, now_ns: int, not_before_ns: int = 0) -> Sample:
        """Makes the observations as of ``now_ns``.

        Args:
            now_ns: Steady clock; messages received later are not seen.
            not_before_ns: Steady clock, time of the last reset or restore; messages received
                earlier do not count.
        """
        with self._lock:
            newest = {
                topic: next((m for m in reversed(state.messages) if m.received_ns <= now_ns), None)
                for topic, state in self._topics.items()
            }
            notices = tuple(w for state in self._topics.values() for w in sorted(state.said))
        observations: dict[str, Vector] = {}
        stamps: list[InputStamp] = []
        for observation in self.contract.observations:
            ours, vector = _observe(observation, newest, now_ns, not_before_ns)
            stamps += ours
            if vector is not None:
                observations[observation.key] = vector
        measured, measured_fault = None, ""
        if (start := self.contract.start) is not None:
            message = newest[start.measured.topic]
            measured_fault = _absence(message, start.max_age_ms, now_ns, not_before_ns)
            if message is not None and not measured_fault:
                measured_fault = message.faults.get(start.measured, "")
                measured = message.vectors.get(start.measured)
        faults = tuple(f"{s.observation} ({s.topic}): {s.fault}" for s in stamps if s.fault)
        return Sample(observations, tuple(stamps), faults, notices, measured, measured_fault)


def _absence(message: _Message | None, max_age_ms: float, now_ns: int, not_before_ns: int) -> str:
    """Why there is no fresh message; empty where there is one."""
    if message is None:
        return "no message"
    if message.received_ns < not_before_ns:
        return "older than the last activate, resume, restore or reset"
    age_ms = (now_ns - message.received_ns) * 1e-6
    return f"stale {age_ms:.0f} ms > {max_age_ms:g} ms" if age_ms > max_age_ms else ""


def _observe(
    observation: Observation,
    newest: dict[str, _Message | None],
    now_ns: int,
    not_before_ns: int,
) -> tuple[list[InputStamp], Vector | None]:
    """Stamps of the topics of one observation, and its vector unless something hinders."""
    absences = {
        topic: _absence(newest[topic], observation.max_age_ms, now_ns, not_before_ns)
        for topic in observation.topics
    }
    present = not any(absences.values())
    stamps = []
    for topic, absence in absences.items():
        message = newest[topic]
        fault = "" if observation.optional else absence
        if not absence and message is not None:
            broken = [message.faults[p] for p in observation.parts if p in message.faults]
            fault = broken[0] if broken else ""
        stamps.append(_stamp(observation.key, topic, message, now_ns, present, fault))
    if any(stamp.fault for stamp in stamps):
        return stamps, None
    vector = np.full(observation.size, observation.fill, dtype=np.float32)
    if present:
        position = 0
        for part in observation.parts:
            message = newest[part.topic]
            assert message is not None
            vector[position : position + len(part.names)] = message.vectors[part]
            position += len(part.names)
    if observation.present_flag:
        vector[-1] = float(present)
    return stamps, vector


def _stamp(
    key: str, topic: str, message: _Message | None, now_ns: int, present: bool, fault: str
) -> InputStamp:
    if message is None:
        return InputStamp(key, topic, present=present, fault=fault)
    age_ms = (now_ns - message.received_ns) * 1e-6
    return InputStamp(
        key, topic, message.stamp_ns, age_ms, message.digest, message.sequence, present, fault
    )
