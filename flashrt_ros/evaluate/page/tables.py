"""Tables of the page, made of the report's JSON and of tracks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import PurePath
from typing import Any

import numpy as np

from flashrt_ros.evaluate.fan import Fan
from flashrt_ros.evaluate.page.series import spans, stale
from flashrt_ros.evaluate.track import Track
from flashrt_ros.page import escaped, table

Run = Mapping[str, Any]
MOST_ROWS = 100
"""Of tables that grow with the recording."""
TINY = 1e-12
"""What is left of a difference of equal numbers."""
MINUS = "\N{MINUS SIGN}"


def number(value: Any, unit: str = "") -> str:
    """Returns a number as people read it; a dash where there is none."""
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return "\N{EN DASH}"
    words = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if not isinstance(value, int) and abs(value) < TINY:
        words = "0"
    return f"{words.replace('-', MINUS)}{' ' + unit if unit else ''}"


def when(time_ns: int) -> str:
    """Returns a recorded time as date and time in UTC."""
    try:
        moment = datetime.fromtimestamp(time_ns / 1e9, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return f"{time_ns} ns"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def short(name: str, report: Mapping[str, Any]) -> str:
    """Returns the last part of a recording's path, unless another's is the same."""
    last = PurePath(name).name or name
    others = [PurePath(each["name"]).name for each in report["sources"]]
    return last if others.count(last) == 1 else name


def by_unit(joints: Sequence[Mapping[str, Any]], key: str) -> str:
    """Returns the mean of a figure over joints of the same unit, for each unit."""
    units: dict[str, list[float]] = {}
    for joint in joints:
        if joint.get(key) is not None:
            units.setdefault(joint["unit"], []).append(joint[key])
    return "; ".join(number(float(np.mean(v)), u) for u, v in units.items()) or number(None)


def sources(report: Mapping[str, Any]) -> str:
    """Returns the table of recordings."""
    lines = [["recording", "begins", "seconds", "messages", "topics", "defects"]]
    for source in _shown(report["sources"]):
        seconds = (source["end_ns"] - source["start_ns"]) / 1e9
        counts = [number(source.get("messages")), number(len(source.get("topics") or ()))]
        defects = number(len(source["defects"])) if source["defects"] else "none"
        head = [source["name"], when(source["start_ns"]), number(seconds)]
        lines.append([*head, *counts, defects])
    return table(lines) + _rest(report["sources"])


def policies(report: Mapping[str, Any]) -> str:
    """Returns the table of policies."""
    lines = [["label", "family", "device", "state id", "exec id", "path"]]
    for policy in report["policies"]:
        ids = [str(policy.get(key) or "")[:12] for key in ("state_id", "exec_id")]
        kind = [str(policy.get(key) or "") for key in ("family", "device")]
        lines.append([policy["label"], *kind, *ids, policy["path"]])
    return table(lines)


def runs(report: Mapping[str, Any]) -> str:
    """Returns a line a policy and recording: what differs between them at a glance."""
    head = ["policy", "recording", "steps", "not made", "episodes", "mean error", "hold last"]
    lines = [[*head, "latency p50 (ms)", "p99", "hash"]]
    for run in _shown(report["runs"]):
        latency = run.get("latency_ms") or {}
        lines.append(
            [
                *(run["policy"], short(run["source"], report)),
                *(number(run["stepped"]), number(run["skipped"])),
                _count(run["episodes"]),
                by_unit(run["joints"], "mae"),
                by_unit(run["joints"], "baseline_hold_mae"),
                number(latency.get("p50")),
                number(latency.get("p99")),
                str(run["digest"])[:12],
            ]
        )
    return table(_filled(lines)) + _rest(report["runs"])


def joints(of_source: Sequence[Run]) -> str:
    """Returns the errors of each joint under each policy."""
    head = ["joint", "policy", "unit", "mean error", "RMS", "largest", "bias"]
    head += ["lag (steps)", "lag (ms)", "mean error at lag", "hold last", "recorded mean"]
    head += ["measured state"]
    lines = [[*head, "jerk / recorded"]]
    for row in range(max((len(run["joints"]) for run in of_source), default=0)):
        for run in of_source:
            joint = run["joints"][row]
            keys = ("mae", "rmse", "max", "bias", "lag_steps", "lag_ms", "mae_at_lag")
            values = [number(joint.get(key)) for key in keys]
            others = ("baseline_hold_mae", "baseline_mean_mae", "state_mae")
            base = [number(joint.get(key)) for key in others]
            jerk, recorded = joint.get("jerk"), joint.get("recorded_jerk")
            ratio = number(jerk / recorded if jerk is not None and recorded else None)
            lines.append([joint["name"], run["policy"], joint["unit"], *values, *base, ratio])
    return table(_filled(lines))


def inputs(of_source: Sequence[Run]) -> str:
    """Returns ages, stale steps and gaps of each input."""
    lines = [["input", "age p50 (ms)", "age p99 (ms)", "limit (ms)", "stale steps", "gaps"]]
    for item in of_source[0].get("inputs") or ():
        keys = ("age_p50", "age_p99", "limit_ms", "stale", "gaps")
        lines.append([item["name"], *(number(item.get(key)) for key in keys)])
    return table(_filled(lines)) if len(lines) > 1 else ""


def stale_spans(track: Track) -> str:
    """Returns when inputs were stale or missing, the longest spans first to be kept."""
    found: list[tuple[int, int, str, float]] = []
    for name, ages_T in track.ages_ms.items():
        found += [(a, b, f"{name}: no message", np.nan) for a, b in spans(np.isnan(ages_T))]
        for a, b in spans(stale(track, name)):
            found.append((a, b, f"{name}: stale", float(ages_T[a : b + 1].max())))
    if not found:
        return "<p>No input was stale or missing at any step.</p>"
    kept = sorted(sorted(found, key=lambda span: span[0] - span[1])[:MOST_ROWS])
    lines = [["from (s)", "to (s)", "oldest (ms)", "input"]]
    for a, b, words, worst in kept:
        ends = [_seconds(track, index) for index in (a, b)]
        lines.append([*ends, number(worst), words])
    return table(lines) + _rest(found, "shorter spans")


def episodes(tracks: Sequence[Track]) -> str:
    """Returns a line an episode: when it was, and each policy's error."""
    track = tracks[0]
    changes = np.flatnonzero(np.diff(track.episode_T)) + 1
    starts = [0, *changes.tolist()]
    ends = [*changes.tolist(), track.steps]
    lines = [["episode", "from (s)", "to (s)", "steps", *(f"error of {t.policy}" for t in tracks)]]
    for a, b in _shown(list(zip(starts, ends, strict=True))):
        errors = [_episode_error(each, int(track.episode_T[a])) for each in tracks]
        span = [_seconds(track, a), _seconds(track, b - 1), number(b - a)]
        lines.append([str(track.episode_T[a]), *span, *errors])
    return table(lines) + _rest(starts)


