"""Feeds an object that draws by itself from the noise of the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from flashrt_ros.errors import UnsupportedError
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.policy import Buffers

BLOCKS_PER_PLAN = 1 << 32
"""Blocks of noise that each plan may take; how many it takes need not be known."""


class FedSampling(TorchFunctionMode):
    """Within, what torch would draw from its global generator comes from the state.

    Args:
        state: ``noise.key`` and ``noise.counter`` are read; the counter does not move.
    """

    def __init__(self, state: Buffers) -> None:
        super().__init__()
        self._state = state
        self._blocks = 0

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Draws in the place of torch, or lets it do what it does."""
        draw = _DRAWS.get(func)
        if draw is None:
            return func(*args, **(kwargs or {}))
        return draw(self, func, args, dict(kwargs or {}))

    def fill(self, shape: Sequence[int], kind: str, options: Mapping[str, Any]) -> torch.Tensor:
        """Returns noise of a shape.

        Args:
            shape: Of the result.
            kind: ``normal`` or ``uniform``.
            options: ``device`` and ``dtype`` of the result, where given.
        """
        device = options.get("device") or self._state[noise.KEY].device
        drawn = torch.empty(tuple(shape), device=self._state[noise.KEY].device)
        write = noise.normal_ if kind == "normal" else noise.uniform_
        write(drawn, self._state, offset=self._blocks, advance=False)
        self._blocks += noise.blocks_for(drawn.numel())
        return drawn.to(device=device, dtype=options.get("dtype") or torch.get_default_dtype())


def _new(kind: str) -> Callable[..., torch.Tensor]:
    def draw(mode: FedSampling, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        shape = kwargs.pop("size", None) or (args[0] if _is_shape(args) else args)
        return mode.fill(shape, kind, kwargs)

    return draw


def _is_shape(args: Any) -> bool:
    return len(args) == 1 and isinstance(args[0], (tuple, list, torch.Size))


def _like(kind: str) -> Callable[..., torch.Tensor]:
    def draw(mode: FedSampling, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        like = args[0]
        return mode.fill(like.shape, kind, {"device": like.device, "dtype": like.dtype, **kwargs})

    return draw


def _normal(mode: FedSampling, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    values = dict(zip(("mean", "std", "size"), args, strict=False)) | kwargs
    mean, std, size = values.get("mean", 0.0), values.get("std", 1.0), values.get("size")
    if size is None or isinstance(mean, torch.Tensor) or isinstance(std, torch.Tensor):
        raise UnsupportedError(
            "sampled noise: expected torch.normal(mean, std, size) with numbers, found tensors"
        )
    drawn: torch.Tensor = mode.fill(size, "normal", values) * std + mean
    return drawn


def _in_place(kind: str, names: tuple[str, str], scale: Any) -> Callable[..., torch.Tensor]:
    def draw(mode: FedSampling, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        target, *rest = args
        given = dict(zip(names, rest, strict=False)) | kwargs
        first, second = given.get(names[0], 0.0), given.get(names[1], 1.0)
        drawn = mode.fill(target.shape, kind, {"device": target.device, "dtype": target.dtype})
        filled: torch.Tensor = target.copy_(scale(drawn, first, second))
        return filled

    return draw


_DRAWS: dict[Any, Callable[..., torch.Tensor]] = {
    torch.randn: _new("normal"),
    torch.rand: _new("uniform"),
    torch.randn_like: _like("normal"),
    torch.rand_like: _like("uniform"),
    torch.normal: _normal,
    torch.Tensor.normal_: _in_place("normal", ("mean", "std"), lambda x, m, s: x * s + m),
    torch.Tensor.uniform_: _in_place(
        "uniform", ("from", "to"), lambda x, low, high: x * (high - low) + low
    ),
}
