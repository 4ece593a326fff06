"""``norm.norm_mish`` as one Triton kernel, a program for each group; imported on CUDA only."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


# Not specialised on sizes: one compilation for each way in which it is called.
@triton.jit(do_not_specialize=["rows", "channels", "group"])  # type: ignore[untyped-decorator]
def _norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    shift_ptr,
    residual_ptr,
    out_ptr,
    windows_ptr,
    rows,
    channels,
    group,
    epsilon,
    scales: tl.constexpr,
    shifts: tl.constexpr,
    adds: tl.constexpr,
    taps: tl.constexpr,
    block_rows: tl.constexpr,
    block_channels: tl.constexpr,
):
    row = tl.arange(0, block_rows)[:, None]
    inner = tl.arange(0, block_channels)[None, :]
    channel = tl.program_id(0) * group + inner
    known = inner < group
    inside = (row < rows) & known
    x = tl.load(x_ptr + row * channels + channel, mask=inside, other=0.0).to(tl.float32)
    count = (rows * group).to(tl.float32)
    mean = tl.sum(tl.sum(x, 1), 0) / count
    apart = tl.where(inside, x - mean, 0.0)
    var = tl.sum(tl.sum(apart * apart, 1), 0) / count
    weight = tl.load(weight_ptr + channel, mask=known, other=0.0)
    bias = tl.load(bias_ptr + channel, mask=known, other=0.0)
    y = apart * (1.0 / tl.sqrt(var + epsilon)) * weight + bias
    # Mish: y tanh(log(1 + e^y)), whose tanh is a quotient of polynomials of e^y.
    power = tl.exp(tl.minimum(y, 20.0))
    much = power * (power + 2.0)
    y = y * (much / (much + 2.0))
    if scales:
        y = y * tl.load(scale_ptr + channel, mask=known, other=0.0)
    if shifts:
        y = y + tl.load(shift_ptr + channel, mask=known, other=0.0)
    if adds:
        more = tl.load(residual_ptr + row * channels + channel, mask=inside, other=0.0)
        y = y + more.to(tl.float32)
    out = y.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * channels + channel, out, mask=inside)
    for tap in tl.static_range(taps):
        # A row is seen by the window ``to`` in its place ``tap``; where a window looks beyond the
        # ends there is zero.
        to = row + taps // 2 - tap
        at = windows_ptr + tap * channels + channel
        tl.store(at + to * channels * taps, out, mask=inside & (to >= 0) & (to < rows))
        source = row + tap - taps // 2
        beyond = (source < 0) | (source >= rows)
        tl.store(at + row * channels * taps, out * 0.0, mask=inside & beyond)


def norm_mish(
    x_LC: torch.Tensor,
    weight_C: torch.Tensor,
    bias_C: torch.Tensor,
    groups: int,
    epsilon: float,
    film: tuple[torch.Tensor | None, torch.Tensor] | None = None,
    residual_LC: torch.Tensor | None = None,
    taps: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``norm.norm_mish``."""
    x_LC = x_LC.contiguous()
    rows, channels = x_LC.shape
    group = channels // groups
    out_LC = torch.empty_like(x_LC)
    out_LW = out_LC.new_empty((rows, taps * channels)) if taps else out_LC
    scale_C, shift_C = (None, None) if film is None else film
    block_rows, block_channels = triton.next_power_of_2(rows), triton.next_power_of_2(group)
    _norm_kernel[(groups,)](
        x_LC,
        weight_C,
        bias_C,
        x_LC if scale_C is None else scale_C,
        x_LC if shift_C is None else shift_C,
        x_LC if residual_LC is None else residual_LC,
        out_LC,
        out_LW,
        rows,
        channels,
        group,
        epsilon,
        scales=scale_C is not None,
        shifts=shift_C is not None,
        adds=residual_LC is not None,
        taps=taps,
        block_rows=block_rows,
        block_channels=block_channels,
        num_warps=4 if block_rows * block_channels <= 4096 else 8,
    )
    return out_LC, out_LW
