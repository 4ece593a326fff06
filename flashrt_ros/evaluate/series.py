"""Series of control steps as figures need them: unbroken runs, and pairs a number of steps apart.

Suffixes: T moments, A action elements, L lags.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.evaluate.track import F8, Track

PAUSE = 3.0
"""Periods between two moments above which they are not neighbours, of steps that set the pace."""


def unbroken(track: Track) -> list[slice]:
    """Stretches of moments whose index rises by one within one episode and without a pause."""
    if not track.steps:
        return []
    broken = (np.diff(track.index_T) != 1) | (np.diff(track.episode_T) != 0)
    broken |= np.diff(track.time_ns_T) > PAUSE * track.pace_s * 1e9
    edges = [0, *(np.flatnonzero(broken) + 1).tolist(), track.steps]
    return list(itertools.starmap(slice, itertools.pairwise(edges)))


def shifted(runs: Sequence[slice], values_T: F8, steps: int) -> F8:
    """What stood ``steps`` moments before each moment of its own run; NaN where nothing did.

    Args:
        runs: See ``unbroken``.
        values_T: ``(T, ...)``.
        steps: Negative: what stands so many moments after it.
    """
    found_T = np.full_like(values_T, np.nan)
    for run in runs:
        size = run.stop - run.start
        if abs(steps) >= size:
            continue
        if steps >= 0:
            found_T[run.start + steps : run.stop] = values_T[run.start : run.stop - steps]
        else:
            found_T[run.start : run.stop + steps] = values_T[run.start - steps : run.stop]
    return found_T


def mean(values: npt.NDArray[Any]) -> float | None:
    """Mean of the finite values; None without any, or where it is beyond all numbers."""
    known = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        return _number(known.mean()) if known.size else None


def rms(values: npt.NDArray[Any]) -> float | None:
    """Root of the mean square of the finite values; None as ``mean``."""
    known = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        return _number(np.sqrt(np.mean(known * known))) if known.size else None


def largest(values: npt.NDArray[Any]) -> float | None:
    """Largest magnitude of the finite values; None without any."""
    known = values[np.isfinite(values)]
    return float(np.abs(known).max()) if known.size else None


def _number(value: float) -> float | None:
    """A damaged command may be as large as a float can be: no report can say its square."""
    return float(value) if np.isfinite(value) else None


LONGEST_LAG_S = 1.0
"""Delays are looked for up to this in either direction."""
FEWEST_PAIRS = 8
CERTAIN = 0.5
"""A peak of the correlation below this is no delay but chance."""


@dataclass(frozen=True)
class Lag:
    """By how much one series comes after another.

    Attributes:
        steps: Control steps; negative: it comes before.
        correlation: At that lag, up to 1.
    """

    steps: int
    correlation: float


def lag_of(runs: Sequence[slice], after_T: F8, before_T: F8, period_s: float) -> Lag | None:
    """The lag at which ``after`` is most like what ``before`` was so long ago.

    The normalised cross-correlation over all pairs that many steps apart within one run, means
    removed; of lags that fit equally well the shortest one.

    Args:
        runs: See ``unbroken``.
        after_T: The series that may come later; NaN where unknown.
        before_T: The other.
        period_s: Length of a step.

    Returns:
        None where either hardly moves, there are too few pairs, or nothing fits.
    """
    reach = max(1, round(LONGEST_LAG_S / period_s))
    sums_6L = np.zeros((6, 2 * reach + 1))
    x_T, y_T = _centred(after_T), _centred(before_T)
    for run in runs:
        sums_6L += _sums(x_T[run], y_T[run], reach)
    count_L, x_L, y_L, xx_L, yy_L, xy_L = sums_6L
    enough_L = count_L >= max(FEWEST_PAIRS, count_L.max() / 2)
    count_L = np.maximum(count_L, 1.0)
    spread_x_L = xx_L / count_L - (x_L / count_L) ** 2
    spread_y_L = yy_L / count_L - (y_L / count_L) ** 2
    scale = max(float(xx_L.max()), float(yy_L.max()), 1e-300) / max(float(count_L.max()), 1.0)
    moves_L = enough_L & (spread_x_L > 1e-9 * scale) & (spread_y_L > 1e-9 * scale)
    if not moves_L.any():
        return None
    product_L = np.where(moves_L, spread_x_L * spread_y_L, 1.0)
    fit_L = (xy_L / count_L - x_L * y_L / count_L**2) / np.sqrt(product_L)
    fit_L = np.where(moves_L, fit_L, -np.inf)
    best = float(fit_L.max())
    if best < CERTAIN:
        return None
    lags_L = np.arange(-reach, reach + 1)
    equal = lags_L[fit_L > best - 1e-9]
    steps = int(equal[np.argmin(np.abs(equal))])
    return Lag(steps, min(1.0, best))


def _centred(values_T: F8) -> F8:
    known = np.isfinite(values_T)
    return values_T - (values_T[known].mean() if known.any() else 0.0)


BLOCK = 1 << 16
"""Moments whose sums are worked out at once: spectra of a whole day would not fit."""


def _sums(x_T: F8, y_T: F8, reach: int) -> F8:
    """Count, sums, squares and products of ``x[i]`` and ``y[i - lag]``, for each lag."""
    found_6L = np.zeros((6, 2 * reach + 1))
    for begin in range(0, len(x_T), BLOCK):
        first = max(0, begin - reach)
        # Row i of the block stands for moment begin + i of x, and for moment first + i of y.
        block_6L = _block_sums(
            x_T[begin : begin + BLOCK], y_T[first : begin + BLOCK + reach], reach, begin - first
        )
        block_6L[0] = np.rint(block_6L[0])
        found_6L += block_6L
    return found_6L


def _block_sums(x_T: F8, y_T: F8, reach: int, ahead: int) -> F8:
    """As ``_sums`` of ``x[i]`` and ``y[i + ahead - lag]``."""
    known_x, known_y = np.isfinite(x_T), np.isfinite(y_T)
    x_T, y_T = np.where(known_x, x_T, 0.0), np.where(known_y, y_T, 0.0)
    one_x, one_y = known_x.astype(np.float64), known_y.astype(np.float64)
    # Room for all shifts, so that none comes around from the other end.
    size = 1 << (len(x_T) + len(y_T) + 2 * reach).bit_length()
    with_x = [np.fft.rfft(values, size) for values in (one_x, x_T, x_T * x_T)]
    with_y = [np.conj(np.fft.rfft(values, size)) for values in (one_y, y_T, y_T * y_T)]
    pairs = [(0, 0), (1, 0), (0, 1), (2, 0), (0, 2), (1, 1)]
    shifts_L = np.arange(-reach, reach + 1) - ahead
    return np.array([np.fft.irfft(with_x[i] * with_y[j], size)[shifts_L] for i, j in pairs])
