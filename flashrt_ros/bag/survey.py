"""Decodes a recording once, to say what a contract or a player will meet in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from flashrt_ros.bag.reader import BagReader

TRAILING_SLACK_BYTES = 3
"""CDR pads to four bytes: up to three more are no defect."""
GAP = 5
"""A silence of more than so many usual intervals is a gap."""
BURST_NS = 1_000_000
"""Messages that usually come closer than this come in bursts, or twice: a pause is no gap."""
JOINT_STATE = "sensor_msgs/msg/JointState"


@dataclass
class TopicSurvey:
    """What one topic's messages are like.

    Attributes:
        type: ROS type in the long form.
        messages: Messages read.
        first_ns: Recorded time of the first, 0 without messages.
        last_ns: Recorded time of the last.
        longest_gap_ns: Longest time between two of them.
        trailing: Messages with more bytes than their type has.
        trailing_bytes: The most such bytes in one message.
        undecodable: Messages that do not fit their type.
        unstamped: Messages whose header stamp is zero.
        stamp_steps_back: Header stamps before the one before them.
        unnamed: Messages with values but an empty ``name`` list.
        no_definition: The type is neither recorded nor a standard one: nothing was decoded.
    """

    type: str
    messages: int = 0
    first_ns: int = 0
    last_ns: int = 0
    longest_gap_ns: int = 0
    trailing: int = 0
    trailing_bytes: int = 0
    undecodable: int = 0
    unstamped: int = 0
    stamp_steps_back: int = 0
    unnamed: int = 0
    no_definition: bool = False
    _intervals: Counter[int] = field(default_factory=Counter, repr=False)
    _last_stamp_ns: int = field(default=0, repr=False)

    @property
    def rate_hz(self) -> float:
        """Mean rate between the first and the last message; 0 where there are fewer than two."""
        span_ns = self.last_ns - self.first_ns
        return (self.messages - 1) * 1e9 / span_ns if span_ns > 0 else 0.0

    @property
    def usual_ns(self) -> int:
        """Median time between two messages, to a sixteenth of it; 0 where there are too few."""
        passed, half = 0, sum(self._intervals.values()) / 2
        for least_ns, count in sorted(self._intervals.items()):
            passed += count
            if passed >= half:
                return least_ns + (_step(least_ns) >> 1)
        return 0

    @property
    def gaps(self) -> int:
        """Times between two messages of more than ``GAP`` usual ones; of bursts none."""
        if self.usual_ns < BURST_NS:
            return 0
        least_ns = GAP * self.usual_ns
        return sum(count for each, count in self._intervals.items() if each > least_ns)

    def arrived(self, time_ns: int) -> None:
        """Counts a message, recorded at this time."""
        if self.messages:
            interval_ns = max(0, time_ns - self.last_ns)
            self.longest_gap_ns = max(self.longest_gap_ns, interval_ns)
            # Its first four bits: few different numbers, however long the recording is.
            self._intervals[interval_ns & -_step(interval_ns)] += 1
        else:
            self.first_ns = time_ns
        self.messages += 1
        self.last_ns = time_ns

    def look(self, message: Any, trailing_bytes: int) -> None:
        """Looks at a message that could be decoded, with so many bytes behind its end."""
        if trailing_bytes > TRAILING_SLACK_BYTES:
            self.trailing += 1
            self.trailing_bytes = max(self.trailing_bytes, trailing_bytes)
        stamp = getattr(getattr(message, "header", None), "stamp", None)
        if stamp is not None:
            stamp_ns = stamp.sec * 1_000_000_000 + stamp.nanosec
            self.unstamped += stamp_ns == 0
            self.stamp_steps_back += 0 < stamp_ns < self._last_stamp_ns
            self._last_stamp_ns = stamp_ns
        if self.type == JOINT_STATE and not len(message.name):
            self.unnamed += bool(len(message.position) or len(message.velocity))

    def words(self) -> list[str]:
        """Returns the defects found, in words."""
        words = []
        if self.no_definition and self.messages:
            words.append(f"{self.messages} messages of {self.type}, which has no definition here")
        if self.trailing:
            words.append(
                f"{self.trailing} of {self.messages} messages with up to {self.trailing_bytes} "
                "trailing bytes"
            )
        if self.undecodable:
            words.append(f"{self.undecodable} of {self.messages} messages do not fit {self.type}")
        if self.unstamped:
            words.append(f"{self.unstamped} of {self.messages} messages with a zero stamp")
        if self.stamp_steps_back:
            words.append(f"{self.stamp_steps_back} header stamps before the one before them")
        if self.unnamed:
            words.append(f"{self.unnamed} of {self.messages} messages with empty names")
        return words


def _step(interval_ns: int) -> int:
    """Of the fourth bit of a number, counted from the first that is set."""
    return 1 << max(0, interval_ns.bit_length() - 4)


def typestore(
    reader: BagReader, topics: Collection[str] | None = None
) -> tuple[Typestore, list[str]]:
    """Returns the types known for a recording, and words on definitions that could not be used.

    Only definitions of topics that are wanted and have messages are read: parsing takes time. The
    recording's own definitions come before the standard ones of ROS 2 Jazzy: a recording of
    another release is decoded as it was written.
    """
    standard = get_typestore(Stores.ROS2_JAZZY)
    fields: dict[str, Any] = dict(standard.fielddefs)
    defects = []
    needed = {
        topic.type
        for topic in reader.topics
        if topic.count and (topics is None or topic.name in topics)
    }
    for name in sorted(needed & reader.definitions.keys()):
        definition = reader.definitions[name]
        try:
            if definition.encoding == "ros2msg":
                parsed = get_types_from_msg(definition.text, name)
            else:
                parsed = {}
                for part in definition.text.split("=" * 80 + "\n"):
                    text = part.partition("\n")[2] if part.startswith("IDL: ") else part
                    parsed.update(get_types_from_idl(text))
            get_typestore(Stores.EMPTY).register(parsed)
        except Exception as error:  # the parser's errors are of many kinds
            reason = " ".join(str(error).split())[:80] or type(error).__name__
            defects.append(f"{name}: its recorded definition cannot be used ({reason})")
            continue
        fields.update(parsed)
    store = get_typestore(Stores.EMPTY)
    store.register(fields)
    return store, defects


def survey(
    reader: BagReader, topics: Collection[str] | None = None
) -> tuple[dict[str, TopicSurvey], list[str]]:
    """Reads and decodes every message once.

    Args:
        reader: The recording.
        topics: Names of the topics wanted; None for all.

    Returns:
        Findings by topic, and all defects in words: the reader's and the topics'.
    """
    store, defects = typestore(reader, topics)
    wanted = [topic for topic in reader.topics if topics is None or topic.name in topics]
    result = {topic.name: TopicSurvey(topic.type) for topic in wanted}
    for message in reader.messages(topics):
        _add(result[message.topic], message.cdr, message.type, message.time_ns, store)
    for topic in wanted:
        if not topic.is_service_event:
            defects += [f"{topic.name}: {words}" for words in result[topic.name].words()]
    return result, reader.defects + defects


def _add(seen: TopicSurvey, cdr: bytes, kind: str, time_ns: int, store: Typestore) -> None:
    seen.arrived(time_ns)
    if kind not in store.types:
        seen.no_definition = True
        return
    try:
        message, used = decode(cdr, kind, store)
    except Exception:  # damaged bytes fail in many ways
        seen.undecodable += 1
        return
    seen.look(message, len(cdr) - used)


def decode(cdr: bytes, kind: str, store: Typestore) -> tuple[Any, int]:
    """Returns the message and how many bytes it took; unlike the store, accepts trailing ones.

    Raises:
        Exception: Of many kinds, where the bytes are no message of this type.
    """
    if len(cdr) < 4 or cdr[:2] not in {b"\x00\x00", b"\x00\x01"}:
        raise ValueError("expected a CDR encapsulation header")
    definition = store.get_msgdef(kind)
    decode = definition.deserialize_cdr_le if cdr[1] else definition.deserialize_cdr_be
    message, used = decode(cdr[4:], 0, definition.cls, store)
    return message, used + 4
