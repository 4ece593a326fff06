"""What the user says of a hosted object: its inputs, its noise, its action."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from flashrt_ros.errors import InvalidArgumentError

SAMPLED = "sampled"
"""``HostedNoise.argument`` of an object that draws by itself: what it draws is fed."""


@dataclass(frozen=True)
class HostedInput:
    """One observation.

    Attributes:
        key: Name in the contract and in the batch, e.g. ``observation.state``.
        shape: Of one observation, without batch and time.
        dtype: Element type of the port.
        names: Names of the elements of a vector, empty where none are known.
        unit: Unit of all elements, empty where mixed.
        steps: Observations of so many control steps, the present one last. With 1 the batch has
            ``(1, *shape)``, above 1 ``(1, steps, *shape)``.
    """

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    names: tuple[str, ...] = ()
    unit: str = ""
    steps: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InvalidArgumentError(f"{self.key!r}: steps: expected at least 1: {self.steps}")

    @property
    def buffer(self) -> str:
        """Name of its input buffer."""
        return re.sub(r"[^a-z0-9_.]", "_", self.key.lower())


@dataclass(frozen=True)
class HostedNoise:
    """The noise of a sampler, standard normal, drawn from key and counter in the state.

    Attributes:
        shape: As the object takes it, batch included; ``()`` for ``SAMPLED``.
        argument: Name of the argument that it is given by. ``SAMPLED``: there is none, and what
            the object draws with ``torch.randn``, ``rand``, their ``_like``, ``torch.normal``,
            ``Tensor.normal_`` and ``uniform_`` is drawn from the state instead.
    """

    shape: tuple[int, ...] = ()
    argument: str = "noise"

    def __post_init__(self) -> None:
        if (self.argument == SAMPLED) != (not self.shape):
            raise InvalidArgumentError(
                f"noise: expected a shape, or the argument {SAMPLED!r} without one, found "
                f"{self.shape} and {self.argument!r}"
            )


@dataclass(frozen=True)
class HostedAction:
    """The chunk.

    Attributes:
        size: A, elements of an action.
        chunk_size: H, rows that are predicted.
        names: Names of the elements, empty where none are known.
        unit: Unit of all elements, empty where mixed.
        first_row: Row of the present control step: of an object that also predicts rows of the
            past, as Diffusion Policy does.
    """

    size: int
    chunk_size: int
    names: tuple[str, ...] = ()
    unit: str = ""
    first_row: int = 0


def describe(inputs: tuple[HostedInput, ...], noise: HostedNoise | None) -> Mapping[str, object]:
    """JSON values for the state id."""
    return {
        "inputs": [[i.key, list(i.shape), str(i.dtype)[6:], i.steps] for i in inputs],
        "noise": None if noise is None else [noise.argument, list(noise.shape)],
    }
