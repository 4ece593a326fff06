"""In what two capsules differ: facts, fingerprints and buffers, down to the element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flashrt_ros.runtime.capsule_image import CapsuleImage, HostBuffer, RowBlock
from flashrt_ros.runtime.fingerprint import describe, describe_rows

ABSENT = "(absent)"


@dataclass(frozen=True)
class FieldDifference:
    """One value that is not the same.

    Attributes:
        field: E.g. ``host.step`` or ``exec.torch``.
        one: Its value in the first capsule, in words.
        other: Its value in the second one.
    """

    field: str
    one: str
    other: str


@dataclass(frozen=True)
class BufferDifference:
    """One buffer whose bytes are not the same.

    Attributes:
        name: Of the buffer.
        elements: How many differ in their bits.
        of: How many there are.
        largest: Largest absolute difference, exact for integers; NaN where only NaNs or signs of
            zero differ.
        where: Index of the element with the largest difference, or of the first that differs.
    """

    name: str
    elements: int
    of: int
    largest: float
    where: tuple[int, ...]


@dataclass(frozen=True)
class RowsDifference:
    """One buffer that grows, of which rows that both capsules have are not the same.

    Attributes:
        buffer: How many elements differ, by how much; the first index of ``where`` is the row.
        rows: How many rows differ.
        of: How many rows both have.
        first: The first row that differs.
        last: The last one.
    """

    buffer: BufferDifference
    rows: int
    of: int
    first: int
    last: int


@dataclass(frozen=True)
class Difference:
    """All that differs; false if nothing does.

    Attributes:
        fields: Host record, noise key and fingerprints, and buffers of another shape or type.
        buffers: Buffers of equal shape and type.
        rows: Those that grow, of equal shape and type; another number of rows is a field.
    """

    fields: tuple[FieldDifference, ...]
    buffers: tuple[BufferDifference, ...]
    rows: tuple[RowsDifference, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.fields or self.buffers or self.rows)


def difference(one: CapsuleImage, other: CapsuleImage) -> Difference:
    """Compares what a restore would bring back; names, ids, ticks and ages are no part of it."""
    words, words_2 = _words(one), _words(other)
    fields = [
        FieldDifference(name, words.get(name, ABSENT), words_2.get(name, ABSENT))
        for name in dict.fromkeys((*words, *words_2))
        if words.get(name) != words_2.get(name)
    ]
    buffers, buffers_2 = one.by_name(), other.by_name()
    changed = []
    for name in sorted(buffers.keys() & buffers_2.keys()):
        mine, theirs = buffers[name], buffers_2[name]
        if (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape) and mine.data != theirs.data:
            changed.append(_compare(mine, theirs))
    return Difference(tuple(fields), tuple(changed), _rows(one.rows, other.rows))


def _rows(one: RowBlock | None, other: RowBlock | None) -> tuple[RowsDifference, ...]:
    """Compares the rows that both have, wherever each places them within a row."""
    if one is None or other is None:
        return ()
    count = min(one.count, other.count)
    theirs = {(row.name, row.dtype, row.shape): row for row in other.buffers}
    found = []
    for row in one.buffers:
        twin = theirs.get((row.name, row.dtype, row.shape))
        if twin is None or not count:
            continue
        mine_TB = one.bytes_TB()[:count, row.offset : row.end]
        other_TB = other.bytes_TB()[:count, twin.offset : twin.end]
        differs_T = np.flatnonzero((mine_TB != other_TB).any(axis=1))
        if not len(differs_T):
            continue
        buffers = [
            HostBuffer(row.name, row.dtype, (count, *row.shape), _dense(bytes_TB))
            for bytes_TB in (mine_TB, other_TB)
        ]
        rows, first, last = len(differs_T), int(differs_T[0]), int(differs_T[-1])
        found.append(RowsDifference(_compare(*buffers), rows, count, first, last))
    return tuple(found)


def _dense(bytes_TB: npt.NDArray[np.uint8]) -> memoryview:
    return np.ascontiguousarray(bytes_TB).reshape(-1).data


def _words(image: CapsuleImage) -> Mapping[str, str]:
    facts = image.facts
    key = "that in noise.key" if facts.noise_key is None else str(facts.noise_key)
    return {
        **{f"host.{name}": str(value) for name, value in asdict(facts.host).items()},
        "noise_key": key,
        **{f"buffer.{b.name}": describe(b.dtype, b.shape) for b in image.buffers},
        **{
            f"buffer.{row.name}": describe_rows(row.dtype, row.shape)
            for row in (() if image.rows is None else image.rows.buffers)
        },
        **facts.state_fingerprint.fields,
        **{f"exec.{name}": value for name, value in facts.exec_fingerprint.fields.items()},
    }


def _compare(one: HostBuffer, other: HostBuffer) -> BufferDifference:
    bytes_N, bytes_2_N = (np.frombuffer(b.data, dtype=np.uint8) for b in (one, other))
    differs_N = (bytes_N != bytes_2_N).reshape(-1, one.dtype.itemsize).any(axis=1)
    away_N = _distance(one.tensor().flatten(), other.tensor().flatten())
    place = int(away_N.argmax())
    largest: float = away_N[place].item()
    if not largest:
        place, largest = int(differs_N.argmax()), float("nan")
    where = []
    for size in reversed(one.shape):
        place, index = divmod(place, size)
        where.append(index)
    elements = int(differs_N.sum())
    return BufferDifference(one.name, elements, len(differs_N), largest, tuple(reversed(where)))


def _distance(one_N: torch.Tensor, other_N: torch.Tensor) -> npt.NDArray[Any]:
    """Absolute difference of each element; 0 where a NaN is involved, exact for integers."""
    away_N: npt.NDArray[Any]
    if one_N.dtype.is_floating_point:
        away_N = (one_N.double() - other_N.double()).abs().numpy()
        away_N = np.nan_to_num(away_N, nan=0.0, posinf=np.inf)
        return away_N
    a_N, b_N = (
        n.to(torch.uint8).numpy() if n.dtype is torch.bool else n.numpy() for n in (one_N, other_N)
    )
    # Of signed integers the difference may not fit their type, but it fits the unsigned one.
    unsigned = a_N.dtype.str.replace("i", "u")
    high_N, low_N = np.maximum(a_N, b_N).view(unsigned), np.minimum(a_N, b_N).view(unsigned)
    away_N = high_N - low_N
    return away_N
