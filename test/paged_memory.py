"""Stands in for a GPU's virtual memory: files in memory, mapped by the operating system.

So spare states are exchanged under fixed addresses on a CPU as well, for real: an access to an
address behind which nothing lies ends the process. It is stricter than a driver about wrong calls,
and fails where a test wants it to.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from flashrt_ros.errors import NoMemoryError
from flashrt_ros.runtime.device import Device, mapped_state
from flashrt_ros.runtime.device.cpu import CpuDevice
from flashrt_ros.runtime.device.mapped_state import MappedState
from flashrt_ros.runtime.device.state_memory import StateMemory

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
MAP_FIXED, NOTHING = 0x10, 0
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


class _Exported:
    def __init__(self, address: int, size_bytes: int) -> None:
        self.__array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class PagedMemory:
    """See ``VirtualMemory``.

    Attributes:
        calls: How often each call was made.
        busy: True: ``settled`` says no.
    """

    granule = mmap.PAGESIZE

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.busy = False
        self._failing: dict[tuple[str, int], type[Exception]] = {}
        self._handles: dict[int, int] = {}
        self._ranges: dict[int, int] = {}
        self._mappings: dict[int, int] = {}
        self._postponed: list[Callable[[], None]] = []

    def fail(self, call: str, at: int, error: type[Exception] = NoMemoryError) -> None:
        """Lets the call fail that is the ``at``-th from now on, the next being the first."""
        self._failing[call, self.calls[call] + at] = error

    def heal(self) -> None:
        """Lets nothing fail any more."""
        self._failing.clear()

    @property
    def empty(self) -> bool:
        """True if nothing is held of physical memory and addresses."""
        return not (self._handles or self._ranges or self._mappings)

    def _count(self, call: str) -> None:
        self.calls[call] += 1
        error = self._failing.pop((call, self.calls[call]), None)
        if error is not None:
            raise error(f"{call} fails as told")

    def reserve(self, size_bytes: int) -> int:
        self._count("reserve")
        assert size_bytes % self.granule == 0
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = int(_LIBC.mmap(None, size_bytes, NOTHING, flags, -1, 0))
        self._ranges[address] = size_bytes
        return address

    def free(self, address: int, size_bytes: int) -> None:
        self._count("free")
        assert self._ranges.pop(address) == size_bytes
        assert not list(self._within(address, size_bytes)), "freed while memory lies behind it"
        assert _LIBC.munmap(address, size_bytes) == 0

    def create(self, size_bytes: int) -> int:
        self._count("create")
        assert size_bytes % self.granule == 0
        handle = os.memfd_create("piece")
        os.truncate(handle, size_bytes)
        os.pwrite(handle, b"\xff" * size_bytes, 0)
        self._handles[handle] = size_bytes
        return handle

    def release(self, handle: int) -> None:
        self._count("release")
        del self._handles[handle]
        os.close(handle)  # what is mapped stays

    def map(self, address: int, size_bytes: int, handle: int) -> None:
        self._count("map")
        assert self._handles[handle] == size_bytes
        assert not list(self._within(address, size_bytes)), "something lies behind it already"
        assert any(r <= address and address + size_bytes <= r + n for r, n in self._ranges.items())
        flags = mmap.MAP_SHARED | MAP_FIXED
        assert _LIBC.mmap(address, size_bytes, NOTHING, flags, handle, 0) == address
        self._mappings[address] = size_bytes

    def unmap(self, address: int, size_bytes: int) -> None:
        self._count("unmap")
        found = dict(self._within(address, size_bytes))
        assert sum(found.values()) == size_bytes, "expected whole mappings"
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
        assert _LIBC.mmap(address, size_bytes, NOTHING, flags, -1, 0) == address
        for start in found:
            del self._mappings[start]

    def allow(self, address: int, size_bytes: int) -> None:
        self._count("allow")
        assert sum(n for _, n in self._within(address, size_bytes)) == size_bytes
        assert _LIBC.mprotect(address, size_bytes, READ_WRITE) == 0

    def _within(self, address: int, size_bytes: int) -> Iterator[tuple[int, int]]:
        for start, length in self._mappings.items():
            if start < address + size_bytes and address < start + length:
                yield start, length

    def wrap(self, address: int, size_bytes: int) -> tuple[torch.Tensor, object]:
        self._count("wrap")
        owner = _Exported(address, size_bytes)
        return torch.from_numpy(np.asarray(owner)), owner

    def settled(self) -> bool:
        if self.busy:
            return False
        work, self._postponed = self._postponed, []
        for each in work:
            each()
        return True

    def postpone(self, work: Callable[[], None]) -> None:
        self._postponed.append(work)


@contextmanager
def paged(piece_bytes: int = 2 * mmap.PAGESIZE) -> Iterator[PagedMemory]:
    """Within, CPU sessions exchange their spare states by mapping."""
    memory = PagedMemory()

    def allocate(self: CpuDevice, fixed_bytes: int, rows_bytes: int, sets: int) -> StateMemory:
        if not sets:
            return Device.allocate_state(self, fixed_bytes, rows_bytes, sets)
        return MappedState(memory, fixed_bytes, rows_bytes, sets, lambda: None)

    def size_bytes(self: CpuDevice, fixed_bytes: int, rows_bytes: int, sets: int) -> int:
        if not sets:
            return Device.state_bytes(self, fixed_bytes, rows_bytes, sets)
        return MappedState.size_bytes(fixed_bytes, rows_bytes, sets, memory.granule)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuDevice, "allocate_state", allocate)
        patch.setattr(CpuDevice, "state_bytes", size_bytes)
        patch.setattr(mapped_state, "ROW_PIECE_BYTES", piece_bytes)
        patch.setattr(mapped_state, "LEAST_ROW_PIECES", 2)
        yield memory
