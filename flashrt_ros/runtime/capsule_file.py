"""Capsule files as bytes: a safetensors file whose every byte is accounted for.

Nothing here touches a file system; ``capsule_folder.py`` does. See docs/capsules.md.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from flashrt_ros.errors import CorruptError, FlashRTError
from flashrt_ros.runtime.buffers import ROWS_LENGTH
from flashrt_ros.runtime.capsule_header import (
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    Entry,
    decode_header,
    encode_header,
)
from flashrt_ros.runtime.capsule_image import CapsuleFacts, CapsuleImage, HostBuffer, RowBlock
from flashrt_ros.runtime.capsule_rows import ROWS_TENSOR

Take = Callable[[int], memoryview]
"""Returns the next so many bytes; fewer only at the end."""
Check = Callable[[CapsuleFacts], None]
"""Raises if a capsule is not wanted, before its bytes are read."""


def encode(image: CapsuleImage) -> list[bytes | memoryview]:
    """Returns the content of a file, in pieces; the same image always gives the same bytes.

    Raises:
        InvalidArgumentError: The header could not be read back.
        UnsupportedError: Files do not know an element type.
    """
    pairs = [
        (Entry(b.name, b.dtype, b.shape, hashlib.sha256(b.data).hexdigest()), b.data)
        for b in image.buffers
    ]
    rows = image.rows
    if rows is not None:
        shape = (rows.count, rows.row_bytes)
        checksum = hashlib.sha256(rows.data).hexdigest()
        pairs.append((Entry(ROWS_TENSOR, torch.uint8, shape, checksum), rows.data))
    pairs.sort(key=lambda pair: pair[0].place)
    entries = [entry for entry, _ in pairs]
    header = encode_header(image.facts, entries, () if rows is None else rows.buffers)
    return [header, *(data for _, data in pairs)]


def decode(content: bytes, source: str, check: Check | None = None) -> CapsuleImage:
    """Returns the image of a file's content; see ``read_image``."""
    view = memoryview(content)
    place = 0

    def take(count: int) -> memoryview:
        nonlocal place
        place += count
        return view[place - count : place]

    return read_image(take, len(view), source, check)


def read_image(
    take: Take, size_bytes: int, source: str, check: Check | None = None
) -> CapsuleImage:
    """Reads one file and verifies every byte of it.

    Args:
        take: Where it comes from.
        size_bytes: Of the whole file.
        source: What it is called in refusals.
        check: Asked once the header is verified; what it raises is passed on with ``source``.

    Raises:
        CorruptError: Truncated, changed, foreign, or not what ``encode`` would have written.
        UnsupportedError: It is of a newer format.
    """
    with naming(source):
        if size_bytes < LENGTH_BYTES:
            raise CorruptError(
                f"truncated: expected at least {LENGTH_BYTES} bytes, found {size_bytes}"
            )
        length = int.from_bytes(_take(take, LENGTH_BYTES), "little")
        if length > MAX_HEADER_BYTES:
            raise CorruptError(
                f"not a capsule file: expected a header of at most {MAX_HEADER_BYTES} bytes, found"
                f" a length of {length}"
            )
        if length > size_bytes - LENGTH_BYTES:
            raise CorruptError(
                f"truncated: expected a header of {length} bytes, found"
                f" {size_bytes - LENGTH_BYTES} bytes after the length"
            )
        facts, entries, rows = decode_header(bytes(_take(take, length)))
        total = LENGTH_BYTES + length + sum(entry.size_bytes for entry in entries)
        if size_bytes != total:
            word = "truncated" if size_bytes < total else "trailing bytes"
            raise CorruptError(f"{word}: expected {total} bytes, found {size_bytes}")
        if check is not None:
            check(facts)
        buffers = [_buffer(take, entry) for entry in entries]
        block = None
        if rows:
            block = RowBlock(rows, entries[-1].shape[1], buffers.pop().data)
            _check_rows(block, buffers)
        return CapsuleImage(facts, tuple(buffers), block)


def _check_rows(block: RowBlock, buffers: list[HostBuffer]) -> None:
    bytes_TB = block.bytes_TB()
    for begin, end in block.gaps():
        if bytes_TB[:, begin:end].any():
            raise CorruptError(
                f"rows: expected zeros in bytes {begin} to {end - 1} of each row, which no buffer"
                " covers, found others"
            )
    for row in block.buffers:
        if row.dtype is torch.bool:
            _check_bool(row.name, bytes_TB[:, row.offset : row.end])
    lengths = [buffer.data for buffer in buffers if buffer.name == ROWS_LENGTH]
    found = int.from_bytes(lengths[0], "little") if lengths else None
    if found != block.count:
        raise CorruptError(f"buffer {ROWS_LENGTH!r}: expected {block.count} rows, found {found}")


def _check_bool(name: str, bytes_N: npt.NDArray[np.uint8]) -> None:
    # Of a bool that is neither, torch may make anything.
    if (bytes_N > 1).any():
        raise CorruptError(f"buffer {name!r}: expected bytes 0 and 1 for BOOL, found others")


def _take(take: Take, count: int) -> memoryview:
    data = take(count)
    if len(data) != count:
        raise CorruptError(
            f"truncated: expected {count} bytes more, found {len(data)}; it became shorter while"
            " it was read"
        )
    return data


def _buffer(take: Take, entry: Entry) -> HostBuffer:
    data = _take(take, entry.size_bytes)
    found = hashlib.sha256(data).hexdigest()
    if found != entry.checksum:
        raise CorruptError(
            f"bytes of buffer {entry.name!r} were changed: expected SHA-256 {entry.checksum},"
            f" found {found}"
        )
    if entry.dtype is torch.bool:
        _check_bool(entry.name, np.frombuffer(data, np.uint8))
    return HostBuffer(entry.name, entry.dtype, entry.shape, data)


@contextlib.contextmanager
def naming(source: str) -> Iterator[None]:
    """Puts the name of a file before what is raised about it."""
    try:
        yield
    except FlashRTError as error:
        raise type(error)(f"{source}: {error}") from error.__cause__
