"""Runs the kernels of the exact arithmetic in Triton's interpreter; a process of its own.

``TRITON_INTERPRET`` must be set before triton is imported. The functions of libdevice exist on a
GPU only; others stand in for them here, so values agree to rounding, and no further.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import torch
import triton
import triton.language as tl

from flashrt_ros.errors import UnsupportedError
from flashrt_ros.policies.exact import pointwise, pointwise_kernel


@triton.jit
def exp(x):  # type: ignore[no-untyped-def]
    return tl.exp(x)


@triton.jit
def log1p(x):  # type: ignore[no-untyped-def]
    return tl.log(1.0 + x)


@triton.jit
def tanh(x):  # type: ignore[no-untyped-def]
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def rsqrt(x):  # type: ignore[no-untyped-def]
    return tl.rsqrt(x)


def maps() -> Iterator[None]:
    """Cases of ``affine``, with planes of less and of more than one block."""
    for shape, adds, active in itertools.product(
        ((1, 5, 7, 9), (2, 3, 50, 60)), (False, True), (False, True)
    ):
        scale, shift = torch.randn(2, shape[1])
        given = (torch.randn(shape), scale, shift, torch.randn(shape) if adds else None)
        found = pointwise_kernel.affine(*given, active=active)
        torch.testing.assert_close(
            found, pointwise._affine(*given, active=active), rtol=0, atol=1e-6
        )
        yield


def pools() -> Iterator[None]:
    """Cases of ``affine_pool``: odd and even sides, one block and more, numbers that are none."""
    for shape in ((1, 5, 7, 9), (2, 3, 8, 6), (1, 2, 50, 45)):
        scale, shift = torch.randn(2, shape[1])
        x = torch.randn(shape)
        x.view(-1)[:90:18] = x.new_tensor((torch.nan, torch.inf, -torch.inf, -0.0, 1e-40))
        found = pointwise_kernel.affine_pool(x, scale, shift)
        expected = pointwise._affine_pool(x, scale, shift)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6, equal_nan=True)
        yield


def rows() -> Iterator[None]:
    """Cases of ``norm_mish``: groups of 1024, 512 and 64 elements, for 16 warps or one."""
    shapes = ((1, 64, 16, 1), (1, 16, 64, 2), (2, 16, 8, 2))
    for (batch, channels, length, groups), factors in itertools.product(shapes, (0, 1, 2)):
        x, residual = torch.randn(2, batch, channels, length)
        bias, weight, shift = torch.randn(3, channels)
        if factors == 1:  # channels inside
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        film = torch.randn(batch, channels * factors) if factors else None
        adds = factors == 0
        given = (x, None if adds else bias, weight, shift, film, residual if adds else None)
        options = {"groups": groups, "epsilon": 1e-5}
        found = pointwise_kernel.norm_mish(*given, **options)
        torch.testing.assert_close(
            found, pointwise._norm_mish(*given, **options), rtol=1e-5, atol=1e-5
        )
        yield


def refused() -> Iterator[None]:
    """Groups of one row, or of a number of elements that no threads share evenly."""
    for channels, length in ((64, 1), (40, 1), (13, 100)):
        x, weight, shift = torch.randn(1, channels, length), *torch.randn(2, channels)
        with contextlib.suppress(UnsupportedError):
            pointwise_kernel.norm_mish(x, None, weight, shift, None, None, groups=1, epsilon=1e-5)
            raise AssertionError(f"{channels} channels of {length} rows were not refused")
        yield


if __name__ == "__main__":
    pointwise_kernel.libdevice = SimpleNamespace(exp=exp, log1p=log1p, tanh=tanh, rsqrt=rsqrt)
    torch.manual_seed(0)
    for kind in (maps, pools, rows, refused):
        print(f"{kind.__name__}: {len(list(kind()))} cases")
