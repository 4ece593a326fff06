"""The chains of ``pointwise`` as Triton kernels, a kernel each; imported on CUDA only.

Nothing is contracted but where torch's own kernels are: there ``fma`` is written out. Subnormal
numbers are kept, as torch's build keeps them and Triton's usual options do not.

Tensor suffixes: as in ``pointwise``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from flashrt_ros.errors import UnsupportedError

_AS_WRITTEN = {"enable_fp_fusion": False, "enable_reflect_ftz": False}
_BLOCK = 2048
_POOL_BLOCK = 256
_MOST_ROUNDS = 16


# Not specialised on sizes: one compilation for each way in which it is called.
@triton.jit(do_not_specialize=["plane", "channels"])  # type: ignore[untyped-decorator]
def _affine_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    scale_ptr,
    shift_ptr,
    residual_ptr,
    out_ptr,
    plane,
    channels,
    adds: tl.constexpr,
    active: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    inner = tl.program_id(1) * block + tl.arange(0, block)
    known = inner < plane
    at = row.to(tl.int64) * plane + inner
    channel = row % channels
    y = tl.load(x_ptr + at, mask=known) * tl.load(scale_ptr + channel)
    y = y + tl.load(shift_ptr + channel)
    if adds:
        y = y + tl.load(residual_ptr + at, mask=known)
    if active:
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out_ptr + at, y, mask=known)


def affine(
    x_BCRS: torch.Tensor,
    scale_C: torch.Tensor,
    shift_C: torch.Tensor,
    residual_BCRS: torch.Tensor | None,
    *,
    active: bool,
) -> torch.Tensor:
    """See ``pointwise.affine``.

    Raises:
        UnsupportedError: Maps do not lie one after another, or are not of float32.
    """
    _check(x_BCRS, scale_C, shift_C, residual_BCRS)
    batch, channels, rows, columns = x_BCRS.shape
    plane = rows * columns
    out_BCRS = torch.empty_like(x_BCRS)
    block = min(triton.next_power_of_2(plane), _BLOCK)
    _affine_kernel[(batch * channels, triton.cdiv(plane, block))](
        x_BCRS,
        scale_C,
        shift_C,
        x_BCRS if residual_BCRS is None else residual_BCRS,
        out_BCRS,
        plane,
        channels,
        adds=residual_BCRS is not None,
        active=active,
        block=block,
        num_warps=4,
        **_AS_WRITTEN,
    )
    return out_BCRS


# Specialised on sizes: there is one such call for each camera, and wide stores need them.
@triton.jit  # type: ignore[untyped-decorator]
def _affine_pool_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    scale_ptr,
    shift_ptr,
    out_ptr,
    rows,
    columns,
    channels,
    out_rows,
    out_columns,
    block: tl.constexpr,
):
    plane = tl.program_id(0)
    x_ptr += plane.to(tl.int64) * rows * columns
    out_ptr += plane.to(tl.int64) * out_rows * out_columns
    scale = tl.load(scale_ptr + plane % channels)
    shift = tl.load(shift_ptr + plane % channels)
    at = tl.program_id(1) * block + tl.arange(0, block)
    known = at < out_rows * out_columns
    top = 2 * (at // out_columns) - 1
    left = 2 * (at % out_columns) - 1
    largest = tl.full((block,), float("-inf"), tl.float32)
    for down in tl.static_range(3):
        for right in tl.static_range(3):
            row, column = top + down, left + right
            inside = known & (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
            y = tl.load(x_ptr + row * columns + column, mask=inside, other=0.0) * scale
            y = tl.maximum(y + shift, 0.0, propagate_nan=tl.PropagateNan.ALL)
            larger = tl.maximum(largest, y, propagate_nan=tl.PropagateNan.ALL)
            largest = tl.where(inside, larger, largest)
    tl.store(out_ptr + at, largest, mask=known)


def affine_pool(
    x_BCRS: torch.Tensor, scale_C: torch.Tensor, shift_C: torch.Tensor
) -> torch.Tensor:
    """See ``pointwise.affine_pool``.

    Raises:
        UnsupportedError: As ``affine``.
    """
    _check(x_BCRS, scale_C, shift_C)
    batch, channels, rows, columns = x_BCRS.shape
    out_rows, out_columns = (rows + 1) // 2, (columns + 1) // 2
    out_BCRS = x_BCRS.new_empty(batch, channels, out_rows, out_columns)
    _affine_pool_kernel[(batch * channels, triton.cdiv(out_rows * out_columns, _POOL_BLOCK))](
        x_BCRS,
        scale_C,
        shift_C,
        out_BCRS,
        rows,
        columns,
        channels,
        out_rows,
        out_columns,
        block=_POOL_BLOCK,
        num_warps=4,
        **_AS_WRITTEN,
    )
    return out_BCRS


@triton.jit  # type: ignore[untyped-decorator]
def _place(channel, row, channels: tl.constexpr, length: tl.constexpr, inside: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where an element lies: channels inside, or rows."""
    return row * channels + channel if inside else channel * length + row


@triton.jit
def _join(  # type: ignore[no-untyped-def]
    mean_1, m2_1, count_1, lane_1, mean_2, m2_2, count_2, lane_2
):
    """Moments of two sets of elements; which set comes first decides how they are rounded."""
    swapped = lane_2 < lane_1
    mean = tl.where(swapped, mean_2, mean_1)
    delta = tl.where(swapped, mean_1, mean_2) - mean
    count = tl.where(swapped, count_2, count_1)
    both = count_1 + count_2
    share = tl.div_rn(both - count, both)
    m2 = tl.fma(delta * delta * count, share, m2_1 + m2_2)
    return tl.fma(delta, share, mean), m2, both, tl.minimum(lane_1, lane_2)


