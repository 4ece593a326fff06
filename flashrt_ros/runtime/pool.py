"""Equal slots of device memory for capsules, allocated once, and the segments that fill them."""

from __future__ import annotations

import threading

import torch

from flashrt_ros.errors import InternalError, NoMemoryError
from flashrt_ros.runtime.device import Device
from flashrt_ros.runtime.place import FilePlace, Place, SlotPlace, Tier
from flashrt_ros.runtime.row_segment import RowSpan


class Segment:
    """The bytes of one state, held by one or more capsules, wherever they lie.

    All belongs to the control thread.

    Attributes:
        size_bytes: Length of the part of fixed size.
        holders: Capsules that hold it; at zero its bytes are freed.
        noise_key: Unsigned key within these bytes, so that nobody has to read it back.
        place: Where the bytes are read from.
        file: A file that has them as well; None: there is none, or it is the ``place``.
        moving: They are being copied to another tier.
        parked: The store has moved them to the host by itself.
    """

    def __init__(self, place: Place, size_bytes: int) -> None:
        """Takes over ``place`` from whoever took it."""
        self.place = place
        self.size_bytes = size_bytes
        self.holders = 1
        self.noise_key = 0
        self.file: FilePlace | None = None
        self.moving = False
        self.parked = False

    @property
    def tier(self) -> Tier:
        """Kind of memory that the bytes are read from."""
        return self.place.tier

    @property
    def bytes(self) -> torch.Tensor:
        """``(size_bytes,)`` uint8 view of a slot of the pool, on the device.

        Raises:
            NotConfiguredError: The session was closed.
            InternalError: They are in another tier.
        """
        return self.slot.bytes

    @property
    def rows(self) -> RowSpan | None:
        """Rows that belong to these bytes; None: the policy has no buffers that grow.

        Raises:
            InternalError: They are in another tier.
        """
        return self.slot.rows

    @rows.setter
    def rows(self, span: RowSpan | None) -> None:
        self.slot.rows = span

    @property
    def slot(self) -> SlotPlace:
        """The place of the bytes on the device.

        Raises:
            InternalError: They are in another tier.
        """
        if not isinstance(self.place, SlotPlace):
            raise InternalError(f"expected a capsule on the device, found tier {self.tier.value}")
        return self.place

    @property
    def alone(self) -> bool:
        """True if dropping its one capsule frees the bytes, as nobody copies them either."""
        return self.holders == 1 and self.place.holders == 1

    def retain(self) -> Segment:
        """Counts one more holder and returns the segment.

        Raises:
            InternalError: Nobody holds it any more.
        """
        if self.holders == 0:
            raise InternalError("a segment was retained after its release")
        self.holders += 1
        return self

    def release(self) -> int:
        """Counts one holder less; returns the bytes freed by that, 0 while others hold it.

        Raises:
            InternalError: Nobody holds it any more.
        """
        if self.holders == 0:
            raise InternalError("a segment was released twice")
        self.holders -= 1
        if self.holders:
            return 0
        if self.file is not None:
            self.file.release()
        return self.place.release()

    def go_to(self, place: Place) -> None:
        """Lets the bytes be read from ``place``, which has them, and frees the old one.

        A file is kept: so they can go back there without a copy.
        """
        old, self.place = self.place, place
        if place is self.file:
            self.file = None
        if isinstance(old, FilePlace):
            self.file = old
        else:
            old.release()
        self.parked = False


class SlotPool:
    """One allocation, cut into slots of ``slot_bytes``.

    A slot that was given back may be taken and written at once: copies of the control thread are
    enqueued on one lane, so an earlier reader has finished by then; the storage lane follows it,
    and who reads there waits for the end before the slot is given back.

    Attributes:
        slot_bytes: Size of a slot.
        slots: Number of slots.
        lock: Around every change of who holds what.
    """

    def __init__(self, device: Device, slot_bytes: int, budget_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self.slots = budget_bytes // slot_bytes
        self.lock = threading.Lock()
        self._memory = device.allocate(self.slots * slot_bytes)
        self._free = list(reversed(range(self.slots)))
        self._held: dict[int, SlotPlace] = {}
        self._views: dict[int, torch.Tensor] = {}

    @property
    def free(self) -> int:
        """Slots that may be taken."""
        return len(self._free)

    @property
    def bytes_used(self) -> int:
        """Bytes of the slots that are held."""
        return len(self._held) * self.slot_bytes

    def take(self) -> Segment:
        """Returns a segment with one holder in a free slot; its content is garbage.

        Raises:
            NoMemoryError: No slot is free.
        """
        return Segment(self.claim(), self.slot_bytes)

    def claim(self) -> SlotPlace:
        """Returns a free slot with one holder, for a segment to be made of; as ``take``."""
        if not self._free:
            raise NoMemoryError(f"all {self.slots} slots of {self.slot_bytes} bytes are in use")
        index = self._free.pop()
        view_N = self._views.get(index)
        if view_N is None:
            # Made when first needed, since a store of small states has tens of thousands of slots,
            # and kept, since making one takes longer than enqueueing the copy into it.
            view_N = self._memory[index * self.slot_bytes : (index + 1) * self.slot_bytes]
            self._views[index] = view_N
        place = self._held[index] = SlotPlace(self, index, view_N)
        return place

    def give_back(self, index: int) -> None:
        """Makes a slot free; called by its place, under the lock."""
        # After the pool was closed there is nothing to give back.
        if self._held.pop(index, None) is not None:
            self._free.append(index)

    def close(self) -> None:
        """Frees the memory, even if capsules are still around."""
        with self.lock:
            held = list(self._held.values())
            self._held.clear()
        for place in held:
            place.close()
        self._views.clear()
        self._free.clear()
        self._memory = self._memory.new_empty(0)
        self.slots = 0
