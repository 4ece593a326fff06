"""The report as an HTML page: facts, a figure for each curve, a table for each benchmark.

The page holds everything that it shows, plotly.js included (some 5 MB): it opens on a robot
without a network, and anywhere else years later.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flashrt_ros.bench.figures import Figures
from flashrt_ros.bench.report import HEAD, Curve, Result, Row, cells, shown_facts
from flashrt_ros.errors import UnsupportedError

EXTRA = "report"
"""Optional dependencies of the package that bring plotly."""

STYLE = """\
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 72em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px }
td, th { padding: .15em .7em; border-bottom: 1px solid #ddd; text-align: right }
td:first-child, th:first-child, td:last-child { text-align: left }
.facts td { text-align: left }
.note { color: #555; margin: .2em 0 }
"""
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2")
FLOOR_COLORS = ("#777777", "#aaaaaa", "#444444")


def check_plotly() -> None:
    """Raises if no page can be made here; called before anything is measured.

    Raises:
        UnsupportedError: plotly is missing; says which extra brings it.
    """
    try:
        import plotly  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            f"an HTML report needs plotly, which is not installed: pip install"
            f" 'flashrt_ros[{EXTRA}]', or pip install plotly; or write --json here and make the"
            " report on another machine: flashrt_ros bench --from FILE --html PAGE"
        ) from error


def write_page(path: Path, figures: Figures) -> int:
    """Writes the report of a run.

    Returns:
        Figures in it.

    Raises:
        UnsupportedError: As ``check_plotly``.
    """
    check_plotly()
    from plotly.io import to_html
    from plotly.offline import get_plotlyjs

    drawn = 0
    body = [f"<h1>flashrt_ros bench</h1>\n{_facts(figures)}"]
    for result in figures.results:
        body.append(f"<h2>{_text(result.name)}: {_text(result.title)}</h2>")
        for curve in result.curves:
            figure = draw(curve, result)
            if not figure["data"]:
                continue
            drawn += 1
            words = to_html(
                figure, include_plotlyjs=False, full_html=False, div_id=f"figure-{drawn}"
            )
            body.append(words)
        body.append(_tables(result))
    path.write_text(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>flashrt_ros bench</title><style>{STYLE}</style>\n"
        f"<script>{get_plotlyjs()}</script></head>\n<body>\n"
        + "\n".join(body)
        + "</body></html>\n",
        encoding="utf-8",
    )
    return drawn


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
        "title": {"text": _text(curve.title)},
        "xaxis": {"title": {"text": _text(curve.x)}, "type": "log"},
        "yaxis": {
            "title": {"text": _text(curve.y)},
            # There is no zero on a logarithmic axis, and a fork takes that many bytes.
            "type": "log" if all(y > 0 for line in data for y in line["y"]) else "linear",
            "exponentformat": "power",
        },
        "template": "plotly_white",
        "height": 480,
    }
    return {"data": data, "layout": layout}


def _x(row: Row) -> float:
    assert row.point is not None
    return row.point.x


def _facts(figures: Figures) -> str:
    rows = [(_text(name), _text(value)) for name, value in shown_facts(figures.facts).items()]
    lines = [f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in rows]
    return '<table class="facts">' + "\n".join(lines) + "</table>"


def _tables(result: Result) -> str:
    parts = []
    if result.skipped:
        parts.append(f'<p class="note">skipped: {_text(result.skipped)}</p>')
    if result.rows:
        lines = cells(result.rows)
        used = [i for i in range(len(HEAD)) if any(line[i] for line in lines[1:])]
        parts.append(_table([[line[i] for i in used] for line in lines]))
    if result.counts:
        counts = [[c.case, f"{c.found} of {c.of}", c.target] for c in result.counts]
        parts.append(_table([["counted", "found", "target"], *counts]))
    parts += [f'<p class="note">{_text(note)}</p>' for note in result.notes]
    return "\n".join(parts)


def _table(lines: list[list[str]]) -> str:
    return (
        "<table>"
        + "\n".join(_line(line, "td" if i else "th") for i, line in enumerate(lines))
        + "</table>"
    )


def _line(words: Iterable[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{_text(word)}</{tag}>" for word in words) + "</tr>"


def _text(words: str) -> str:
    return html.escape(words, quote=False)
