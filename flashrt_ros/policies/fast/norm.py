"""What stands between two convolutions of the denoiser, as one call: norm, Mish, conditioning.

A row is one time step and holds all channels, so that a convolution over time is a product of
*windows*, rows with their neighbours side by side, with a matrix. On CUDA one Triton kernel does
everything and writes the windows of the next convolution; elsewhere torch's operators do.

Tensor suffixes: L rows, C channels, W channels of a window (taps times C).
"""

from __future__ import annotations

import torch
from torch.nn import functional

from flashrt_ros.runtime.noise import triton_found

LARGEST_GROUP = 1 << 14
"""Elements of a group of channels that one program of the kernel holds in registers."""


def windows(x_LC: torch.Tensor, taps: int, dtype: torch.dtype, stride: int = 1) -> torch.Tensor:
    """Rows with their neighbours, zeros beyond the ends: ``(L / stride, taps * C)``."""
    rows, channels = x_LC.shape
    padded = functional.pad(x_LC, (0, 0, taps // 2, taps // 2))
    count = (rows + 2 * (taps // 2) - taps) // stride + 1
    seen = padded.as_strided((count, taps * channels), (stride * channels, 1))
    return seen.to(dtype, memory_format=torch.contiguous_format, copy=True)


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
    """Group norm over rows and a group's channels, Mish, conditioning, residual.

    Args:
        x_LC: What a convolution left.
        weight_C: Scale of the norm, float32.
        bias_C: Shift of the norm, float32.
        groups: Of channels.
        epsilon: Of the norm.
        film: Scale (None: 1) and shift ``(C,)`` float32 behind Mish; None: none.
        residual_LC: Added at last; None: nothing.
        taps: Of the next convolution; 0: there is none.

    Returns:
        The rows, and their windows ``(L, W)`` (the rows again if ``taps`` is 0), both in the
        dtype of ``x_LC``.
    """
    rows, channels = x_LC.shape
    small = rows * (channels // groups) <= LARGEST_GROUP
    if x_LC.is_cuda and small and triton_found():
        from flashrt_ros.policies.fast import norm_kernel

        return norm_kernel.norm_mish(
            x_LC, weight_C, bias_C, groups, epsilon, film, residual_LC, taps
        )
    grouped = x_LC.float().view(rows, groups, -1)
    var, mean = torch.var_mean(grouped, dim=(0, 2), correction=0, keepdim=True)
    y_LC = ((grouped - mean) * torch.rsqrt(var + epsilon)).view(rows, channels)
    y_LC = functional.mish(y_LC * weight_C + bias_C)
    if film is not None:
        scale_C, shift_C = film
        y_LC = y_LC + shift_C if scale_C is None else y_LC * scale_C + shift_C
    if residual_LC is not None:
        y_LC = y_LC + residual_LC
    y_LC = y_LC.to(x_LC.dtype)
    return y_LC, windows(y_LC, taps, x_LC.dtype) if taps else y_LC
