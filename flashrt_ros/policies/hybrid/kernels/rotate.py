"""The norm of queries and keys and their rotation, written where they go, as one Triton kernel.

Tensor suffixes: those of ``ops``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashrt_ros.policies.hybrid.kernels.layout import side_by_side

_TILE = 2048


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    weight_ptr,
    positions_ptr,
    periods_ptr,
    out_ptr,
    value_ptr,
    value_out_ptr,
    tokens,
    eps,
    x_token,
    x_head,
    out_token,
    out_head,
    value_token,
    value_head,
    value_out_token,
    value_out_head,
    heads: tl.constexpr,
    size: tl.constexpr,
    pairs: tl.constexpr,
    block_rows: tl.constexpr,
    block_s: tl.constexpr,
    block_p: tl.constexpr,
    norms: tl.constexpr,
    at_rows: tl.constexpr,
    copies: tl.constexpr,
):
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    token = row // heads
    head = row % heads
    known = (token < tokens)[:, None]
    position = tl.load(positions_ptr + token, mask=token < tokens, other=0)
    to_token = position if at_rows else token.to(tl.int64)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    s = tl.arange(0, block_s)[None, :]
    x_at = x_ptr + (token * x_token + head * x_head)[:, None]
    out_at = out_ptr + (to_token * out_token + head * out_head)[:, None]
    x = tl.load(x_at + s, mask=known & (s < size), other=0.0).to(tl.float32)
    if norms:
        factor = tl.rsqrt(tl.sum(x * x, 1)[:, None] / size + eps)
        weight = tl.load(weight_ptr + s, mask=s < size, other=0.0).to(tl.float32)
        x = x * factor * (1.0 + weight)
    turned: tl.constexpr = 2 * pairs
    tl.store(out_at + s, x.to(dtype), mask=known & (s < size) & (s >= turned))

    # Angles are dear: only of pairs.
    p = tl.arange(0, block_p)[None, :]
    inside = known & (p < pairs)
    first = tl.load(x_at + p, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x_at + pairs + p, mask=inside, other=0.0).to(tl.float32)
    if norms:
        weight = tl.load(weight_ptr + p, mask=p < pairs, other=0.0).to(tl.float32)
        first = (first * factor * (1.0 + weight)).to(dtype).to(tl.float32)
        weight = tl.load(weight_ptr + pairs + p, mask=p < pairs, other=0.0).to(tl.float32)
        second = (second * factor * (1.0 + weight)).to(dtype).to(tl.float32)
    angle = position.to(tl.float32)[:, None] * tl.load(periods_ptr + p, mask=p < pairs, other=0.0)
    # Rounded where torch rounds.
    cos = tl.cos(angle).to(dtype).to(tl.float32)
    sin = tl.sin(angle).to(dtype).to(tl.float32)
    here = (first * cos).to(dtype).to(tl.float32) + (-second * sin).to(dtype).to(tl.float32)
    there = (second * cos).to(dtype).to(tl.float32) + (first * sin).to(dtype).to(tl.float32)
    tl.store(out_at + p, here.to(dtype), mask=inside)
    tl.store(out_at + pairs + p, there.to(dtype), mask=inside)
    if copies:
        value_at = value_ptr + (token * value_token + head * value_head)[:, None] + s
        value = tl.load(value_at, mask=known & (s < size))
        to = value_out_ptr + (to_token * value_out_token + head * value_out_head)[:, None] + s
        tl.store(to, value, mask=known & (s < size))


def norm_rotate_(
    x_THS: torch.Tensor,
    weight_S: torch.Tensor | None,
    eps: float,
    positions_T: torch.Tensor,
    periods: torch.Tensor,
    out: torch.Tensor,
    at_rows: bool = False,
    values: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """As ``ops.rms_norm``, then ``ops.rotate``, written to ``out``.

    All tensors may be parts of others; in what is written the elements of a head lie side by side.

    Args:
        x_THS: A view of the projection.
        weight_S: Of the norm; None leaves it out.
        eps: Of the norm.
        positions_T: int64.
        periods: See ``ops.rotate``.
        out: Written: ``(T, H, S)``, or rows ``(N, H, S)``.
        at_rows: The tokens are written to the rows of their positions.
        values: What else to write to where: a copy, shaped like ``x_THS`` and ``out``.

    Returns:
        ``out``.
    """
    x_THS = side_by_side(x_THS)
    tokens, heads, size = x_THS.shape
    pairs, block_s = len(periods), triton.next_power_of_2(size)
    block_rows = max(1, min(_TILE // block_s, triton.next_power_of_2(tokens * heads)))
    value, value_out = values or (x_THS, out)
    value = side_by_side(value)
    _rotate_kernel[(triton.cdiv(tokens * heads, block_rows),)](
        x_THS, x_THS if weight_S is None else weight_S, positions_T, periods, out, value,
        value_out, tokens, eps, *x_THS.stride()[:2], *out.stride()[:2], *value.stride()[:2],
        *value_out.stride()[:2], heads=heads, size=size, pairs=pairs, block_rows=block_rows,
        block_s=block_s, block_p=triton.next_power_of_2(pairs), norms=weight_S is not None,
        at_rows=at_rows, copies=values is not None,
        num_warps=max(1, min(8, block_rows * block_s // 512)),
    )  # fmt: skip
    return out


def rotate(x_THS: torch.Tensor, positions_T: torch.Tensor, periods: torch.Tensor) -> torch.Tensor:
    """See ``ops.rotate``."""
    out_THS = torch.empty(x_THS.shape, dtype=x_THS.dtype, device=x_THS.device)
    return norm_rotate_(x_THS, None, 0.0, positions_T, periods, out_THS)
