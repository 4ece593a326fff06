"""The report as an HTML page: facts, a figure for each curve, a table for each benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flashrt_ros import page
from flashrt_ros.bench.figures import Figures
from flashrt_ros.bench.report import HEAD, Curve, Result, Row, cells, shown_facts
from flashrt_ros.page import COLORS, escaped

FLOOR_COLORS = ("#777777", "#aaaaaa", "#444444")


def check_plotly() -> None:
    """Raises if no page can be made here; called before anything is measured.

    Raises:
        UnsupportedError: plotly is missing; says which extra brings it.
    """
    page.check_plotly(
        "; or write --json here and make the report on another machine: flashrt_ros bench --from"
        " FILE --html PAGE"
    )


def write_page(path: Path, figures: Figures) -> int:
    """Writes the report of a run.

    Returns:
        Figures in it.

    Raises:
        UnsupportedError: As ``check_plotly``.
    """
    check_plotly()
    shown = page.Page("flashrt_ros bench")
    shown.add(f"<h1>flashrt_ros bench</h1>\n{page.facts(shown_facts(figures.facts).items())}")
    for result in figures.results:
        shown.add(f"<h2>{escaped(result.name)}: {escaped(result.title)}</h2>")
        for curve in result.curves:
            figure = draw(curve, result)
            if figure["data"]:
                shown.add(shown.figure(figure["data"], figure["layout"]))
        shown.add(_tables(result))
    shown.write(path)
    return shown.figures


def draw(curve: Curve, result: Result) -> dict[str, Any]:
    """Returns the figure of one curve as plotly's values: a line each series, floors dashed.

    Points are medians; the bar above each ends at its p99.
    """
    series: dict[str, list[Row]] = {}
    for row in result.rows:
        if row.point is not None and row.point.curve == curve.title:
            series.setdefault(row.point.series, []).append(row)
    floors = {row.floor for rows in series.values() for row in rows}
    colors, grays = iter(COLORS * len(series)), iter(FLOOR_COLORS * len(series))
    data: list[dict[str, Any]] = []
    for name, rows in series.items():
        rows.sort(key=_x)
        is_floor = all(row.case in floors for row in rows)
        color = next(grays if is_floor else colors)
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": [_x(row) for row in rows],
                "y": [row.p50 for row in rows],
                "error_y": {
                    "type": "data",
                    "array": [row.p99 - row.p50 for row in rows],
                    "arrayminus": [0] * len(rows),
                    "visible": any(row.p99 > row.p50 for row in rows),
                    "thickness": 1,
                },
                "text": [row.case for row in rows],
                "line": {"color": color, "dash": "dash" if is_floor else "solid"},
            }
        )
    layout = {
        "title": {"text": escaped(curve.title)},
        "xaxis": {"title": {"text": escaped(curve.x)}, "type": "log"},
        "yaxis": {
            "title": {"text": escaped(curve.y)},
            # There is no zero on a logarithmic axis, and a fork takes that many bytes.
            "type": "log" if all(y > 0 for line in data for y in line["y"]) else "linear",
            "exponentformat": "power",
        },
        "height": 480,
        "margin": {"l": 70, "r": 15, "t": 80, "b": 50},
    }
    return {"data": data, "layout": layout}


def _x(row: Row) -> float:
    assert row.point is not None
    return row.point.x


def _tables(result: Result) -> str:
    parts = []
    if result.skipped:
        parts.append(f'<p class="note">skipped: {escaped(result.skipped)}</p>')
    if result.rows:
        lines = cells(result.rows)
        used = [i for i in range(len(HEAD)) if any(line[i] for line in lines[1:])]
        parts.append(page.table([[line[i] for i in used] for line in lines]))
    if result.counts:
        counts = [[c.case, f"{c.found} of {c.of}", c.target] for c in result.counts]
        parts.append(page.table([["counted", "found", "target"], *counts]))
    parts += [f'<p class="note">{escaped(note)}</p>' for note in result.notes]
    return "\n".join(parts)
