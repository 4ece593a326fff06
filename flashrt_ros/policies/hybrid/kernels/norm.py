"""The norm of ``ops`` as a Triton kernel, and what a feed-forward net does between its products.

Both round where the torch functions round.

Tensor suffixes: those of ``ops``; F inner width of a feed-forward net.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashrt_ros.policies.hybrid.kernels.layout import last_dense

_TILE = 2048
"""Elements of a program that takes several short rows."""


@triton.jit  # type: ignore[untyped-decorator]
def _norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    weight_ptr,
    out_ptr,
    rows,
    x_outer,
    x_row,
    eps,
    inner: tl.constexpr,
    size: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)[:, None]
    d = tl.arange(0, block)[None, :]
    inside = (row < rows) & (d < size)
    outer = row // inner
    x = tl.load(x_ptr + outer * x_outer + row % inner * x_row + d, mask=inside, other=0.0)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    wide = x.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, 1)[:, None] / size + eps)
    weight = tl.load(weight_ptr + d, mask=d < size, other=0.0).to(tl.float32)
    wide *= 1.0 + weight
    tl.store(out_ptr + row * size + d, wide.to(dtype), mask=inside)


def rms_norm(x_D: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    """See ``ops.rms_norm``."""
    size = x_D.shape[-1]
    x_D = last_dense(x_D)
    # Heads may be parts of longer ones, and so may tokens.
    x_3 = x_D.reshape(-1, x_D.shape[-2] if x_D.dim() > 2 else 1, size)
    out_D = torch.empty(x_D.shape, dtype=x_D.dtype, device=x_D.device)
    rows, block = x_3.shape[0] * x_3.shape[1], triton.next_power_of_2(size)
    # A wide row has a program for itself; short ones share theirs.
    block_rows = max(1, min(_TILE // block, triton.next_power_of_2(rows)))
    _norm_kernel[(triton.cdiv(rows, block_rows),)](
        x_3, weight_D, out_D, rows, *x_3.stride()[:2], eps, inner=x_3.shape[1], size=size,
        block_rows=block_rows, block=block, num_warps=max(1, min(8, block_rows * block // 512)),
    )  # fmt: skip
    return out_D


@triton.jit  # type: ignore[untyped-decorator]
def _silu_kernel(  # type: ignore[no-untyped-def]
    gate_ptr, up_ptr, out_ptr, size, gate_row, up_row, block: tl.constexpr
):
    f = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.program_id(1)
    gate = tl.load(gate_ptr + row * gate_row + f, mask=f < size, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_row + f, mask=f < size, other=0.0).to(tl.float32)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    gate = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(out_ptr + row * size + f, (gate * up).to(dtype), mask=f < size)


def silu_product(gate_TF: torch.Tensor, up_TF: torch.Tensor) -> torch.Tensor:
    """Returns ``silu(gate) * up``, ``(T, F)``; each may be a part of the columns of a tensor."""
    gate_TF, up_TF = last_dense(gate_TF), last_dense(up_TF)
    tokens, size = gate_TF.shape
    out_TF = gate_TF.new_empty((tokens, size))
    block = min(2048, triton.next_power_of_2(size))
    _silu_kernel[(triton.cdiv(size, block), tokens)](
        gate_TF, up_TF, out_TF, size, gate_TF.stride(0), up_TF.stride(0),
        block=block, num_warps=max(1, block // 512),
    )  # fmt: skip
    return out_TF
