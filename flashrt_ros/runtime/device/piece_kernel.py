"""Many copies in one launch, as one Triton kernel; imported on CUDA only.

A thousand calls of ``cudaMemcpyAsync`` take the host milliseconds, and the device as long.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from flashrt_ros.runtime.device.base import Offsets, Pieces

CHUNK_BYTES = 64 << 10
"""Of one program: small enough that a few large pieces keep the whole device busy."""
_WORD_BYTES = 8
_BLOCK = 2048


@triton.jit  # type: ignore[untyped-decorator]
def _copy_kernel(  # type: ignore[no-untyped-def]
    dst_ptr, src_ptr, table_ptr, block: tl.constexpr
):
    entry = table_ptr + tl.program_id(0) * 3
    # Rows lie on multiples of 16 bytes: two words, so that loads may be that wide.
    dst = tl.multiple_of(tl.load(entry), 2)
    src = tl.multiple_of(tl.load(entry + 1), 2)
    words = tl.multiple_of(tl.load(entry + 2), 2)
    for start in range(0, words, block):
        at = start + tl.arange(0, block)
        mask = at < words
        tl.store(dst_ptr + dst + at, tl.load(src_ptr + src + at, mask=mask), mask=mask)


class PieceCopier:
    """Copies pieces by a table that the host fills and one launch reads, where it lies.

    The programs read their entries across the bus: 2 us in all, where a copy of the table to the
    device before them takes 15.

    Attributes:
        host: ``(N, 3)`` int64, pinned: word of the target, word of the source and number of words
            of each chunk; a word has 8 bytes.
    """

    def __init__(self, host: torch.Tensor, dst: torch.Tensor, src: torch.Tensor) -> None:
        """Compiles the kernel, by a copy of the first 16 bytes of ``src`` to ``dst``."""
        self.host = host
        self._rows = host.numpy()
        self._done = torch.cuda.Event()
        table = torch.tensor([[0, 0, 2]], dtype=torch.int64, device=dst.device)
        words = (dst.view(torch.int64), src.view(torch.int64))
        self._kernel: Any = _copy_kernel[(1,)](*words, table, block=_BLOCK, num_warps=8)

    def copy_(self, dst: torch.Tensor, src: torch.Tensor, pieces: Pieces) -> None:
        """Enqueues the copies on the current stream; see ``Device.copy_pieces_``."""
        if pieces.prepared is None:
            pieces.prepared = chunks(pieces)
        count = len(pieces.prepared)
        # The host may write the table anew once the last kernel has read it.
        self._done.synchronize()
        self._rows[:count] = pieces.prepared
        # Launched as it was compiled: finding it by its arguments takes Triton twice as long.
        # Sections begin on multiples of 256 bytes, so what was compiled for some fits all.
        # Addresses, not tensors: under unified addressing that of pinned memory is the device's.
        self._kernel[(count, 1, 1)](dst.data_ptr(), src.data_ptr(), self.host.data_ptr(), _BLOCK)
        self._done.record()


def chunks(pieces: Pieces) -> Offsets:
    """Returns the table of ``PieceCopier`` for ``pieces``, ``(N, 3)``."""
    counts = -(-pieces.sizes // CHUNK_BYTES)
    count = int(counts.sum())
    piece = np.repeat(np.arange(len(counts)), counts)
    skipped = np.arange(count) - np.repeat(np.cumsum(counts) - counts, counts)
    skipped *= CHUNK_BYTES
    columns = (
        pieces.dst_offsets[piece] + skipped,
        pieces.src_offsets[piece] + skipped,
        np.minimum(pieces.sizes[piece] - skipped, CHUNK_BYTES),
    )
    return np.column_stack(columns) // _WORD_BYTES


def most_chunks(size_bytes: int, pieces: int) -> int:
    """Returns the length of a table for ``pieces`` pieces of ``size_bytes`` in all."""
    return size_bytes // CHUNK_BYTES + pieces
