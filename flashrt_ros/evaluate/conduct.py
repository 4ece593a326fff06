"""What is said of one run as a whole: how chunks join, grippers, time taken, freshness of inputs.

Suffixes: T moments, A action elements, S splices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashrt_ros.evaluate.figures import Number
from flashrt_ros.evaluate.series import largest, mean, shifted, unbroken
from flashrt_ros.evaluate.track import Flags, Track


@dataclass(frozen=True)
class SpliceFigures:
    """How smoothly chunks follow one another; lists have one entry for each element.

    Attributes:
        chunks: Adopted in all.
        splices: Of these in place of one that had a row for that moment, too.
        mean_difference: Mean absolute difference of new row and old row for the same moment.
        max_difference: The largest.
        step_at: Mean absolute change of the action where a chunk was adopted.
        step_elsewhere: The same in all other steps.
        recorded_step: The same of the recorded commands, over all steps.
    """

    chunks: int
    splices: int
    mean_difference: list[Number]
    max_difference: list[Number]
    step_at: list[Number]
    step_elsewhere: list[Number]
    recorded_step: list[Number]


def splice_figures(track: Track) -> SpliceFigures | None:
    """Of a run; None for policies without chunks."""
    if not track.chunks:
        return None
    runs = unbroken(track)
    elements = range(track.predicted_TA.shape[1])

    def change(values_TA: np.ndarray, a: int) -> np.ndarray:
        values_T = values_TA[:, a].astype(np.float64)
        return np.abs(values_T - shifted(runs, values_T, 1))

    # Of chunks that were thinned out some adoptions count as other steps.
    at_T = np.isin(track.index_T, track.chunk_adopted_C)
    return SpliceFigures(
        chunks=track.chunks,
        splices=len(track.splice_index_S),
        mean_difference=[mean(np.abs(track.splice_SA[:, a])) for a in elements],
        max_difference=[largest(track.splice_SA[:, a]) for a in elements],
        step_at=[mean(change(track.predicted_TA, a)[at_T]) for a in elements],
        step_elsewhere=[mean(change(track.predicted_TA, a)[~at_T]) for a in elements],
        recorded_step=[mean(change(track.recorded_TA, a)) for a in elements],
    )


@dataclass(frozen=True)
class GripperFigures:
    """One element that opens and closes something.

    Attributes:
        name: Of the element.
        threshold: Above it the command counts as one state, else as the other.
        agreement: Share of the compared steps in which prediction and recorded command are in the
            same state; None: the recorded command has only one.
        recorded_changes: Changes of state of the recorded commands.
        predicted_changes: The same of the predictions.
    """

    name: str
    threshold: Number
    agreement: Number
    recorded_changes: int
    predicted_changes: int


def gripper_figures(track: Track) -> list[GripperFigures]:
    """Of each element that is a gripper.

    The threshold lies in the middle between the lowest and the highest recorded command.
    """
    found = []
    for a in (a for a, flag in enumerate(track.gripper) if flag):
        recorded_T, predicted_T = track.recorded_TA[:, a], track.predicted_TA[:, a]
        known_T = recorded_T[np.isfinite(recorded_T)]
        low, high = (known_T.min(), known_T.max()) if known_T.size else (0.0, 0.0)
        if not high > low:
            found.append(GripperFigures(track.names[a], None, None, 0, 0))
            continue
        threshold = float(low + high) / 2
        both_T = np.isfinite(recorded_T) & np.isfinite(predicted_T)
        same_T = (recorded_T > threshold)[both_T] == (predicted_T > threshold)[both_T]
        found.append(
            GripperFigures(
                track.names[a],
                threshold,
                float(same_T.mean()) if same_T.size else None,
                _changes(recorded_T, threshold),
                _changes(predicted_T, threshold),
            )
        )
    return found


def _changes(values_T: np.ndarray, threshold: float) -> int:
    above_T = values_T[np.isfinite(values_T)] > threshold
    return int((above_T[1:] != above_T[:-1]).sum())


@dataclass(frozen=True)
class InputFigures:
    """How fresh one input was.

    Attributes:
        name: ``port (topic)``, or ``command (topic)`` for recorded commands.
        age_p50: Of the newest message in a control step, ms; None without messages.
        age_p99: The same.
        age_max: The same.
        stale: Control steps that were not made because of this input.
        gaps: Separate stretches of these.
    """

    name: str
    age_p50: Number
    age_p99: Number
    age_max: Number
    stale: int
    gaps: int


def input_figures(track: Track) -> list[InputFigures]:
    """Of each input."""
    place = {reason: number for number, reason in enumerate(dict.fromkeys(track.fault_T))}
    place_T = np.fromiter(map(place.__getitem__, track.fault_T), np.int64, track.steps)
    found = []
    for name, ages_T in track.ages_ms.items():
        known_T = ages_T[np.isfinite(ages_T)]
        p50, p99 = np.percentile(known_T, (50, 99)).tolist() if known_T.size else (None, None)
        at_fault = np.array([f"{name}: " in reason for reason in place], dtype=bool)
        stale_T = at_fault[place_T]
        highest = float(known_T.max()) if known_T.size else None
        found.append(
            InputFigures(name, p50, p99, highest, int(stale_T.sum()), _stretches(stale_T))
        )
    return found


def _stretches(flag_T: Flags) -> int:
    before_T = np.concatenate([[False], flag_T[:-1]])
    return int((flag_T & ~before_T).sum())


def reasons(track: Track) -> dict[str, int]:
    """Why control steps were not made, and how many, most frequent first."""
    counts: dict[str, int] = {}
    for reason in track.fault_T:
        if reason:
            counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def latency_figures(track: Track) -> dict[str, Number]:
    """Percentiles of the time that a control step took on this machine, in ms."""
    known_T = track.latency_ms_T[np.isfinite(track.latency_ms_T)]
    if not known_T.size:
        return dict.fromkeys(("p50", "p90", "p99", "max"))
    p50, p90, p99 = np.percentile(known_T, (50, 90, 99)).tolist()
    return {"p50": p50, "p90": p90, "p99": p99, "max": float(known_T.max())}
