"""What weights alone decide, calculated once rather than in each plan."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from flashrt_ros.runtime.derived import Derived


class Once(Derived):
    """Tensors that depend on weights alone.

    They are calculated anew in each call until ``settle_``: weights change while they are loaded,
    moved or trained. The operators that make them are always those of the device they are used on,
    since another one's round otherwise.

    Args:
        make: Calculates them from what is then in the weights.
    """

    def __init__(self, make: Callable[[], tuple[torch.Tensor, ...]]) -> None:
        super().__init__()
        self._make = make
        self._kept: tuple[torch.Tensor, ...] | None = None

    def get(self) -> tuple[torch.Tensor, ...]:
        """Returns the tensors, which are not to be written to."""
        return self._make() if self._kept is None else self._kept

    @torch.no_grad()
    def settle_(self) -> None:
        """Keeps them from now on."""
        self._kept = self._make()


def settle_(module: nn.Module) -> None:
    """Keeps all that was to be calculated once; again if the module is on another device by now.

    Args:
        module: With its weights, where it will run.
    """
    for part in module.modules():
        if isinstance(part, Once):
            part.settle_()
    if torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()  # other streams do not wait for this one
