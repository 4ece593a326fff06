"""A Foxglove layout for an evaluation's MCAP file: plots for the joints at hand, in tabs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashrt_ros.evaluate.track import Track
from flashrt_ros.page import COLORS, titled

RECORDED = "#8c8c8c"
"""Seen on a dark and on a light ground."""
A_TAB = 4
"""Plots that can be read in one."""


def layout(
    root: str, tracks: Sequence[Track], labels: Sequence[str], inputs: Sequence[str]
) -> dict[str, Any]:
    """Returns the layout as JSON values: what Foxglove's "import from file" takes.

    Args:
        root: Topic below which all topics stand.
        tracks: One a policy.
        labels: Part of the topic name of each policy.
        inputs: Part of the topic name of each input.
    """
    names, units = tracks[0].names, tracks[0].units
    panels: dict[str, Any] = {}
    tabs: list[dict[str, Any]] = []

    def add(kind: str, config: dict[str, Any]) -> str:
        name = f"{kind}!evaluation{len(panels)}"
        panels[name] = config
        return name

    def joint(element: int, field: str, recorded: bool) -> str:
        lines = (
            [(f"{root}/recorded.position[{element}]", "recorded", RECORDED)] if recorded else []
        )
        lines += [
            (f"{root}/{label}/{field}.position[{element}]", track.policy, _color(k))
            for k, (track, label) in enumerate(zip(tracks, labels, strict=True))
        ]
        what = "error of " if field == "error" else ""
        return add("Plot", _plot(what + titled(names[element], units[element]), lines))

    for title, field in (("values", "prediction"), ("errors", "error")):
        for first in range(0, len(names), A_TAB):
            several = range(first, min(first + A_TAB, len(names)))
            plots = [joint(element, field, field == "prediction") for element in several]
            tabs.append(
                {"title": f"{title} {first + 1}-{several[-1] + 1}", "layout": _rows(plots)}
            )
    pairs = list(zip(tracks, labels, strict=True))
    latency = [
        (f"{root}/{label}/latency_ms.data", track.policy, _color(k))
        for k, (track, label) in enumerate(pairs)
    ]
    ages = [
        (f"{root}/age_ms/{word}.data", name, _color(k))
        for k, (word, name) in enumerate(zip(inputs, tracks[0].ages_ms, strict=True))
    ]
    timing = [add("Plot", _plot("latency (ms)", latency))]
    timing += [add("Plot", _plot("age of inputs (ms)", ages))] if ages else []
    faults = [
        add(
            "RosOut",
            {"topicToRender": f"{root}/{label}/fault", "minLogLevel": 1, "searchTerms": []},
        )
        for label in labels
    ]
    chunks = [
        add("RawMessages", {"topicPath": f"{root}/{label}/chunk"})
        for track, label in pairs
        if track.chunks_CHA.size
    ]
    tabs.append({"title": "latency and ages", "layout": _rows(timing)})
    tabs.append({"title": "steps not made", "layout": _rows(faults)})
    if chunks:
        tabs.append({"title": "chunks", "layout": _rows(chunks)})
    whole = add("Tab", {"activeTabIdx": 0, "tabs": tabs})
    return {
        "configById": panels,
        "globalVariables": {},
        "userNodes": {},
        "playbackConfig": {"speed": 1},
        "layout": whole,
    }


def _color(number: int) -> str:
    return COLORS[number % len(COLORS)]


def _plot(title: str, lines: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """A plot panel of lines, each a message path, a name and a colour."""
    return {
        "foxglovePanelTitle": title,
        "paths": [
            {
                "value": path,
                "enabled": True,
                "timestampMethod": "receiveTime",
                "label": name,
                "color": color,
            }
            for path, name, color in lines
        ],
        "xAxisVal": "timestamp",
        "isSynced": True,
        "showLegend": True,
        "legendDisplay": "floating",
        "showXAxisLabels": True,
        "showYAxisLabels": True,
    }


def _rows(panels: Sequence[str]) -> str | dict[str, Any]:
    """Panels one above the other, of equal height."""
    first, *rest = panels
    if not rest:
        return first
    share = 100 / len(panels)
    words = {"direction": "column", "splitPercentage": share}
    return {**words, "first": first, "second": _rows(rest)}
