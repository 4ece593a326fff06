"""Spare states that are placed by exchanging the physical memory behind the live addresses.

The addresses of the live state are reserved once, and captured graphs know them for good. Behind
them lies physical memory in *pieces*, each of which can be exchanged for that of a spare set. Each
piece of a spare set is mapped at the set's home as well, where it can be written at any time.

How many pieces: on an H200 one costs 35 to 60 us to exchange, whatever its size, and 10 us more
for each 256 MiB; copying takes 130 us for as much. So pieces are large, and up to 1.5 GiB of rows
are a single one together with the fixed section. Where there are more, those that lie wholly
within the rows that a branch shares with the live state are neither copied nor exchanged.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from flashrt_ros.errors import FlashRTError, InternalError
from flashrt_ros.runtime.device.state_memory import LIVE, SpareSet, StateMemory, check_number

ROW_PIECE_BYTES = 512 << 20
"""Least size of a piece of rows."""
LEAST_ROW_PIECES = 3
"""Where there would be less, an exchange of one piece takes less time than is saved by sharing."""


class VirtualMemory(Protocol):
    """The driver's calls; each raises ``NoMemoryError`` or ``InternalError`` in its own words.

    Attributes:
        granule: Sizes and addresses are multiples of it.
    """

    granule: int

    def reserve(self, size_bytes: int) -> int:
        """Returns the address of a range that nothing lies behind."""

    def free(self, address: int, size_bytes: int) -> None:
        """Gives a range back, behind which nothing lies."""

    def create(self, size_bytes: int) -> Any:
        """Returns physical memory; its content is garbage."""

    def release(self, handle: Any) -> None:
        """Frees physical memory, as soon as nothing is mapped to it."""

    def map(self, address: int, size_bytes: int, handle: Any) -> None:
        """Puts all of ``handle`` behind addresses; they may be used after ``allow``."""

    def unmap(self, address: int, size_bytes: int) -> None:
        """Takes away what lies behind; the range may cover several whole mappings."""

    def allow(self, address: int, size_bytes: int) -> None:
        """Allows to read and write; the range may cover several whole mappings."""

    def wrap(self, address: int, size_bytes: int) -> tuple[torch.Tensor, object]:
        """Returns a flat uint8 tensor, and an object that lives as long as any view of it."""

    def settled(self) -> bool:
        """Waits for all work on the memory; False where that must not be done now."""

    def postpone(self, work: Callable[[], None]) -> None:
        """Keeps work for a later time at which ``settled`` is true."""


def cut(fixed_bytes: int, rows_bytes: int, granule: int) -> tuple[tuple[int, ...], int]:
    """Returns the sizes of the pieces, and the byte at which the rows begin.

    Args:
        fixed_bytes: Size of the fixed section, a multiple of 256.
        rows_bytes: Size of the rows section.
        granule: Sizes are multiples of it.
    """
    count = rows_bytes // ROW_PIECE_BYTES
    if count < LEAST_ROW_PIECES:
        return (_rounded(fixed_bytes + rows_bytes, granule),), fixed_bytes
    first = _rounded(fixed_bytes, granule)
    each = _rounded(-(-rows_bytes // count), granule)
    sizes = [each] * (rows_bytes // each)
    rest = rows_bytes - sum(sizes)
    if rest:
        sizes.append(_rounded(rest, granule))
    return (first, *sizes), first


def _rounded(size_bytes: int, granule: int) -> int:
    return -(-size_bytes // granule) * granule


class Range:
    """A reserved range of addresses and what lies behind each piece of it.

    Attributes:
        address: First byte.
        size_bytes: Its length.
        behind: Handle behind each piece that may be used; None: it must not be.
    """

    def __init__(self, memory: VirtualMemory, sizes: tuple[int, ...]) -> None:
        """Reserves the range; nothing lies behind it."""
        self._memory = memory
        self._sizes = sizes
        self._starts = (0, *itertools.accumulate(sizes))
        self._mapped = [False] * len(sizes)
        self.behind: list[Any] = [None] * len(sizes)
        self.size_bytes = self._starts[-1]
        self.address = memory.reserve(self.size_bytes)

    def put(self, wanted: list[Any]) -> None:
        """Exchanges the pieces that differ from ``wanted``.

        Raises:
            FlashRTError: The driver refused; some of these pieces have nothing behind them.
        """
        for first, end in self._differing(wanted):
            self._clear(first, end)
            for piece in range(first, end):
                at, size_bytes = self.address + self._starts[piece], self._sizes[piece]
                self._memory.map(at, size_bytes, wanted[piece])
                self._mapped[piece] = True
            self._memory.allow(*self._span(first, end))
            self.behind[first:end] = wanted[first:end]

    def _differing(self, wanted: list[Any]) -> Iterator[tuple[int, int]]:
        differs = [new is not old for new, old in zip(wanted, self.behind, strict=True)]
        first = 0
        for differing, run in itertools.groupby(differs):
            end = first + len(list(run))
            if differing:
                yield first, end
            first = end

    def _clear(self, first: int, end: int) -> None:
        self.behind[first:end] = [None] * (end - first)
        if all(self._mapped[first:end]):
            self._memory.unmap(*self._span(first, end))
            self._mapped[first:end] = [False] * (end - first)
            return
        for piece in range(first, end):  # after a failure: one by one
            if self._mapped[piece]:
                self._memory.unmap(*self._span(piece, piece + 1))
                self._mapped[piece] = False

    def _span(self, first: int, end: int) -> tuple[int, int]:
        return self.address + self._starts[first], self._starts[end] - self._starts[first]

    def release(self) -> None:
        """Frees the addresses, once the work on them is done; errors are nobody's by now."""
        if not self._memory.settled():
            self._memory.postpone(self.release)
            return
        with contextlib.suppress(FlashRTError):
            self._clear(0, len(self._sizes))
            self._memory.free(self.address, self.size_bytes)


