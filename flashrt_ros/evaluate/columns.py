"""Arrays that grow while a recording is driven, without ever holding everything twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK_BYTES = 32 << 20
"""Rows of chunks that are kept; of more every second chunk is dropped, then every fourth ..."""


class Column:
    """A growing array of rows of one shape; grown where it lies, so that it is there once."""

    FIRST = 4096
    """Rows at the beginning."""
    GROWTH = 8
    """Of so many rows one is added."""

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        """Empty.

        Args:
            shape: Of a row.
            dtype: Of its elements.
        """
        self._shape = shape
        self._rows = np.empty((self.FIRST, *shape), dtype)
        self._count = 0

    def add(self, row: object) -> None:
        """Appends a row."""
        if self._count == len(self._rows):
            self._resize(self._count + self._count // self.GROWTH)
        self._rows[self._count] = row
        self._count += 1

    def array(self) -> npt.NDArray[Any]:
        """All rows; ends the column."""
        self._resize(self._count)
        return self._rows

    def _resize(self, count: int) -> None:
        # Nobody else has seen the array so far.
        self._rows.resize((count, *self._shape), refcheck=False)


class Chunks:
    """Chunks of one shape, thinned evenly where there are too many to keep.

    Attributes:
        count: Chunks in all.
    """

    def __init__(self, shape: tuple[int, int], size_bytes: int = CHUNK_BYTES) -> None:
        """Empty.

        Args:
            shape: ``(H, A)``.
            size_bytes: What may be kept.
        """
        self._shape = shape
        self._most = max(2, size_bytes // max(1, 4 * shape[0] * shape[1]))
        self._stride = 1
        self._kept: list[tuple[int, int, npt.NDArray[np.float32]]] = []
        self.count = 0

    def add(self, start: int, adopted: int, rows_HA: npt.NDArray[np.float32]) -> None:
        """Takes one chunk in.

        Args:
            start: Index of the moment that row 0 belongs to.
            adopted: Index of the moment from which it is followed.
            rows_HA: Its rows; not to be written afterwards.
        """
        if self.count % self._stride == 0:
            if len(self._kept) == self._most:
                self._kept = self._kept[::2]
                self._stride *= 2
            if self.count % self._stride == 0:
                self._kept.append((start, adopted, rows_HA))
        self.count += 1

    def starts(self) -> npt.NDArray[np.int64]:
        """``(C,)`` of those kept."""
        return np.array([start for start, _, _ in self._kept], np.int64)

    def adopted(self) -> npt.NDArray[np.int64]:
        """``(C,)`` of those kept."""
        return np.array([adopted for _, adopted, _ in self._kept], np.int64)

    def rows(self) -> npt.NDArray[np.float32]:
        """``(C, H, A)`` of those kept."""
        whole_CHA = np.empty((len(self._kept), *self._shape), np.float32)
        for place, (_, _, rows_HA) in enumerate(self._kept):
            whole_CHA[place] = rows_HA
        return whole_CHA
