"""Figures of the control thread for diagnostics: written by it, read by callbacks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WINDOW = 512
"""Control periods that the percentiles are taken over: about ten seconds at 50 Hz."""


class Ring:
    """The last values of one figure. One thread adds, any may read: a read sees whole values."""

    def __init__(self, length: int = WINDOW) -> None:
        """Makes an empty ring."""
        self._values: npt.NDArray[np.float64] = np.zeros(length)
        self._count = 0

    def add(self, value: float) -> None:
        """Adds one value, forgetting the oldest."""
        self._values[self._count % len(self._values)] = value
        self._count += 1

    def __len__(self) -> int:
        """Values held."""
        return min(self._count, len(self._values))

    def percentiles(self, *at: float) -> tuple[float, ...]:
        """Percentiles of what is held; NaN where nothing is."""
        held = self._values[: len(self)].copy()
        if not len(held):
            return (float("nan"),) * len(at)
        return tuple(float(value) for value in np.percentile(held, at))


class Timing:
    """How well the control thread keeps its period.

    Attributes:
        late_ms: From the deadline to the start of the step.
        latency_ms: From the start of the step to the end of publication.
        period_ms: Between starts of steps.
        observation_age_ms: From the reception of the oldest input that an action was computed from
            to its publication.
        verb_ms: Length of verbs on the control thread.
        missed: Control periods that were skipped because a step or verb took too long.
        last_tick_ns: Steady clock, start of the last control period; 0 before the first.
    """

    def __init__(self) -> None:
        """Makes empty figures."""
        self.late_ms = Ring()
        self.latency_ms = Ring()
        self.period_ms = Ring()
        self.verb_ms = Ring()
        self.observation_age_ms = Ring()
        self.missed = 0
        self.last_tick_ns = 0
