"""One allocation, cut into pages that are handed out in runs."""

from __future__ import annotations

import bisect
import threading

import torch

from flashrt_ros.errors import InternalError, NoMemoryError

Run = tuple[int, int]
"""First page and number of pages, one behind the other."""


class PagePool:
    """Pages; runs that are free and adjacent are one run.

    A page that was given back may be taken and written at once: all copies are enqueued on one
    lane, so an earlier reader has finished by then.

    Attributes:
        page_bytes: Size of a page.
        pages: Number of pages.
        free: Pages that may be taken.
        memory: ``(pages * page_bytes,)`` uint8.
        lock: Around every change of who holds which pages: who has read a capsule beside control
            steps lets go of it from another thread.
    """

    what = "pages"
    """In words, for refusals."""
    spread = False
    """Whether newcomers begin where they and their neighbours have room to grow."""

    def __init__(self, memory: torch.Tensor, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.lock = threading.RLock()
        self.pages = self.free = memory.nbytes // page_bytes
        self.memory = memory
        # Free runs by their first page, in order.
        self._starts: list[int] = [0] if self.pages else []
        self._lengths: list[int] = [self.pages] if self.pages else []

    @property
    def bytes_used(self) -> int:
        """Bytes of the pages that are held."""
        return (self.pages - self.free) * self.page_bytes

    def runs(self) -> list[Run]:
        """Returns the free runs, in order."""
        return list(zip(self._starts, self._lengths, strict=True))

    def take(self, pages: int) -> list[Run]:
        """Returns ``pages`` pages, in as few runs as there are; their content is garbage.

        Raises:
            NoMemoryError: So many are not free; nothing was taken.
        """
        if pages > self.free:
            raise NoMemoryError(self.short(pages))
        runs: list[Run] = []
        while pages:
            index = max(range(len(self._lengths)), key=self._lengths.__getitem__)
            start, length = self._starts[index], self._lengths[index]
            taken = min(pages, length)
            if self.spread and 4 * taken <= length:
                start += length // 2
            self._take_from(index, start, taken)
            runs.append((start, taken))
            pages -= taken
        return runs

    def short(self, pages: int) -> str:
        """Returns the words for a lack of ``pages`` pages."""
        return (
            f"no room for {pages} more {self.what} of {self.page_bytes} bytes each: {self.free}"
            f" of {self.pages} are free"
        )

    def extend(self, page: int, pages: int) -> int:
        """Takes up to ``pages`` pages from ``page`` on, one behind the other; returns how many."""
        index = bisect.bisect_left(self._starts, page)
        if index == len(self._starts) or self._starts[index] != page:
            return 0
        taken = min(pages, self._lengths[index])
        self._take_from(index, page, taken)
        return taken

    def give_back(self, page: int, pages: int) -> None:
        """Makes a run free; it joins its free neighbours.

        Raises:
            InternalError: Some of it is free already.
        """
        if not pages or not self.pages:
            return  # nothing to give back, or to whom: the pool was closed
        index = bisect.bisect_left(self._starts, page)
        before = self._starts[index - 1] + self._lengths[index - 1] if index else 0
        after = self._starts[index] if index < len(self._starts) else self.pages
        if before > page or page + pages > after:
            raise InternalError(f"{self.what} {page} to {page + pages - 1} were freed twice")
        self.free += pages
        joins_before = bool(index) and before == page
        joins_after = index < len(self._starts) and page + pages == after
        if joins_before and joins_after:
            self._lengths[index - 1] += pages + self._lengths[index]
            del self._starts[index], self._lengths[index]
        elif joins_before:
            self._lengths[index - 1] += pages
        elif joins_after:
            self._starts[index] = page
            self._lengths[index] += pages
        else:
            self._starts.insert(index, page)
            self._lengths.insert(index, pages)

    def close(self) -> None:
        """Frees the memory, even if capsules are still around."""
        with self.lock:
            self.memory = self.memory.new_empty(0)
            self.pages = self.free = 0
            self._starts.clear()
            self._lengths.clear()

    def _take_from(self, index: int, page: int, pages: int) -> None:
        start, length = self._starts[index], self._lengths[index]
        left, right = page - start, start + length - (page + pages)
        self.free -= pages
        if left and right:
            self._lengths[index] = left
            self._starts.insert(index + 1, page + pages)
            self._lengths.insert(index + 1, right)
        elif left:
            self._lengths[index] = left
        elif right:
            self._starts[index] = page + pages
            self._lengths[index] = right
        else:
            del self._starts[index], self._lengths[index]
