"""Time series for the page: thinned so that extremes stay, packed so that the page stays small.

T points of one series, in order of time.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flashrt_ros.evaluate.track import Track

LEAST_POINTS = 300
"""Of a series, however many there are."""


def thin(values_T: np.ndarray, most: int) -> np.ndarray:
    """Returns which points to draw of a series that has too many.

    From each of as many equal spans as fit, the smallest and the largest value stay and one gap
    if there is one, besides the first and the last point: no spike and no gap gets lost.

    Args:
        values_T: float64; NaN is a gap.
        most: Points that may stay; at least 5.

    Returns:
        Indices in rising order, all of them where they fit.
    """
    count = len(values_T)
    if count <= most:
        return np.arange(count)
    width = -(-count // ((most - 2) // 3))
    spans = -(-count // width)
    padded = np.full(spans * width, np.nan)
    padded[:count] = values_T
    boxes = padded.reshape(spans, width)
    gaps = ~np.isfinite(boxes)
    first = np.arange(spans) * width
    lowest = first + np.where(gaps, np.inf, boxes).argmin(1)
    highest = first + np.where(gaps, -np.inf, boxes).argmax(1)
    gap = first + gaps.argmax(1)
    ends = np.array([0, count - 1])
    kept = np.unique(np.concatenate([ends, lowest, highest, gap[gaps.any(1)]]))
    return kept[kept < count]


def bins(count: int, most: int) -> np.ndarray:
    """Returns where spans of equal length begin that a series is cut into.

    Args:
        count: Points of the series.
        most: Spans.
    """
    width = max(1, -(-count // most))
    return np.arange(0, count, width)


def spans(mask_T: np.ndarray) -> list[tuple[int, int]]:
    """Returns the first and the last index of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask_T.astype(np.int8), [0]])))
    return [(int(a), int(b) - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def stale(track: Track, name: str) -> np.ndarray:
    """Returns at which steps an input was too old: no step was made because of it.

    Returns:
        (T,) bool; False where it had no message.
    """
    reasons = {reason: f"{name}: " in reason for reason in set(track.fault_T)}
    at_fault_T = np.fromiter(map(reasons.__getitem__, track.fault_T), np.bool_, track.steps)
    return at_fault_T & np.isfinite(track.ages_ms[name])


def packed(values: np.ndarray, dtype: str = "<f4") -> str:
    """Returns numbers as base64, which the page's script reads back."""
    return base64.b64encode(values.astype(dtype).tobytes()).decode()


@dataclass
class Pack:
    """The series of a page, and the points that they have in common.

    Attributes:
        most: Points that one series may have.
        given: Points that came in.
        kept: Points that the page has.
    """

    most: int
    given: int = 0
    kept: int = 0
    _times: list[str] = field(default_factory=list)
    _known: dict[bytes, int] = field(default_factory=dict)

    def times(self) -> list[str]:
        """Returns the packed times, to which series refer by number."""
        return self._times

    def series(self, ticks_T: np.ndarray, values_T: np.ndarray) -> dict[str, Any]:
        """Packs a series.

        Args:
            ticks_T: int32, times in units of the recording's tick.
            values_T: float64; NaN is a gap.

        Returns:
            JSON: number of its times, values.
        """
        kept = thin(values_T, self.most)
        self.given += len(values_T)
        self.kept += len(kept)
        return self.exact(ticks_T[kept], values_T[kept])

    def exact(self, ticks_T: np.ndarray, values_T: np.ndarray) -> dict[str, Any]:
        """Packs a series as it is; as ``series``."""
        key = ticks_T.astype("<i4").tobytes()
        if key not in self._known:
            self._known[key] = len(self._times)
            self._times.append(base64.b64encode(key).decode())
        return {"x": self._known[key], "y": packed(values_T)}


def share(points: int, series: int) -> int:
    """Returns how many points each of so many series may have."""
    return max(LEAST_POINTS, points // max(1, series))
