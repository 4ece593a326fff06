"""The CPU: plans are plain calls, copies are immediate, lanes mean nothing."""

from __future__ import annotations

import contextlib
import hashlib
import platform
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch

from flashrt_ros.errors import NoMemoryError
from flashrt_ros.hardware.memory import Memory, available_bytes
from flashrt_ros.runtime.buffers import ALIGNMENT
from flashrt_ros.runtime.device.base import Device, Lane, Pieces, Replay
from flashrt_ros.runtime.device.switches import numeric_switches


class CpuDevice(Device):
    """Plain memory and plain calls."""

    def __init__(self) -> None:
        self.name = "cpu"
        self.torch_device = torch.device("cpu")

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """See ``Device.allocate``."""
        try:
            # The allocator of torch aligns to 64 bytes only, so there is one alignment to spare.
            raw_N = torch.zeros(size_bytes + ALIGNMENT, dtype=torch.uint8)
        except RuntimeError as error:
            raise NoMemoryError(f"cpu: could not allocate {size_bytes} bytes: {error}") from error
        start = -raw_N.data_ptr() % ALIGNMENT
        return raw_N[start : start + size_bytes]

    def allocate_host(self, size_bytes: int) -> torch.Tensor:
        """See ``Device.allocate_host``."""
        return self.allocate(size_bytes)

    def allocate_mirrored(self, size_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Device.allocate_mirrored``."""
        both_N = self.allocate(size_bytes)
        return both_N, both_N

    def memory(self) -> Memory:
        """See ``Device.memory``."""
        free_bytes = available_bytes()
        return Memory(free_bytes, free_bytes, shared=True)

    def bind(self, lane: Lane) -> AbstractContextManager[None]:
        """See ``Device.bind``."""
        return contextlib.nullcontext()

    def copy_(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        """See ``Device.copy_``."""
        dst.copy_(src)

    def prepare_pieces(self, dst: torch.Tensor, src: torch.Tensor, pieces: int) -> None:
        """See ``Device.prepare_pieces``."""

    def copy_pieces_(self, dst: torch.Tensor, src: torch.Tensor, pieces: Pieces) -> None:
        """See ``Device.copy_pieces_``."""
        columns = (pieces.dst_offsets, pieces.src_offsets, pieces.sizes)
        for to, fro, size in zip(*(column.tolist() for column in columns), strict=True):
            dst[to : to + size].copy_(src[fro : fro + size])

    def compile(self, fn: Callable[[], None], warm_up: int, before: Callable[[], None]) -> Replay:
        """See ``Device.compile``."""
        for _ in range(warm_up):
            before()
            fn()
        return self.plain(fn)

    def mark(self, lane: Lane) -> None:
        """See ``Device.mark``."""

    def follow(self, lane: Lane) -> None:
        """See ``Device.follow``."""

    def synchronize(self) -> None:
        """See ``Device.synchronize``."""

    def facts(self) -> Mapping[str, str]:
        """See ``Device.facts``."""
        return {
            "device": "cpu",
            "cpu.machine": platform.machine(),
            "cpu.capability": torch.backends.cpu.get_cpu_capability(),
            "cpu.flags": _instruction_set(),
            "cpu.threads": str(torch.get_num_threads()),
            "noise": f"philox4x32-10 numpy {np.__version__}",
            **numeric_switches("cpu"),
        }


def _instruction_set() -> str:
    """Digest of the processor's feature list: oneDNN and MKL choose kernels by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    for line in lines:
        label, _, features = line.partition(":")
        if label.strip() in ("flags", "Features"):
            canonical = " ".join(sorted(features.split()))
            return hashlib.sha256(canonical.encode()).hexdigest()[:16]
    return platform.processor() or "unknown"
