"""Equal slots of device memory for capsules, allocated once."""

from __future__ import annotations

import threading

import torch

from flashrt_ros.errors import InternalError, NoMemoryError, NotConfiguredError
from flashrt_ros.runtime.device import Device
from flashrt_ros.runtime.row_segment import RowSpan


class Segment:
    """The bytes of one state, held by one or more capsules.

    ``retain`` belongs to the control thread; ``release`` may be called from any thread, by whoever
    reads the bytes beside it and has done so.

    Attributes:
        size_bytes: Its length.
        holders: Capsules that hold it; at zero the slot is free again.
        noise_key: Unsigned key within these bytes, so that nobody has to read it back.
        rows: Rows that belong to these bytes, held as long as the segment is; None: the policy has
            no buffers that grow.
    """

    def __init__(self, pool: SlotPool, index: int, view_N: torch.Tensor) -> None:
        self._pool = pool
        self._index = index
        self._view: torch.Tensor | None = view_N
        self.size_bytes = pool.slot_bytes
        self.holders = 1
        self.noise_key = 0
        self.rows: RowSpan | None = None

    @property
    def bytes(self) -> torch.Tensor:
        """``(size_bytes,)`` uint8 view of a slot of the pool, on the device.

        Raises:
            NotConfiguredError: The session was closed.
        """
        if self._view is None:
            raise NotConfiguredError("the session of this capsule is closed; its bytes are gone")
        return self._view

    def retain(self) -> Segment:
        """Counts one more holder and returns the segment.

        Raises:
            InternalError: Nobody holds it any more.
        """
        with self._pool.lock:
            if self.holders == 0:
                raise InternalError(f"segment {self._index} was retained after its release")
            self.holders += 1
        return self

    def release(self) -> int:
        """Counts one holder less; returns the bytes freed by that, 0 while others hold it.

        Raises:
            InternalError: Nobody holds it any more.
        """
        with self._pool.lock:
            if self.holders == 0:
                raise InternalError(f"segment {self._index} was released twice")
            self.holders -= 1
            if self.holders:
                return 0
            self._pool.give_back(self._index)
        return self.size_bytes + (0 if self.rows is None else self.rows.release())

    def close(self) -> None:
        """Lets go of the memory, whoever still holds the segment."""
        self._view = None


class SlotPool:
    """One allocation, cut into slots of ``slot_bytes``.

    A slot that was given back may be taken and written at once: all copies into and out of slots
    are enqueued on one lane, so an earlier reader has finished by then; who reads on another lane
    waits for its end before it gives the slot back.

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
        self._held: dict[int, Segment] = {}
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
        """Returns a free slot with one holder; its content is garbage.

        Raises:
            NoMemoryError: No slot is free.
        """
        if not self._free:
            raise NoMemoryError(f"all {self.slots} slots of {self.slot_bytes} bytes are in use")
        index = self._free.pop()
        view_N = self._views.get(index)
        if view_N is None:
            # Made when first needed, since a store of small states has tens of thousands of slots,
            # and kept, since making one takes longer than enqueueing the copy into it.
            view_N = self._memory[index * self.slot_bytes : (index + 1) * self.slot_bytes]
            self._views[index] = view_N
        segment = self._held[index] = Segment(self, index, view_N)
        return segment

    def give_back(self, index: int) -> None:
        """Makes a slot free; called by its segment, under the lock."""
        # After the pool was closed there is nothing to give back.
        if self._held.pop(index, None) is not None:
            self._free.append(index)

    def close(self) -> None:
        """Frees the memory, even if capsules are still around."""
        with self.lock:
            held = list(self._held.values())
            self._held.clear()
        for segment in held:
            segment.close()
        self._views.clear()
        self._free.clear()
        self._memory = self._memory.new_empty(0)
        self.slots = 0
