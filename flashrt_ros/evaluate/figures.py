"""What is said of one run, element by element: errors, baselines, delays, smoothness.

Suffixes: T moments, A action elements, H rows of a chunk, C chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashrt_ros.evaluate.series import (
    Lag,
    lag_of,
    largest,
    mean,
    rms,
    shifted,
    unbroken,
)
from flashrt_ros.evaluate.track import F8, Track

Number = float | None


@dataclass(frozen=True)
class JointFigures:
    """One element of the action; every error in its unit, None where nothing can be compared.

    Attributes:
        name: Of the element.
        unit: Its unit, may be empty.
        compared: Steps with a prediction and a recorded command.
        mae: Mean absolute difference between prediction and recorded command.
        rmse: Root of the mean square of it.
        max: The largest.
        bias: Mean of prediction less recorded command.
        lag_steps: Steps by which the prediction comes after the recorded command.
        lag_ms: The same.
        lag_correlation: How well it fits, up to 1.
        mae_at_lag: ``mae`` against the command recorded so long before.
        state_lag_steps: Steps by which the measured state comes after the recorded command.
        state_lag_ms: The same.
        state_lag_correlation: How well it fits.
        state_mae: Mean absolute difference between measured state and recorded command: what a
            policy that commands the present position would have as ``mae``.
        state_mae_at_lag: The same against the command recorded so long before.
        baseline_hold_mae: As ``mae``, of predicting the command recorded one step before.
        baseline_mean_mae: As ``mae``, of always predicting the mean of the recorded commands.
        jerk: Root mean square of the third difference of the predictions, unit / s^3.
        recorded_jerk: The same of the recorded commands.
    """

    name: str
    unit: str
    compared: int
    mae: Number
    rmse: Number
    max: Number
    bias: Number
    lag_steps: int | None
    lag_ms: Number
    lag_correlation: Number
    mae_at_lag: Number
    state_lag_steps: int | None
    state_lag_ms: Number
    state_lag_correlation: Number
    state_mae: Number
    state_mae_at_lag: Number
    baseline_hold_mae: Number
    baseline_mean_mae: Number
    jerk: Number
    recorded_jerk: Number


@np.errstate(over="ignore", invalid="ignore")
def joint_figures(track: Track) -> list[JointFigures]:
    """Figures of each element of a run."""
    # One after the other: a long recording must not be in memory several times.
    return [_joint(track, unbroken(track), a) for a in range(len(track.names))]


def _joint(track: Track, runs: list[slice], a: int) -> JointFigures:
    recorded_T = track.recorded_TA[:, a]
    predicted_T = track.predicted_TA[:, a].astype(np.float64)
    state_T = track.state_TA[:, a].astype(np.float64)
    error_T = predicted_T - recorded_T
    both_T = np.isfinite(error_T)
    known_T = recorded_T[both_T]
    hold_T = np.where(both_T, shifted(runs, recorded_T, 1) - recorded_T, np.nan)
    lag = lag_of(runs, predicted_T, recorded_T, track.pace_s)
    state_lag = lag_of(runs, state_T, recorded_T, track.pace_s)
    return JointFigures(
        name=track.names[a],
        unit=track.units[a],
        compared=len(known_T),
        mae=mean(np.abs(error_T)),
        rmse=rms(error_T),
        max=largest(error_T),
        bias=mean(error_T),
        lag_steps=None if lag is None else lag.steps,
        lag_ms=_ms(lag, track),
        lag_correlation=None if lag is None else lag.correlation,
        mae_at_lag=_mae_at(lag, runs, predicted_T, recorded_T),
        state_lag_steps=None if state_lag is None else state_lag.steps,
        state_lag_ms=_ms(state_lag, track),
        state_lag_correlation=None if state_lag is None else state_lag.correlation,
        state_mae=mean(np.abs(state_T - recorded_T)),
        state_mae_at_lag=_mae_at(state_lag, runs, state_T, recorded_T),
        baseline_hold_mae=mean(np.abs(hold_T)),
        baseline_mean_mae=mean(np.abs(known_T - known_T.mean())) if known_T.size else None,
        jerk=_jerk(track, runs, predicted_T),
        recorded_jerk=_jerk(track, runs, recorded_T),
    )


def _ms(lag: Lag | None, track: Track) -> Number:
    return None if lag is None else lag.steps * track.pace_s * 1e3


def _mae_at(lag: Lag | None, runs: list[slice], after_T: F8, before_T: F8) -> Number:
    if lag is None:
        return None
    return mean(np.abs(after_T - shifted(runs, before_T, lag.steps)))


def _jerk(track: Track, runs: list[slice], values_T: F8) -> Number:
    """Steps that were not made leave gaps, over which nothing is taken."""
    thirds = [np.diff(values_T[run], n=3) for run in runs]
    return rms(np.concatenate(thirds) / track.pace_s**3) if thirds else None


@dataclass(frozen=True)
class HorizonStep:
    """One row of the chunks, against what was recorded at the time that the row is for.

    Attributes:
        step: Row, from 0; as many control periods after the observation of the plan.
        compared: Chunks that could be compared, of the element with the most.
        mae: ``A`` mean absolute differences.
        rmse: ``A`` roots of the mean square.
        max: ``A`` largest.
        baseline_hold_mae: ``A``, of predicting the command recorded before the plan's observation.
    """

    step: int
    compared: int
    mae: list[Number]
    rmse: list[Number]
    max: list[Number]
    baseline_hold_mae: list[Number]


@np.errstate(over="ignore", invalid="ignore")
def horizon_figures(track: Track) -> list[HorizonStep]:
    """Figures of each row of the chunks; empty for policies without chunks."""
    if not len(track.chunk_start_C):
        return []
    size = track.recorded_TA.shape[1]
    hold_CA = _recorded_at(track, track.chunk_start_C - 1)
    found = []
    for h in range(track.chunks_CHA.shape[1]):
        recorded_CA = _recorded_at(track, track.chunk_start_C + h)
        error_CA = track.chunks_CHA[:, h] - recorded_CA
        hold_error_CA = np.where(np.isfinite(error_CA), hold_CA - recorded_CA, np.nan)
        found.append(
            HorizonStep(
                step=h,
                compared=int(np.isfinite(error_CA).sum(axis=0).max(initial=0)),
                mae=[mean(np.abs(error_CA[:, a])) for a in range(size)],
                rmse=[rms(error_CA[:, a]) for a in range(size)],
                max=[largest(error_CA[:, a]) for a in range(size)],
                baseline_hold_mae=[mean(np.abs(hold_error_CA[:, a])) for a in range(size)],
            )
        )
    return found


def _recorded_at(track: Track, index_C: np.ndarray) -> F8:
    """``(C, A)`` recorded commands at these moments, of the episode of the chunk; else NaN."""
    place_C = np.searchsorted(track.index_T, index_C)
    place_C = np.minimum(place_C, track.steps - 1)
    adopted_C = np.searchsorted(track.index_T, track.chunk_adopted_C)
    there_C = track.index_T[place_C] == index_C
    there_C &= track.episode_T[place_C] == track.episode_T[adopted_C]
    return np.where(there_C[:, None], track.recorded_TA[place_C], np.nan)
