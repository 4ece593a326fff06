"""Noise that is a function of ``(key, counter)`` in the arena, and of nothing else.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11,
section 4.2). Block ``n`` of a key is four 32-bit words; the words' counter is ``n`` in its low 64
bits and zero above. A draw of ``numel`` words takes ``blocks_for(numel)`` blocks from
``noise.counter`` on. No generator of torch is read or moved.

Words and uniforms are bit-equal on all devices; normals agree to the accuracy of log, sqrt, sin
and cos. Eager torch on CPU; on CUDA one Triton kernel, since eager Philox is about 100 kernels.
"""

from __future__ import annotations

import functools
import importlib.util
import math

import torch

from flashrt_ros.errors import InvalidArgumentError, SpecError
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers

KEY = "noise.key"
COUNTER = "noise.counter"
NOISE_SPECS = (
    BufferSpec(KEY, (1,), torch.int64, Role.STATE),
    BufferSpec(COUNTER, (1,), torch.int64, Role.STATE),
)
"""Part of every state: the key's 64 bits, and the first block not drawn yet."""

_WORD = 0xFFFFFFFF
_WORDS64 = 0xFFFFFFFFFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_UNIT = 2.0**-24


def blocks_for(numel: int) -> int:
    """Returns the blocks that a draw of ``numel`` words, uniforms or normals takes."""
    return -(-numel // 4)


def check_seed(seed: int) -> int:
    """Returns ``seed``.

    Raises:
        InvalidArgumentError: It is not an integer of 64 unsigned bits.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _WORDS64:
        raise InvalidArgumentError(f"seed: expected an integer in 0 .. 2**64 - 1, found {seed!r}")
    return seed


def as_signed(key: int) -> int:
    """Returns the 64 bits of ``key`` as the signed integer that ``noise.key`` holds."""
    return key - (1 << 64) if key >= 1 << 63 else key


def derive_key(key: int, index: int) -> int:
    """Returns key number ``index`` of the stream that starts at ``key``: splitmix64.

    Distinct indices of one key give distinct keys (Steele et al., "Fast splittable pseudorandom
    number generators", OOPSLA 2014, section 3).

    Args:
        key: Unsigned 64-bit key.
        index: From 0.
    """
    mixed = (key + (index + 1) * 0x9E3779B97F4A7C15) & _WORDS64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WORDS64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORDS64
    return mixed ^ (mixed >> 31)


def words_(out: torch.Tensor, state: Buffers, *, offset: int = 0, advance: bool = True) -> None:
    """Fills ``out`` with uniformly distributed 32-bit words.

    Args:
        out: Any shape, int32, contiguous, written.
        state: ``noise.key`` is read, ``noise.counter`` read and, with ``advance``, raised.
        offset: Blocks to pass over first, for a second draw of a plan that must not advance.
        advance: False in a plan that leaves the state untouched; its ``adopt`` then calls
            ``advance_`` with all blocks that were drawn.

    Raises:
        SpecError: ``out`` has another dtype or is not contiguous.
    """
    _draw_(out, state, torch.int32, "words", offset, advance)


def uniform_(out: torch.Tensor, state: Buffers, *, offset: int = 0, advance: bool = True) -> None:
    """Fills ``out``, float32, with multiples of 2**-24 in [0, 1); see ``words_``."""
    _draw_(out, state, torch.float32, "uniform", offset, advance)


def normal_(out: torch.Tensor, state: Buffers, *, offset: int = 0, advance: bool = True) -> None:
    """Fills ``out``, float32, with standard normals, all within 5.8; see ``words_``.

    Box and Muller: each pair of words gives a pair of normals.
    """
    _draw_(out, state, torch.float32, "normal", offset, advance)


def advance_(state: Buffers, blocks: int) -> None:
    """Raises ``noise.counter`` by ``blocks``, in place."""
    state[COUNTER].add_(blocks)


def _draw_(
    out: torch.Tensor,
    state: Buffers,
    dtype: torch.dtype,
    kind: str,
    offset: int,
    advance: bool,
) -> None:
    if out.dtype != dtype or not out.is_contiguous():
        raise SpecError(
            f"noise {kind}: expected a contiguous tensor of {dtype}, found {out.dtype}"
            f" with strides {out.stride()}"
        )
    if out.is_cuda and _triton_found():
        from flashrt_ros.runtime import noise_kernel

        noise_kernel.draw_(out, state[KEY], state[COUNTER], offset, kind)
    else:
        counter_N = state[COUNTER] + torch.arange(
            offset, offset + blocks_for(out.numel()), device=out.device
        )
        words_4N = philox(_halves(counter_N), _halves(state[KEY]))
        out.copy_(_shaped(words_4N, out.numel(), kind).view(out.shape))
    if advance:
        advance_(state, offset + blocks_for(out.numel()))


def philox(counter_4N: torch.Tensor, key_2N: torch.Tensor) -> torch.Tensor:
    """The bijection itself.

    Args:
        counter_4N: ``(4, N)`` or, with the upper two words zero, ``(2, N)`` int64 in 0 .. 2**32-1.
        key_2N: ``(2, N)`` or ``(2, 1)`` int64 in the same range.

    Returns:
        ``(4, N)`` int64 in the same range.
    """
    multipliers_21, weyl_R21 = _constants(key_2N.device)
    # Words 0 and 2 are multiplied, 1 and 3 only exchanged: two rows each halve the operations.
    if counter_4N.shape[0] == 2:
        even_2N = torch.stack((counter_4N[0], torch.zeros_like(counter_4N[0])))
        odd_2N = torch.stack((counter_4N[1], torch.zeros_like(counter_4N[1])))
    else:
        even_2N, odd_2N = counter_4N[0::2], counter_4N[1::2]
    keys_R2N = (key_2N + weyl_R21) & _WORD
    for round_ in range(_ROUNDS):
        # int64 wraps, which leaves the 64 bits of the product right; the mask undoes the sign.
        product_2N = (even_2N * multipliers_21).flip(0)
        even_2N = ((product_2N >> 32) & _WORD) ^ odd_2N ^ keys_R2N[round_]
        odd_2N = product_2N & _WORD
    return torch.stack((even_2N[0], odd_2N[0], even_2N[1], odd_2N[1]))


@functools.lru_cache(maxsize=16)
def _constants(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    # Made before any capture, in warm-up: a copy from the host may not be captured.
    weyl = [[[(round_ * weyl) & _WORD] for weyl in _WEYL] for round_ in range(_ROUNDS)]
    with torch.inference_mode(False):
        return (
            torch.tensor([[value] for value in _MULTIPLIERS], device=device),
            torch.tensor(weyl, device=device),
        )


def _halves(values_N: torch.Tensor) -> torch.Tensor:
    return torch.stack((values_N & _WORD, (values_N >> 32) & _WORD))


def _shaped(words_4N: torch.Tensor, numel: int, kind: str) -> torch.Tensor:
    if kind == "words":
        return words_4N.t().reshape(-1)[:numel].to(torch.int32)
    bits_4N = words_4N >> 8
    if kind == "uniform":
        return (bits_4N.to(torch.float32) * _UNIT).t().reshape(-1)[:numel]
    # The logarithm's argument lies in (0, 1], so that it is finite.
    radius_2N = ((bits_4N[0::2] + 1).to(torch.float32) * _UNIT).log().mul(-2.0).sqrt()
    angle_2N = bits_4N[1::2].to(torch.float32) * (_UNIT * 2.0 * math.pi)
    normals_22N = torch.stack((radius_2N * angle_2N.cos(), radius_2N * angle_2N.sin()), dim=1)
    return normals_22N.view(4, -1).t().reshape(-1)[:numel]


@functools.lru_cache(maxsize=1)
def _triton_found() -> bool:
    return importlib.util.find_spec("triton") is not None
