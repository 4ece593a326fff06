"""Philox4x32-10, the bijection behind ``noise``, in numpy and in torch.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11, section 4.2. Words 0 and 2 of a
counter are multiplied, words 1 and 3 only exchanged, so both versions keep them as two rows each,
which halves the calls; a small draw is nothing but the cost of calls.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch

_WORD = 0xFFFFFFFF
_ROUNDS = 10
_UNIT = 2.0**-24
_MULTIPLIERS_21 = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
# Round keys grow by these, modulo 2**32.
_WEYL_R21 = (
    np.arange(_ROUNDS, dtype=np.uint64)[:, None, None]
    * np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
).astype(np.uint32)

Array = np.ndarray[Any, np.dtype[Any]]


def words_numpy(counter_4N: Array, key_2: Array) -> Array:
    """Returns ``(N, 4)`` uint32 words of ``(4, N)`` uint32 counters and a ``(2,)`` uint32 key."""
    even_2N, odd_2N = counter_4N[0::2], counter_4N[1::2]
    blocks = counter_4N.shape[1]
    keys_R21 = _WEYL_R21 + key_2[:, None]
    for round_ in range(_ROUNDS):
        # A product's low and high word lie side by side in memory; all targets are little-endian.
        product_2N2 = (even_2N * _MULTIPLIERS_21).view(np.uint32).reshape(2, blocks, 2)[::-1]
        even_2N = product_2N2[:, :, 1] ^ odd_2N ^ keys_R21[round_]
        odd_2N = product_2N2[:, :, 0]
    words_N4 = np.empty((blocks, 4), dtype=np.uint32)
    words_N4[:, 0::2] = even_2N.T
    words_N4[:, 1::2] = odd_2N.T
    return words_N4


def draw_numpy(position: int, key: int, numel: int, kind: str) -> Array:
    """Draws on the host.

    Args:
        position: First block, unsigned 64 bits, wrapping.
        key: Unsigned 64 bits.
        numel: Elements wanted.
        kind: ``words``, ``uniform`` or ``normal``.

    Returns:
        ``(numel,)`` int32 for words, else float32.
    """
    blocks = -(-numel // 4)
    counter_N = np.arange(blocks, dtype=np.uint64) + np.uint64(position)
    counter_4N = np.zeros((4, blocks), dtype=np.uint32)
    counter_4N[0] = counter_N  # numpy keeps the low word
    counter_4N[1] = counter_N >> np.uint64(32)
    words_N4 = words_numpy(counter_4N, np.array([key & _WORD, key >> 32], dtype=np.uint32))
    if kind == "words":
        return words_N4.view(np.int32).reshape(-1)[:numel]
    bits_N4: Array = words_N4 >> np.uint32(8)
    if kind == "uniform":
        uniform_N4: Array = bits_N4.astype(np.float32) * np.float32(_UNIT)
        return uniform_N4.reshape(-1)[:numel]
    # The logarithm's argument lies in (0, 1], so that it is finite.
    level_N2 = (bits_N4[:, 0::2] + np.uint32(1)).astype(np.float32) * np.float32(_UNIT)
    radius_N2 = np.sqrt(np.log(level_N2) * np.float32(-2.0))
    angle_N2 = bits_N4[:, 1::2].astype(np.float32) * np.float32(_UNIT * 2.0 * math.pi)
    normals_N4 = np.empty((blocks, 4), dtype=np.float32)
    np.multiply(radius_N2, np.cos(angle_N2), out=normals_N4[:, 0::2])
    np.multiply(radius_N2, np.sin(angle_N2), out=normals_N4[:, 1::2])
    return normals_N4.reshape(-1)[:numel]


def draw_torch(
    position_1: torch.Tensor, key_1: torch.Tensor, numel: int, kind: str
) -> torch.Tensor:
    """Draws on the tensors' device, from eager operations that a capture accepts.

    Args:
        position_1: ``(1,)`` int64, first block, read.
        key_1: ``(1,)`` int64, read.
        numel: Elements wanted.
        kind: As in ``draw_numpy``, which gives the same integers.

    Returns:
        ``(numel,)`` int32 for words, else float32.
    """
    blocks = -(-numel // 4)
    counter_N = position_1 + torch.arange(blocks, device=position_1.device)
    low_high_2N = torch.stack((counter_N & _WORD, (counter_N >> 32) & _WORD))
    zeros_N = torch.zeros_like(counter_N)
    even_2N = torch.stack((low_high_2N[0], zeros_N))
    odd_2N = torch.stack((low_high_2N[1], zeros_N))
    multipliers_21, weyl_R21 = _constants(key_1.device)
    key_21 = torch.stack((key_1 & _WORD, (key_1 >> 32) & _WORD))
    keys_R21 = (key_21 + weyl_R21) & _WORD
    for round_ in range(_ROUNDS):
        # int64 wraps, which leaves the 64 bits of the product right; the mask undoes the sign.
        product_2N = (even_2N * multipliers_21).flip(0)
        even_2N = ((product_2N >> 32) & _WORD) ^ odd_2N ^ keys_R21[round_]
        odd_2N = product_2N & _WORD
    words_N22 = torch.stack((even_2N, odd_2N)).permute(2, 1, 0)
    if kind == "words":
        return words_N22.reshape(-1)[:numel].to(torch.int32)
    bits_N22 = words_N22 >> 8
    if kind == "uniform":
        return (bits_N22.to(torch.float32) * _UNIT).reshape(-1)[:numel]
    radius_N2 = ((bits_N22[..., 0] + 1).to(torch.float32) * _UNIT).log().mul(-2.0).sqrt()
    angle_N2 = bits_N22[..., 1].to(torch.float32) * (_UNIT * 2.0 * math.pi)
    normals_N22 = torch.stack((radius_N2 * angle_N2.cos(), radius_N2 * angle_N2.sin()), dim=2)
    return normals_N22.reshape(-1)[:numel]


@functools.lru_cache(maxsize=16)
def _constants(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    # Made in warm-up, before any capture, which forbids a copy from the host.
    with torch.inference_mode(False):
        return (
            torch.from_numpy(_MULTIPLIERS_21.astype(np.int64)).to(device),
            torch.from_numpy(_WEYL_R21.astype(np.int64)).to(device),
        )
