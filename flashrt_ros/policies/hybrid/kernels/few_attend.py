"""Attention of a few tokens over many rows: placing rows, reading them in slices, joining those.

Time follows the rows that have been written, not the capacity: loops end at the position that the
device knows. Slices are joined in a fixed order, so every run gives the same bits.

Tensor suffixes: those of ``ops``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashrt_ros.policies.hybrid.kernels.early import begin, begins_early

SLICES = 64
_BLOCK_ROWS = 64


@triton.jit  # type: ignore[untyped-decorator]
def _place(  # type: ignore[no-untyped-def]
    query_ptr,
    key_ptr,
    value_ptr,
    out_ptr,
    keys_ptr,
    values_ptr,
    query_norm_ptr,
    key_norm_ptr,
    positions_ptr,
    periods_ptr,
    stride,
    row_stride,
    head_stride,
    value_row_stride,
    value_head_stride,
    query_eps,
    key_eps,
    heads: tl.constexpr,
    groups: tl.constexpr,
    size: tl.constexpr,
    turned: tl.constexpr,
    block: tl.constexpr,
    early: tl.constexpr,
):
    begin(early)
    t, h = tl.program_id(0), tl.program_id(1)
    dtype = keys_ptr.dtype.element_ty
    s = tl.arange(0, block)
    known = s < size
    position = tl.load(positions_ptr + t)
    if h >= heads + groups:
        g = h - heads - groups
        value = tl.load(value_ptr + t * stride + g * size + s, mask=known)
        at = values_ptr + position * value_row_stride + g * value_head_stride
        tl.store(at + s, value, mask=known)
    else:
        if h < heads:
            x_ptr = query_ptr + t * stride + h * 2 * size
            norm_ptr = query_norm_ptr
            eps = query_eps
            to_ptr = out_ptr + (t * heads + h) * size
        else:
            g = h - heads
            x_ptr = key_ptr + t * stride + g * size
            norm_ptr = key_norm_ptr
            eps = key_eps
            to_ptr = keys_ptr + position * row_stride + g * head_stride
        x = tl.load(x_ptr + s, mask=known, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, 0) / size + eps)
        x = (x * scale * (1.0 + tl.load(norm_ptr + s, mask=known, other=0.0).to(tl.float32))).to(
            dtype
        )
        # The other element of the pair that is turned together.
        half: tl.constexpr = turned // 2
        spun = s < turned
        other = tl.where(s < half, s + half, s - half)
        pair = tl.load(x_ptr + other, mask=spun, other=0.0).to(tl.float32)
        factor = tl.load(norm_ptr + other, mask=spun, other=0.0).to(tl.float32)
        pair = (pair * scale * (1.0 + factor)).to(dtype).to(tl.float32)
        pair = tl.where(s < half, -pair, pair)
        period = tl.load(periods_ptr + tl.where(s < half, s, s - half), mask=spun, other=0.0)
        angle = position.to(tl.float32) * period
        cos = tl.cos(angle).to(dtype).to(tl.float32)
        sin = tl.sin(angle).to(dtype).to(tl.float32)
        first = (x.to(tl.float32) * cos).to(dtype).to(tl.float32)
        spin = first + (pair * sin).to(dtype).to(tl.float32)
        tl.store(to_ptr + s, tl.where(spun, spin.to(dtype), x), mask=known)


@triton.jit  # type: ignore[untyped-decorator]
def _read_slice(  # type: ignore[no-untyped-def]
    query_ptr,
    keys_ptr,
    values_ptr,
    positions_ptr,
    sums_ptr,
    tops_ptr,
    weights_ptr,
    tokens,
    row_stride,
    head_stride,
    value_row_stride,
    value_head_stride,
    first,
    heads: tl.constexpr,
    groups: tl.constexpr,
    size: tl.constexpr,
    slices: tl.constexpr,
    block_query: tl.constexpr,
    block_size: tl.constexpr,
    block_rows: tl.constexpr,
    precision: tl.constexpr,
    early: tl.constexpr,
):
    begin(early)
    g, part = tl.program_id(0), tl.program_id(1)
    each: tl.constexpr = heads // groups
    m, s, n = tl.arange(0, block_query), tl.arange(0, block_size), tl.arange(0, block_rows)
    real, known = m < tokens * each, s < size
    t = m // each
    at = (t * heads + g * each + m % each)[:, None] * size + s[None, :]
    query = tl.load(query_ptr + at, mask=real[:, None] & known[None, :], other=0.0)
    position = tl.load(positions_ptr + t, mask=real, other=0)
    length = tl.load(positions_ptr + tokens - 1) + 1
    top = tl.full([block_query], -float("inf"), tl.float32)
    weight = tl.zeros([block_query], tl.float32)
    total = tl.zeros([block_query, block_size], tl.float32)
    for block in range(part, tl.cdiv(length, block_rows), slices):
        row = block * block_rows + n.to(tl.int64)
        written = row < length
        mask = written[:, None] & known[None, :]
        key = tl.load(
            keys_ptr + row[:, None] * row_stride + g * head_stride + s[None, :],
            mask=mask, other=0.0,
        )  # fmt: skip
        score = tl.dot(query, tl.trans(key), input_precision=precision) * (size**-0.5)
        own = row[None, :] == position[:, None]
        seen = (row[None, :] <= position[:, None]) & ((row[None, :] >= first) | own)
        score = tl.where(seen & real[:, None], score, -float("inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        base = tl.where(new_top == -float("inf"), 0.0, new_top)
        shrink = tl.exp(top - base)
        share = tl.exp(score - base[:, None])
        value = tl.load(
            values_ptr + row[:, None] * value_row_stride + g * value_head_stride + s[None, :],
            mask=mask, other=0.0,
        )  # fmt: skip
        total = total * shrink[:, None]
        total = tl.dot(share.to(value.dtype), value, total, input_precision=precision)
        weight = weight * shrink + tl.sum(share, 1)
        top = new_top
    place = (g * slices + part) * block_query + m
    tl.store(tops_ptr + place, top)
    tl.store(weights_ptr + place, weight)
    tl.store(sums_ptr + place[:, None] * block_size + s[None, :], total)


@triton.jit  # type: ignore[untyped-decorator]
def _join(  # type: ignore[no-untyped-def]
    sums_ptr,
    tops_ptr,
    weights_ptr,
    gate_ptr,
    out_ptr,
    gate_stride,
    heads: tl.constexpr,
    groups: tl.constexpr,
    size: tl.constexpr,
    slices: tl.constexpr,
    block_query: tl.constexpr,
    block_size: tl.constexpr,
    early: tl.constexpr,
):
    begin(early)
    t, q = tl.program_id(0), tl.program_id(1)
    each: tl.constexpr = heads // groups
    dtype = out_ptr.dtype.element_ty
    part, s = tl.arange(0, slices), tl.arange(0, block_size)
    place = ((q // each) * slices + part) * block_query + t * each + q % each
    top = tl.load(tops_ptr + place)
    share = tl.exp(top - tl.max(top, 0))
    weight = tl.sum(tl.load(weights_ptr + place) * share, 0)
    total = tl.load(sums_ptr + place[:, None] * block_size + s[None, :])
    found = (tl.sum(total * share[:, None], 0) / weight).to(dtype).to(tl.float32)
    known = s < size
    gate = tl.load(gate_ptr + t * gate_stride + q * 2 * size + s, mask=known, other=0.0)
    gate = (1.0 / (1.0 + tl.exp(-gate.to(tl.float32)))).to(dtype).to(tl.float32)
    tl.store(out_ptr + (t * heads + q) * size + s, (found * gate).to(dtype), mask=known)


def place_(
    parts: tuple[torch.Tensor, ...],
    rows: tuple[torch.Tensor, torch.Tensor],
    norms: tuple[torch.Tensor, torch.Tensor],
    eps: tuple[float, float],
    positions_T: torch.Tensor,
    periods: torch.Tensor,
) -> torch.Tensor | None:
    """See ``Ops.place_``, for any number of tokens; ``parts`` are columns of one matrix."""
    keys_NGS, values_NGS = rows
    key_TE, value_TE = parts[-2:]
    tokens, (groups, size) = key_TE.shape[0], keys_NGS.shape[1:]
    heads = parts[0].shape[1] // (2 * size) if len(parts) == 3 else 0
    query_TQS = key_TE.new_empty((tokens, max(heads, 1), size))
    _place[(tokens, heads + 2 * groups)](
        parts[0],
        key_TE,
        value_TE,
        query_TQS,
        keys_NGS,
        values_NGS,
        *norms,
        positions_T,
        periods,
        key_TE.stride(0),
        *keys_NGS.stride()[:2],
        *values_NGS.stride()[:2],
        *eps,
        heads=heads,
        groups=groups,
        size=size,
        turned=2 * len(periods),
        block=triton.next_power_of_2(size),
        num_warps=1,
        **begins_early(key_TE.device),
    )
    return query_TQS if heads else None


def few_attend(
    query_TQS: torch.Tensor,
    gate_TQS: torch.Tensor,
    rows: tuple[torch.Tensor, torch.Tensor],
    positions_T: torch.Tensor,
    first: int = 0,
) -> torch.Tensor:
    """See ``Ops.attend``.

    Args:
        query_TQS: Dense.
        gate_TQS: The second halves of rows of ``2 * S`` for each head.
        rows: See there.
        positions_T: See there.
        first: See there.
    """
    keys_NGS, values_NGS = rows
    tokens, heads, size = query_TQS.shape
    groups = keys_NGS.shape[1]
    block_query = max(16, triton.next_power_of_2(tokens * heads // groups))
    block_size = max(16, triton.next_power_of_2(size))
    scratch = query_TQS.new_empty(
        groups * SLICES * block_query * (block_size + 2), dtype=torch.float32
    )
    tops, weights, sums = scratch.split(
        [groups * SLICES * block_query * wide for wide in (1, 1, block_size)]
    )
    shape = {"heads": heads, "groups": groups, "size": size, "slices": SLICES}
    shape |= {"block_query": block_query, "block_size": block_size}
    early = begins_early(query_TQS.device)
    _read_slice[(groups, SLICES)](
        query_TQS,
        keys_NGS,
        values_NGS,
        positions_T,
        sums,
        tops,
        weights,
        tokens,
        *keys_NGS.stride()[:2],
        *values_NGS.stride()[:2],
        first,
        **shape,
        block_rows=_BLOCK_ROWS,
        precision="ieee",
        num_warps=4,
        num_stages=2,
        **early,
    )
    out_TE = query_TQS.new_empty((tokens, heads * size))
    _join[(tokens, heads)](
        sums, tops, weights, gate_TQS, out_TE, gate_TQS.stride(0), **shape, num_warps=4, **early
    )
    return out_TE
