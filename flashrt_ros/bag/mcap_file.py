"""Reads one MCAP file, whole or damaged.

The file is walked record by record instead of through its summary, so that a recording that was
cut, never closed, or damaged in one chunk gives all that is still there; walking reads only the
small records, chunks are seeked over. Format: https://mcap.dev/spec.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import operator
import struct
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import zstandard
from lz4 import frame as lz4
from mcap.data_stream import ReadDataStream
from mcap.records import Channel, Schema

from flashrt_ros.bag.message import Definition, Message, Topic, long_type, saved_up_to
from flashrt_ros.errors import CorruptError

MAGIC = b"\x89MCAP0\r\n"
HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK, MESSAGE_INDEX = range(0x01, 0x08)
LAST_KNOWN = 0x0F
RECORD = struct.Struct("<BQ")
CHUNK_HEAD = struct.Struct("<QQQI")
MESSAGE_HEAD = struct.Struct("<HIQQ")
SIZE = struct.Struct("<I")
INDEX_HEAD = struct.Struct("<HI")
LONG_SIZE = struct.Struct("<Q")
BY_TIME = operator.attrgetter("time_ns")
LATEST_NS = 2**63 - 1
"""MCAP times are unsigned; a damaged one may be later than any clock here can say."""


@dataclass
class _Chunk:
    """Where one chunk's records lie.

    Attributes:
        offset: File offset of the compressed bytes.
        stored: Compressed bytes that are there, fewer than written where the file was cut.
        size: Bytes after decompression.
        crc: CRC-32 of those, 0 where the writer gave none.
        start_ns: Earliest log time.
        end_ns: Latest log time.
        compression: ``""``, ``lz4`` or ``zstd``.
        whole: False where the file was cut in this chunk.
        counts: Messages by channel id, None until known.
        seen_ns: Earliest and latest log time by index or messages, None until known.
    """

    offset: int
    stored: int
    size: int
    crc: int
    start_ns: int
    end_ns: int
    compression: str
    whole: bool
    counts: Counter[int] | None = None
    seen_ns: tuple[int, int] | None = None

    def see(self, first_ns: int, last_ns: int) -> None:
        """Messages were found from one log time to the other."""
        first, last = self.seen_ns or (first_ns, last_ns)
        self.seen_ns = (min(first, first_ns), min(max(last, last_ns), LATEST_NS))


class McapFile:
    """One MCAP file.

    Args:
        path: The file.

    Raises:
        CorruptError: It does not begin as an MCAP file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.defects: list[str] = []
        self._schemas: dict[int, Schema] = {}
        self._channels: dict[int, Channel] = {}
        self._chunks: list[_Chunk] = []
        self._cut_words = ""
        # Messages outside chunks: log time, file offset, bytes, channel id. Plain numbers, as a
        # recording without chunks may have tens of millions of them.
        self._loose = array("q")
        self._file = path.open("rb")
        try:
            self._walk()
            self._count()
        except BaseException:
            self._file.close()
            raise
        self.topics = self._list_topics()
        self.definitions: Mapping[str, Definition] = {
            long_type(schema.name): Definition(
                schema.encoding, schema.data.decode("utf-8", "replace")
            )
            for schema in self._schemas.values()
            if schema.encoding in {"ros2msg", "ros2idl"}
        }

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def messages(self, topics: frozenset[str] | None, start_ns: int) -> Iterator[Message]:
        """Yields messages in order of log time, holding only overlapping chunks in memory."""
        wanted = {
            key: (channel.topic, self._type(channel))
            for key, channel in self._channels.items()
            if self._readable(channel) and (topics is None or channel.topic in topics)
        }
        chunked = self._chunked_messages(wanted, start_ns)
        if not self._loose:
            return chunked
        loose = self._loose_messages(wanted, start_ns)
        return heapq.merge(loose, chunked, key=BY_TIME)

    def _loose_messages(
        self, wanted: Mapping[int, tuple[str, str]], start_ns: int
    ) -> Iterator[Message]:
        rows_N4 = np.array(self._loose, dtype=np.int64).reshape(-1, 4)
        rows_N4 = rows_N4[(rows_N4[:, 0] >= start_ns) & np.isin(rows_N4[:, 3], list(wanted))]
        for row in np.argsort(rows_N4[:, 0], kind="stable"):
            log_ns, offset, size, key = rows_N4[row].tolist()
            self._file.seek(offset)
            yield Message(*wanted[key], self._file.read(size), log_ns)

    def _chunked_messages(
        self, wanted: Mapping[int, tuple[str, str]], start_ns: int
    ) -> Iterator[Message]:
        chunks = sorted(
            (
                chunk
                for chunk in self._chunks
                if chunk.end_ns >= start_ns and any(key in wanted for key in chunk.counts or ())
            ),
            key=lambda chunk: chunk.start_ns,
        )
        waiting: list[Message] = []
        for chunk, following in itertools.zip_longest(chunks, chunks[1:]):
            waiting += [
                Message(*wanted[key], cdr, log_ns)
                for key, log_ns, cdr in self._chunk_messages(chunk)
                if key in wanted and log_ns >= start_ns
            ]
            waiting.sort(key=BY_TIME)  # as good as sorted, which costs little
            ready = len(waiting)
            if following is not None:
                ready = bisect.bisect_left(waiting, following.start_ns, key=BY_TIME)
            yield from waiting[:ready]
            del waiting[:ready]

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """Log time of the first and the last message; None without messages."""
        chunks = [chunk for chunk in self._chunks if chunk.counts]
        times = [chunk.start_ns for chunk in chunks] + [chunk.end_ns for chunk in chunks]
        times += self._loose_times()
        return (min(times), max(times)) if times else None

    def _loose_times(self) -> list[int]:
        """The first and the last; none without such messages."""
        if not self._loose:
            return []
        loose_N = np.array(self._loose, dtype=np.int64)[::4]
        return [int(loose_N.min()), int(loose_N.max())]

    def _walk(self) -> None:
        """Finds every record of the file; notes where it was cut."""
        size = self.path.stat().st_size
        if self._file.read(len(MAGIC)) != MAGIC:
            raise CorruptError(
                f"{self.path}: expected an MCAP file, found other bytes at its beginning; "
                "it cannot be read"
            )
        position, closed = len(MAGIC), False
        while not closed and position + RECORD.size <= size:
            self._file.seek(position)
            opcode, length = RECORD.unpack(self._file.read(RECORD.size))
            start, end = position + RECORD.size, position + RECORD.size + length
            if not 0 < opcode <= LAST_KNOWN and opcode < 0x80:
                break
            if opcode == CHUNK:
                self._add_chunk(start, min(end, size), end <= size)
            if end > size:
                break
            if opcode == MESSAGE and length >= MESSAGE_HEAD.size:
                key, _, log_ns, _ = MESSAGE_HEAD.unpack(self._file.read(MESSAGE_HEAD.size))
                self._loose.extend(
                    (
                        min(log_ns, LATEST_NS),
                        start + MESSAGE_HEAD.size,
                        length - MESSAGE_HEAD.size,
                        key,
                    )
                )
            elif opcode in {SCHEMA, CHANNEL}:
                self._add_definition(opcode, self._file.read(length))
            elif opcode == MESSAGE_INDEX and self._chunks:
                self._add_index(self._file.read(length))
            position, closed = end, opcode == FOOTER
        if closed:
            return
        where = f"{self.path.name}: cut or unreadable"
        closing = f"of {size} on (the recording was not closed)"
        if self._chunks and not self._chunks[-1].whole:
            self._cut_words = f"{where} within the chunk from byte {position} {closing}"
        else:
            self.defects.append(f"{where} from byte {position} {closing}; read up to there")

    def _add_chunk(self, start: int, end: int, whole: bool) -> None:
        head = self._file.read(min(CHUNK_HEAD.size + SIZE.size, end - start))
        if len(head) < CHUNK_HEAD.size + SIZE.size:
            return
        start_ns, end_ns, size, crc = CHUNK_HEAD.unpack_from(head)
        (name_size,) = SIZE.unpack_from(head, CHUNK_HEAD.size)
        name = self._file.read(min(name_size, 16)).decode("ascii", "replace")
        offset = start + len(head) + name_size + LONG_SIZE.size
        if offset < end:
            self._chunks.append(
                _Chunk(offset, end - offset, size, crc, start_ns, end_ns, name, whole)
            )

    def _add_definition(self, opcode: int, record: bytes) -> None:
        stream = ReadDataStream(BytesIO(record))
        try:
            if opcode == SCHEMA:
                schema = Schema.read(stream)
                self._schemas.setdefault(schema.id, schema)
            else:
                channel = Channel.read(stream)
                self._channels.setdefault(channel.id, channel)
        except Exception as error:  # the parser raises whatever the damage leads to
            self.defects.append(f"{self.path.name}: unreadable topic or type record ({error})")

    def _add_index(self, record: bytes) -> None:
        """Counts a chunk's messages from the index records that follow it."""
        if len(record) < INDEX_HEAD.size:
            return
        key, size = INDEX_HEAD.unpack_from(record)
        chunk = self._chunks[-1]
        chunk.counts = chunk.counts or Counter()
        chunk.counts[key] += size // 16
        entries = min(size, len(record) - INDEX_HEAD.size) // 16
        if entries:
            times = np.frombuffer(record, "<u8", 2 * entries, INDEX_HEAD.size)[::2]
            chunk.see(int(times.min()), int(times.max()))

    def _count(self) -> None:
        """Opens those chunks whose content no index tells, and looks at the times of all."""
        wrong = 0
        for chunk in self._chunks:
            known = chunk.whole and chunk.counts
            if not (known and all(key in self._channels for key in chunk.counts or ())):
                self._open_chunk(chunk)
            # What is read from a time on goes by these: a wrong one would lose messages.
            said_ns = (min(chunk.start_ns, LATEST_NS), min(chunk.end_ns, LATEST_NS))
            if chunk.seen_ns is not None and chunk.seen_ns != said_ns:
                wrong += chunk.whole
                chunk.start_ns, chunk.end_ns = chunk.seen_ns
        if wrong:
            self.defects.append(
                f"{self.path.name}: {wrong} chunks whose headers name other times than their "
                "messages have; the messages count"
            )

    def _open_chunk(self, chunk: _Chunk) -> None:
        """Counts what is in it; says of a cut one what was saved."""
        times: list[int] = []
        chunk.counts, chunk.seen_ns = Counter(), None
        for key, log_ns, _ in self._chunk_messages(chunk):
            chunk.counts[key] += 1
            times.append(log_ns)
        if times:
            chunk.see(min(times), max(times))
        if not chunk.whole:
            # What the chunk's head says of its end was lost with its end.
            chunk.end_ns = max(times, default=chunk.start_ns)
            first_ns = min([each.start_ns for each in self._chunks] + self._loose_times())
            self.defects.append(
                f"{self._cut_words}; {len(times)} messages of that chunk saved"
                + (saved_up_to(first_ns, max(times)) if times else "")
            )

    def _list_topics(self) -> tuple[Topic, ...]:
        by_channel: Counter[int] = Counter(self._loose[3::4])
        for chunk in self._chunks:
            by_channel.update(chunk.counts or {})
        counts: Counter[tuple[str, str]] = Counter()
        for key, channel in self._channels.items():
            if self._readable(channel):
                counts[channel.topic, self._type(channel)] += by_channel[key]
            else:
                self.defects.append(
                    f"{channel.topic}: {by_channel[key]} messages in "
                    f"{channel.message_encoding!r}, expected 'cdr'; left out"
                )
        unknown = sum(count for key, count in by_channel.items() if key not in self._channels)
        if unknown:
            self.defects.append(
                f"{self.path.name}: {unknown} messages of unknown topics; left out"
            )
        return tuple(Topic(name, kind, count) for (name, kind), count in counts.items())

    def _readable(self, channel: Channel) -> bool:
        return bool(channel.message_encoding == "cdr")

    def _type(self, channel: Channel) -> str:
        schema = self._schemas.get(channel.schema_id)
        return long_type(schema.name) if schema else ""

    def _chunk_messages(self, chunk: _Chunk) -> Iterator[tuple[int, int, bytes]]:
        """Yields (channel id, log time, message bytes) of one chunk, as far as it can be read."""
        self._file.seek(chunk.offset)
        data = self._decompress(chunk, self._file.read(chunk.stored))
        position = 0
        while position + RECORD.size <= len(data):
            opcode, length = RECORD.unpack_from(data, position)
            start, position = position + RECORD.size, position + RECORD.size + length
            if position > len(data):
                return
            if opcode == MESSAGE and length >= MESSAGE_HEAD.size:
                key, _, log_ns, _ = MESSAGE_HEAD.unpack_from(data, start)
                yield key, log_ns, data[start + MESSAGE_HEAD.size : position]
            elif opcode in {SCHEMA, CHANNEL}:
                self._add_definition(opcode, data[start:position])

    def _decompress(self, chunk: _Chunk, stored: bytes) -> bytes:
        """Returns a chunk's records; of a cut one what comes before the cut, of a bad one none."""
        try:
            if chunk.compression == "":
                data = stored[: chunk.size]
            elif chunk.compression == "zstd":
                data = zstandard.ZstdDecompressor().decompressobj().decompress(stored)
            elif chunk.compression == "lz4":
                data = lz4.LZ4FrameDecompressor().decompress(stored)
            else:
                raise ValueError(f"unknown compression {chunk.compression!r}")
            if chunk.whole and chunk.crc and zlib.crc32(data) != chunk.crc:
                raise ValueError("its checksum differs")
        except (ValueError, RuntimeError, EOFError, zstandard.ZstdError) as error:
            lost = f", {sum(chunk.counts.values())} messages" if chunk.counts else ""
            words = f"{self.path.name}: chunk at byte {chunk.offset}{lost} left out: {error}"
            if words not in self.defects:
                self.defects.append(words)
            return b""
        return data
