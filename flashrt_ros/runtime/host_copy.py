"""Buffers of the device that the host reads after each act."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from flashrt_ros.runtime.device import Device


class HostCopy:
    """One buffer, and where the host finds it once it has crossed.

    Attributes:
        values: Of the buffer's shape and dtype, on the host; pinned on CUDA.
    """

    def __init__(self, buffer: torch.Tensor, device: Device) -> None:
        """Allocates the host's side.

        Args:
            buffer: Contiguous, on the device; its address stays.
            device: Where it is.
        """
        self._buffer, self._device = buffer, device
        host_N = device.allocate_host(buffer.nbytes)
        self.values = host_N.view(buffer.dtype).view(buffer.shape)
        self._shape = tuple(buffer.shape)
        self._array = self.values.numpy() if buffer.dtype == torch.float32 else None
        self._words_N = host_N.numpy().view(np.int64) if buffer.dtype == torch.int64 else None

    def cross(self) -> None:
        """Enqueues the copy; within a capture, makes it part of that."""
        self._device.copy_(self.values, self._buffer)

    def blank(self) -> tuple[torch.Tensor, Callable[[], object]]:
        """Makes room for what has crossed, while the device is still busy.

        Then only what waits for the device is left to do behind it: torch takes a host whose
        caches are cold ten microseconds for any call, numpy a third of that.

        Returns:
            A float32 tensor of the buffer's shape, and what fills it.
        """
        array = np.empty(self._shape, np.float32)
        room = torch.from_numpy(array)
        if self._array is None:
            return room, partial(room.copy_, self.values)
        return room, partial(np.copyto, array, self._array)

    @property
    def number(self) -> int:
        """The element of a buffer of one int64, as it has crossed."""
        assert self._words_N is not None
        # Read as numpy does: torch takes four times as long for one element.
        return int(self._words_N[0])
