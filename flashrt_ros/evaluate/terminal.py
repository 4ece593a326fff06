"""The summary on the terminal: tables by rich where it is installed, else plain ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FILE_WIDTH = 140
TINY = 1e-12
"""What is left of a difference of equal numbers."""
SOURCES_SHOWN = 10
DEFECTS_SHOWN = 20
JOINT_COLUMNS = (
    ("compared", "compared"),
    ("mae", "mae"),
    ("rmse", "rmse"),
    ("max", "max"),
    ("lag ms", "lag_ms"),
    ("mae at lag", "mae_at_lag"),
    ("hold last", "baseline_hold_mae"),
    ("mean", "baseline_mean_mae"),
    ("state lag ms", "state_lag_ms"),
)


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; the first column is text, the others are numbers.

    Attributes:
        columns: Headings.
        rows: Each with an entry for each column.
        texts: Columns at the left that are text.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1


Block = str | Table


def show(report: Mapping[str, Any]) -> None:
    """Prints the summary of a report."""
    try:
        from rich.console import Console
    except ImportError:
        for block in blocks(report):
            print(block if isinstance(block, str) else plain(block))
        return
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    for block in blocks(report):
        if isinstance(block, str):
            console.print(block, markup=False)
        else:
            console.print(_rich(block))


def blocks(report: Mapping[str, Any]) -> list[Block]:
    """What is printed, in order."""
    found: list[Block] = []
    runs = report["runs"]
    for source in report["sources"][:SOURCES_SHOWN]:
        found += _source(source)
        own = [run for run in runs if run["source"] == source["name"]]
        if own:
            found.append(_joints(own))
        for run in own:
            found.append("\n".join(_run(run)))
    more = len(report["sources"]) - SOURCES_SHOWN
    if more > 0:
        found.append(f"and {more} sources more (--json FILE has all of them)")
    if len(report["sources"]) > 1:
        found += ["", "all sources"]
        found += [_summary(report["summary"])]
    for entry in report["thresholds"]:
        if not entry["passed"]:
            value = number(entry["value"])
            found.append(
                f"FAILED {entry['expression']}: {value} ({entry['policy']}, {entry['source']})"
            )
    passed = sum(entry["passed"] for entry in report["thresholds"])
    if passed:
        found.append(f"{passed} of {len(report['thresholds'])} thresholds passed")
    found.append(f"hash over all actions: {report['digest']}")
    return found


def number(value: float | None) -> str:
    """Four digits, without an exponent where that can be read."""
    if value is None or not math.isfinite(value):
        return "-"
    if isinstance(value, int):
        return str(value)
    return f"{value:.4g}" if abs(value) > TINY else "0"


def _source(source: Mapping[str, Any]) -> list[Block]:
    lasts_s = (source["end_ns"] - source["start_ns"]) / 1e9
    # A data set has a topic a feature, and a message of each in every frame.
    frames = {each["messages"] for each in source["topics"] if "/" not in each["type"]}
    held = f"{max(frames)} frames" if frames else f"{source['messages']} messages"
    lines = [f"\n{source['name']}: {lasts_s:.1f} s, {held}"]
    if source.get("error"):
        lines.append(f"  not evaluated: {source['error']}")
    defects = source["defects"]
    lines += [f"  defect: {words}" for words in defects[:DEFECTS_SHOWN]]
    if len(defects) > DEFECTS_SHOWN:
        lines.append(f"  and {len(defects) - DEFECTS_SHOWN} defects more")
    lines += [f"  note: {words}" for words in source["notes"]]
    return ["\n".join(lines)]


def _joints(runs: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for place, joint in enumerate(runs[0]["joints"]):
        unit = f" [{joint['unit']}]" if joint["unit"] else ""
        for run in runs:
            figures = run["joints"][place]
            name = joint["name"] + unit if run is runs[0] else ""
            numbers = (number(figures[key]) for _, key in JOINT_COLUMNS)
            rows.append((name, run["policy"], *numbers))
    headings = tuple(heading for heading, _ in JOINT_COLUMNS)
    return Table(("element", "policy", *headings), tuple(rows), 2)


def _summary(summary: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for entry in summary:
        for joint in entry["joints"]:
            unit = f" [{joint['unit']}]" if joint["unit"] else ""
            rows.append(
                (
                    joint["name"] + unit,
                    entry["policy"],
                    str(joint["compared"]),
                    *(number(joint[key]) for key in ("mae", "rmse", "max", "baseline_hold_mae")),
                )
            )
    columns = ("element", "policy", "compared", "mae", "rmse", "max", "hold last")
    return Table(columns, tuple(rows), 2)


def _run(run: Mapping[str, Any]) -> list[str]:
    share = 100.0 * run["stepped"] / run["steps"] if run["steps"] else 0.0
    lines = [
        f"{run['policy']}: {run['stepped']} of {run['steps']} control steps made ({share:.1f} %), "
        f"{run['episodes']} episode{'s' * (run['episodes'] != 1)}"
    ]
    lines += [f"  {count} not made: {words}" for words, count in list(run["reasons"].items())[:5]]
    latency = run["latency_ms"]
    if latency["p50"] is not None:
        lines.append(
            "  a step took "
            + ", ".join(f"{name} {latency[name]:.3g} ms" for name in ("p50", "p99", "max"))
        )
    if run["horizon"]:
        steps = run["horizon"]
        chosen = {0, len(steps) // 2, len(steps) - 1}
        words = ", ".join(f"row {h} {_listed(steps[h]['mae'])}" for h in sorted(chosen))
        lines.append(f"  mae by row of the chunk: {words}")
    if run["splice"] is not None:
        splice = run["splice"]
        lines.append(
            f"  {splice['chunks']} chunks; a step at an adoption {_listed(splice['step_at'])}"
            f", elsewhere {_listed(splice['step_elsewhere'])}, recorded "
            f"{_listed(splice['recorded_step'])}"
        )
    for gripper in run["gripper"] or ():
        agreement = gripper["agreement"]
        words = "never moved in the recording"
        if agreement is not None:
            words = (
                f"{100 * agreement:.1f} % agreement at {gripper['threshold']:.4g}, "
                f"{gripper['predicted_changes']} changes, recorded {gripper['recorded_changes']}"
            )
        lines.append(f"  gripper {gripper['name']}: {words}")
    for each in run["inputs"]:
        told = [count for words, count in run["reasons"].items() if f"{each['name']}: " in words]
        # Where one reason says all of it, it was said above.
        if each["stale"] and (told != [each["stale"]] or each["gaps"] != 1):
            stale, gaps = each["stale"], each["gaps"]
            lines.append(
                f"  {each['name']}: missing or stale in {stale} step{'s' * (stale != 1)}, in "
                f"{gaps} stretch{'es' * (gaps != 1)}"
            )
    lines += [f"  {words}" for words in run["remarks"]]
    return lines


def _listed(values: Sequence[float | None]) -> str:
    return " ".join(map(number, values))


def plain(table: Table) -> str:
    """A table as text of fixed width."""
    grid = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in grid) for i in range(len(table.columns))]
    lines = []
    for row in grid:
        cells = [
            cell.ljust(width) if i < table.texts else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _rich(table: Table) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    found = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(table.columns):
        justify: Any = "left" if place < table.texts else "right"
        found.add_column(heading, justify=justify, overflow="fold")
    for row in table.rows:
        found.add_row(*map(Text, row))
    return found