class _Handles:
    """Physical memory of all sets, the live one first; what is mapped outlives its release."""

    def __init__(self, memory: VirtualMemory) -> None:
        self._memory = memory
        self.sets: list[list[Any]] = []

    def create(self, sizes: tuple[int, ...], sets: int) -> None:
        for _ in range(sets):
            self.sets.append([])
            for size_bytes in sizes:
                self.sets[-1].append(self._memory.create(size_bytes))

    def release(self) -> None:
        sets, self.sets = self.sets, []
        for handle in itertools.chain(*sets):
            with contextlib.suppress(FlashRTError):
                self._memory.release(handle)


class MappedState(StateMemory):
    """See the module. A placed set keeps what is done to it.

    The memory lives until this is closed and the last tensor that views it is gone: a kernel on an
    address behind which nothing lies would spoil the GPU for the whole process. Work on streams
    that are none of the device's must have ended when such a tensor goes.
    """

    def __init__(
        self,
        memory: VirtualMemory,
        fixed_bytes: int,
        rows_bytes: int,
        spare_sets: int,
        drain: Callable[[], None],
    ) -> None:
        """Takes all memory and puts the live state into its place.

        Args:
            memory: The driver.
            fixed_bytes: Size of the fixed section.
            rows_bytes: Size of the rows section.
            spare_sets: Number of spare sets.
            drain: Waits for all work on the live state: an exchange is not ordered with it.

        Raises:
            NoMemoryError: There is not enough; nothing is kept.
            InternalError: The driver refused; nothing is kept.
        """
        self._drain = drain
        self._sizes, self._rows_start = cut(fixed_bytes, rows_bytes, memory.granule)
        self._fixed_bytes, self._rows_bytes = fixed_bytes, rows_bytes
        starts = [0, *itertools.accumulate(self._sizes)]
        self._spans = [
            (max(0, start - self._rows_start), end - self._rows_start)
            for start, end in itertools.pairwise(starts)
        ]
        handles = self._handles = _Handles(memory)
        views: list[SpareSet] = []
        with contextlib.ExitStack() as undo:
            undo.callback(handles.release)
            # An error keeps the frame that raised it, and with it what the frame knows.
            undo.callback(views.clear)
            handles.create(self._sizes, spare_sets + 1)
            self._range, live = self._open(memory, handles.sets[0])
            views.append(live)
            del live
            views += [self._open(memory, pieces)[1] for pieces in handles.sets[1:]]
            memory.settled()
            undo.pop_all()
        # For who forgets to close; at the end of the process the driver frees all by itself.
        weakref.finalize(self, handles.release).atexit = False
        self.fixed, self.rows = views[0].fixed, views[0].rows
        self.sets = tuple(views[1:])
        self.words = (
            "spare states are exchanged by mapping their memory under the captured graphs:"
            f" {len(self._sizes)} pieces of up to {max(self._sizes) >> 20} MiB"
        )

    @staticmethod
    def size_bytes(fixed_bytes: int, rows_bytes: int, spare_sets: int, granule: int) -> int:
        """Returns all that is taken."""
        return sum(cut(fixed_bytes, rows_bytes, granule)[0]) * (1 + spare_sets)

    def _open(self, memory: VirtualMemory, pieces: list[Any]) -> tuple[Range, SpareSet]:
        """Returns a new range with ``pieces`` behind it, zeroed, and its two sections."""
        range_ = Range(memory, self._sizes)
        try:
            range_.put(pieces)
            base_N, owner = memory.wrap(range_.address, range_.size_bytes)
        except BaseException:
            range_.release()
            raise
        weakref.finalize(owner, range_.release).atexit = False
        del owner
        base_N.zero_()
        rows_end = self._rows_start + self._rows_bytes
        return range_, SpareSet(base_N[: self._fixed_bytes], base_N[self._rows_start : rows_end])

    def kept(self, shared_bytes: int) -> int:
        """See ``StateMemory.kept``: whole pieces."""
        kept_bytes = 0
        for _, end in self._spans[1:]:
            if min(end, self._rows_bytes) <= shared_bytes:
                kept_bytes = min(end, self._rows_bytes)
        return kept_bytes

    def place(self, number: int, kept_bytes: int, used_bytes: int) -> None:
        """See ``StateMemory.place``."""
        check_number(number, len(self.sets))
        live, spare = self._handles.sets[0], self._handles.sets[number + 1]
        # The first piece holds the fixed section, and is always exchanged.
        wanted = [spare[0]] + [
            spare[piece] if end > kept_bytes and start < used_bytes else live[piece]
            for piece, (start, end) in enumerate(self._spans)
            if piece
        ]
        self._drain()
        try:
            self._range.put(wanted)
        except FlashRTError:
            self._put_live_back()
            raise
        self.placed = number

    def place_live(self) -> None:
        """See ``StateMemory.place_live``."""
        if not self.away:
            return
        self._drain()
        self._put_live_back()

    def _put_live_back(self) -> None:
        self.placed = LIVE
        self.lost = ""
        try:
            self._range.put(self._handles.sets[0])
        except FlashRTError as error:
            self.lost = str(error)
            raise InternalError(
                f"the live state could not be put back into its place: {error}; it is whole, but"
                " nothing can run: free memory on the device and try again, or make a new session"
            ) from error

    def close(self) -> None:
        """See ``StateMemory.close``."""
        if not self._handles.sets:
            return
        with contextlib.suppress(FlashRTError):
            self.place_live()
        self._handles.release()
        self.fixed, self.rows = self.fixed.new_empty(0), self.rows.new_empty(0)
        self.sets = ()
