"""Weights that were made from other weights of the same module."""

from __future__ import annotations

from torch import nn


class Derived(nn.Module):
    """Holds weights in another shape or dtype, for a calculation that is faster.

    They travel with the module and are counted with its memory, but they say nothing about a
    policy that the weights they were made from do not say: the state id leaves them out.
    """


def derived_names(module: nn.Module) -> tuple[str, ...]:
    """Returns how the names of all parameters and buffers begin that ``Derived`` modules hold."""
    return tuple(f"{name}." for name, part in module.named_modules() if isinstance(part, Derived))
