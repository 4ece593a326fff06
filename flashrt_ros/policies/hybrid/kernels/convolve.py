"""``ops.convolve`` as a Triton kernel, which also takes the window in two parts.

Tensor suffixes: those of ``ops``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashrt_ros.policies.hybrid.kernels.layout import last_dense

_MANY = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _convolve_kernel(  # type: ignore[no-untyped-def]
    before_ptr,
    x_ptr,
    weight_ptr,
    out_ptr,
    tokens,
    channels,
    before_row,
    x_row,
    weight_channel,
    weight_tap,
    taps: tl.constexpr,
    block_t: tl.constexpr,
    block_c: tl.constexpr,
):
    t = tl.program_id(1) * block_t + tl.arange(0, block_t)[:, None]
    c = tl.program_id(0) * block_c + tl.arange(0, block_c)[None, :]
    inside = (t < tokens) & (c < channels)
    mixed = tl.zeros((block_t, block_c), tl.float32)
    for tap in tl.static_range(taps):
        weight = tl.load(weight_ptr + c * weight_channel + tap * weight_tap, mask=c < channels)
        row = t + tap - (taps - 1)
        x = tl.load(x_ptr + row * x_row + c, mask=inside & (row >= 0), other=0.0).to(tl.float32)
        # Only the first tokens of a pass look at what was before it.
        if tl.program_id(1) * block_t < taps - 1:
            at = before_ptr + (row + taps - 1) * before_row + c
            x += tl.load(at, mask=inside & (row < 0), other=0.0).to(tl.float32)
        mixed += x * weight.to(tl.float32)
    # Rounded before SiLU, as torch rounds.
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    mixed = mixed.to(dtype).to(tl.float32)
    mixed = mixed / (1.0 + tl.exp(-mixed))
    tl.store(out_ptr + t * channels + c, mixed.to(dtype), mask=inside)


def convolve_behind(
    before_WC: torch.Tensor,
    x_TC: torch.Tensor,
    weight_CW: torch.Tensor,
    blocks: tuple[int, int, int] | None = None,
) -> torch.Tensor:
    """As ``ops.convolve`` of both, one behind the other, which need not be copied together.

    Args:
        before_WC: ``(W - 1, C)``, the inputs before the pass.
        x_TC: Those of the pass.
        weight_CW: See there.
        blocks: Tokens and channels of a program, and its warps; None: by the number of tokens.

    Returns:
        ``(T, C)``, contiguous.
    """
    before_WC, x_TC = last_dense(before_WC), last_dense(x_TC)
    tokens, channels = x_TC.shape
    out_TC = x_TC.new_empty((tokens, channels))
    # Weights are loaded anew by each program, so it takes many tokens where there are many.
    block_t, block_c, warps = blocks or (32 if tokens >= _MANY else 16, 128, 4)
    block_t = min(block_t, triton.next_power_of_2(tokens))
    grid = (triton.cdiv(channels, block_c), triton.cdiv(tokens, block_t))
    _convolve_kernel[grid](
        before_WC, x_TC, weight_CW, out_TC, tokens, channels, before_WC.stride(0), x_TC.stride(0),
        *weight_CW.stride(), taps=weight_CW.shape[1], block_t=block_t, block_c=block_c,
        num_warps=warps,
    )  # fmt: skip
    return out_TC