@triton.jit  # type: ignore[untyped-decorator]
def _moments(  # type: ignore[no-untyped-def]
    x_ptr,
    bias_ptr,
    channels: tl.constexpr,
    length: tl.constexpr,
    inside: tl.constexpr,
    rounds: tl.constexpr,
    threads: tl.constexpr,
    biased: tl.constexpr,
):
    """Mean and variance of a group: Welford's, in the order of torch's kernel.

    There and here a thread takes every so manieth element, and threads are joined in halves: those
    of a warp, then the warps.
    """
    lane = tl.arange(0, threads)
    mean = tl.zeros((threads,), tl.float32)
    m2 = tl.zeros((threads,), tl.float32)
    for turn in tl.static_range(rounds):
        at = turn * threads + lane
        x = tl.load(x_ptr + _place(at // length, at % length, channels, length, inside))
        if biased:
            x = x + tl.load(bias_ptr + at // length)
        delta = x - mean
        mean = mean + tl.div_rn(delta, tl.full((threads,), turn + 1, tl.float32))
        m2 = tl.fma(delta, x - mean, m2)
    count = tl.full((threads,), rounds, tl.float32)
    mean, m2, count, _ = tl.reduce((mean, m2, count, lane), 0, _join)
    return mean, tl.div_rn(m2, count)


@triton.jit  # type: ignore[untyped-decorator]
def _norm_mish_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    bias_ptr,
    weight_ptr,
    shift_ptr,
    film_ptr,
    residual_ptr,
    out_ptr,
    epsilon,
    groups: tl.constexpr,
    channels: tl.constexpr,
    length: tl.constexpr,
    inside: tl.constexpr,
    residual_inside: tl.constexpr,
    rounds: tl.constexpr,
    threads: tl.constexpr,
    biased: tl.constexpr,
    films: tl.constexpr,
    adds: tl.constexpr,
):
    batch = tl.program_id(0) // groups
    first = (tl.program_id(0) % groups) * (channels // groups)
    film_ptr += batch * channels * films
    x_ptr += batch * channels * length
    residual_ptr += batch * channels * length
    out_ptr += batch * channels * length
    start = x_ptr + _place(first, 0, channels, length, inside)
    mean, var = _moments(
        start, bias_ptr + first, channels, length, inside, rounds, threads, biased
    )
    root = libdevice.rsqrt(var + epsilon)
    for turn in tl.static_range(rounds):
        at = turn * threads + tl.arange(0, threads)
        channel = first + at // length
        place = _place(channel, at % length, channels, length, inside)
        x = tl.load(x_ptr + place)
        if biased:
            x = x + tl.load(bias_ptr + channel)
        scale = root * tl.load(weight_ptr + channel)
        y = tl.fma(scale, x, tl.load(shift_ptr + channel) - scale * mean)
        y = y * libdevice.tanh(libdevice.log1p(libdevice.exp(y)))
        if films == 2:
            y = tl.load(film_ptr + channel) * y
            y = y + tl.load(film_ptr + channels + channel)
        if films == 1:
            y = y + tl.load(film_ptr + channel)
        if adds:
            other = _place(channel, at % length, channels, length, residual_inside)
            y = y + tl.load(residual_ptr + other)
        tl.store(out_ptr + place, y)


def norm_mish(
    x_BCH: torch.Tensor,
    bias_C: torch.Tensor | None,
    weight_C: torch.Tensor,
    shift_C: torch.Tensor,
    film_BF: torch.Tensor | None,
    residual_BCH: torch.Tensor | None,
    *,
    groups: int,
    epsilon: float,
) -> torch.Tensor:
    """See ``pointwise.norm_mish``.

    Raises:
        UnsupportedError: The threads of torch's kernel would not all see equally many elements, or
            there is one row only, of which torch has another kernel; or as ``affine``, but that
            either of channels and rows may be inside.
    """
    _check(bias_C, weight_C, shift_C, film_BF)
    batch, channels, length = x_BCH.shape
    group = channels // groups
    threads = 32 if group * length < 512 else 512
    rounds = group * length // threads
    if length == 1 or group * length % threads or not 1 <= rounds <= _MOST_ROUNDS:
        raise UnsupportedError(f"groups of {group} channels and {length} rows")
    out_BCH = torch.empty_like(x_BCH)
    _norm_mish_kernel[(batch * groups,)](
        x_BCH,
        x_BCH if bias_C is None else bias_C,
        weight_C,
        shift_C,
        x_BCH if film_BF is None else film_BF,
        x_BCH if residual_BCH is None else residual_BCH,
        out_BCH,
        epsilon,
        groups=groups,
        channels=channels,
        length=length,
        inside=_inside(x_BCH),
        residual_inside=residual_BCH is not None and _inside(residual_BCH),
        rounds=rounds,
        threads=threads,
        biased=bias_C is not None,
        films=0 if film_BF is None else film_BF.shape[1] // channels,
        adds=residual_BCH is not None,
        num_warps=threads // 32,  # as torch has
        **_AS_WRITTEN,
    )
    return out_BCH


def _inside(x_BCH: torch.Tensor) -> bool:
    """Whether channels are the inner ones rather than rows."""
    inside = not x_BCH.is_contiguous()
    _check(x_BCH.transpose(1, 2) if inside else x_BCH)
    return inside


def _check(*tensors: torch.Tensor | None) -> None:
    for tensor in tensors:
        if tensor is not None and not (tensor.is_contiguous() and tensor.dtype is torch.float32):
            raise UnsupportedError("expected contiguous tensors of float32")
