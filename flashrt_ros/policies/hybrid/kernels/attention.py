"""``ops.attend`` for many tokens as Triton kernels: one pass over the rows, in tiles.

(Dao, "FlashAttention-2", arXiv 2307.08691, section 3.1.) A program takes a block of tokens and all
query heads of one group, so that each tile of keys and values is loaded once for all of them. How
far it goes over the rows it reads from the positions: time follows what is written and not the
capacity. Where tokens are few, the rows are dealt to several programs by position, and a second
kernel adds up what they found, in the order of the rows.

Tensor suffixes: those of ``ops``; P parts of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from flashrt_ros.policies.hybrid.kernels.layout import last_dense

_LOG2_E = 1.4426950408889634


@triton.jit  # type: ignore[untyped-decorator]
def _tile(  # type: ignore[no-untyped-def]
    mixed, top, total, query, position, last, start, first, key_ptr, value_ptr, key_row, value_row,
    scale, size: tl.constexpr, block_n: tl.constexpr, block_s: tl.constexpr, masks: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Takes the rows from ``start`` on into what was found of those before."""
    n = tl.arange(0, block_n)
    s = tl.arange(0, block_s)
    row = start + n
    key_at = key_ptr + (row.to(tl.int64) * key_row)[None, :] + s[:, None]
    value_at = value_ptr + (row.to(tl.int64) * value_row)[:, None] + s[None, :]
    # What lies behind the last token of the block may be garbage, which must not even meet a zero.
    if masks:
        inside = (s < size)[:, None] & (row <= last)[None, :]
        key = tl.load(key_at, mask=inside, other=0.0)
    elif size < block_s:
        key = tl.load(key_at, mask=(s < size)[:, None], other=0.0)
    else:
        key = tl.load(key_at)
    score = tl.dot(query, key, input_precision=precision) * scale
    if masks:
        seen = (row[None, :] <= position[:, None]) & (row >= first)[None, :]
        seen |= row[None, :] == position[:, None]
        score = tl.where(seen, score, float("-inf"))
    higher = tl.maximum(top, tl.max(score, 1))
    # Of a token that sees no row yet: infinity less infinity is no number.
    base = tl.where(higher == float("-inf"), 0.0, higher) if masks else higher
    weight = tl.exp2(score - base[:, None])
    fade = tl.exp2(top - base)
    total = total * fade + tl.sum(weight, 1)
    if masks:
        inside = (row <= last)[:, None] & (s < size)[None, :]
        value = tl.load(value_at, mask=inside, other=0.0)
    elif size < block_s:
        value = tl.load(value_at, mask=(s < size)[None, :], other=0.0)
    else:
        value = tl.load(value_at)
    mixed = mixed * fade[:, None]
    mixed = tl.dot(weight.to(value.dtype), value, acc=mixed, input_precision=precision)
    return mixed, higher, total


@triton.jit  # type: ignore[untyped-decorator]
def _range(  # type: ignore[no-untyped-def]
    positions_ptr, block, part, parts, tokens, block_t: tl.constexpr, block_n: tl.constexpr
):
    """First tile, end of those of one part, end of all parts in use, first and last position."""
    lead = tl.load(positions_ptr + block * block_t).to(tl.int32)
    last = tl.load(positions_ptr + tl.minimum((block + 1) * block_t, tokens) - 1).to(tl.int32)
    tiles = last // block_n + 1
    each = (tiles + parts - 1) // parts
    used = (tiles + each - 1) // each
    return part * each, tl.minimum((part + 1) * each, tiles), used, lead, last


