"""NVIDIA GPUs: plans are captured graphs, each lane is a stream."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from flashrt_ros.errors import CaptureError, FlashRTError, InternalError, NoMemoryError
from flashrt_ros.hardware.memory import Memory, available_bytes
from flashrt_ros.runtime import host_read
from flashrt_ros.runtime.device.base import Device, Lane, Pair, Pieces, Replay
from flashrt_ros.runtime.device.collector import collector_off
from flashrt_ros.runtime.device.mapped_state import MappedState
from flashrt_ros.runtime.device.state_memory import CopiedState, StateMemory
from flashrt_ros.runtime.device.switches import numeric_switches
from flashrt_ros.runtime.noise import triton_found

if TYPE_CHECKING:
    from flashrt_ros.runtime.device.bounce import Bounce
    from flashrt_ros.runtime.device.piece_kernel import PieceCopier
    from flashrt_ros.runtime.device.virtual_memory import CudaVirtualMemory

try:
    # Comes with torch's own CUDA wheels of late; not everywhere.
    from cuda.bindings import runtime as _RUNTIME
except ImportError:
    _RUNTIME = None
else:
    _ANY_WAY = _RUNTIME.cudaMemcpyKind.cudaMemcpyDefault
    _SUCCESS = _RUNTIME.cudaError_t.cudaSuccess

_NOTHING = contextlib.nullcontext()
_FEW_PIECES = 4
"""Copied one by one: so many calls take the host no longer than filling a table."""


class _Switch:
    """``torch.cuda.stream`` on the device that is current, in two calls each way.

    Torch's own makes streams and looks at devices first, which takes longer than a small copy.
    """

    __slots__ = ("_before", "_stream")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        """Makes the stream current in this thread."""
        stream = self._stream
        self._before = torch._C._cuda_getCurrentStream(stream.device_index)
        _set_stream(stream.stream_id, stream.device_index, stream.device_type)

    def __exit__(self, *error: object) -> None:
        """Makes that one current again which was."""
        _set_stream(*self._before)


def _set_stream(id_: int, device_index: int, device_type: int) -> None:
    torch._C._cuda_setStream(stream_id=id_, device_index=device_index, device_type=device_type)


class CudaDevice(Device):
    """One GPU, with a stream for each lane of one session.

    Attributes:
        integrated: The GPU shares its memory with the host.
    """

    captures = True
    integrated = False
    # cuBLAS keeps one for each stream that computes, 32 MiB on recent GPUs; beside a plan's stream
    # two others compute, at most, in the policies of this package.
    workspace_bytes = (len((Lane.CONTROL, Lane.PLANNER)) + 2) * (32 << 20)

    def __init__(self, index: int) -> None:
        self.name = f"cuda:{index}"
        self.torch_device = torch.device("cuda", index)
        with torch.cuda.device(self.torch_device):
            self._streams = {lane: torch.cuda.Stream(self.torch_device) for lane in Lane}
            self._marks = {lane: torch.cuda.Event() for lane in Lane}
        self._index = index
        self._by_handle = {stream.cuda_stream: stream for stream in self._streams.values()}
        self._copier: PieceCopier | None = None
        self._virtual: CudaVirtualMemory | None = None
        self._unmappable = ""
        self._bounce: Bounce | None = None

    def _current(self) -> torch.cuda.Stream | None:
        """Our stream that is current in this thread, if one is.

        ``torch.cuda.current_stream`` would say so as well, but makes a new object at each call,
        which takes longer than the copy of a small state.
        """
        if torch._C._cuda_getDevice() != self._index:
            return None
        return self._by_handle.get(torch._C._cuda_getCurrentRawStream(self._index))

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """See ``Device.allocate``."""
        try:
            section_N = torch.zeros(size_bytes, dtype=torch.uint8, device=self.torch_device)
        except torch.cuda.OutOfMemoryError as error:
            free_bytes, total_bytes = torch.cuda.mem_get_info(self.torch_device)
            raise NoMemoryError(
                f"{self.name}: could not allocate {size_bytes} bytes; {free_bytes} of"
                f" {total_bytes} are free"
            ) from error
        torch.cuda.current_stream(self.torch_device).synchronize()  # zeroed before a lane looks
        return section_N

    def allocate_state(self, fixed_bytes: int, rows_bytes: int, spare_sets: int) -> StateMemory:
        """See ``Device.allocate_state``; spare sets are mapped where the driver can do that."""
        memory = self._virtual_memory() if spare_sets else None
        if memory is not None:
            drain = self._streams[Lane.CONTROL].synchronize
            try:
                return MappedState(memory, fixed_bytes, rows_bytes, spare_sets, drain)
            except InternalError as error:
                # It has the calls, but does not let us: a virtual GPU, say.
                self._unmappable = str(error)
        return CopiedState(self, fixed_bytes, rows_bytes, spare_sets, self._unmappable)

    def state_bytes(self, fixed_bytes: int, rows_bytes: int, spare_sets: int) -> int:
        """See ``Device.state_bytes``."""
        memory = self._virtual_memory() if spare_sets else None
        if memory is None:
            return super().state_bytes(fixed_bytes, rows_bytes, spare_sets)
        return MappedState.size_bytes(fixed_bytes, rows_bytes, spare_sets, memory.granule)

    def _virtual_memory(self) -> CudaVirtualMemory | None:
        """The driver's calls; None where it has none, and ``_unmappable`` says why."""
        if self._virtual is None and not self._unmappable:
            try:
                from flashrt_ros.runtime.device.virtual_memory import CudaVirtualMemory

                self._virtual = CudaVirtualMemory(self._index, self._streams.values())
            except ImportError as error:
                self._unmappable = f"cuda-python (package cuda-bindings) is not installed: {error}"
            except FlashRTError as error:
                self._unmappable = str(error)
        return None if self._unmappable else self._virtual

    def allocate_host(self, size_bytes: int) -> torch.Tensor:
        """See ``Device.allocate_host``."""
        return torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=True)

    def allocate_mirrored(self, size_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Device.allocate_mirrored``."""
        return self.allocate(size_bytes), self.allocate_host(size_bytes)

    def memory(self) -> Memory:
        """See ``Device.memory``."""
        host_free_bytes = available_bytes()
        if self.integrated and host_free_bytes is not None:
            # The driver does not count the page cache, which gives way to whoever needs memory.
            return Memory(host_free_bytes, host_free_bytes, shared=True)
        free_bytes = torch.cuda.mem_get_info(self.torch_device)[0]
        # What torch keeps of memory that was given back, by an earlier session, say.
        free_bytes += torch.cuda.memory_reserved(self.torch_device)
        free_bytes -= torch.cuda.memory_allocated(self.torch_device)
        return Memory(free_bytes, host_free_bytes, shared=self.integrated)

    def bind(self, lane: Lane) -> AbstractContextManager[None]:
        """See ``Device.bind``."""
        stream = self._streams[lane]
        if torch._C._cuda_getDevice() != self._index:
            # The stream's context also makes its device the current one.
            context: AbstractContextManager[None] = torch.cuda.stream(stream)
            return context
        if torch._C._cuda_getCurrentRawStream(self._index) == stream.cuda_stream:
            return _NOTHING
        return _Switch(stream)

    def copy_(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        """See ``Device.copy_``."""
        if _RUNTIME is None:
            dst.copy_(src, non_blocking=True)
        else:
            # Torch takes 6 us to find out that this is a plain copy; a 64 MiB state takes 43 us.
            self._memcpy(dst.data_ptr(), src.data_ptr(), dst.nbytes)

    def _memcpy(self, dst: int, src: int, size_bytes: int) -> None:
        (status,) = _RUNTIME.cudaMemcpyAsync(
            dst, src, size_bytes, _ANY_WAY, torch._C._cuda_getCurrentRawStream(self._index)
        )
        if status != _SUCCESS:
            raise RuntimeError(f"{self.name}: copying {size_bytes} bytes failed: {status}")

    def prepare_pieces(self, dst: torch.Tensor, src: torch.Tensor, pieces: int) -> None:
        """See ``Device.prepare_pieces``; without Triton there is nothing to prepare."""
        if not triton_found():
            return
        from flashrt_ros.runtime.device import piece_kernel

        entries = piece_kernel.most_chunks(dst.nbytes, pieces)
        host_N3 = self.allocate_host(24 * entries).view(torch.int64).view(-1, 3)
        # Compiled now: nothing is when a robot waits.
        self._copier = piece_kernel.PieceCopier(host_N3, dst, src)
        self._copier.copy_(dst, src, Pieces(*np.array([[0], [0], [16]], np.int64)))
        self.synchronize()

    def copy_pieces_(self, dst: torch.Tensor, src: torch.Tensor, pieces: Pieces) -> None:
        """See ``Device.copy_pieces_``; without Triton each piece is a copy of its own."""
        if len(pieces.sizes) > _FEW_PIECES and self._copier is not None:
            self._copier.copy_(dst, src, pieces)
            return
        columns = (pieces.dst_offsets, pieces.src_offsets, pieces.sizes)
        for to, fro, size in zip(*(column.tolist() for column in columns), strict=True):
            if _RUNTIME is None:
                dst[to : to + size].copy_(src[fro : fro + size], non_blocking=True)
            else:
                self._memcpy(dst.data_ptr() + to, src.data_ptr() + fro, size)

    def compile(self, fn: Callable[[], None], warm_up: int, before: Callable[[], None]) -> Replay:
        """See ``Device.compile``.

        Warm-up and capture run on the bound lane, which is never the default stream: cuBLAS keeps
        a workspace for each stream, so plans of different lanes share none and may run at once.
        """
        stream = torch.cuda.current_stream()
        benchmark = torch.backends.cudnn.benchmark
        # The search for the fastest kernel would make the choice depend on the moment.
        torch.backends.cudnn.benchmark = False
        try:
            for _ in range(max(warm_up, 1)):
                before()
                fn()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Another session's thread may allocate meanwhile, which a global capture forbids.
            try:
                with (
                    collector_off(),
                    torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
                ):
                    fn()
            except RuntimeError as error:
                raise CaptureError(
                    f"{self.name}: a plan cannot be captured: {host_read.place_of(error)}: {error}"
                ) from error
            stream.synchronize()
        finally:
            torch.backends.cudnn.benchmark = benchmark
        replay: Replay = graph.replay
        return replay

    def plain(self, fn: Callable[[], None]) -> Replay:
        """See ``Device.plain``; kernels are chosen as in a capture, without a search."""

        @torch.no_grad()
        def call() -> None:
            benchmark = torch.backends.cudnn.benchmark
            torch.backends.cudnn.benchmark = False
            try:
                fn()
            finally:
                torch.backends.cudnn.benchmark = benchmark

        return call

    def mark(self, lane: Lane) -> None:
        """See ``Device.mark``."""
        self._marks[lane].record(self._streams[lane])

    def follow(self, lane: Lane) -> None:
        """See ``Device.follow``."""
        torch.cuda.current_stream().wait_event(self._marks[lane])

    def synchronize(self) -> None:
        """See ``Device.synchronize``."""
        (self._current() or torch.cuda.current_stream()).synchronize()

    def host_bytes(self, size_bytes: int) -> int:
        """See ``Device.host_bytes``: torch takes pinned memory in powers of two."""
        return 1 << (size_bytes - 1).bit_length() if size_bytes else 0

    def prepare_carry(self) -> None:
        """See ``Device.prepare_carry``."""
        from flashrt_ros.runtime.device.bounce import Bounce

        with torch.cuda.device(self.torch_device):
            self._bounce = Bounce(self.allocate_host, self.copy_)

    def carry(self, pairs: Iterable[Pair]) -> None:
        """See ``Device.carry``."""
        assert self._bounce is not None  # as ``prepare_carry`` comes first
        self._bounce.carry(pairs)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``Device.to_host``; pinned memory, which torch keeps for the next copy."""
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copy.copy_(tensor.detach(), non_blocking=True)
        self.synchronize()
        return copy

    def facts(self) -> Mapping[str, str]:
        """See ``Device.facts``."""
        properties = torch.cuda.get_device_properties(self.torch_device)
        return {
            "device": "cuda",
            "cuda.name": properties.name,
            "cuda.arch": f"sm_{properties.major}{properties.minor}",
            "cuda.multiprocessors": str(properties.multi_processor_count),
            "cuda.toolkit": str(torch.version.cuda),
            "cuda.driver": _driver(),
            "cuda.cudnn": str(torch.backends.cudnn.version()),
            "cuda.cublas": _installed("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu13"),
            "cuda.triton": _installed("triton"),
            "noise": f"philox4x32-10 {'triton' if triton_found() else 'eager'}",
            **numeric_switches("cuda"),
        }


def _driver() -> str:
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        # Integrated GPUs load their driver under another name.
        return str(torch._C._cuda_getDriverVersion())  # type: ignore[attr-defined,unused-ignore]


def _installed(*distributions: str) -> str:
    for distribution in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return "unknown"
