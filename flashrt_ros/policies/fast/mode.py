"""Which arithmetic a policy is loaded for."""

from __future__ import annotations

import enum

import torch

from flashrt_ros.errors import InvalidArgumentError, UnsupportedError
from flashrt_ros.runtime.noise import triton_found


class Numerics(enum.Enum):
    """How a policy calculates."""

    EXACT = "exact"
    """In float32, operation by operation as it was trained."""
    FAST = "fast"
    """In float16 with sums in float32, norms folded into convolutions, operations fused."""


DTYPE = torch.float16
"""Ten bits of mantissa, as TF32 has them; bfloat16 has seven."""


def words(dtype: torch.dtype) -> str:
    """What the exec id says of the fast mode: another version of it rounds otherwise."""
    kernels = "triton" if triton_found() else "torch"
    return f"fast 1, {str(dtype).removeprefix('torch.')}, {kernels}"


def read_numerics(word: str | Numerics) -> Numerics:
    """Returns the mode of that name.

    Raises:
        InvalidArgumentError: There is none.
    """
    try:
        return Numerics(word)
    except ValueError:
        raise InvalidArgumentError(
            f"numerics: expected one of {[mode.value for mode in Numerics]}, found {word!r}"
        ) from None


def check_device(device: torch.device) -> None:
    """Refuses devices on which the fast mode would be slower than the exact one.

    Raises:
        UnsupportedError: It is no GPU.
    """
    if device.type != "cuda":
        raise UnsupportedError(
            f"numerics: 'fast' is for GPUs, whose units for float16 it uses; found device "
            f"{device.type!r}, where it would be slower: use 'exact', or a CUDA device"
        )
