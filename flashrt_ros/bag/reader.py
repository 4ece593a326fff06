"""Reads recordings as they are: folders and single files, MCAP and SQLite, whole or damaged.

Nothing is decoded here and nothing is dropped without a word: what cannot be read is listed in
``BagReader.defects``. Decoding belongs to ``flashrt_ros.contract`` and ``flashrt_ros.bag.survey``.
"""

from __future__ import annotations

import heapq
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import zstandard

from flashrt_ros.bag.directory import find, unpack
from flashrt_ros.bag.mcap_file import BY_TIME, McapFile
from flashrt_ros.bag.message import EARLIEST_NS, Definition, Message, StorageFile, Topic
from flashrt_ros.bag.sqlite_file import SqliteFile
from flashrt_ros.errors import CorruptError, NotFoundError

FOLDED = 3
"""Topics whose number of messages is another one than promised: of more one line says it."""
__all__ = ["BagReader", "Definition", "Message", "Topic"]


class BagReader:
    """A recording, open for reading.

    Args:
        path: A recording's folder, or one ``.mcap`` or ``.db3`` file, also compressed whole.

    Raises:
        NotFoundError: There is no such recording, or no storage file in it.
        CorruptError: None of its files can be read.

    Attributes:
        path: The recording.
        topics: Topics in order of name, with the messages that can be read.
        definitions: Message definitions recorded beside the messages, by long type name.

    Example:
        >>> with BagReader("run_0") as bag:              # doctest: +SKIP
        ...     for message in bag.messages({"/joint_states"}):
        ...         print(message.time_ns, len(message.cdr))
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        found = find(self.path)
        self._unpacked = tempfile.TemporaryDirectory(prefix="flashrt_ros_bag_")
        self._files: list[StorageFile] = []
        self._defects = found.defects
        self._of_topics: list[str] = []
        self._undone: Counter[str] = Counter()
        try:
            for file in found.files:
                self._open(file)
            if not self._files:
                raise CorruptError("; ".join(self._defects))
        except BaseException:
            self.close()
            raise
        self.definitions: dict[str, Definition] = {}
        counts: Counter[tuple[str, str]] = Counter()
        for storage in self._files:
            self.definitions.update(storage.definitions)
            for topic in storage.topics:
                counts[topic.name, topic.type] += topic.count
        self.topics = tuple(Topic(*key, count) for key, count in sorted(counts.items()))
        self._compare(found.promised)

    @property
    def file_defects(self) -> list[str]:
        """What is amiss with its files, in words: missing, cut, damaged."""
        return self._defects + [words for file in self._files for words in file.defects]

    @property
    def defects(self) -> list[str]:
        """What is amiss, in words, that of files first; reading may add to it."""
        return (
            self.file_defects
            + self._of_topics
            + [
                f"{topic}: {count} messages whose zstd compression is damaged; left out"
                for topic, count in self._undone.items()
            ]
        )

    @property
    def count(self) -> int:
        """Messages that can be read."""
        return sum(topic.count for topic in self.topics)

    @property
    def span_ns(self) -> tuple[int, int]:
        """Recorded time of the first and the last message; zeros without messages."""
        spans = [span for file in self._files if (span := file.span_ns) is not None]
        if not spans:
            return 0, 0
        return min(first for first, _ in spans), max(last for _, last in spans)

    def messages(
        self, topics: Collection[str] | None = None, start_ns: int | None = None
    ) -> Iterator[Message]:
        """Yields messages in order of recorded time.

        Args:
            topics: Names of the topics wanted; None for all.
            start_ns: Messages before this time (recorder's system clock) are left out.

        Raises:
            NotFoundError: A topic is not in the recording; the message lists those that are.
        """
        known = {topic.name for topic in self.topics}
        missing = sorted(set(topics or ()) - known)
        if missing:
            raise NotFoundError(
                f"{self.path}: no topic {', '.join(missing)}; it has {', '.join(sorted(known))}"
            )
        wanted = None if topics is None else frozenset(topics)
        begin_ns = EARLIEST_NS if start_ns is None else start_ns
        each = [file.messages(wanted, begin_ns) for file in self._files]
        return self._expanded(each[0] if len(each) == 1 else heapq.merge(*each, key=BY_TIME))

    def _expanded(self, messages: Iterator[Message]) -> Iterator[Message]:
        """Undoes the compression of single messages, which shows in their first bytes."""
        decompressor = zstandard.ZstdDecompressor()
        for message in messages:
            if message.cdr[:4] != zstandard.FRAME_HEADER:
                yield message
                continue
            try:
                cdr = decompressor.decompressobj().decompress(message.cdr)
            except zstandard.ZstdError:
                self._undone[message.topic] += 1
                continue
            yield message._replace(cdr=cdr)

    def close(self) -> None:
        """Closes all files."""
        for file in self._files:
            file.close()
        self._unpacked.cleanup()

    def __enter__(self) -> BagReader:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes all files."""
        self.close()

    def _open(self, path: Path) -> None:
        try:
            file = unpack(path, Path(self._unpacked.name))
            if not file.stat().st_size:
                raise CorruptError(f"{path}: is empty: the recorder has written nothing to it")
            storage: StorageFile
            storage = McapFile(file) if file.suffix == ".mcap" else SqliteFile(file)
        except (CorruptError, OSError) as error:
            self._defects.append(str(error))
            return
        self._files.append(storage)

    def _compare(self, promised: dict[tuple[str, str], int] | None) -> None:
        """Lists topics with several types, short of their promised count, or of service events."""
        names = Counter(topic.name for topic in self.topics)
        for name, types in names.items():
            if types > 1:
                self._of_topics.append(f"{name}: recorded with {types} different types")
        found = {(topic.name, topic.type): topic.count for topic in self.topics}
        other = [
            (name, count, found.get((name, kind), 0))
            for (name, kind), count in sorted((promised or {}).items())
            if found.get((name, kind), 0) != count
        ]
        if len(other) > FOLDED:
            worst = sorted(other, key=lambda each: -abs(each[1] - each[2]))[:FOLDED]
            words = ", ".join(f"{name} {count} and {held}" for name, count, held in worst)
            self._of_topics.append(
                f"metadata.yaml promises {sum(count for _, count, _ in other)} messages on "
                f"{len(other)} topics, the files hold {sum(held for *_, held in other)}; furthest "
                f"apart: {words}"
            )
        else:
            self._of_topics += [
                f"{name}: metadata.yaml promises {count} messages, the files hold {held}"
                for name, count, held in other
            ]
        if promised is not None:
            for (name, _), count in found.items():
                if count and not any(name == other for other, _ in promised):
                    self._of_topics.append(
                        f"{name}: {count} messages, but not listed in metadata.yaml"
                    )
        for topic in self.topics:
            if topic.is_service_event:
                self._of_topics.append(
                    f"{topic.name}: {topic.count} service events; passed through undecoded"
                )
