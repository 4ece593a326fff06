"""Where the rows of the live state are stored already, and their copies from and to there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from flashrt_ros.errors import NoMemoryError
from flashrt_ros.runtime.device import Device, Pieces
from flashrt_ros.runtime.device.base import Offsets
from flashrt_ros.runtime.row_pool import RowPool
from flashrt_ros.runtime.row_segment import Extents, RowSegment, RowSpan, common_end


class LiveRows:
    """Provenance of the live rows: the first ``stored`` of them are those of a stored lineage.

    So a snapshot copies only the rows behind these, and a restore only those behind what the live
    lineage shares with the target's. The live state holds nothing: what is dropped is freed, and
    counts as stored no longer.

    Attributes:
        pool: Where rows are stored.
    """

    def __init__(self, device: Device, pool: RowPool, rows_TB: torch.Tensor) -> None:
        """Takes over what the session has allocated.

        Args:
            device: Where it lies.
            pool: Storage.
            rows_TB: ``(capacity, row_bytes)`` uint8, contiguous: the live rows.
        """
        self.pool = pool
        self._device = device
        self._section = rows_TB.view(-1)
        self._tail: RowSegment | None = None
        self._stored = 0

    def forget(self) -> None:
        """Says that nothing is known of the live rows: the next restore copies all."""
        self._tail, self._stored = None, 0

    @contextlib.contextmanager
    def guarded(self, rows: int) -> Iterator[int]:
        """Holds what is stored of the first ``rows`` live rows, so that evictions leave it.

        Yields:
            Pages that ``keep`` will take for the rest.
        """
        with self.pool.lock:
            self._resolve(rows)
            held = RowSpan(self._tail, self._stored)
            missing = self._missing(rows)
        try:
            yield missing
        finally:
            held.release()

    def keep(self, rows: int) -> RowSpan:
        """Stores what is not stored yet of the first ``rows`` live rows, and returns them, held.

        The control lane must be bound.

        Raises:
            NoMemoryError: There are not enough pages; nothing has changed.
        """
        with self.pool.lock:
            self._resolve(rows)
            stored, missing = self._stored, self._missing(rows)
            if missing > self.pool.free:
                raise NoMemoryError(self.pool.short(missing))
            tail = self._store(rows)
            span = RowSpan(tail, rows)
        try:
            if stored < rows:
                live, pool, sizes = self._bytes(span.pieces(stored))
                pieces = Pieces(pool, live, sizes)
                self._device.copy_pieces_(self.pool.memory, self._section, pieces)
        except BaseException:
            span.release()
            raise
        self._tail, self._stored = tail, rows
        return span

    def go(self, rows: int, target: RowSpan) -> None:
        """Makes the rows of ``target`` the live ones; the control lane must be bound.

        Args:
            rows: Committed live rows.
            target: Rows to be live.
        """
        shared = self.shared(rows, target)
        self.forget()
        if shared < target.end:
            pieces = target.whole if shared == 0 else None
            if pieces is None:
                pieces = Pieces(*self._bytes(target.pieces(shared)))
                if shared == 0:
                    target.whole = pieces
            self._device.copy_pieces_(self._section, self.pool.memory, pieces)
        self._tail, self._stored = target.tail, target.end

    def shared(self, rows: int, target: RowSpan) -> int:
        """Returns how many of the first ``rows`` live rows are those of ``target``."""
        with self.pool.lock:
            self._resolve(rows)
            if self._tail is None or target.tail is None:
                return 0
            return common_end(self._tail, self._stored, target.tail, target.end)

    def _resolve(self, rows: int) -> None:
        """Goes back to what is still stored."""
        tail, stored = self._tail, min(self._stored, rows)
        while tail is not None and (not tail.pages or stored <= tail.first):
            stored = min(stored, tail.first)
            tail = tail.parent
        self._tail, self._stored = tail, 0 if tail is None else min(stored, tail.end)

    def _missing(self, rows: int) -> int:
        tail, first = self._tail, self._stored
        if tail is not None and tail.end == first:
            first = min(rows, tail.limit)
        return -(-(rows - first) // self.pool.page_rows)

    def _store(self, rows: int) -> RowSegment | None:
        """Makes room behind what is stored; returns the segment in which the last row belongs."""
        tail, end = self._tail, self._stored
        if rows > end and tail is not None and tail.end == end:
            # Nobody holds another continuation, so this one may go on in the same pages.
            tail.grow(rows)
            end = min(rows, tail.limit)
        for page, pages in self.pool.take(-(-(rows - end) // self.pool.page_rows)):
            tail = RowSegment(self.pool, tail, end, page, pages)
            end = min(rows, tail.limit)
        return tail

    def _bytes(self, extents: Extents) -> tuple[Offsets, Offsets, Offsets]:
        """Returns where the rows lie in the live section and in the pool, and their sizes."""
        row_bytes = self.pool.row_bytes
        sizes = (extents[:, 1] - extents[:, 0]) * row_bytes
        return extents[:, 0] * row_bytes, extents[:, 2] * row_bytes, sizes


class SpareRows(LiveRows):
    """Rows of a spare state: what it holds from last time is not copied again.

    Other rows may have come where a segment was shortened, which only who lets it grow can know.
    So after any shortening nothing is known of them.
    """

    _shrinks = 0

    def take(self, target: RowSpan, first: int) -> None:
        """Writes the rows of ``target``; the control lane must be bound.

        Args:
            target: Rows.
            first: Those before are not needed.
        """
        if first == 0:
            self._check_shrinks()
            self.go(self._stored, target)
            return
        self.forget()
        pieces = Pieces(*self._bytes(target.pieces(first)))
        if len(pieces.sizes):
            self._device.copy_pieces_(self._section, self.pool.memory, pieces)

    def take_live(self, live: LiveRows, rows: int, first: int) -> None:
        """Writes the first ``rows`` rows of the live state; the control lane must be bound.

        Args:
            live: Where they are.
            rows: How many.
            first: Those before are not needed.
        """
        self._check_shrinks()
        shared = first
        with self.pool.lock:
            live._resolve(rows)
            tail, stored = live._tail, live._stored
            self._resolve(self._stored)
            if first == 0 and tail is not None and self._tail is not None:
                shared = common_end(tail, stored, self._tail, self._stored)
        self.forget()
        start, end = shared * self.pool.row_bytes, rows * self.pool.row_bytes
        if end > start:
            self._device.copy_(self._section[start:end], live._section[start:end])
        if first == 0:
            self._tail, self._stored = tail, stored

    def _check_shrinks(self) -> None:
        # What is shortened from now on, by another thread, counts next time.
        shrinks = self.pool.shrinks
        if shrinks != self._shrinks:
            self.forget()
        self._shrinks = shrinks
