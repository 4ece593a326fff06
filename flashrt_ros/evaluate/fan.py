"""A fan: what several branches did from one state, and what is said of it.

B branches, H steps, A elements of the action.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Branch:
    """One branch.

    Attributes:
        label: For people, unique in its fan: ``seed 3``, ``act, seed 0``.
        policy: Label of the policy that ran it.
        seed: Of the noise; None where the policy draws none.
        task: Words that it was given; may be empty.
    """

    label: str
    policy: str
    seed: int | None
    task: str


@dataclass(frozen=True)
class Fan:
    """Branches from one state over the same recorded observations.

    Attributes:
        policy: Label of the policy whose state was forked.
        source: Name of the recording.
        index: Control step of row 0, counted from the start of the recording.
        time_ns: Recorded time of row 0.
        period_s: Between two rows.
        names: Of the A elements.
        units: Of the A elements.
        branches: B branches, in the order of ``actions_BHA``.
        actions_BHA: float64, contract units after limits; NaN after a branch's end.
        recorded_HA: float64, the recorded command in the same units; NaN where there is none.
    """

    policy: str
    source: str
    index: int
    time_ns: int
    period_s: float
    names: tuple[str, ...]
    units: tuple[str, ...]
    branches: tuple[Branch, ...]
    actions_BHA: np.ndarray
    recorded_HA: np.ndarray

    def __post_init__(self) -> None:
        b, h, a = self.actions_BHA.shape
        assert len(self.branches) == b, (len(self.branches), b)
        assert len(self.names) == len(self.units) == a
        assert self.recorded_HA.shape == (h, a), (self.recorded_HA.shape, h, a)

    def spread_HA(self) -> np.ndarray:
        """Returns the largest minus the smallest action over the branches that go on.

        Returns:
            (H, A) float64; NaN where none does.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # rows without a branch
            spread: np.ndarray = np.nanmax(self.actions_BHA, 0) - np.nanmin(self.actions_BHA, 0)
        return spread

    def diverges_at(self, tolerance: float = 0.0) -> list[int | None]:
        """Returns for each element the first row whose spread is above the tolerance.

        Args:
            tolerance: In the element's unit; 0: the first row whose bits differ between branches,
                but for the sign of zero.

        Returns:
            A row numbers from 0; None: never.
        """
        apart_HA = np.nan_to_num(self.spread_HA()) > tolerance
        return [int(column.argmax()) if column.any() else None for column in apart_HA.T]

    def distance_BA(self) -> np.ndarray:
        """Returns how far each branch is from the recorded command: root mean square over rows.

        Returns:
            (B, A) float64; NaN without rows that have both.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            square = np.square(self.actions_BHA - self.recorded_HA)
            distance: np.ndarray = np.sqrt(np.nanmean(square, axis=1))
        return distance

    def as_json(self) -> dict[str, Any]:
        """Returns figures, without the series, for the report."""
        spread_HA, distance_BA = self.spread_HA(), self.distance_BA()
        apart = self.diverges_at()
        return {
            "policy": self.policy,
            "source": self.source,
            "index": self.index,
            "time_ns": self.time_ns,
            "period_s": self.period_s,
            "steps": len(self.recorded_HA),
            "branches": [
                {
                    "label": branch.label,
                    "policy": branch.policy,
                    "seed": branch.seed,
                    "task": branch.task,
                    "steps": int(np.isfinite(actions_HA).any(axis=1).sum()),
                    "distance": [_number(value) for value in distance_A],
                }
                for branch, actions_HA, distance_A in zip(
                    self.branches, self.actions_BHA, distance_BA, strict=True
                )
            ],
            "joints": [
                {
                    "name": name,
                    "unit": unit,
                    "diverges_step": row,
                    "diverges_s": None if row is None else row * self.period_s,
                    "spread_max": _number(np.nan_to_num(spread_H).max(initial=0.0)),
                    "spread_end": _last(spread_H),
                }
                for name, unit, row, spread_H in zip(
                    self.names, self.units, apart, spread_HA.T, strict=True
                )
            ],
        }


def _last(values_H: np.ndarray) -> float | None:
    """The last value that there is."""
    known_H = values_H[np.isfinite(values_H)]
    return float(known_H[-1]) if len(known_H) else None


def _number(value: Any) -> float | None:
    """JSON knows no NaN."""
    return float(value) if np.isfinite(value) else None
