"""Philox4x32-10 as one Triton kernel; imported on CUDA only. See ``noise`` for the definition."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 256
_KINDS = {"words": 0, "uniform": 1, "normal": 2}


# Not specialised on sizes: one compilation for each kind, all of them in the warm-up.
@triton.jit(do_not_specialize=["offset", "numel"])  # type: ignore[untyped-decorator]
def _philox_kernel(  # type: ignore[no-untyped-def]
    out_ptr,
    key_ptr,
    counter_ptr,
    offset,
    numel,
    kind: tl.constexpr,
    block: tl.constexpr,
):
    key = tl.load(key_ptr)
    index = tl.program_id(0) * block + tl.arange(0, block)
    position = tl.load(counter_ptr) + offset + index.to(tl.int64)
    k0 = (key & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((key >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c0 = (position & 0xFFFFFFFF).to(tl.uint32)
    c1 = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c2 = c0 ^ c0
    c3 = c0 ^ c0
    for _ in tl.static_range(10):
        p0 = c0.to(tl.uint64) * 0xD2511F53
        p1 = c2.to(tl.uint64) * 0xCD9E8D57
        n0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        n2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = p1.to(tl.uint32)
        c3 = p0.to(tl.uint32)
        c0 = n0
        c2 = n2
        k0 = (k0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    at = out_ptr + index * 4
    first = index * 4
    if kind == 0:
        w0 = c0.to(tl.int32, bitcast=True)
        w1 = c1.to(tl.int32, bitcast=True)
        w2 = c2.to(tl.int32, bitcast=True)
        w3 = c3.to(tl.int32, bitcast=True)
    else:
        unit = 5.9604644775390625e-08
        if kind == 1:
            w0 = (c0 >> 8).to(tl.float32) * unit
            w1 = (c1 >> 8).to(tl.float32) * unit
            w2 = (c2 >> 8).to(tl.float32) * unit
            w3 = (c3 >> 8).to(tl.float32) * unit
        else:
            # A logarithm that is approximate may come out above 0 for arguments next to 1.
            r0 = tl.sqrt(tl.maximum(tl.log(((c0 >> 8) + 1).to(tl.float32) * unit) * -2.0, 0.0))
            r2 = tl.sqrt(tl.maximum(tl.log(((c2 >> 8) + 1).to(tl.float32) * unit) * -2.0, 0.0))
            turn = unit * 6.283185307179586
            a1 = (c1 >> 8).to(tl.float32) * turn
            a3 = (c3 >> 8).to(tl.float32) * turn
            w0 = r0 * tl.cos(a1)
            w1 = r0 * tl.sin(a1)
            w2 = r2 * tl.cos(a3)
            w3 = r2 * tl.sin(a3)
    tl.store(at, w0, mask=first < numel)
    tl.store(at + 1, w1, mask=first + 1 < numel)
    tl.store(at + 2, w2, mask=first + 2 < numel)
    tl.store(at + 3, w3, mask=first + 3 < numel)


def draw_(
    out: torch.Tensor, key: torch.Tensor, counter: torch.Tensor, offset: int, kind: str
) -> None:
    """Fills ``out`` without touching the counter.

    Args:
        out: Any shape, int32 for ``words``, else float32; contiguous, on CUDA, written.
        key: ``(1,)`` int64, read.
        counter: ``(1,)`` int64, read.
        offset: Blocks to pass over.
        kind: ``words``, ``uniform`` or ``normal``.
    """
    numel = out.numel()
    grid = (triton.cdiv(numel, 4 * _BLOCK),)
    _philox_kernel[grid](
        out, key, counter, offset, numel, kind=_KINDS[kind], block=_BLOCK, num_warps=4
    )
