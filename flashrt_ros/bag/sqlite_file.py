"""Reads one SQLite storage file of a recording, of any schema version, whole or damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

from flashrt_ros.bag.message import EARLIEST_NS, Definition, Message, Topic, long_type
from flashrt_ros.errors import CorruptError

BY_TIME = "timestamp, id"
CHECKED_BYTES = 256 << 20
"""Larger files are not checked whole when they are opened: that reads every page."""

FAULTS = (sqlite3.Error, UnicodeError)
"""What a damaged file raises; the second where SQLite's own words hold what is damaged."""


class SqliteFile:
    """One ``.db3`` file.

    Args:
        path: The file.

    Raises:
        CorruptError: It is no SQLite file with topics and messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.defects: list[str] = []
        self._damaged = False
        self._base = self._open()
        try:
            self._read_topics()
            self.definitions: Mapping[str, Definition] = self._read_definitions()
        except FAULTS as error:
            self._base.close()
            raise CorruptError(
                f"{path}: expected a recording's tables 'topics' and 'messages', found: {error}"
            ) from error

    def close(self) -> None:
        """Closes the file."""
        self._base.close()

    def messages(self, topics: frozenset[str] | None, start_ns: int) -> Iterator[Message]:
        """Yields messages in order of time; those of a damaged file in order of recording."""
        wanted = {
            key: (name, kind)
            for key, (name, kind) in self._names.items()
            if topics is None or name in topics
        }
        marks = ",".join("?" * len(wanted))
        # The index may be what is damaged: then the table itself is walked.
        source, order = ("messages NOT INDEXED", "id") if self._damaged else ("messages", BY_TIME)
        try:
            rows = self._base.execute(
                f"SELECT topic_id, timestamp, data FROM {source} "
                f"WHERE topic_id IN ({marks}) AND timestamp >= ? ORDER BY {order}",
                (*wanted, start_ns),
            )
            for key, time_ns, data in rows:
                # SQLite keeps any kind of value in any column.
                if not isinstance(time_ns, int) or not isinstance(data, bytes):
                    self._note(f"{self.path.name}: rows that are no messages; left out")
                    continue
                yield Message(*wanted[key], data, time_ns)
        except FAULTS as error:
            self._note(f"{self.path.name}: reading ended early: {error}")

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """Recorded time of the first and the last message; None without messages."""
        # The minimum and the maximum each come from the index, but not both from one question.
        first, last = (
            f"SELECT {which}(timestamp) FROM messages WHERE typeof(timestamp) = 'integer'"
            for which in ("min", "max")
        )
        try:
            if not self._damaged:
                (begin,), (end,) = (self._base.execute(text).fetchone() for text in (first, last))
                return None if begin is None else (begin, end)
        except FAULTS as error:
            self._note(f"{self.path.name}: its times cannot be asked for: {error}")
        times = [message.time_ns for message in self.messages(None, EARLIEST_NS)]
        return (min(times), max(times)) if times else None

    def _open(self) -> sqlite3.Connection:
        log = self.path.with_name(self.path.name + "-wal")
        # A recorder that was killed leaves its last messages in the write-ahead log, which an
        # immutable database ignores; without a log, immutable also works in read-only folders.
        pending = log.exists() and log.stat().st_size > 0
        if pending:
            self.defects.append(
                f"{self.path.name}: not closed by its recorder, the last messages come from "
                f"{log.name}"
            )
        mode = "mode=ro" if pending else "immutable=1"
        try:
            base = sqlite3.connect(
                f"{self.path.resolve().as_uri()}?{mode}", uri=True, check_same_thread=False
            )
            # A damaged name is still a name; the default raises where it is not UTF-8.
            base.text_factory = lambda raw: raw.decode("utf-8", "replace")
            base.execute("SELECT count(*) FROM sqlite_master")
        except FAULTS as error:
            raise CorruptError(
                f"{self.path}: expected an SQLite recording, found: {error}"
            ) from error
        return base

    def _read_topics(self) -> None:
        self._names: dict[int, tuple[str, str]] = {}
        formats: dict[int, str] = {}
        for key, name, kind, encoding in self._base.execute(
            "SELECT id, name, type, serialization_format FROM topics"
        ):
            if not all(isinstance(text, str) for text in (name, kind, encoding)):
                self._note(f"{self.path.name}: a damaged row among the topics; left out")
                continue
            self._names[key] = (name, long_type(kind))
            formats[key] = encoding
        counts = self._count()
        for key, encoding in formats.items():
            if encoding != "cdr":
                name, _ = self._names.pop(key)
                self.defects.append(
                    f"{name}: {counts.get(key, 0)} messages in {encoding!r}, expected 'cdr'; "
                    "left out"
                )
        unknown = sum(count for key, count in counts.items() if key not in formats)
        if unknown:
            self.defects.append(
                f"{self.path.name}: {unknown} messages of unknown topics; left out"
            )
        self.topics = tuple(
            Topic(name, kind, counts.get(key, 0)) for key, (name, kind) in self._names.items()
        )

    def _count(self) -> dict[int, int]:
        """Counts messages by topic; in a damaged file one by one, as far as they can be read."""
        try:
            check = ("ok",)
            if self.path.stat().st_size <= CHECKED_BYTES:
                check = self._base.execute("PRAGMA quick_check(1)").fetchone()
            if check == ("ok",):
                return dict(
                    self._base.execute("SELECT topic_id, count(*) FROM messages GROUP BY topic_id")
                )
            fault = str(check[0])
        except FAULTS as error:
            fault = str(error)
        self._damaged = True
        counts: dict[int, int] = {}
        try:
            for (key,) in self._base.execute("SELECT topic_id FROM messages NOT INDEXED"):
                counts[key] = counts.get(key, 0) + 1
        except FAULTS as error:
            fault = str(error)
        self._note(f"{self.path.name}: damaged ({fault}); read as far as it goes")
        return counts

    def _read_definitions(self) -> dict[str, Definition]:
        try:
            rows = self._base.execute(
                "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions"
            ).fetchall()
        except FAULTS:  # recordings before schema 4 have no such table
            return {}
        return {
            long_type(kind): Definition(encoding, text)
            for kind, encoding, text in rows
            if encoding in {"ros2msg", "ros2idl"} and isinstance(kind, str)
            if text and isinstance(text, str)
        }

    def _note(self, words: str) -> None:
        if words not in self.defects:
            self.defects.append(words)
