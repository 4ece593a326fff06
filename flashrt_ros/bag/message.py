"""What a recording holds: messages, topics, and the storage files that both come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

STORAGE_SUFFIXES = (".mcap", ".db3")
EARLIEST_NS = -(2**63)
"""SQLite's times are signed; a damaged one may be before any that a clock says."""


class Message(NamedTuple):
    """One recorded message.

    Attributes:
        topic: Topic name, as recorded.
        type: ROS type in the long form, ``package/msg/Name``.
        cdr: The bytes that were on the wire, encapsulation header included; never decoded here.
        time_ns: Receive time, system clock of the recorder.
    """

    topic: str
    type: str
    cdr: bytes
    time_ns: int


@dataclass(frozen=True)
class Topic:
    """One topic of a recording.

    Attributes:
        name: Topic name.
        type: ROS type in the long form.
        count: Messages that can be read.
    """

    name: str
    type: str
    count: int

    @property
    def is_service_event(self) -> bool:
        """Whether this is service introspection, which no publisher of ours can play."""
        return self.name.endswith("/_service_event")


@dataclass(frozen=True)
class Definition:
    """Definition of a message type, as recorded beside the messages.

    Attributes:
        encoding: ``ros2msg`` or ``ros2idl``.
        text: The definition with those it rests on.
    """

    encoding: str
    text: str


class StorageFile(Protocol):
    """One file of a recording; all files answer alike."""

    path: Path
    topics: tuple[Topic, ...]
    defects: list[str]

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """Message definitions recorded in this file, by long type name."""

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """Recorded time of the first and the last message; None without messages."""

    def messages(self, topics: frozenset[str] | None, start_ns: int) -> Iterator[Message]:
        """Yields messages of the given topics (None: all) in order of time."""

    def close(self) -> None:
        """Closes the file."""


def long_type(name: str) -> str:
    """Returns ``package/msg/Name`` for the short form ``package/Name`` of old recordings."""
    package, _, rest = name.partition("/")
    return name if "/" in rest or not rest else f"{package}/msg/{rest}"


def saved_up_to(first_ns: int | None, last_ns: int | None) -> str:
    """For the words on a cut file: how far behind its beginning the last message is."""
    if first_ns is None or last_ns is None:
        return ""
    return f", up to {(last_ns - first_ns) / 1e9:.3f} s behind the first"
