"""Memory of the host for capsules: allocated once, pinned on CUDA, so that copies run beside."""

from __future__ import annotations

import threading

import torch

from flashrt_ros.errors import NoMemoryError
from flashrt_ros.runtime.device import Device
from flashrt_ros.runtime.page_pool import PagePool, Run
from flashrt_ros.runtime.place import Place, Tier

UNIT_BYTES = 256
"""A block is rounded up to these."""


class HostPool(PagePool):
    """Blocks of any size, each with the fixed part of a state and its rows."""

    what = "units of host memory"

    def __init__(self, device: Device, budget_bytes: int) -> None:
        """Allocates it.

        Raises:
            NoMemoryError: The host has not got that much.
        """
        size_bytes = budget_bytes // UNIT_BYTES * UNIT_BYTES
        try:
            memory = device.allocate_host(size_bytes)
        except RuntimeError as error:
            raise NoMemoryError(
                f"host_store_bytes: could not allocate {size_bytes} bytes on the host: {error}"
            ) from error
        super().__init__(memory, UNIT_BYTES)

    def block(self, size_bytes: int, lock: threading.Lock) -> BlockPlace:
        """Takes a block; its content is garbage.

        Raises:
            NoMemoryError: There is no room.
        """
        with self.lock:
            return BlockPlace(self, self.take(units(size_bytes)), size_bytes, lock)


class BlockPlace(Place):
    """A block of the host pool.

    Attributes:
        size_bytes: That it holds; it takes whole units.
    """

    tier = Tier.HOST

    def __init__(
        self, pool: HostPool, runs: list[Run], size_bytes: int, lock: threading.Lock
    ) -> None:
        """Takes over ``runs`` of ``pool``."""
        super().__init__(lock)
        self._pool = pool
        self._runs = runs
        self.size_bytes = size_bytes

    def views(self) -> list[torch.Tensor]:
        """See ``Place.views``."""
        views, left = [], self.size_bytes
        for unit, units_ in self._runs:
            size = min(left, units_ * UNIT_BYTES)
            views.append(self._pool.memory[unit * UNIT_BYTES : unit * UNIT_BYTES + size])
            left -= size
        return views

    def _free(self) -> int:
        with self._pool.lock:
            for unit, units_ in self._runs:
                self._pool.give_back(unit, units_)
        return self.size_bytes


def units(size_bytes: int) -> int:
    """Returns the units of a block."""
    return -(-size_bytes // UNIT_BYTES)
