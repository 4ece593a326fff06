"""Keeps the newest messages of each input and makes observations as of a moment.

Freshness is judged on the steady receive time alone: header clocks of other machines skew.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.conversions import Decoded, PartReader, decode
from flashrt_ros.contract.framed import FramedReader
from flashrt_ros.contract.frames import TF, FrameInput, FrameReader, Frames
from flashrt_ros.contract.history import window_ns
from flashrt_ros.contract.image.camera_info import CameraInfoReader, distortion
from flashrt_ros.contract.image.reader import ImageReader, crosses_as_bytes
from flashrt_ros.contract.image.schema import CameraInfo, ImagePart
from flashrt_ros.contract.input_types import input_field
from flashrt_ros.contract.message import Array, Message
from flashrt_ros.contract.observing import absence, observe
from flashrt_ros.contract.sample import InputStamp, Received, Sample
from flashrt_ros.contract.schema import Input, Part
from flashrt_ros.contract.task import TaskInput, TaskReader, TaskText
from flashrt_ros.errors import ContractError
from flashrt_ros.runtime.picture import BytePicture

JUMP_NS = 10_000_000
"""How far a header stamp must go back to count as a jump in time. Less is the jitter of drivers
that estimate their stamps, or a clock being set right; it does not make a message unusable."""
CAMERA_INFO = CameraInfo("").type
IMAGE_HISTORY = 4
"""Images kept for each topic, histories apart."""
MAX_PADDING = 3
"""Trailing bytes that every middleware adds to reach a multiple of four; not worth a word."""


Reader = PartReader | FramedReader | ImageReader | CameraInfoReader | TaskReader | FrameReader


@dataclass
class _Topic:
    type: str
    readers: list[Reader]
    positional: list[PartReader]
    lasting: bool
    messages: deque[Message]
    kept: int
    window_ns: int
    stamp_ns: int = 0
    sequence: int = 0
    trailing_bytes: int = 0
    said: set[str] = field(default_factory=set)


@dataclass
class Prepared:
    """A message that has been decoded and not been taken in yet.

    Attributes:
        topic: As the contract writes it.
        message: What it holds.
        decoded: None where it cannot be used at all.
        fault: Why something of it cannot be used, or empty.
    """

    topic: str
    message: Message
    decoded: Decoded | None
    fault: str


@dataclass(frozen=True)
class Heard:
    """What a sampler keeps of one topic, as times by which a recording finds the messages again.

    Attributes:
        since_ns: Receive time of the oldest message that can still be sampled.
        stamp_ns: Highest header stamp, against which jumps are told.
    """

    since_ns: int
    stamp_ns: int


class Sampler:
    """As-of sampler over all inputs of a contract.

    ``prepare`` and ``enter`` may run in an intake thread and ``sample`` in the control thread:
    messages are decoded outside the lock, which is held for microseconds.

    Attributes:
        contract: As given.
        frames: What /tf and /tf_static said.
        pictures: Keys of the observations that come as ``BytePicture``.
        stage: Called with each of them by the thread that decodes it; gives the same picture,
            perhaps in other memory.
    """

    def __init__(
        self,
        contract: Contract,
        history: int = 64,
        lazy: bool = False,
        as_bytes: bool = False,
    ) -> None:
        """Makes an empty sampler.

        Args:
            contract: What to read.
            history: Messages kept for each topic, so that moments in the past can be sampled; of
                images ``IMAGE_HISTORY`` at most.
            lazy: Images are decoded when they are first sampled: for recordings, most of whose
                images are not. Otherwise when they come, so that sampling takes no time.
            as_bytes: Images whose bytes say all are left as such, for a session that has room for
                ``pictures``.
        """
        self.contract = contract
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}
        self.frames = Frames()
        self._lazy = lazy
        self.stage: Callable[[BytePicture], BytePicture] = lambda picture: picture
        self.pictures = frozenset(
            observation.key
            for observation in contract.observations
            if as_bytes
            and observation.history is None
            and observation.image is not None
            and crosses_as_bytes(observation.image)
        )
        # Those of a history are stacked as numbers, which are calculated once.
        narrow = {o.image for o in contract.observations if o.key in self.pictures}
        for topic, type_name, _ in contract.topics():
            inputs = dict.fromkeys(i for i in contract.inputs() if i.topic == topic)
            readers = [self._reader(source, source in narrow) for source in inputs]
            images = any(isinstance(source, ImagePart) for source in inputs)
            kept = min(history, IMAGE_HISTORY) if images else history
            kept_ns = window_ns(contract.observations, topic)
            parts = [reader for reader in readers if isinstance(reader, PartReader)]
            positional = [reader for reader in parts if reader.part.positional]
            lasting = len(parts) + images < len(readers)
            self._topics[topic] = _Topic(
                type_name, readers, positional, lasting, deque(), kept, kept_ns
            )
        # Facts about a camera that it may say only once: neither age nor reset touch them.
        self._infos: dict[CameraInfo, Message] = {}
        self._task: Message | None = None

    def _reader(self, source: Input, as_bytes: bool) -> Reader:
        if isinstance(source, FrameInput):
            return FrameReader(source)
        if isinstance(source, Part) and source.transform:
            labels = input_field(source.type, source.field).labels
            whole = replace(source, names=labels, frame_id="", elements=())
            return FramedReader(source, PartReader(whole), labels, self.frames)
        if isinstance(source, CameraInfo):
            return CameraInfoReader(source)
        if isinstance(source, TaskInput):
            return TaskReader(source)
        if isinstance(source, ImagePart):
            return ImageReader(source, as_bytes, lambda picture: self.stage(picture))
        return PartReader(source)

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
        return self.enter(self.prepare(topic, message, received_ns, digest))

    def prepare(
        self, topic: str, message: Any, received_ns: int, digest: int = 0, lazy: bool = False
    ) -> Prepared:
        """The part of ``put`` that takes time; changes nothing.

        Args:
            topic: As for ``put``.
            message: As for ``put``.
            received_ns: As for ``put``.
            digest: As for ``put``.
            lazy: This image is decoded when it is first sampled.

        Raises:
            ContractError: The contract does not read this topic.
        """
        state = self._topics.get(topic)
        if state is None:
            raise ContractError(
                f"topic {topic!r}: expected one of the contract's inputs, {list(self._topics)}"
            )
        entry = Message(received_ns, digest=digest)
        decoded, fault = self._decode(state, topic, message)
        if decoded is None:
            entry.faults = {reader.part: fault for reader in state.readers}
        else:
            entry.stamp_ns = decoded.stamp_ns
            self._read(state, decoded, entry, self._lazy or lazy)
            fault = next(iter(entry.faults.values()), "")
        return Prepared(topic, entry, decoded, fault)

    def enter(self, prepared: Prepared) -> Received:
        """Takes in what ``prepare`` has made."""
        topic, decoded = prepared.topic, prepared.decoded
        state = self._topics[topic]
        with self._lock:
            jump = self._enter(topic, state, prepared.message, decoded)
            notices = self._notices(topic, state, decoded)
        return Received(jump, prepared.fault, notices)

    def _decode(self, state: _Topic, topic: str, message: Any) -> tuple[Decoded | None, str]:
        try:
            decoded = message if isinstance(message, Decoded) else decode(state.type, message)
        except ContractError as error:
            return None, f"topic {topic!r}: {error}"
        if decoded.type != state.type:
            return None, f"topic {topic!r}: expected {state.type}, found {decoded.type}"
        return decoded, ""

    def _read(self, state: _Topic, decoded: Decoded, entry: Message, lazy: bool) -> None:
        for reader in state.readers:
            part = reader.part
            try:
                if isinstance(reader, PartReader):
                    self._take(reader, decoded, entry)
                    continue
                if isinstance(reader, TaskReader):
                    entry.text = reader(decoded.message)
                    continue
                if isinstance(reader, FrameReader):
                    continue
                if isinstance(reader, FramedReader):
                    entry.values[part] = reader(decoded)
                    continue
                if isinstance(reader, CameraInfoReader):
                    entry.values[part] = reader(decoded.message)
                    continue
                frame = reader.frame(decoded.message)
                if not lazy:
                    frame.picture()
                entry.values[part] = frame
            except ContractError as error:
                entry.faults[part] = str(error)

    def _take(self, reader: PartReader, decoded: Decoded, entry: Message) -> None:
        vector = reader(decoded)
        if np.isfinite(vector).all():
            entry.values[reader.part] = vector
            return
        names = zip(reader.part.names, vector, strict=True)
        bad = [name for name, value in names if not np.isfinite(value)]
        entry.faults[reader.part] = f"non-finite {reader.part.field} of {', '.join(bad)}"

    def _enter(self, topic: str, state: _Topic, entry: Message, decoded: Decoded | None) -> str:
        jump = ""
        if entry.stamp_ns and state.stamp_ns - entry.stamp_ns >= JUMP_NS:
            back_s = (state.stamp_ns - entry.stamp_ns) * 1e-9
            jump = f"topic {topic!r}: header stamps went back by {back_s:.3f} s"
            # All topics: what came before the jump belongs to another time. Their stamps are
            # forgotten too, so that a looped bag is one jump and not one for each topic.
            for other in self._topics.values():
                other.messages.clear()
                other.stamp_ns = 0
            self.frames.clear()
        # The highest so far: many small steps back add up to a jump.
        state.stamp_ns = max(entry.stamp_ns, state.stamp_ns)
        state.sequence += 1
        entry.sequence = state.sequence
        state.trailing_bytes += decoded.trailing_bytes if decoded else 0
        state.messages.append(entry)
        oldest_ns = entry.received_ns - state.window_ns
        while len(state.messages) > state.kept and (
            not state.window_ns or state.messages[0].received_ns < oldest_ns
        ):
            state.messages.popleft()
        for reader in state.readers if state.lasting else ():
            if isinstance(reader, CameraInfoReader):
                self._infos[reader.part] = entry
            elif isinstance(reader, TaskReader):
                self._task = entry
            elif isinstance(reader, FrameReader) and decoded is not None:
                self.frames.take(decoded.message, entry, reader.part)
        return jump

    def _notices(self, topic: str, state: _Topic, decoded: Decoded | None) -> tuple[str, ...]:
        if decoded is None:
            return ()
        found = []
        if decoded.stamp_ns == 0 and state.type != TF:
            found.append(f"topic {topic!r}: unstamped, the receive time is used")
        if any(not decoded.carries_names(reader.part) for reader in state.positional):
            found.append(f"topic {topic!r}: no joint names in the message, `positional` is used")
        if decoded.trailing_bytes > MAX_PADDING:
            found.append(f"topic {topic!r}: {decoded.trailing_bytes} bytes behind the message")
        if decoded.type == CAMERA_INFO and (words := distortion(decoded.message)):
            found.append(f"topic {topic!r}: {words}")
        if not found:
            return ()
        new = tuple(words for words in found if words not in state.said)
        state.said.update(new)
        return new

    def trailing_bytes(self) -> dict[str, int]:
        """Bytes found behind serialized messages since the start, padding included, by topic."""
        with self._lock:
            return {topic: state.trailing_bytes for topic, state in self._topics.items()}

    def heard(self) -> dict[str, Heard]:
        """What is kept of each topic, for a sampler elsewhere that is to go on from here."""
        with self._lock:
            lasting = {part.topic: entry for part, entry in self._infos.items()}
            if self.contract.task is not None and self._task is not None:
                lasting[self.contract.task.topic] = self._task
            found = {}
            for topic, state in self._topics.items():
                kept = list(state.messages) or [m for m in [lasting.get(topic)] if m is not None]
                if kept:
                    oldest = kept[0] if state.window_ns else kept[-1]
                    found[topic] = Heard(oldest.received_ns, state.stamp_ns)
            return found

    def go_on(self, heard: Mapping[str, Heard]) -> None:
        """Ends the repetition of what another sampler had ``heard``: stamps count from there."""
        with self._lock:
            for topic, state in self._topics.items():
                state.stamp_ns = heard[topic].stamp_ns if topic in heard else 0

    def task(self) -> TaskText | None:
        """See ``Sample.task``."""
        with self._lock:
            said = self._task
        if self.contract.task is None:
            return None
        return _task(self.contract.task, said, 0)[1]

    def clear(self) -> None:
        """Drops every message and forgets the stamps; sequence counters go on."""
        with self._lock:
            for state in self._topics.values():
                state.messages.clear()
                state.stamp_ns = 0
                state.said.clear()
            self.frames.clear()

    def pictures_now(self, now_ns: int, not_before_ns: int) -> dict[str, BytePicture]:
        """Those observations of ``sample`` alone that are bytes, where they have no fault."""
        with self._lock:
            newest, infos = self._newest(now_ns), dict(self._infos)
        observed = (
            (observation.key, observe(observation, newest, {}, infos, now_ns, not_before_ns)[1])
            for observation in self.contract.observations
            if observation.key in self.pictures
        )
        return {key: value for key, value in observed if isinstance(value, BytePicture)}

    def _newest(self, now_ns: int) -> dict[str, Message | None]:
        return {
            topic: next((m for m in reversed(state.messages) if m.received_ns <= now_ns), None)
            for topic, state in self._topics.items()
        }

    def sample(self, now_ns: int, not_before_ns: int = 0) -> Sample:
        """Makes the observations as of ``now_ns``.

        Args:
            now_ns: Steady clock; messages received later are not seen.
            not_before_ns: Steady clock, time of the last reset or restore; messages received
                earlier do not count.
        """
        with self._lock:
            newest = self._newest(now_ns)
            earlier = {
                topic: list(state.messages)
                for topic, state in self._topics.items()
                if state.window_ns
            }
            infos = dict(self._infos)
            said = self._task
            notices = tuple(w for state in self._topics.values() for w in sorted(state.said))
        observations: dict[str, Array | BytePicture] = {}
        stamps: list[InputStamp] = []
        for observation in self.contract.observations:
            ours, value = observe(observation, newest, earlier, infos, now_ns, not_before_ns)
            stamps += ours
            if value is not None:
                observations[observation.key] = value
        task = None
        if (asked := self.contract.task) is not None:
            stamp, task = _task(asked, said, now_ns)
            stamps += [stamp] if stamp is not None else []
        measured: Array | None = None
        measured_fault = ""
        if (start := self.contract.start) is not None:
            message = newest[start.measured.topic]
            measured_fault = absence(message, start.max_age_ms, now_ns, not_before_ns)
            if message is not None and not measured_fault:
                measured, measured_fault = _measured(message, start.measured)
        faults = tuple(f"{s.observation} ({s.topic}): {s.fault}" for s in stamps if s.fault)
        return Sample(
            observations,
            tuple(stamps),
            faults,
            notices,
            measured,
            measured_fault,
            task,
            now_ns,
        )


def _measured(message: Message, part: Part) -> tuple[Array | None, str]:
    """Positions, or why they cannot be used."""
    if fault := message.faults.get(part, ""):
        return None, fault
    try:
        return message.value(part), ""
    except ContractError as error:
        return None, str(error)


def _task(
    task: TaskInput, said: Message | None, now_ns: int
) -> tuple[InputStamp | None, TaskText | None]:
    """The text, and which message it came from."""
    if said is None:
        fault = "no task text yet" if task.required else ""
        return InputStamp("task", task.topic, fault=fault) if fault else None, None
    fault = said.faults.get(task, "")
    age_ms = (now_ns - said.received_ns) * 1e-6
    stamp = InputStamp(
        "task", task.topic, said.stamp_ns, age_ms, said.digest, said.sequence, True, fault
    )
    return stamp, None if fault else TaskText(said.text, said.sequence)