@triton.jit  # type: ignore[untyped-decorator]
def _gated(mixed, gate_at, inside, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """What was found, times the sigmoid of its gate; rounded where torch rounds."""
    gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    gate = (1.0 / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    return mixed.to(dtype).to(tl.float32) * gate


@triton.jit  # type: ignore[untyped-decorator]
def _attend_kernel(  # type: ignore[no-untyped-def]
    query_ptr,
    key_ptr,
    value_ptr,
    positions_ptr,
    gate_ptr,
    out_ptr,
    top_ptr,
    total_ptr,
    query_token,
    query_head,
    gate_token,
    gate_head,
    key_row,
    key_group,
    value_row,
    value_group,
    tokens,
    first,
    scale,
    size: tl.constexpr,
    shared: tl.constexpr,
    block_t: tl.constexpr,
    block_q: tl.constexpr,
    block_n: tl.constexpr,
    block_s: tl.constexpr,
    splits: tl.constexpr,
    gates: tl.constexpr,
    hides: tl.constexpr,
    precision: tl.constexpr,
    stages: tl.constexpr,
):
    # Later tokens see more rows and begin first, so that none of them is left for the end.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    group = tl.program_id(1)
    part = tl.program_id(2)
    begin, end, _, lead, last = _range(
        positions_ptr, block, part, tl.num_programs(2), tokens, block_t, block_n
    )
    if begin < end:
        m = tl.arange(0, block_t * block_q)
        s = tl.arange(0, block_s)
        token = block * block_t + m // block_q
        head = group * shared + m % block_q
        known = (token < tokens) & (m % block_q < shared)
        position = tl.load(positions_ptr + token, mask=known, other=-1).to(tl.int32)
        at = query_ptr + token[:, None] * query_token + head[:, None] * query_head + s[None, :]
        query = tl.load(at, mask=known[:, None] & (s < size)[None, :], other=0.0)
        key_ptr += group * key_group
        value_ptr += group * value_group
        mixed = tl.zeros((block_t * block_q, block_s), tl.float32)
        top = tl.full((block_t * block_q,), float("-inf"), tl.float32)
        total = tl.zeros((block_t * block_q,), tl.float32)
        # All tokens of the block see all rows of these tiles.
        plain = begin if hides else tl.maximum(tl.minimum((lead + 1) // block_n, end), begin)
        for tile in tl.range(begin, plain, num_stages=stages):
            mixed, top, total = _tile(
                mixed, top, total, query, position, last, tile * block_n, first, key_ptr,
                value_ptr, key_row, value_row, scale, size, block_n, block_s, False, precision,
            )  # fmt: skip
        for tile in tl.range(plain, end, num_stages=stages):
            mixed, top, total = _tile(
                mixed, top, total, query, position, last, tile * block_n, first, key_ptr,
                value_ptr, key_row, value_row, scale, size, block_n, block_s, True, precision,
            )  # fmt: skip
        heads = tl.num_programs(1) * shared
        to = token * heads + head
        inside = known[:, None] & (s < size)[None, :]
        if splits:
            to += part * (tokens * heads)
            tl.store(top_ptr + to, top, mask=known)
            tl.store(total_ptr + to, total, mask=known)
        else:
            mixed = mixed / total[:, None]
            if gates:
                gate_at = (token * gate_token + head * gate_head)[:, None] + s[None, :]
                mixed = _gated(mixed, gate_ptr + gate_at, inside, out_ptr.dtype.element_ty)
        out_at = out_ptr + to.to(tl.int64)[:, None] * size + s[None, :]
        tl.store(out_at, mixed.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _join_kernel(  # type: ignore[no-untyped-def]
    mixed_ptr,
    top_ptr,
    total_ptr,
    positions_ptr,
    gate_ptr,
    out_ptr,
    tokens,
    gate_token,
    gate_head,
    gates: tl.constexpr,
    size: tl.constexpr,
    parts: tl.constexpr,
    block_t: tl.constexpr,
    block_n: tl.constexpr,
    block_p: tl.constexpr,
    block_s: tl.constexpr,
):
    token = tl.program_id(0)
    heads = tl.num_programs(1)
    _, _, used, _, _ = _range(positions_ptr, token // block_t, 0, parts, tokens, block_t, block_n)
    p = tl.arange(0, block_p)
    s = tl.arange(0, block_s)[None, :]
    at = p * (tokens * heads) + token * heads + tl.program_id(1)
    top = tl.load(top_ptr + at, mask=p < used, other=float("-inf"))
    share = tl.exp2(top - tl.max(top, 0))
    total = tl.load(total_ptr + at, mask=p < used, other=0.0)
    inside = (p < used)[:, None] & (s < size)
    mixed = tl.load(mixed_ptr + at.to(tl.int64)[:, None] * size + s, mask=inside, other=0.0)
    mixed = tl.sum(mixed * share[:, None], 0)[None, :] / tl.sum(total * share, 0)
    if gates:
        gate_at = gate_ptr + token * gate_token + tl.program_id(1) * gate_head + s
        mixed = _gated(mixed, gate_at, s < size, out_ptr.dtype.element_ty)
    to = out_ptr + (token * heads + tl.program_id(1)) * size + s
    tl.store(to, mixed.to(out_ptr.dtype.element_ty), mask=s < size)


@dataclass(frozen=True)
class Blocks:
    """How the work is cut.

    Attributes:
        queries: Tokens times query heads of one program.
        rows: Of one tile.
        warps: Of a program.
        stages: Tiles that are loaded ahead, and one.
        parts: Of the rows; 0 takes as many as the device is filled by.
    """

    queries: int = 128
    rows: int = 64
    warps: int = 8
    stages: int = 2
    parts: int = 0


_FILLED, _MOST_PARTS = 128, 32
NARROW = {64: Blocks(rows=128, stages=3), 128: Blocks(stages=3), 256: Blocks()}
"""Of models of two bytes an element, by the largest size of a head that it is good for."""
WIDE = {64: Blocks(64, 32, 4, 1), 256: Blocks(16, 16, 4, 1)}
"""Of float32 ones."""


def attend(
    query_TQS: torch.Tensor,
    keys_NGS: torch.Tensor,
    values_NGS: torch.Tensor,
    positions_T: torch.Tensor,
    first: int = 0,
    gate_TQS: torch.Tensor | None = None,
    blocks: Blocks | None = None,
) -> torch.Tensor:
    """See ``ops.attend``.

    Args:
        query_TQS: See there.
        keys_NGS: Elements of a head side by side; all else may lie apart.
        values_NGS: The same.
        positions_T: See there.
        first: See there.
        gate_TQS: What is found is multiplied by its sigmoid.
        blocks: None: ``NARROW`` or ``WIDE``, by dtype and size of a head.
    """
    query_TQS = last_dense(query_TQS)
    tokens, heads, size = query_TQS.shape
    groups, half = keys_NGS.shape[1], query_TQS.dtype != torch.float32
    if blocks is None:
        table = NARROW if half else WIDE
        blocks = next(found for least, found in table.items() if size <= least)
    block_q = triton.next_power_of_2(heads // groups)
    block_t = max(1, blocks.queries // block_q)
    grid = (triton.cdiv(tokens, block_t), groups)
    parts = blocks.parts or min(max(1, _FILLED // (grid[0] * groups)), _MOST_PARTS)
    out_TQS = query_TQS.new_empty((tokens, heads, size))
    mixed, top, total = out_TQS, out_TQS, out_TQS
    if parts > 1:
        mixed = out_TQS.new_empty((parts, tokens, heads, size), dtype=torch.float32)
        top, total = mixed.new_empty((2, parts, tokens, heads))
    block_s = max(16, triton.next_power_of_2(size))
    gate_TQS = query_TQS if gate_TQS is None else last_dense(gate_TQS)
    gates = gate_TQS is not query_TQS
    _attend_kernel[(grid[0], groups, parts)](
        query_TQS, keys_NGS, values_NGS, positions_T, gate_TQS, mixed, top, total,
        *query_TQS.stride()[:2], *gate_TQS.stride()[:2], *keys_NGS.stride()[:2],
        *values_NGS.stride()[:2], tokens, first, size**-0.5 * _LOG2_E,
        size=size, shared=heads // groups, block_t=block_t, block_q=block_q, block_n=blocks.rows,
        block_s=block_s, splits=parts > 1, gates=gates, hides=first > 0,
        precision="tf32" if half else "ieee", stages=blocks.stages, num_warps=blocks.warps,
    )  # fmt: skip
    if parts > 1:
        _join_kernel[(tokens, heads)](
            mixed, top, total, positions_T, gate_TQS, out_TQS, tokens,
            *gate_TQS.stride()[:2], gates=gates, size=size, parts=parts, block_t=block_t,
            block_n=blocks.rows, block_p=triton.next_power_of_2(parts), block_s=block_s,
            num_warps=4,
        )  # fmt: skip
    return out_TQS
