"""Equal slots of device memory for capsules, allocated once."""

from __future__ import annotations

import torch

from flashrt_ros.errors import InternalError, NoMemoryError
from flashrt_ros.runtime.device import Device


class Segment:
    """The bytes of one state, held by one or more capsules.

    Attributes:
        bytes: Flat uint8 view of a slot of the pool.
        size_bytes: Its length.
        holders: Capsules that hold it; at zero the slot is free again.
        noise_key: Unsigned key within these bytes, so that nobody has to read it back.
    """

    def __init__(self, pool: SlotPool, index: int, view_N: torch.Tensor) -> None:
        self._pool = pool
        self._index = index
        self.bytes = view_N
        self.size_bytes = view_N.numel()
        self.holders = 1
        self.noise_key = 0

    def retain(self) -> Segment:
        """Counts one more holder and returns the segment.

        Raises:
            InternalError: Nobody holds it any more.
        """
        if self.holders == 0:
            raise InternalError(f"segment {self._index} was retained after its release")
        self.holders += 1
        return self

    def release(self) -> int:
        """Counts one holder less; returns the bytes freed by that, 0 while others hold it.

        Raises:
            InternalError: Nobody holds it any more.
        """
        if self.holders == 0:
            raise InternalError(f"segment {self._index} was released twice")
        self.holders -= 1
        if self.holders:
            return 0
        self._pool.give_back(self._index)
        return self.size_bytes


class SlotPool:
    """One allocation, cut into slots of ``slot_bytes``.

    A slot that was given back may be taken and written at once: all copies into and out of slots
    are enqueued on one lane, so an earlier reader has finished by then.

    Attributes:
        slot_bytes: Size of a slot.
        slots: Number of slots.
    """

    def __init__(self, device: Device, slot_bytes: int, budget_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self.slots = budget_bytes // slot_bytes
        self._memory = device.allocate(self.slots * slot_bytes)
        self._views = [
            self._memory[index * slot_bytes : (index + 1) * slot_bytes]
            for index in range(self.slots)
        ]
        self._free = list(reversed(range(self.slots)))

    @property
    def free(self) -> int:
        """Slots that may be taken."""
        return len(self._free)

    @property
    def bytes_used(self) -> int:
        """Bytes of the slots that are held."""
        return (self.slots - len(self._free)) * self.slot_bytes

    def take(self) -> Segment:
        """Returns a free slot with one holder; its content is garbage.

        Raises:
            NoMemoryError: No slot is free.
        """
        if not self._free:
            raise NoMemoryError(f"all {self.slots} slots of {self.slot_bytes} bytes are in use")
        index = self._free.pop()
        return Segment(self, index, self._views[index])

    def give_back(self, index: int) -> None:
        """Makes a slot free; called by its segment."""
        self._free.append(index)

    def close(self) -> None:
        """Frees the memory; capsules that are still around must not be used any more."""
        self._free.clear()
        self._views.clear()
        self._memory = self._memory.new_empty(0)
        self.slots = 0
