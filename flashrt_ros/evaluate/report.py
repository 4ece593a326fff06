"""The report as plain JSON values; its schema is ``share/evaluate.schema.json``."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np

from flashrt_ros import __version__
from flashrt_ros.evaluate.evaluator import Options, PolicyFacts, Result, SourceFacts
from flashrt_ros.evaluate.track import Track, digest_of_all

FORMAT = "flashrt_ros.evaluate"
VERSION = 1


def make(
    options: Options, policies: Sequence[PolicyFacts], results: Sequence[Result]
) -> dict[str, Any]:
    """The whole report.

    Args:
        options: Of the evaluation.
        policies: That took part.
        results: One for each source.
    """
    tracks = [track for result in results for track in result.tracks]
    return {
        "format": FORMAT,
        "version": VERSION,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "flashrt_ros": __version__,
        "contract": options.contract,
        "digest": digest_of_all([track.digest for track in tracks]),
        "sources": [source_part(result.source) for result in results],
        "policies": [vars(facts) for facts in policies],
        "runs": [run_part(track) for track in tracks],
        "thresholds": [],
        "reproduction": None,
        "fan": None,
    }


def source_part(facts: SourceFacts) -> dict[str, Any]:
    """One entry of ``sources``."""
    return {
        "name": facts.name,
        "start_ns": facts.start_ns,
        "end_ns": facts.end_ns,
        "messages": sum(count for _, _, count in facts.topics),
        "topics": [
            {"name": name, "type": kind, "messages": count} for name, kind, count in facts.topics
        ],
        "defects": list(facts.defects),
    }


def run_part(track: Track) -> dict[str, Any]:
    """One entry of ``runs``."""
    error_TA = np.abs(track.predicted_TA - track.recorded_TA)
    return {
        "policy": track.policy,
        "source": track.source,
        "steps": track.steps,
        "stepped": int(track.stepped_T.sum()),
        "skipped": int((~track.stepped_T).sum()),
        "episodes": len(np.unique(track.episode_T)),
        "digest": track.digest,
        "joints": [
            {"name": name, "unit": unit, "mae": _mean(error_TA[:, i])}
            for i, (name, unit) in enumerate(zip(track.names, track.units, strict=True))
        ],
        "remarks": track.remarks,
    }


def _mean(values: np.ndarray[Any, Any]) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None
