"""The report as plain JSON values; its schema is ``config/evaluate.schema.json``."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np

from flashrt_ros import __version__
from flashrt_ros.evaluate.conduct import (
    gripper_figures,
    input_figures,
    latency_figures,
    reasons,
    splice_figures,
)
from flashrt_ros.evaluate.evaluator import Options, PolicyFacts, Result, SourceFacts
from flashrt_ros.evaluate.figures import horizon_figures, joint_figures
from flashrt_ros.evaluate.thresholds import Threshold
from flashrt_ros.evaluate.track import Track, digest_of_all

FORMAT = "flashrt_ros.evaluate"
VERSION = 1


def make(
    options: Options,
    policies: Sequence[PolicyFacts],
    results: Sequence[Result],
    thresholds: Sequence[Threshold] = (),
) -> dict[str, Any]:
    """The whole report.

    Args:
        options: Of the evaluation.
        policies: That took part.
        results: One for each source.
        thresholds: That are judged.

    Raises:
        InvalidArgumentError: A threshold is about a policy or joint that is not there.
    """
    runs = [run_part(track) for result in results for track in result.tracks]
    return join(
        options,
        policies,
        [source_part(result.source) for result in results],
        runs,
        thresholds,
    )


def join(
    options: Options,
    policies: Sequence[PolicyFacts],
    sources: Sequence[dict[str, Any]],
    runs: Sequence[dict[str, Any]],
    thresholds: Sequence[Threshold] = (),
) -> dict[str, Any]:
    """One report of parts that may have been made elsewhere, in the order of the sources.

    Raises:
        InvalidArgumentError: As ``make``.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "flashrt_ros": __version__,
        "contract": options.contract,
        "options": _options(options),
        "digest": digest_of_all([run["digest"] for run in runs]),
        "sources": list(sources),
        "policies": [dataclasses.asdict(facts) for facts in policies],
        "runs": list(runs),
        "summary": [_summary(facts.label, runs) for facts in policies],
        "thresholds": [entry for each in thresholds for entry in each.judge(runs)],
        "reproduction": None,
        "fans": [],
    }


def _summary(label: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One policy over all sources: each compared step counts alike."""
    own = [run for run in runs if run["policy"] == label]
    names = list(dict.fromkeys((j["name"], j["unit"]) for run in own for j in run["joints"]))
    joints = []
    for name, unit in names:
        parts = [j for run in own for j in run["joints"] if (j["name"], j["unit"]) == (name, unit)]
        parts = [part for part in parts if part["compared"]]
        count = sum(part["compared"] for part in parts)

        def over(key: str, power: int = 1, parts: list[Any] = parts) -> float | None:
            known = [part for part in parts if part[key] is not None]
            weight = sum(part["compared"] for part in known)
            total = sum(part[key] ** power * part["compared"] for part in known)
            return (total / weight) ** (1 / power) if weight else None

        joints.append(
            {
                "name": name,
                "unit": unit,
                "compared": count,
                "mae": over("mae"),
                "rmse": over("rmse", 2),
                "max": max((part["max"] for part in parts), default=None),
                "baseline_hold_mae": over("baseline_hold_mae"),
            }
        )
    return {
        "policy": label,
        "sources": len(own),
        "steps": sum(run["steps"] for run in own),
        "stepped": sum(run["stepped"] for run in own),
        "joints": joints,
    }


def _options(options: Options) -> dict[str, Any]:
    """What the figures depend on besides policies, contract and sources."""
    pace = options.pace
    return {
        "steps": options.steps,
        "episodes": None if options.episodes is None else dataclasses.asdict(options.episodes),
        "remap": dict(options.remap),
        "unnamed_commands": options.unnamed_commands,
        "grippers": list(options.grippers),
        "start_s": options.start_s,
        "end_s": options.end_s,
        "seed": options.seed,
        "task": options.task,
        "device": options.device,
        "numerics": options.numerics,
        "threads": options.threads or None,
        "delay": pace.delay,
        "plan_ahead": pace.plan_ahead,
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
        "notes": list(facts.notes),
        "error": facts.error or None,
    }


def run_part(track: Track) -> dict[str, Any]:
    """One entry of ``runs``."""
    splice = splice_figures(track)
    return {
        "policy": track.policy,
        "source": track.source,
        "period_s": track.period_s,
        "steps": track.steps,
        "stepped": int(track.stepped_T.sum()),
        "skipped": int((~track.stepped_T).sum()),
        "reasons": reasons(track),
        "episodes": len(np.unique(track.episode_T)),
        "digest": track.digest,
        "joints": [dataclasses.asdict(joint) for joint in joint_figures(track)],
        "horizon": [dataclasses.asdict(step) for step in horizon_figures(track)],
        "splice": None if splice is None else dataclasses.asdict(splice),
        "gripper": [dataclasses.asdict(each) for each in gripper_figures(track)] or None,
        "latency_ms": latency_figures(track),
        "inputs": [dataclasses.asdict(each) for each in input_figures(track)],
        "remarks": track.remarks,
    }
