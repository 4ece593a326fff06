"""Figures without a time of day: errors by joint and by horizon, and fans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flashrt_ros.evaluate.fan import Fan
from flashrt_ros.page import COLORS, Page, escaped, titled

Run = Mapping[str, Any]
BASELINES = (("baseline_hold_mae", "hold last", "#777"), ("baseline_mean_mae", "mean", "#bbb"))


def error_bars(page: Page, runs: Sequence[Run]) -> str:
    """Returns bars of the mean absolute error by joint, a figure a unit, with the baselines."""
    units = list(dict.fromkeys(joint["unit"] for run in runs for joint in run["joints"]))
    parts = []
    for unit in units:
        data = [
            {
                "type": "bar",
                "name": escaped(run["policy"]),
                "marker": {"color": COLORS[k % len(COLORS)]},
                **_bars(run, unit, "mae"),
            }
            for k, run in enumerate(runs)
        ]
        data += [
            {
                "type": "bar",
                "name": name,
                "marker": {"color": color},
                **_bars(runs[0], unit, key),
            }
            for key, name, color in BASELINES
            if any(joint.get(key) is not None for joint in runs[0]["joints"])
        ]
        if not any(y is not None for bars in data for y in bars["y"]):
            continue
        layout = {
            "barmode": "group",
            "height": 330,
            "xaxis": {"type": "category"},
            "yaxis": {
                "title": {"text": escaped(titled("mean error", unit))},
                "rangemode": "tozero",
            },
        }
        parts.append(page.figure(data, layout, bar=False))
    return f'<div class="bars">{"".join(parts)}</div>'


def _bars(run: Run, unit: str, key: str) -> dict[str, Any]:
    joints = [joint for joint in run["joints"] if joint["unit"] == unit]
    return {
        "x": [escaped(joint["name"]) for joint in joints],
        "y": [joint.get(key) for joint in joints],
    }


def horizon(page: Page, runs: Sequence[Run], element: int, unit: str) -> str:
    """Returns the error of one element by step of the chunk; empty without chunks.

    Dashed beside it: the error of holding the command from before the first policy's chunk.
    """
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "marker": {"size": 4},
            "name": escaped(run["policy"]),
            "line": {"color": COLORS[k % len(COLORS)], "width": 1.25},
            "x": [row["step"] for row in run["horizon"]],
            "y": [row["mae"][element] for row in run["horizon"]],
        }
        for k, run in enumerate(runs)
        if len(run.get("horizon") or ()) > 1
    ]
    if not data:
        return ""
    chunked = next(run for run in runs if len(run.get("horizon") or ()) > 1)
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "hold last",
            "line": {"color": "#777", "width": 1.25, "dash": "dash"},
            "x": [row["step"] for row in chunked["horizon"]],
            "y": [row["baseline_hold_mae"][element] for row in chunked["horizon"]],
        }
    )
    layout = {
        "height": 230,
        "showlegend": False,
        "margin": {"l": 58, "r": 12, "t": 8, "b": 38},
        "xaxis": {"title": {"text": "step of the chunk", "standoff": 4}},
        "yaxis": {
            "title": {"text": escaped(titled("mean error", unit)), "standoff": 6},
            "rangemode": "tozero",
        },
    }
    return page.figure(data, layout, bar=False)


def fan_groups(fan: Fan) -> list[str]:
    """Returns what tells each branch's colour: its policy, else its task, else itself."""
    for groups in (
        [branch.policy for branch in fan.branches],
        [branch.task for branch in fan.branches],
    ):
        if len(set(groups)) > 1:
            return groups
    return [branch.label for branch in fan.branches]


def fan_color(fan: Fan, branch: int) -> str:
    """Returns the colour of a branch."""
    groups = fan_groups(fan)
    return COLORS[list(dict.fromkeys(groups)).index(groups[branch]) % len(COLORS)]


def fan_legend(fan: Fan) -> str:
    """Returns what the colours of a fan mean; empty where there are too many to say."""
    groups = fan_groups(fan)
    if len(set(groups)) > len(COLORS):
        return ""
    first = {group: groups.index(group) for group in dict.fromkeys(groups)}
    words = (
        f'<span><i style="background:{fan_color(fan, b)}"></i>{escaped(group)}</span>'
        for group, b in first.items()
    )
    return f'<p class="legend">{"".join(words)}</p>'


def fan(page: Page, fan: Fan, element: int) -> str:
    """Returns one element of a fan: a line a branch, their spread, and the recorded command."""
    seconds = (np.arange(len(fan.recorded_HA)) * fan.period_s).tolist()
    actions_BH = fan.actions_BHA[:, :, element]
    unit = escaped(fan.units[element])
    data = _band(seconds, actions_BH)
    data += [
        {
            "type": "scatter",
            "mode": "lines",
            "name": escaped(branch.label),
            "x": seconds,
            "y": actions_H.tolist(),
            "opacity": 0.75,
            "line": {"color": fan_color(fan, b), "width": 1},
        }
        for b, (branch, actions_H) in enumerate(zip(fan.branches, actions_BH, strict=True))
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "recorded",
            "x": seconds,
            "y": fan.recorded_HA[:, element].tolist(),
            "line": {"color": "#222", "width": 2, "dash": "dash"},
        }
    )
    layout: dict[str, Any] = {
        "height": 260,
        "showlegend": False,
        "margin": {"l": 58, "r": 12, "t": 22, "b": 38},
        "xaxis": {"title": {"text": "time since the fork (s)", "standoff": 4}},
        "yaxis": {"title": {"text": unit, "standoff": 6}},
    }
    row = fan.diverges_at()[element]
    if row is not None:
        at = row * fan.period_s
        line = {"color": "#222", "width": 1, "dash": "dot"}
        layout["shapes"] = [
            {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": at, "x1": at, "line": line}
        ]
        layout["annotations"] = [
            {"x": at, "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
            | {"xanchor": "left", "text": f"apart from {at:.3g} s on"}
        ]
    return page.figure(data, layout, bar=False)


def _band(seconds: Sequence[float], actions_BH: np.ndarray) -> list[dict[str, Any]]:
    """What lies between the smallest and the largest action of the branches."""
    alive_H = np.isfinite(actions_BH).any(axis=0)
    shown_BH = actions_BH[:, alive_H]
    low_H, high_H = np.nanmin(shown_BH, axis=0), np.nanmax(shown_BH, axis=0)
    edge = {
        "type": "scatter",
        "mode": "lines",
        "x": np.asarray(seconds)[alive_H].tolist(),
        "line": {"width": 0},
    }
    spread = {
        "name": "spread",
        "y": high_H.tolist(),
        "customdata": (high_H - low_H).tolist(),
        "hovertemplate": "%{customdata:.4g}",
        "fill": "tonexty",
        "fillcolor": "rgba(0, 114, 178, 0.12)",
    }
    return [{**edge, "y": low_H.tolist(), "hoverinfo": "skip"}, {**edge, **spread}]
