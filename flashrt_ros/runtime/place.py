"""Where the bytes of a state lie: device, host or disk; freed when nobody needs them there."""

from __future__ import annotations

import abc
import enum
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from flashrt_ros.errors import InternalError, NotConfiguredError
from flashrt_ros.runtime.row_segment import RowSpan

if TYPE_CHECKING:
    from flashrt_ros.runtime.pool import SlotPool


class Tier(enum.Enum):
    """Kinds of memory, the fastest first."""

    DEVICE = "device"
    """Slots and pages beside the live state: what a restore copies from."""
    HOST = "host"
    """Pinned memory of the host, where that is another memory than the device's."""
    DISK = "disk"
    """A capsule file."""


class Place(abc.ABC):
    """Bytes of one state, held by its segment and by whoever copies them.

    ``release`` may be called from any thread, by whoever has read the bytes and has done so.

    Attributes:
        tier: Kind of memory.
        holders: At zero it is free again.
        size_bytes: Of one state there, without rows of the device, which others may share.
    """

    tier: Tier
    size_bytes: int

    def __init__(self, lock: threading.Lock) -> None:
        """Held once; ``lock`` is that of all places of a session."""
        self.holders = 1
        self._lock = lock

    def retain(self) -> None:
        """Counts one more holder.

        Raises:
            InternalError: Nobody holds it any more.
        """
        with self._lock:
            if self.holders == 0:
                raise InternalError(f"bytes in tier {self.tier.value} were retained when freed")
            self.holders += 1

    def release(self) -> int:
        """Counts one holder less; returns the bytes freed by that, 0 while others hold it.

        Raises:
            InternalError: Nobody holds it any more.
        """
        with self._lock:
            if self.holders == 0:
                raise InternalError(f"bytes in tier {self.tier.value} were released twice")
            self.holders -= 1
            if self.holders:
                return 0
            freed_bytes = self._free()
        return freed_bytes + self._free_rows()

    @abc.abstractmethod
    def views(self) -> list[torch.Tensor]:
        """Returns the bytes in order, fixed section first: flat uint8, none where it is a file."""

    @abc.abstractmethod
    def _free(self) -> int:
        """Gives the bytes back, under the lock; returns how many."""

    def _free_rows(self) -> int:
        return 0


class SlotPlace(Place):
    """A slot of the pool, and a span of rows.

    Attributes:
        rows: Rows that belong to these bytes; None: the policy has no buffers that grow.
    """

    tier = Tier.DEVICE

    def __init__(self, pool: SlotPool, index: int, view_N: torch.Tensor) -> None:
        """Takes over slot ``index``, of which ``view_N`` is the memory."""
        super().__init__(pool.lock)
        self.size_bytes = pool.slot_bytes
        self._pool = pool
        self._index = index
        self._view: torch.Tensor | None = view_N
        self.rows: RowSpan | None = None

    @property
    def bytes(self) -> torch.Tensor:
        """``(slot_bytes,)`` uint8 on the device.

        Raises:
            NotConfiguredError: The session was closed.
        """
        if self._view is None:
            raise NotConfiguredError("the session of this capsule is closed; its bytes are gone")
        return self._view

    def views(self) -> list[torch.Tensor]:
        """See ``Place.views``."""
        return [self.bytes, *([] if self.rows is None else self.rows.views())]

    def _free(self) -> int:
        self._pool.give_back(self._index)
        return self.size_bytes

    def _free_rows(self) -> int:
        return 0 if self.rows is None else self.rows.release()

    def close(self) -> None:
        """Lets go of the memory, whoever still holds it."""
        self._view = None


class FilePlace(Place):
    """A file that a move has written.

    Attributes:
        name: Of the file, in the session's folder.
        capsule_id: Of the capsule in it.
    """

    tier = Tier.DISK

    def __init__(
        self, lock: threading.Lock, name: str, capsule_id: str, size_bytes: int, doomed: list[str]
    ) -> None:
        """Takes over a file; its name goes to ``doomed`` when nobody needs it."""
        super().__init__(lock)
        self.name = name
        self.capsule_id = capsule_id
        self.size_bytes = size_bytes
        self._doomed = doomed

    def views(self) -> list[torch.Tensor]:
        """See ``Place.views``."""
        return []

    def _free(self) -> int:
        self._doomed.append(self.name)
        return self.size_bytes


def pairs(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields pieces of equal length, so that the sources in their order fill the targets."""
    left = [view_N for view_N in reversed(targets) if view_N.nbytes]
    for source_N in sources:
        start = 0
        while start < source_N.nbytes:
            target_N = left.pop()
            size = min(target_N.nbytes, source_N.nbytes - start)
            yield target_N[:size], source_N[start : start + size]
            if size < target_N.nbytes:
                left.append(target_N[size:])
            start += size
