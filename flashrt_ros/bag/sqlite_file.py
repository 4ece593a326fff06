"""Reads one SQLite storage file of a recording, of any schema version, whole or damaged."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from flashrt_ros.bag.message import EARLIEST_NS, Definition, Message, Topic, long_type, saved_up_to
from flashrt_ros.errors import CorruptError

BY_TIME = "timestamp, id"
CHECKED_BYTES = 256 << 20
"""Larger files are not checked whole when they are opened: that reads every page."""

MOST_ROWS = 1 << 40
"""Nobody looks for readable rows further behind than that."""
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
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._base = self._open()
        try:
            self._read_topics()
            self.definitions: Mapping[str, Definition] = self._read_definitions()
        except FAULTS as error:
            self.close()
            raise CorruptError(
                f"{path}: expected a recording's tables 'topics' and 'messages', found: {error}"
            ) from error

    def close(self) -> None:
        """Closes the file."""
        self._base.close()
        if self._copy is not None:
            self._copy.cleanup()

    def messages(self, topics: frozenset[str] | None, start_ns: int) -> Iterator[Message]:
        """Yields messages in order of time; those of a damaged file in order of recording."""
        wanted = {
            key: (name, kind)
            for key, (name, kind) in self._names.items()
            if topics is None or name in topics
        }
        if self._damaged:
            rows = self._saved()
        else:
            marks = ",".join("?" * len(wanted))
            rows = self._base.execute(
                f"SELECT topic_id, timestamp, data FROM messages "
                f"WHERE topic_id IN ({marks}) AND timestamp >= ? ORDER BY {BY_TIME}",
                (*wanted, start_ns),
            )
        try:
            for key, time_ns, data in rows:
                if key not in wanted or (isinstance(time_ns, int) and time_ns < start_ns):
                    continue
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

    def _saved(self) -> Iterator[tuple[int, int, bytes]]:
        """Rows of a damaged file: around each place that cannot be read, and on behind it.

        The table itself is walked, as the index may be what is damaged.
        """
        after, failed = -(1 << 62), None
        while True:
            try:
                for row, *values in self._base.execute(
                    "SELECT rowid, topic_id, timestamp, data FROM messages NOT INDEXED "
                    "WHERE rowid > ? ORDER BY rowid",
                    (after,),
                ):
                    after = row
                    yield tuple(values)
                return
            except FAULTS:
                following = self._readable_after(after)
                if following is None:
                    return
                # Its number can be read and its bytes cannot, if this is where it failed before.
                after = following if following == failed else following - 1
                failed = following

    def _readable_after(self, row: int) -> int | None:
        """Number of a row behind those that cannot be read; None where there is none."""

        def probe(least: int) -> tuple[bool, int | None]:
            try:
                found = self._base.execute(
                    "SELECT rowid FROM messages NOT INDEXED WHERE rowid >= ? "
                    "ORDER BY rowid LIMIT 1",
                    (least,),
                ).fetchone()
            except FAULTS:
                return False, None
            return True, None if found is None else int(found[0])

        bad, step = max(row, 0), 1
        good, found = probe(bad + step)
        while not good and step < MOST_ROWS:
            bad, step = bad + step, 2 * step
            good, found = probe(bad + step)
        end = bad + step
        while good and end - bad > 1:
            middle = (bad + end) // 2
            readable, nearer = probe(middle)
            if readable:
                end, found = middle, nearer
            else:
                bad = middle
        return found

    def _open(self) -> sqlite3.Connection:
        log = self.path.with_name(self.path.name + "-wal")
        # A recorder that was killed leaves its last messages in the write-ahead log, which an
        # immutable database ignores; without a log, immutable also works in read-only folders.
        self._pending = log.exists() and log.stat().st_size > 0
        if self._pending:
            self.defects.append(
                f"{self.path.name}: not closed by its recorder, the last messages come from "
                f"{log.name}"
            )
        mode = "mode=ro" if self._pending else "immutable=1"
        try:
            path = self.path if self._pending else self._whole_pages()
            base = sqlite3.connect(
                f"{path.resolve().as_uri()}?{mode}", uri=True, check_same_thread=False
            )
            # A damaged name is still a name; the default raises where it is not UTF-8.
            base.text_factory = lambda raw: raw.decode("utf-8", "replace")
            # Otherwise a file that is shorter than its header says is refused as a whole. Nothing
            # is written: it is open for reading.
            base.execute("PRAGMA writable_schema = ON")
            base.execute("SELECT count(*) FROM sqlite_master")
        except FAULTS as error:
            raise CorruptError(
                f"{self.path}: expected an SQLite recording, found: {error}"
            ) from error
        return base

    def _whole_pages(self) -> Path:
        """The file, or a copy without the page in which it was cut.

        SQLite puts zeros in place of what is missing of a page, and would take them for the bytes
        of messages.
        """
        page, promised = _promised(self.path)
        size = self.path.stat().st_size
        if not page or size >= promised or size % page == 0:
            return self.path
        self._copy = tempfile.TemporaryDirectory(prefix="flashrt_ros_cut_")
        target = Path(self._copy.name) / "cut.db3"
        with self.path.open("rb") as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)
            sink.truncate(size - size % page)
        return target

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
        size, promised = self.path.stat().st_size, _promised(self.path)[1]
        cut = 0 < size < promised and not self._pending
        fault = f"{size} of {promised} bytes are there"
        try:
            check = ("ok",)
            if not cut and size <= CHECKED_BYTES:
                check = self._base.execute("PRAGMA quick_check(1)").fetchone()
            if check == ("ok",) and not cut:
                return dict(
                    self._base.execute("SELECT topic_id, count(*) FROM messages GROUP BY topic_id")
                )
            if not cut:
                fault = " ".join(str(check[0]).replace("*** in database main ***", "").split())
        except FAULTS as error:
            fault = str(error)
        self._damaged = True
        counts: dict[int, int] = {}
        first_ns = last_ns = None
        for key, time_ns, data in self._saved():
            if isinstance(time_ns, int) and isinstance(data, bytes):
                counts[key] = counts.get(key, 0) + 1
                first_ns = time_ns if first_ns is None else min(first_ns, time_ns)
                last_ns = time_ns if last_ns is None else max(last_ns, time_ns)
        self._note(
            f"{self.path.name}: {'cut' if cut else 'damaged'} ({fault}); read as far as it goes: "
            f"{sum(counts.values())} messages saved" + saved_up_to(first_ns, last_ns)
        )
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


def _promised(path: Path) -> tuple[int, int]:
    """Bytes of a page and of the file of which its header speaks; zeros where it says nothing."""
    with path.open("rb") as file:
        head = file.read(32)
    if len(head) < 32:
        return 0, 0
    page = int.from_bytes(head[16:18], "big")
    # Format of the header: https://sqlite.org/fileformat2.html; 1 stands for 65536.
    page = 65536 if page == 1 else page
    return page, page * int.from_bytes(head[28:32], "big")
