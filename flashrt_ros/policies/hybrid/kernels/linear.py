"""Products of a few tokens with a weight, which is read once: norm before, sum or gate behind.

One token takes a dot product a row, more take tensor cores with the tokens padded to 16. Each
program reads whole rows, so nothing is added across programs and every run gives the same bits.

Tensor suffixes: T tokens, D width of the input, E width of the output.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MOST_TOKENS = 16
PLAIN, ADD, GATE = 0, 1, 2


@triton.jit  # type: ignore[untyped-decorator]
def _inverse_root(x_ptr, width, eps, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """One over the root of the mean square of a row."""
    k = tl.arange(0, block)
    total = tl.zeros([block], tl.float32)
    for start in range(0, width, block):
        x = tl.load(x_ptr + start + k, mask=start + k < width, other=0.0).to(tl.float32)
        total += x * x
    return tl.rsqrt(tl.sum(total, 0) / width + eps)


@triton.jit  # type: ignore[untyped-decorator]
def _gated(gate, up, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """SiLU of one times the other, rounded where the reference rounds."""
    gate = gate.to(dtype).to(tl.float32)
    gate = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    return gate * up.to(dtype).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _one_token(  # type: ignore[no-untyped-def]
    x_ptr,
    norm_ptr,
    weight_ptr,
    more_ptr,
    out_ptr,
    eps,
    width: tl.constexpr,
    rows: tl.constexpr,
    normed: tl.constexpr,
    mode: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    known = row < rows
    k = tl.arange(0, block)
    dtype = out_ptr.dtype.element_ty
    scale = 1.0
    if normed:
        scale = _inverse_root(x_ptr, width, eps, block)
    total = tl.zeros([block_rows, block], tl.float32)
    total_up = tl.zeros([block_rows, block], tl.float32)
    at = weight_ptr + row.to(tl.int64)[:, None] * width + k[None, :]
    for start in range(0, width, block):
        inside = start + k < width
        mask = known[:, None] & inside[None, :]
        weight = tl.load(at + start, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + start + k, mask=inside, other=0.0).to(tl.float32)
        if normed:
            factor = tl.load(norm_ptr + start + k, mask=inside, other=0.0).to(tl.float32)
            x = (x * scale * (1.0 + factor)).to(dtype).to(tl.float32)
        total += weight * x[None, :]
        if mode == 2:
            below = at + rows * width
            weight = tl.load(below + start, mask=mask, other=0.0).to(tl.float32)
            total_up += weight * x[None, :]
    out = tl.sum(total, 1)
    if mode == 1:
        more = tl.load(more_ptr + row, mask=known, other=0.0).to(tl.float32)
        out = more + out.to(dtype).to(tl.float32)
    if mode == 2:
        out = _gated(out, tl.sum(total_up, 1), dtype)
    tl.store(out_ptr + row, out.to(dtype), mask=known)


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
):
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
    if tokens == 1:
        block = min(triton.next_power_of_2(width), 1024 if gated else 2048)
        block_rows = 4
        _one_token[(triton.cdiv(rows, block_rows),)](
            *parts,
            **sizes,
            block_rows=block_rows,
            block=block,
            num_warps=4,
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
        )
    return out_TE