def _episode_error(track: Track, episode: int) -> str:
    inside_T = track.episode_T == episode
    error_TA = np.abs(track.predicted_TA[inside_T] - track.recorded_TA[inside_T])
    units: dict[str, list[float]] = {}
    for unit, error_T in zip(track.units, error_TA.T, strict=True):
        seen_T = error_T[np.isfinite(error_T)]
        if len(seen_T):
            units.setdefault(unit, []).append(float(seen_T.mean()))
    words = (number(float(np.mean(means)), unit) for unit, means in units.items())
    return "; ".join(words) or number(None)


def faults(tracks: Sequence[Track]) -> str:
    """Returns why steps were not made, with counts."""
    lines = [["policy", "steps", "first at (s)", "why no step was made"]]
    for track in tracks:
        counts = Counter(words for words in track.fault_T if words)
        for words, count in counts.most_common(MOST_ROWS):
            first = _seconds(track, track.fault_T.index(words))
            lines.append([track.policy, number(count), first, words])
    return table(lines) if len(lines) > 1 else ""


def listed(title: str, items: Sequence[str]) -> str:
    """Returns texts as a list that can be folded; empty without any."""
    if not items:
        return ""
    shown = "".join(f"<li>{escaped(item)}</li>" for item in _shown(items))
    opened = " open" if len(items) <= 10 else ""
    return (
        f"<details{opened}><summary>{escaped(title)} ({len(items)})</summary>"
        f"<ul>{shown}</ul>{_rest(items)}</details>"
    )


def fan(fan: Fan) -> str:
    """Returns a line a branch: how far from the recorded command, by unit."""
    lines = [["branch", "policy", "seed", "steps", "distance to recorded", "task"]]
    figures = fan.as_json()
    for branch in figures["branches"]:
        pairs = zip(fan.units, branch["distance"], strict=True)
        distance = by_unit([{"unit": u, "rms": d} for u, d in pairs], "rms")
        seed = number(None) if branch["seed"] is None else str(branch["seed"])
        head = [branch["label"], branch["policy"], seed, number(branch["steps"])]
        lines.append([*head, distance, branch["task"]])
    return table(_filled(lines))


def _filled(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """The table without columns in which nothing is known."""
    if len(lines) == 1:
        return [list(lines[0])]
    blank = {number(None), ""}
    columns = list(zip(*lines, strict=True))
    kept = [column for column in columns if not set(column[1:]) <= blank]
    return [list(line) for line in zip(*kept, strict=True)]


def _seconds(track: Track, index: int) -> str:
    return f"{(int(track.time_ns_T[index]) - int(track.time_ns_T[0])) / 1e9:.3f}"


def _count(value: Any) -> str:
    return number(len(value) if isinstance(value, list) else value)


def _shown(items: Sequence[Any]) -> Sequence[Any]:
    return items[:MOST_ROWS]


def _rest(items: Sequence[Any], words: str = "more") -> str:
    rest = len(items) - MOST_ROWS
    return f'<p class="note">and {rest:,} {words}, which are not shown</p>' if rest > 0 else ""
