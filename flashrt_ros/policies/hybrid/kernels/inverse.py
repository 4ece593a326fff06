"""What tiles of a Triton kernel need and Triton lacks: a triangle's inverse, softplus."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softplus(x):  # type: ignore[no-untyped-def]
    """log(1 + e^x); where that is nearly e^x, one and a little would round the little away."""
    power = tl.exp(tl.minimum(x, 20.0))
    z = power / (power + 2.0)
    square = z * z
    few = 2.0 * z * (1.0 + square * (1 / 3 + square * (1 / 5 + square * (1 / 7 + square / 9))))
    return tl.where(x > 20.0, x, tl.where(power < 0.5, few, tl.log(1.0 + power)))


@triton.jit  # type: ignore[untyped-decorator]
def _merge(  # type: ignore[no-untyped-def]
    whole, system, size: tl.constexpr, width: tl.constexpr, precision: tl.constexpr
):
    """Merges inverses of blocks of ``width`` into those of blocks twice as wide."""
    i = tl.arange(0, size)[:, None] // width
    j = tl.arange(0, size)[None, :] // width
    below = tl.where((i % 2 == 1) & (j == i - 1), system, 0.0)
    below = tl.dot(whole, below, input_precision=precision)
    return whole - tl.dot(below, whole, input_precision=precision)


@triton.jit  # type: ignore[untyped-decorator]
def inverse(  # type: ignore[no-untyped-def]
    system, size: tl.constexpr, base: tl.constexpr, precision: tl.constexpr
):
    """Inverse of 1 + ``system``, which is zero but below the diagonal, ``(size, size)`` float32.

    Blocks of ``base`` on the diagonal by forward substitution, all at once; then neighbours are
    merged, two by two: [[P, 0], [B, Q]]^-1 = [[P', 0], [-Q' B P', Q']]. Every number on the way
    belongs to the inverse of a part. (Powers of the system grow like binomial coefficients where
    keys are equal, and nothing is left of their sum.)
    """
    count: tl.constexpr = size // base
    block = tl.arange(0, count)
    same = block[:, None, None, None] == block[None, None, :, None]
    parts = tl.reshape(system, (count, base, count, base))
    parts = tl.sum(tl.where(same, parts, 0.0), 2)
    i = tl.arange(0, base)[None, :, None]
    solved = tl.where(i == tl.arange(0, base)[None, None, :], 1.0, 0.0) + tl.zeros_like(parts)
    for row in range(1, base):
        weight = tl.sum(tl.where(i == row, parts, 0.0), 1)
        found = tl.sum(weight[:, :, None] * solved, 1)
        solved = tl.where(i == row, solved - found[:, None, :], solved)
    whole = tl.where(same, solved[:, :, None, :], 0.0)
    whole = tl.reshape(whole, (size, size))
    for level in tl.static_range(6):
        if base * 2**level < size:
            whole = _merge(whole, system, size, base * 2**level, precision)
    return whole
