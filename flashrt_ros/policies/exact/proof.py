"""Whether another way gives the same bits: tried on the device itself, once for each shape.

In which order sums are rounded is nowhere promised: torch, its compiler, the libraries under it
and GPUs change. So a way is never taken on trust.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from flashrt_ros.runtime.noise import triton_found

VERDICTS: dict[Hashable, bool] = {}
"""Way, device, shapes and options to whether it gives the same bits there."""


def reachable(x: torch.Tensor) -> bool:
    """Whether there is another way at all: on CUDA, with Triton, without gradients."""
    return x.is_cuda and not torch.is_grad_enabled() and triton_found()


def verdict(key: Hashable, find: Callable[[], bool]) -> bool:
    """What was found out under that key, now if not before.

    Args:
        key: All that the answer depends on.
        find: Tries both ways.
    """
    if key not in VERDICTS:
        # What is found out has to be read by the host. Every capture comes after a plain call.
        if torch.cuda.is_current_stream_capturing():
            return False
        VERDICTS[key] = find()
    return VERDICTS[key]


def key(*tensors: torch.Tensor) -> tuple[Hashable, ...]:
    """Device, dtypes, shapes and places of tensors."""
    return (tensors[0].device, *((t.dtype, t.shape, t.stride()) for t in tensors))


def drawn(like: Sequence[torch.Tensor | None], spread: float = 0.0) -> list[torch.Tensor | None]:
    """Random tensors of the same shapes.

    Args:
        like: None stays None.
        spread: Of the logarithms of the numbers' sizes.
    """
    first = next(tensor for tensor in like if tensor is not None)
    random = torch.Generator(first.device).manual_seed(0)

    def draw(x: torch.Tensor) -> torch.Tensor:
        size = torch.empty_like(x).normal_(generator=random).mul_(spread).exp_()
        return torch.empty_like(x).normal_(generator=random).mul_(size)

    return [None if tensor is None else draw(tensor) for tensor in like]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two float32 tensors hold the same bits, signs of zero and NaN included."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
