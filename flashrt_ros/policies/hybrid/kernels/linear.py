"""Products of a few tokens with a weight, which is read once: norm before, sum or gate behind.

Up to ``VECTOR_TOKENS`` take a dot product a row each, in one order whatever their number, so that
a token has the same bits alone and among drafts; more take tensor cores with the tokens padded to
16. Each program reads whole rows, so nothing is added across programs and every run gives the same
bits.

Tensor suffixes: T tokens, D width of the input, E width of the output.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashrt_ros.policies.hybrid.kernels.early import begin, begins_early

MOST_TOKENS, VECTOR_TOKENS = 16, 4
PLAIN, ADD, GATE = 0, 1, 2


@triton.jit  # type: ignore[untyped-decorator]
def _gated(gate, up, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """SiLU of one times the other, rounded where the reference rounds."""
    gate = gate.to(dtype).to(tl.float32)
    gate = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    return gate * up.to(dtype).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _whole_rows(  # type: ignore[no-untyped-def]
    x_ptr,
    norm_ptr,
    weight_ptr,
    more_ptr,
    out_ptr,
    eps,
    x_stride,
    tokens: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    normed: tl.constexpr,
    mode: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
    early: tl.constexpr,
):
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    known = row < rows
    k = tl.arange(0, block)
    inside = k < width
    mask = known[:, None] & inside[None, :]
    dtype = out_ptr.dtype.element_ty
    # No kernel writes weights, so they are on their way before the one in front has ended.
    at = weight_ptr + row.to(tl.int64)[:, None] * width + k[None, :]
    weight = tl.load(at, mask=mask, other=0.0)
    up = weight
    if mode == 2:
        up = tl.load(at + rows * width, mask=mask, other=0.0)
    factor = weight_ptr
    if normed:
        factor = tl.load(norm_ptr + k, mask=inside, other=0.0)
    begin(early)
    for t in tl.static_range(tokens):
        x = tl.load(x_ptr + t * x_stride + k, mask=inside, other=0.0).to(tl.float32)
        if normed:
            scale = tl.rsqrt(tl.sum(x * x, 0) / width + eps)
            x = (x * scale * (1.0 + factor.to(tl.float32))).to(dtype).to(tl.float32)
        out = tl.sum(weight.to(tl.float32) * x[None, :], 1)
        if mode == 1:
            more = tl.load(more_ptr + t * rows + row, mask=known, other=0.0).to(tl.float32)
            out = more + out.to(dtype).to(tl.float32)
        if mode == 2:
            out = _gated(out, tl.sum(up.to(tl.float32) * x[None, :], 1), dtype)
        tl.store(out_ptr + t * rows + row, out.to(dtype), mask=known)


@triton.jit  # type: ignore[untyped-decorator]
def _few_tokens(  # type: ignore[no-untyped-def]
    x_ptr,
    norm_ptr,
    weight_ptr,
    more_ptr,
    out_ptr,
    eps,
    tokens,
    x_stride,
    width: tl.constexpr,
    rows: tl.constexpr,
    normed: tl.constexpr,
    mode: tl.constexpr,
    block_tokens: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
    precision: tl.constexpr,
    early: tl.constexpr,
):
    begin(early)
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    token = tl.arange(0, block_tokens)
    known, real = row < rows, token < tokens
    k = tl.arange(0, block)
    dtype = out_ptr.dtype.element_ty
    scale = tl.zeros([block_tokens], tl.float32)
    if normed:
        for start in range(0, width, block):
            mask = real[:, None] & (start + k < width)[None, :]
            x = tl.load(
                x_ptr + token[:, None] * x_stride + start + k[None, :], mask=mask, other=0.0
            )
            x = x.to(tl.float32)
            scale += tl.sum(x * x, 1)
        scale = tl.rsqrt(scale / width + eps)
    total = tl.zeros([block_rows, block_tokens], tl.float32)
    total_up = tl.zeros([block_rows, block_tokens], tl.float32)
    at = weight_ptr + row.to(tl.int64)[:, None] * width + k[None, :]
    for start in range(0, width, block):
        inside = start + k < width
        mask = known[:, None] & inside[None, :]
        weight = tl.load(at + start, mask=mask, other=0.0)
        x_mask = inside[:, None] & real[None, :]
        x = tl.load(
            x_ptr + token[None, :] * x_stride + (start + k)[:, None], mask=x_mask, other=0.0
        )
        if normed:
            factor = tl.load(norm_ptr + start + k, mask=inside, other=0.0).to(tl.float32)
            x = (x.to(tl.float32) * scale[None, :] * (1.0 + factor)[:, None]).to(dtype)
        total = tl.dot(weight, x, total, input_precision=precision)
        if mode == 2:
            below = at + rows * width
            weight = tl.load(below + start, mask=mask, other=0.0)
            total_up = tl.dot(weight, x, total_up, input_precision=precision)
    out = total
    place = token[None, :] * rows + row[:, None]
    mask = known[:, None] & real[None, :]
    if mode == 1:
        more = tl.load(more_ptr + place, mask=mask, other=0.0).to(tl.float32)
        out = more + out.to(dtype).to(tl.float32)
    if mode == 2:
        out = _gated(out, total_up, dtype)
    tl.store(out_ptr + place, out.to(dtype), mask=mask)


def few_linear(
    x_TD: torch.Tensor,
    weight_ED: torch.Tensor,
    norm_D: torch.Tensor | None = None,
    eps: float = 0.0,
    add_TE: torch.Tensor | None = None,
    gated: bool = False,
) -> torch.Tensor:
    """``x @ weight.T`` for at most ``MOST_TOKENS`` tokens.

    Args:
        x_TD: Its last dimension is dense.
        weight_ED: Dense.
        norm_D: ``x`` is normed first with this weight, which lies around zero.
        eps: Of the norm.
        add_TE: Dense; is added.
        gated: The weight is one of gates on top of one of as many values; SiLU of the gates times
            the values comes out.

    Returns:
        ``(T, E)``, or half of that where gated.
    """
    tokens, width = x_TD.shape
    rows = weight_ED.shape[0] // 2 if gated else weight_ED.shape[0]
    out_TE = x_TD.new_empty((tokens, rows))
    mode = GATE if gated else PLAIN if add_TE is None else ADD
    norm = x_TD if norm_D is None else norm_D
    more = x_TD if add_TE is None else add_TE
    parts = (x_TD, norm, weight_ED, more, out_TE, eps)
    sizes = {"width": width, "rows": rows, "normed": norm_D is not None, "mode": mode}
    early = begins_early(x_TD.device)
    if tokens <= VECTOR_TOKENS:
        block = triton.next_power_of_2(width)
        block_rows, warps = _tile(block, gated)
        _whole_rows[(triton.cdiv(rows, block_rows),)](
            *parts,
            x_TD.stride(0),
            tokens=tokens,
            **sizes,
            block_rows=block_rows,
            block=block,
            num_warps=warps,
            **early,
        )
    else:
        block = max(16, min(triton.next_power_of_2(width), 256))
        _few_tokens[(triton.cdiv(rows, 16),)](
            *parts,
            tokens,
            x_TD.stride(0),
            **sizes,
            block_tokens=MOST_TOKENS,
            block_rows=16,
            block=block,
            precision="ieee",
            num_warps=4,
            num_stages=4,
            **early,
        )
    return out_TE


def _tile(block: int, gated: bool) -> tuple[int, int]:
    """Rows of a program and its warps: some 64 elements of a weight for each thread."""
    warps = 4 if block <= 4096 else 8
    rows = 64 * 32 * warps // block // (2 if gated else 1)
    return min(max(rows, 1), 16), warps
