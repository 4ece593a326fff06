"""A CPU that says that its memory is not the host's: for tests of what crosses between two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from flashrt_ros.hardware.memory import Memory
from flashrt_ros.runtime import session
from flashrt_ros.runtime.device import Device
from flashrt_ros.runtime.device.cpu import CpuDevice


class SeparateHost(CpuDevice):
    """Copies between its own memory and its own memory, as between two."""

    def memory(self) -> Memory:
        return Memory(8 << 30, 8 << 30, shared=False)

    def allocate_mirrored(self, size_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.allocate(size_bytes), self.allocate_host(size_bytes)


@contextmanager
def separate_host() -> Iterator[None]:
    """Sessions on ``cpu`` that are made within get one."""
    opened = session.open_device

    def open_device(name: str) -> Device:
        return SeparateHost() if name == "cpu" else opened(name)

    session.open_device = open_device
    try:
        yield
    finally:
        session.open_device = opened
