"""The memory of a live state, and of spare states that can take its place.

Captured graphs know the addresses of the live state and no others. So a branch runs in a spare
*set*: it is written at the set's home while the live state stays where it is, then the set is
*placed* under the addresses that the graphs know, and afterwards the live state again. Where the
driver can exchange the physical memory behind addresses this copies nothing (``mapped_state``);
elsewhere it is done by the copies below, with the same results.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flashrt_ros.errors import InternalError

if TYPE_CHECKING:
    from flashrt_ros.runtime.device.base import Device

LIVE = -1
"""Stands for the live state where a set is named by its number."""


@dataclass(frozen=True)
class SpareSet:
    """One spare state at its home.

    Attributes:
        fixed: ``(fixed_bytes,)`` uint8 on the device.
        rows: ``(rows_bytes,)`` uint8 on the device.
    """

    fixed: torch.Tensor
    rows: torch.Tensor


class StateMemory(abc.ABC):
    """Memory of one live state and its spare sets; all of it is taken at construction.

    All methods belong to the control thread, with the control lane bound.

    Attributes:
        fixed: ``(fixed_bytes,)`` uint8 on the device, zeroed: what the graphs know.
        rows: ``(rows_bytes,)`` uint8 on the device, zeroed: what the graphs know.
        sets: Spare sets; they may be written while they are not placed.
        placed: Number of the set that is in place, or ``LIVE``.
        lost: Why neither is: the addresses must not be touched then. Empty: all is well.
        words: How sets are placed, and why so: for the log. It changes no bit of any result, so it
            is none of ``Device.facts``.
    """

    fixed: torch.Tensor
    rows: torch.Tensor
    sets: tuple[SpareSet, ...] = ()
    placed: int = LIVE
    lost: str = ""
    words: str = ""

    @property
    def away(self) -> bool:
        """True while the live state is not in its place."""
        return self.placed != LIVE or bool(self.lost)

    @abc.abstractmethod
    def kept(self, shared_bytes: int) -> int:
        """Returns how much of the rows stays in place when a set is placed.

        Args:
            shared_bytes: Bytes from the start of the rows that are the same in both states.
        """

    @abc.abstractmethod
    def place(self, number: int, kept_bytes: int, used_bytes: int) -> None:
        """Puts a set into the place of the live state, or of another set.

        Waits for the lane before, and enqueues nothing that depends on the host.

        Args:
            number: Of the set.
            kept_bytes: What ``kept`` returned: rows up to there stay those of the live state.
            used_bytes: Rows from there on mean nothing in either state.

        Raises:
            NoMemoryError: The driver lacks memory for its own tables; the live state is in place.
            InternalError: The driver refused; the live state is in place, or ``lost`` says why it
                is not.
        """

    @abc.abstractmethod
    def place_live(self) -> None:
        """Puts the live state back; after ``lost``, tries once more.

        Raises:
            InternalError: The driver refused; see ``lost``.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of all memory: it is freed with the last tensor that views it."""


class CopiedState(StateMemory):
    """Spare sets that are placed by copies.

    The live state is parked meanwhile. A set keeps what was done to it while it was in place.
    """

    def __init__(
        self, device: Device, fixed_bytes: int, rows_bytes: int, spare_sets: int, reason: str
    ) -> None:
        """Allocates.

        Args:
            device: Where.
            fixed_bytes: Size of the fixed section.
            rows_bytes: Size of the rows section.
            spare_sets: Number of spare sets.
            reason: Why copies are made.

        Raises:
            NoMemoryError: The device has not got that much; nothing is kept.
        """
        self._device = device
        self.fixed, self.rows = device.allocate(fixed_bytes), device.allocate(rows_bytes)
        spare = [
            SpareSet(device.allocate(fixed_bytes), device.allocate(rows_bytes))
            for _ in range(spare_sets + bool(spare_sets))
        ]
        self.sets = tuple(spare[:spare_sets])
        self._parked = spare[spare_sets:]
        # Of the set that is in place.
        self._span = (0, 0)
        self.words = f"spare states are exchanged by copies: {reason}"

    @staticmethod
    def size_bytes(fixed_bytes: int, rows_bytes: int, spare_sets: int) -> int:
        """Returns all that is allocated."""
        return (fixed_bytes + rows_bytes) * (1 + spare_sets + bool(spare_sets))

    def kept(self, shared_bytes: int) -> int:
        """See ``StateMemory.kept``."""
        return shared_bytes

    def place(self, number: int, kept_bytes: int, used_bytes: int) -> None:
        """See ``StateMemory.place``."""
        if self.placed != LIVE:
            self.place_live()
        self._span = (kept_bytes, max(kept_bytes, used_bytes))
        self._device.synchronize()
        in_place = SpareSet(self.fixed, self.rows)
        self._copy(self._parked[0], in_place)
        self.placed = number
        self._copy(in_place, self.sets[number])

    def place_live(self) -> None:
        """See ``StateMemory.place_live``."""
        if self.placed == LIVE:
            return
        self._device.synchronize()
        in_place = SpareSet(self.fixed, self.rows)
        self._copy(self.sets[self.placed], in_place)
        self._copy(in_place, self._parked[0])
        self.placed = LIVE

    def _copy(self, dst: SpareSet, src: SpareSet) -> None:
        start, end = self._span
        self._device.copy_(dst.fixed, src.fixed)
        if end > start:
            self._device.copy_(dst.rows[start:end], src.rows[start:end])

    def close(self) -> None:
        """See ``StateMemory.close``."""
        self.fixed, self.rows = self.fixed.new_empty(0), self.rows.new_empty(0)
        self.sets, self._parked = (), []


def check_number(number: int, sets: int) -> None:
    """Raises if there is no such set.

    Raises:
        InternalError: There is not.
    """
    if not 0 <= number < sets:
        raise InternalError(f"spare set {number}: expected one of {sets}")
