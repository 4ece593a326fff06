"""Stored rows: segments that hang together in a tree, and the spans of it that capsules hold.

A segment is a run of pages with the rows of consecutive tokens. Its parent holds the tokens
before. So a lineage is the way from a segment to its root, and lineages that part share the way
up to there. What is stored is never changed; a segment only grows at its end, and only while
nobody holds another continuation there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from flashrt_ros.errors import InternalError
from flashrt_ros.runtime.device import Pieces
from flashrt_ros.runtime.row_pool import RowPool

Extents = npt.NDArray[np.int64]
"""``(n, 3)``: tokens ``[first, end)`` and the row of the pool at which the first lies."""


class RowSegment:
    """Rows of consecutive tokens in one run of pages.

    Attributes:
        pool: Where the pages are.
        parent: Segment with the tokens before ``first``; None: ``first`` is 0.
        first: First token.
        end: Token behind the last that somebody needs; pages reach no further.
        page: First page.
        pages: Number of pages; 0: nobody held it any more, and it is gone.
        holders: Token up to which somebody needs this segment, to how many do: spans that end
            here, and children, which begin here.
        depth: Segments above.
    """

    __slots__ = ("_above", "depth", "end", "first", "holders", "page", "pages", "parent", "pool")

    def __init__(
        self, pool: RowPool, parent: RowSegment | None, first: int, page: int, pages: int
    ) -> None:
        self.pool = pool
        self.parent = parent
        self.first = self.end = first
        self.page = page
        self.pages = pages
        self.holders: dict[int, int] = {}
        self.depth: int = 0 if parent is None else parent.depth + 1
        self._above: Extents | None = None
        if parent is not None:
            parent.retain(first)

    @property
    def row(self) -> int:
        """Row of the pool at which ``first`` lies."""
        return self.page * self.pool.page_rows

    @property
    def limit(self) -> int:
        """Token behind the last that the pages have room for."""
        return self.first + self.pages * self.pool.page_rows

    def grow(self, end: int) -> None:
        """Takes pages behind its own, as far as they are free, until tokens fit up to ``end``."""
        missing = self._pages_to(end) - self.pages
        if missing > 0:
            self.pages += self.pool.extend(self.page + self.pages, missing)

    def retain(self, end: int) -> None:
        """Counts one more who needs the tokens up to ``end``."""
        self.holders[end] = self.holders.get(end, 0) + 1
        self.end = max(self.end, end)

    def release(self, end: int) -> int:
        """Counts one less who needs the tokens up to ``end``; returns the pages freed.

        Raises:
            InternalError: Nobody is known who does.
        """
        node: RowSegment | None = self
        freed = 0
        while node is not None:
            count = node.holders.pop(end, 0) - 1
            if count < 0:
                raise InternalError(f"rows up to token {end} were released twice")
            if count:
                node.holders[end] = count
                return freed
            needed = 0
            if node.holders:
                if end < node.end:
                    return freed
                node.end = max(node.holders)
                needed = node._pages_to(node.end)
            node.pool.shrinks += 1
            spare = node.pages - needed
            node.pool.give_back(node.page + needed, spare)
            node.pages = needed
            freed += spare
            if needed:
                return freed
            end, node = node.first, node.parent
        return freed

    def above(self) -> Extents:
        """Returns the pieces of all segments above, from the root on, as far as this needs them.

        They never change while this segment is held, and are kept: building them is slow for a
        thousand segments, and a restore waits for it.
        """
        if self._above is None:
            pieces: list[tuple[int, int, int]] = []
            node, start = self, None
            while node.parent is not None:
                pieces.append((node.parent.first, node.first, node.parent.row))
                node = node.parent
                if node._above is not None:
                    start = node._above
                    break
            found = np.array(pieces[::-1], np.int64).reshape(-1, 3)
            self._above = found if start is None else np.concatenate((start, found))
        return self._above

    def _pages_to(self, end: int) -> int:
        return -(-(end - self.first) // self.pool.page_rows)


class RowSpan:
    """The first ``end`` tokens of a lineage, held.

    Attributes:
        tail: Segment with the last of them; None: there are none.
        end: Number of tokens.
        whole: How all of them are copied to the live state, once somebody has found out.
    """

    __slots__ = ("end", "tail", "whole")

    def __init__(self, tail: RowSegment | None, end: int) -> None:
        """Holds the tokens; ``release`` lets them go."""
        self.tail = tail
        self.end = end
        self.whole: Pieces | None = None
        if tail is not None:
            with tail.pool.lock:
                tail.retain(end)

    def release(self) -> int:
        """Lets the tokens go; returns the bytes freed: of pages that nobody else needs."""
        tail, self.tail = self.tail, None
        if tail is None:
            return 0
        with tail.pool.lock:
            return tail.release(self.end) * tail.pool.page_bytes

    def segments(self) -> Iterator[tuple[RowSegment, int]]:
        """Yields each segment, from the last to the root, and the token up to which it counts."""
        node, end = self.tail, self.end
        while node is not None:
            yield node, end
            end, node = node.first, node.parent

    def views(self) -> list[torch.Tensor]:
        """Returns the rows as they lie in the pool, in order: flat uint8, aliased."""
        if self.tail is None:
            return []
        pool = self.tail.pool
        with pool.lock:
            extents = self.pieces()
        return [
            pool.memory[row * pool.row_bytes : (row + end - first) * pool.row_bytes]
            for first, end, row in extents.tolist()
        ]

    def pieces(self, start: int = 0) -> Extents:
        """Returns where the tokens from ``start`` on lie; adjacent pieces are one."""
        tail = self.tail
        if tail is None or start >= self.end:
            return np.empty((0, 3), np.int64)
        if start >= tail.first:
            return np.array([(start, self.end, tail.row + start - tail.first)], np.int64)
        return cut(path(tail, self.end), start)


def new_span(pool: RowPool, rows: int) -> RowSpan:
    """Takes room for ``rows`` rows of a lineage of their own; their content is garbage.

    Raises:
        NoMemoryError: There is not enough; nothing was taken.
    """
    with pool.lock:
        tail, end = None, 0
        for page, pages in pool.take(-(-rows // pool.page_rows)):
            tail = RowSegment(pool, tail, end, page, pages)
            end = min(rows, tail.limit)
        return RowSpan(tail, rows)


def path(tail: RowSegment, end: int) -> Extents:
    """Returns the pieces from the root to ``tail``, of which only tokens up to ``end`` count."""
    return np.concatenate((tail.above(), ((tail.first, end, tail.row),)))


def cut(pieces: Extents, start: int) -> Extents:
    """Returns the part from token ``start`` on, adjacent pieces joined."""
    kept = pieces[np.searchsorted(pieces[:, 1], start, side="right") :].copy()
    skipped = max(0, start - int(kept[0, 0]))
    kept[0, 0] += skipped
    kept[0, 2] += skipped
    begins = np.ones(len(kept), bool)
    lengths = kept[:, 1] - kept[:, 0]
    begins[1:] = kept[1:, 2] != kept[:-1, 2] + lengths[:-1]
    ends = np.append(begins[1:], True)
    return np.column_stack((kept[begins, 0], kept[ends, 1], kept[begins, 2]))


def common_end(one: RowSegment, end: int, other: RowSegment, other_end: int) -> int:
    """Returns the number of tokens that two lineages share.

    Args:
        one: Tail of one lineage.
        end: Its number of tokens.
        other: Tail of the other.
        other_end: Its number of tokens.
    """
    # Along one lineage the tails are the same or near, and the way there is short.
    left, right = one, other
    left_end, right_end = end, other_end
    for _ in range(8):
        if left is right:
            return min(left_end, right_end)
        if left.depth >= right.depth:
            if left.parent is None:
                return 0
            left, left_end = left.parent, left.first
        else:
            assert right.parent is not None  # it lies deeper than a root
            right, right_end = right.parent, right.first
    mine, theirs = path(one, end), path(other, other_end)
    length = min(len(mine), len(theirs))
    # No two segments that are held begin at the same row of the pool.
    differs = np.flatnonzero(mine[:length, 2] != theirs[:length, 2])
    shared = int(differs[0]) if len(differs) else length
    return min(int(mine[shared - 1, 1]), int(theirs[shared - 1, 1])) if shared else 0


class WhatIf:
    """Counts the pages that releases would free, without releasing anything.

    Attributes:
        freed: Pages so far.
    """

    def __init__(self) -> None:
        self.freed = 0
        self._holders: dict[RowSegment, dict[int, int]] = {}

    def release(self, span: RowSpan) -> None:
        """As if ``span`` were released as well."""
        for node, end in span.segments():
            holders = self._holders.setdefault(node, dict(node.holders))
            before = _pages(node, holders)
            holders[end] -= 1
            if not holders[end]:
                del holders[end]
            self.freed += before - _pages(node, holders)
            if holders:
                return

    def retain(self, span: RowSpan) -> None:
        """Takes a ``release`` back."""
        for node, end in span.segments():
            holders = self._holders[node]
            before, held = _pages(node, holders), bool(holders)
            holders[end] = holders.get(end, 0) + 1
            self.freed += before - _pages(node, holders)
            if held:
                return


def _pages(node: RowSegment, holders: dict[int, int]) -> int:
    return -(-(max(holders) - node.first) // node.pool.page_rows) if holders else 0
