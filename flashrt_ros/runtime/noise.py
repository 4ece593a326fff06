"""Noise that is a function of ``(key, counter)`` in the arena, and of nothing else.

The generator is Philox4x32-10, see ``philox``. Block ``n`` of a key is four 32-bit words; its
counter is ``n`` in the low 64 bits and zero above. A draw of ``numel`` elements takes
``blocks_for(numel)`` blocks from ``noise.counter`` on. No generator of torch or numpy is read.

Words and uniforms are bit-equal on all devices; normals agree to the accuracy of log, sqrt, sin
and cos. On CPU numpy draws, on CUDA one Triton kernel, which imports on CUDA only.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence

import torch

from flashrt_ros.errors import SpecError
from flashrt_ros.runtime import philox
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.number import check_int
from flashrt_ros.runtime.policy import Buffers

KEY = "noise.key"
COUNTER = "noise.counter"
NOISE_SPECS = (
    BufferSpec(KEY, (1,), torch.int64, Role.STATE),
    BufferSpec(COUNTER, (1,), torch.int64, Role.STATE),
)
"""Part of every state: the key's 64 bits, and the first block not drawn yet."""

_WORDS64 = 0xFFFFFFFFFFFFFFFF


def blocks_for(numel: int) -> int:
    """Returns the blocks that a draw of ``numel`` words, uniforms or normals takes."""
    return -(-numel // 4)


def check_seed(seed: int) -> int:
    """Returns ``seed``.

    Raises:
        InvalidArgumentError: It is not an integer of 64 unsigned bits.
    """
    return check_int("seed", seed, 0, _WORDS64)


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
    if not out.numel():
        return
    draw = _traced.get()
    if draw is not None:
        out.copy_(draw(state[KEY], state[COUNTER], offset, list(out.shape), kind))
    else:
        _fill_(out, state[KEY], state[COUNTER], kind, offset)
    if advance:
        advance_(state, offset + blocks_for(out.numel()))


def _fill_(
    out: torch.Tensor, key: torch.Tensor, counter: torch.Tensor, kind: str, offset: int
) -> None:
    numel = out.numel()
    if out.is_cuda and triton_found():
        from flashrt_ros.runtime import noise_kernel

        noise_kernel.draw_(out, key, counter, offset, kind)
    elif out.is_cuda:
        drawn_N = philox.draw_torch(counter + offset, key, numel, kind)
        out.copy_(drawn_N.view(out.shape))
    else:
        position = (int(counter.numpy()[0]) + offset) & _WORDS64
        made = philox.draw_numpy(position, int(key.numpy()[0]) & _WORDS64, numel, kind)
        out.copy_(torch.from_numpy(made).view(out.shape))


def drawn(
    key: torch.Tensor, counter: torch.Tensor, offset: int, shape: Sequence[int], kind: str
) -> torch.Tensor:
    """Returns noise as a new tensor, for programs; the counter does not move.

    Args:
        key: ``noise.key``.
        counter: ``noise.counter``.
        offset: Blocks to pass over first.
        shape: Of the result.
        kind: ``words``, ``uniform`` or ``normal``.
    """
    dtype = torch.int32 if kind == "words" else torch.float32
    out = torch.empty(tuple(shape), dtype=dtype, device=key.device)
    _fill_(out, key, counter, kind, offset)
    return out


Draw = Callable[[torch.Tensor, torch.Tensor, int, Sequence[int], str], torch.Tensor]
_traced: contextvars.ContextVar[Draw | None] = contextvars.ContextVar("traced", default=None)


@contextlib.contextmanager
def traced(draw: Draw) -> Iterator[None]:
    """Within, draws are calls of ``draw``, which a trace of the policy records as one operator."""
    token = _traced.set(draw)
    try:
        yield
    finally:
        _traced.reset(token)


@functools.lru_cache(maxsize=1)
def triton_found() -> bool:
    """True if Triton draws the noise on CUDA; without it about 100 eager kernels do."""
    return importlib.util.find_spec("triton") is not None
