"""Observations for the checks: random but plausible, or the caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy.typing as npt
import torch

from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.policy import Port, Ports

Observation = Mapping[str, torch.Tensor]
"""Port key to value, on the host."""


class Episodes:
    """Makes as many different episodes as asked for, always the same ones.

    Args:
        ports: What is observed.
        dtypes: Port key to element type.
        given: One recorded episode, port key to array-like per step; episodes are then parts of
            it that start at different steps. None for random walks.

    Raises:
        SpecError: ``given`` lacks a key, or a value has the wrong shape.
    """

    def __init__(
        self,
        ports: Ports,
        dtypes: Mapping[str, torch.dtype],
        given: Sequence[Mapping[str, npt.ArrayLike]] | None,
    ) -> None:
        self._ports = ports.observations
        self._dtypes = dtypes
        self._given = None if given is None else [self._converted(row) for row in given]
        if self._given is not None and len(self._given) < 2:
            raise SpecError(f"observations: expected at least 2 steps, found {len(self._given)}")

    def make(self, index: int, steps: int) -> list[Observation]:
        """Episode number ``index``, of ``steps`` control steps."""
        if self._given is not None:
            count = len(self._given)
            start = index * max(1, count // 5)
            return [self._given[(start + step) % count] for step in range(steps)]
        generator = torch.Generator().manual_seed(1000 + index)
        walks = {port.key: self._walk(port, steps, generator) for port in self._ports}
        return [{key: walk[step] for key, walk in walks.items()} for step in range(steps)]

    def _walk(self, port: Port, steps: int, generator: torch.Generator) -> torch.Tensor:
        dtype, shape = self._dtypes[port.key], (steps, *port.shape)
        if dtype == torch.bool or not dtype.is_floating_point:
            high = 2 if dtype != torch.uint8 else 256
            return torch.randint(0, high, shape, generator=generator).to(dtype)
        values = torch.randn(shape, generator=generator)
        for step in range(1, steps):
            # A sensor that moves: most of the last value, and variance 1 throughout.
            values[step] = 0.9 * values[step - 1] + 0.19**0.5 * values[step]
        if not port.required:
            values[2::4] = 0.0
            values[3::4] = 0.0
        return values.to(dtype)

    def _converted(self, row: Mapping[str, npt.ArrayLike]) -> Observation:
        converted: dict[str, torch.Tensor] = {}
        for port in self._ports:
            if port.key not in row:
                if port.required:
                    raise SpecError(f"observations: no {port.key!r}; found {sorted(row)}")
                converted[port.key] = torch.zeros(port.shape, dtype=self._dtypes[port.key])
                continue
            value = torch.as_tensor(row[port.key]).to(self._dtypes[port.key])
            if tuple(value.shape) != port.shape:
                raise SpecError(
                    f"observations: {port.key!r}: expected shape {port.shape}, "
                    f"found {tuple(value.shape)}"
                )
            converted[port.key] = value
        return converted
