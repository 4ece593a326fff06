"""Norms of ``ops`` as Triton kernels, and what a feed-forward net does between its products.

Each rounds where the torch functions round.

Tensor suffixes: those of ``ops``; F inner width of a feed-forward net.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashrt_ros.policies.hybrid.kernels.layout import side_by_side

_TILE = 2048
"""Elements of a program that takes several short rows."""


@triton.jit  # type: ignore[untyped-decorator]
def _norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    gate_ptr,
    weight_ptr,
    out_ptr,
    rows,
    x_outer,
    x_row,
    gate_outer,
    gate_row,
    eps,
    inner: tl.constexpr,
    size: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
    gates: tl.constexpr,
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
    if gates:
        wide = (wide.to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)
        at = gate_ptr + outer * gate_outer + row % inner * gate_row + d
        gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        wide *= gate / (1.0 + tl.exp(-gate))
    else:
        wide *= 1.0 + weight
    tl.store(out_ptr + row * size + d, wide.to(dtype), mask=inside)


def _norm(
    x: torch.Tensor, gate: torch.Tensor | None, weight_D: torch.Tensor, eps: float
) -> torch.Tensor:
    size = x.shape[-1]
    x = side_by_side(x)
    # Heads may be parts of longer ones, and so may tokens.
    x_3 = x.reshape(-1, x.shape[-2] if x.dim() > 2 else 1, size)
    gate_3 = x_3 if gate is None else side_by_side(gate).reshape(x_3.shape)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, block = x_3.shape[0] * x_3.shape[1], triton.next_power_of_2(size)
    # A wide row has a program for itself; short ones share theirs.
    block_rows = max(1, min(_TILE // block, triton.next_power_of_2(rows)))
    _norm_kernel[(triton.cdiv(rows, block_rows),)](
        x_3, gate_3, weight_D, out, rows, *x_3.stride()[:2], *gate_3.stride()[:2], eps,
        inner=x_3.shape[1], size=size, block_rows=block_rows, block=block, gates=gate is not None,
        num_warps=max(1, min(8, block_rows * block // 512)),
    )  # fmt: skip
    return out


def rms_norm(x_D: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    """See ``ops.rms_norm``."""
    return _norm(x_D, None, weight_D, eps)


def gated_norm(
    x_V: torch.Tensor, gate_V: torch.Tensor, weight_V: torch.Tensor, eps: float
) -> torch.Tensor:
    """See ``ops.gated_norm``."""
    return _norm(x_V, gate_V, weight_V, eps)


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
    gate_TF, up_TF = side_by_side(gate_TF), side_by_side(up_TF)
    tokens, size = gate_TF.shape
    out_TF = gate_TF.new_empty((tokens, size))
    block = min(2048, triton.next_power_of_2(size))
    _silu_kernel[(triton.cdiv(size, block), tokens)](
        gate_TF, up_TF, out_TF, size, gate_TF.stride(0), up_TF.stride(0),
        block=block, num_warps=max(1, block // 512),
    )  # fmt: skip
    return out_TF
