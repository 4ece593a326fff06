"""CUDA's virtual memory calls, for ``MappedState``; imported on CUDA only."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

import torch
from cuda.bindings import driver

from flashrt_ros.errors import InternalError, NoMemoryError, UnsupportedError

_POSTPONED: collections.deque[Callable[[], None]] = collections.deque()
"""Addresses to be freed once no capture is under way; of all sessions of the process."""


class _Exported:
    """What torch keeps alive as long as a tensor views the memory."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class CudaVirtualMemory:
    """See ``VirtualMemory``.

    Attributes:
        granule: 2 MiB on all GPUs so far.
    """

    def __init__(self, index: int, streams: Iterable[torch.cuda.Stream]) -> None:
        """Asks the driver what it can do.

        Args:
            index: Of the GPU, as this process counts them.
            streams: All that work on the memory will be enqueued on.

        Raises:
            UnsupportedError: The driver or the GPU has no virtual memory management.
        """
        self._device = torch.device("cuda", index)
        self._streams = tuple(streams)
        with torch.cuda.device(self._device):
            torch.cuda.current_stream(self._device).synchronize()  # there is a context now
            attribute = driver.CUdevice_attribute
            wanted = attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            number = self._call("cuDeviceGet", index)
            if not self._call("cuDeviceGetAttribute", wanted, number):
                raise UnsupportedError("the GPU or its driver has no virtual memory management")
            self._properties = driver.CUmemAllocationProp()
            self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            place = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            self._properties.location.type = place
            self._properties.location.id = index
            access = driver.CUmemAccessDesc()
            access.location = self._properties.location
            access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            self._access = [access]
            flags = driver.CUmemAllocationGranularity_flags
            self.granule = int(
                self._call(
                    "cuMemGetAllocationGranularity",
                    self._properties,
                    flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
                )
            )

    def _call(self, name: str, *arguments: Any) -> Any:
        status, *results = getattr(driver, name)(*arguments)
        if status == driver.CUresult.CUDA_SUCCESS:
            return results[0] if results else None
        words = f"{self._device}: {name}: {status}"
        if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
            raise NoMemoryError(f"{words}; {free_bytes} of {total_bytes} bytes are free")
        raise InternalError(words)

    def reserve(self, size_bytes: int) -> int:
        """See ``VirtualMemory.reserve``."""
        run_postponed()
        return int(self._call("cuMemAddressReserve", size_bytes, 0, 0, 0))

    def free(self, address: int, size_bytes: int) -> None:
        """See ``VirtualMemory.free``."""
        self._call("cuMemAddressFree", address, size_bytes)

    def create(self, size_bytes: int) -> Any:
        """See ``VirtualMemory.create``; torch gives up what it keeps for later, if need be."""
        try:
            return self._call("cuMemCreate", size_bytes, self._properties, 0)
        except NoMemoryError:
            torch.cuda.empty_cache()
        try:
            return self._call("cuMemCreate", size_bytes, self._properties, 0)
        except NoMemoryError as error:
            words = f"could not allocate {size_bytes} bytes of state: {error}"
        raise NoMemoryError(words)

    def release(self, handle: Any) -> None:
        """See ``VirtualMemory.release``."""
        self._call("cuMemRelease", handle)

    def map(self, address: int, size_bytes: int, handle: Any) -> None:
        """See ``VirtualMemory.map``."""
        self._call("cuMemMap", address, size_bytes, 0, handle, 0)

    def unmap(self, address: int, size_bytes: int) -> None:
        """See ``VirtualMemory.unmap``."""
        self._call("cuMemUnmap", address, size_bytes)

    def allow(self, address: int, size_bytes: int) -> None:
        """See ``VirtualMemory.allow``."""
        self._call("cuMemSetAccess", address, size_bytes, self._access, 1)

    def wrap(self, address: int, size_bytes: int) -> tuple[torch.Tensor, object]:
        """See ``VirtualMemory.wrap``."""
        owner = _Exported(address, size_bytes)
        return torch.as_tensor(owner, device=self._device), owner

    def settled(self) -> bool:
        """See ``VirtualMemory.settled``; waits for our streams and for those that torch uses.

        A stream that captures must not be waited for, and memory may go at any moment: whenever
        Python collects garbage.
        """
        own = (torch.cuda.current_stream(self._device), torch.cuda.default_stream(self._device))
        streams = (*self._streams, *own)
        if any(_captures(stream) for stream in streams):
            return False
        for stream in streams:
            stream.synchronize()
        return True

    def postpone(self, work: Callable[[], None]) -> None:
        """See ``VirtualMemory.postpone``."""
        _POSTPONED.append(work)


def run_postponed() -> None:
    """Frees what could not be freed before; what still cannot be is kept."""
    for _ in range(len(_POSTPONED)):
        try:
            work = _POSTPONED.popleft()
        except IndexError:  # another thread was faster
            return
        work()


def _captures(stream: torch.cuda.Stream) -> bool:
    # Of a stream that is not current, only the driver tells.
    status, state, *_ = driver.cuStreamIsCapturing(stream.cuda_stream)
    if status != driver.CUresult.CUDA_SUCCESS:
        return True  # such as the legacy stream beside a capture of the whole process
    return bool(state != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)
