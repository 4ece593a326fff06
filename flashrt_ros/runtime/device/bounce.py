"""Copies between a GPU and the host that leave room for everybody else's.

A copy engine takes one copy after the other, whatever their streams: behind one of 256 MiB the
action of a control step waits 5 ms (H200, seen), behind eight enqueued MiB a quarter of one. And
who comes back for the next chunk at once takes the interpreter from the control thread each time.
So copies are cut into chunks, one is enqueued at a time, and a pause follows that is longer than
it took: some 8 GB/s are left, and capsules up to a chunk know no pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
import torch

from flashrt_ros.runtime.device.base import STAGING_BYTES, Pair

DIRECT_BYTES = 4 << 20
"""Chunk from and to pinned memory: 120 us of a PCIe 5 link."""
PAUSE_S = 4e-4
"""After each of these but the last."""
BUFFERS = 2
CHUNK_BYTES = STAGING_BYTES // BUFFERS
"""From and to other memory; the host's own copies are pause enough."""


class Bounce:
    """Two pinned chunks, through which bytes go from and to memory that is not pinned."""

    def __init__(
        self,
        allocate_host: Callable[[int], torch.Tensor],
        enqueue: Callable[[torch.Tensor, torch.Tensor], None],
    ) -> None:
        """Allocates the chunks on the current device.

        Args:
            allocate_host: See ``Device.allocate_host``.
            enqueue: Enqueues one contiguous copy on the bound lane.
        """
        self._enqueue = enqueue
        self._buffers = [allocate_host(CHUNK_BYTES) for _ in range(BUFFERS)]
        # Blocking: whoever waits sleeps, and leaves its processor to the control thread.
        self._events = [torch.cuda.Event(blocking=True) for _ in range(BUFFERS)]

    def carry(self, pairs: Iterable[Pair]) -> None:
        """See ``Device.carry``."""
        for dst_N, src_N in pairs:
            if not (dst_N.is_cuda or src_N.is_cuda):
                np.copyto(dst_N.numpy(), src_N.numpy())
            elif (src_N if dst_N.is_cuda else dst_N).is_pinned():
                self._directly(dst_N, src_N)
            elif dst_N.is_cuda:
                self._up(dst_N, src_N)
            else:
                self._down(dst_N, src_N)

    def _directly(self, dst_N: torch.Tensor, src_N: torch.Tensor) -> None:
        event = self._events[0]
        for start in range(0, dst_N.nbytes, DIRECT_BYTES):
            if start:
                time.sleep(PAUSE_S)
                event.synchronize()
            end = start + DIRECT_BYTES
            self._enqueue(dst_N[start:end], src_N[start:end])
            event.record()
        event.synchronize()

    def _up(self, dst_N: torch.Tensor, src_N: torch.Tensor) -> None:
        for number, start in enumerate(range(0, dst_N.nbytes, CHUNK_BYTES)):
            event, buffer_N = self._events[number % BUFFERS], self._buffers[number % BUFFERS]
            piece_N = src_N[start : start + CHUNK_BYTES]
            event.synchronize()  # until its last chunk is through
            np.copyto(buffer_N[: piece_N.nbytes].numpy(), piece_N.numpy())
            self._enqueue(dst_N[start : start + CHUNK_BYTES], buffer_N[: piece_N.nbytes])
            event.record()
        for event in self._events:
            event.synchronize()

    def _down(self, dst_N: torch.Tensor, src_N: torch.Tensor) -> None:
        pending: list[tuple[torch.cuda.Event, torch.Tensor, torch.Tensor]] = []
        for number, start in enumerate(range(0, dst_N.nbytes, CHUNK_BYTES)):
            event, buffer_N = self._events[number % BUFFERS], self._buffers[number % BUFFERS]
            piece_N = dst_N[start : start + CHUNK_BYTES]
            if len(pending) == BUFFERS:
                _take(*pending.pop(0))
            self._enqueue(buffer_N[: piece_N.nbytes], src_N[start : start + CHUNK_BYTES])
            event.record()
            pending.append((event, piece_N, buffer_N[: piece_N.nbytes]))
        for waiting in pending:
            _take(*waiting)


def _take(event: torch.cuda.Event, dst_N: torch.Tensor, src_N: torch.Tensor) -> None:
    event.synchronize()
    np.copyto(dst_N.numpy(), src_N.numpy())
