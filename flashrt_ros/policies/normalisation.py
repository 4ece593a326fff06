"""Normalisation of observations and actions, with its statistics as buffers of a module.

The formulas are those of ``huggingface/lerobot:src/lerobot/processor/normalize_processor.py``,
its epsilon included, so that statistics of either side can be used on the other. Where LeRobot
passes a value through when statistics are missing, this module refuses: an unnormalised action
would move a robot to the wrong place.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from flashrt_ros.errors import CheckpointError, InvalidArgumentError

EPSILON = 1e-8
"""Added to a standard deviation, and put in the place of a range that is zero."""


class Normalisation(enum.Enum):
    """How a vector is normalised; the value is the word in a configuration file."""

    IDENTITY = "identity"
    """Not at all; needs no statistics."""
    MEAN_STD = "mean_std"
    """``(x - mean) / (std + eps)``; inverse ``x * std + mean``, without the epsilon."""
    MIN_MAX = "min_max"
    """The range ``min`` to ``max`` becomes -1 to 1."""
    QUANTILES = "quantiles"
    """The range ``q01`` to ``q99`` (1st and 99th percentile) becomes -1 to 1."""
    QUANTILE10 = "quantile10"
    """The range ``q10`` to ``q90`` (10th and 90th percentile) becomes -1 to 1."""


STATISTICS: dict[Normalisation, tuple[str, ...]] = {
    Normalisation.IDENTITY: (),
    Normalisation.MEAN_STD: ("mean", "std"),
    Normalisation.MIN_MAX: ("min", "max"),
    Normalisation.QUANTILES: ("q01", "q99"),
    Normalisation.QUANTILE10: ("q10", "q90"),
}
"""Names of the statistics that each mode needs, lower bound before upper bound."""


class Normaliser(nn.Module):
    """Normalises what one port holds, and back.

    Statistics are float32 buffers, NaN until they are set, so that a forgotten one can be told
    from a value; ``require`` is called wherever a policy is built from weights.

    Args:
        mode: See ``Normalisation``.
        size: S, elements of a vector; or the shape of the statistics, ``(C, 1, 1)`` for an image.
        epsilon: Added to a standard deviation, and put in the place of a range that is zero.
    """

    def __init__(
        self, mode: Normalisation, size: int | tuple[int, ...], epsilon: float = EPSILON
    ) -> None:
        super().__init__()
        self.mode = mode
        self.shape = (size,) if isinstance(size, int) else size
        self.epsilon = epsilon
        for name in STATISTICS[mode]:
            self.register_buffer(name, torch.full(self.shape, float("nan")))

    def set_(self, statistics: Mapping[str, torch.Tensor | Sequence[float]]) -> Normaliser:
        """Sets the statistics that the mode needs; others in the mapping are ignored.

        Args:
            statistics: Name (``mean``, ``std``, ``min``, ``max``, ``q01``, ``q99``, ``q10``,
                ``q90``) to values of the normaliser's shape.

        Returns:
            This normaliser.

        Raises:
            InvalidArgumentError: One is missing, ill-shaped, not finite or contradictory.
        """
        values: dict[str, torch.Tensor] = {}
        for name in STATISTICS[self.mode]:
            if name not in statistics:
                raise InvalidArgumentError(
                    f"normalisation {self.mode.value!r} needs the statistic {name!r}; "
                    f"found {sorted(statistics)}"
                )
            value = torch.as_tensor(statistics[name], dtype=torch.float32)
            if tuple(value.shape) != self.shape:
                raise InvalidArgumentError(
                    f"statistic {name!r}: expected shape {self.shape}, found {tuple(value.shape)}"
                )
            values[name] = value
        problem = self._problem(values)
        if problem:
            raise InvalidArgumentError(problem)
        for name, value in values.items():
            self.get_buffer(name).copy_(value)
        return self

    def measure_(self, samples_NS: torch.Tensor) -> Normaliser:
        """Sets the statistics from samples ``(N, S)``; the deviation is the population's."""
        samples_NS = samples_NS.detach().to("cpu", torch.float32)
        portions = torch.tensor([0.01, 0.1, 0.9, 0.99])
        q01, q10, q90, q99 = torch.quantile(samples_NS, portions, dim=0)
        return self.set_(
            {
                "mean": samples_NS.mean(0),
                "std": samples_NS.std(0, correction=0),
                "min": samples_NS.amin(0),
                "max": samples_NS.amax(0),
                "q01": q01,
                "q10": q10,
                "q90": q90,
                "q99": q99,
            }
        )

    def require(self, where: str) -> None:
        """Refuses missing or impossible statistics.

        Args:
            where: What the message shall name: file and port.

        Raises:
            CheckpointError: A statistic was never set, is not finite or contradicts another.
        """
        problem = self._problem({name: self.get_buffer(name) for name in STATISTICS[self.mode]})
        if problem:
            raise CheckpointError(
                f"{where}: {problem}; set the statistics from the training data before saving"
            )

    def normalise(self, x: torch.Tensor) -> torch.Tensor:
        """``(..., S)`` in the units of the port to the same shape in the network's range.

        Images are ``(..., C, H, W)``.
        """
        if self.mode is Normalisation.IDENTITY:
            return x
        if self.mode is Normalisation.MEAN_STD:
            return (x - self.get_buffer("mean")) / (self.get_buffer("std") + self.epsilon)
        low, width = self._range()
        return 2 * (x - low) / width - 1

    def restore(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse: ``(..., S)`` in the network's range to the units of the port."""
        if self.mode is Normalisation.IDENTITY:
            return x
        if self.mode is Normalisation.MEAN_STD:
            return x * self.get_buffer("std") + self.get_buffer("mean")
        low, width = self._range()
        if self.mode is Normalisation.MIN_MAX:
            return (x + 1) / 2 * width + low
        return (x + 1) * width / 2 + low

    def normalise_difference(self, x: torch.Tensor) -> torch.Tensor:
        """A difference of two values, ``(..., S)``, in the network's range.

        It is 0 where the training data had one value only: whatever the network says of such an
        element, it is restored to that value.
        """
        if self.mode is Normalisation.IDENTITY:
            return x
        if self.mode is Normalisation.MEAN_STD:
            std = self.get_buffer("std")
            return (x / (std + self.epsilon)).masked_fill(std == 0, 0.0)
        low, high = (self.get_buffer(name) for name in STATISTICS[self.mode])
        return (2 * x / self._range()[1]).masked_fill(low == high, 0.0)

    def _range(self) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = (self.get_buffer(name) for name in STATISTICS[self.mode])
        width = high - low
        # masked_fill takes the number as a kernel argument; torch.where would copy it from the
        # host, which cannot be captured.
        return low, width.masked_fill(width == 0, self.epsilon)

    def _problem(self, values: Mapping[str, torch.Tensor]) -> str:
        for name, value in values.items():
            if not bool(torch.isfinite(value).all()):
                return (
                    f"statistic {name!r} of normalisation {self.mode.value!r}: "
                    f"expected finite values, found {value.tolist()}"
                )
        if "std" in values and bool((values["std"] < 0).any()):
            return f"statistic 'std': expected no negative value, found {values['std'].tolist()}"
        if len(values) == 2 and "std" not in values:
            low, high = STATISTICS[self.mode]
            if bool((values[low] > values[high]).any()):
                return (
                    f"statistics {low!r} and {high!r}: expected {low} <= {high}, "
                    f"found {values[low].tolist()} and {values[high].tolist()}"
                )
        return ""
