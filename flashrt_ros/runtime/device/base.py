"""What the runtime asks of a device."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from flashrt_ros.hardware.finding import Finding
from flashrt_ros.hardware.memory import Memory
from flashrt_ros.runtime.device.state_memory import CopiedState, StateMemory

Offsets = npt.NDArray[np.int64]
Replay = Callable[[], None]
"""Runs a prepared plan once, on the lane that is bound."""


@dataclass
class Pieces:
    """Pieces to be copied between two sections; none overlaps another.

    Attributes:
        dst_offsets: ``(n,)``: byte at which each goes, a multiple of 16.
        src_offsets: ``(n,)``: byte from which each comes, a multiple of 16.
        sizes: ``(n,)``: bytes of each, a multiple of 16.
        prepared: What a device made of them, so that copying the same again is quick.
    """

    dst_offsets: Offsets
    src_offsets: Offsets
    sizes: Offsets
    prepared: Offsets | None = None


class Lane(enum.Enum):
    """Order of execution that a thread works in; on CUDA each is a stream of its own."""

    CONTROL = "control"
    """Acts, commits and all verbs."""
    PLANNER = "planner"
    """Plans that run beside the control thread."""
    STORAGE = "storage"
    """Copies of capsules between device and host, from any thread but one at a time."""


STAGING_BYTES = 4 << 20
"""Pinned memory through which a device copies from and to memory that is not pinned."""
Pair = tuple[torch.Tensor, torch.Tensor]
"""Where to and where from, flat uint8, equally long."""


class Device(abc.ABC):
    """Memory, copies and prepared plans of one device, for one session.

    Attributes:
        name: ``cpu``, ``cuda:0`` and the like.
        torch_device: The same for torch.
        findings: What was found when the device was opened, warnings included.
        captures: Whether ``compile`` captures, rather than hands back what it is given.
        workspace_bytes: Memory that kernels take for themselves, as an estimate.
    """

    name: str
    torch_device: torch.device
    findings: tuple[Finding, ...] = ()
    captures: bool = False
    workspace_bytes: int = 0

    @abc.abstractmethod
    def allocate(self, size_bytes: int) -> torch.Tensor:
        """Returns a zeroed flat uint8 tensor on the device, aligned to 256 bytes.

        Raises:
            NoMemoryError: The device has not got that much.
        """

    def allocate_state(self, fixed_bytes: int, rows_bytes: int, spare_sets: int) -> StateMemory:
        """Returns the memory of a live state and of spare ones, all zeroed.

        Args:
            fixed_bytes: Size of the fixed section, a multiple of 256.
            rows_bytes: Size of the rows section.
            spare_sets: Number of spare sets.

        Raises:
            NoMemoryError: The device has not got that much; nothing is kept.
        """
        return CopiedState(self, fixed_bytes, rows_bytes, spare_sets, f"{self.name} maps nothing")

    def state_bytes(self, fixed_bytes: int, rows_bytes: int, spare_sets: int) -> int:
        """Returns what ``allocate_state`` takes, rounded as it does."""
        return CopiedState.size_bytes(fixed_bytes, rows_bytes, spare_sets)

    @abc.abstractmethod
    def allocate_host(self, size_bytes: int) -> torch.Tensor:
        """Returns a zeroed flat uint8 tensor on the host that copies from the device go to."""

    @abc.abstractmethod
    def allocate_mirrored(self, size_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a device tensor and its host mirror, both flat uint8; on CPU the same one."""

    @abc.abstractmethod
    def memory(self) -> Memory:
        """Returns what is free now."""

    @abc.abstractmethod
    def bind(self, lane: Lane) -> AbstractContextManager[None]:
        """Makes ``lane`` the one that this thread works in; needed around every other call."""

    @abc.abstractmethod
    def copy_(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        """Enqueues one contiguous copy; source and destination do not overlap."""

    @abc.abstractmethod
    def prepare_pieces(self, dst: torch.Tensor, src: torch.Tensor, pieces: int) -> None:
        """Allocates and warms up what ``copy_pieces_`` needs; the control lane must be bound.

        Args:
            dst: As in ``copy_pieces_``; of no meaning yet, the first 16 bytes are written.
            src: As in ``copy_pieces_``, longer than 16 bytes.
            pieces: Most pieces of one call; together they are no longer than ``dst``.
        """

    @abc.abstractmethod
    def copy_pieces_(self, dst: torch.Tensor, src: torch.Tensor, pieces: Pieces) -> None:
        """Enqueues copies of many pieces, at about the cost of one.

        Args:
            dst: Flat uint8, written.
            src: Flat uint8, read.
            pieces: What of ``src`` goes where in ``dst``.
        """

    @abc.abstractmethod
    def compile(self, fn: Callable[[], None], warm_up: int, before: Callable[[], None]) -> Replay:
        """Calls ``fn`` ``warm_up`` times, then captures it; on CPU it is returned as it is.

        Args:
            fn: Writes in place, neither waits nor copies from unpinned host memory.
            warm_up: Calls before the capture; on CUDA at least one is made.
            before: Called before each of these, to put back what ``fn`` has changed.

        Raises:
            CaptureError: ``fn`` cannot be captured; names the operation.
        """

    def plain(self, fn: Callable[[], None]) -> Replay:
        """Returns ``fn`` to be called at each replay, for what may run without a capture.

        It runs on the lane that is bound, in order with its work, and may wait for it.
        """
        replay: Replay = torch.no_grad()(fn)
        return replay

    @abc.abstractmethod
    def mark(self, lane: Lane) -> None:
        """Remembers what is enqueued on ``lane``, for ``follow``."""

    @abc.abstractmethod
    def follow(self, lane: Lane) -> None:
        """Orders the bound lane after the last mark of ``lane``."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Blocks until the bound lane has done all its work."""

    def host_bytes(self, size_bytes: int) -> int:
        """Returns what ``allocate_host`` really takes for so many bytes."""
        return size_bytes

    def prepare_carry(self) -> None:
        """Allocates what ``carry`` needs, at most ``STAGING_BYTES`` of the host."""
        return

    def carry(self, pairs: Iterable[Pair]) -> None:
        """Copies between device and host, complete on return; the storage lane must be bound.

        Other lanes go on: copies are cut into chunks, so that theirs come between, and the
        interpreter is free while chunks are under way. Host memory need not be pinned.

        Args:
            pairs: What to copy; none overlaps another.
        """
        for dst_N, src_N in pairs:
            # Not torch's copy, which takes threads of its own away from the control step.
            np.copyto(dst_N.numpy(), src_N.numpy())

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy on the host, complete on return."""
        copy = tensor.detach().to("cpu", copy=True)
        self.synchronize()
        return copy

    @abc.abstractmethod
    def facts(self) -> Mapping[str, str]:
        """Returns all that can change the bits of a result, for the exec id."""
