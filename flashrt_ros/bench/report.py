"""What a benchmark says: rows of figures, as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flashrt_ros.bench.roofline import gb_per_s

HEAD = (
    "case",
    "n",
    "p50",
    "p99",
    "max",
    "unit",
    "bytes",
    "GB/s r+w",
    "x floor",
    "p99 - floor",
    "target",
)


@dataclass(frozen=True)
class Curve:
    """What some rows of a result show when they are drawn together.

    Attributes:
        title: Unique in its result.
        x: Label of the axis that ``Point.x`` is on, with its unit.
        y: Label of the other, with the unit of the rows.
    """

    title: str
    x: str
    y: str


@dataclass(frozen=True)
class Point:
    """Where a row lies on a curve.

    Attributes:
        curve: Title of the curve.
        series: Line that it belongs to.
        x: Above 0.
    """

    curve: str
    series: str
    x: float


@dataclass(frozen=True)
class Row:
    """One measured thing.

    Attributes:
        case: What was measured.
        n: Samples; 0: not measured but predicted, and the three are one.
        p50: Median.
        p99: 99th percentile.
        largest: The largest.
        unit: Unit of the three.
        size_bytes: Bytes that were moved, 0 where none.
        floor: Case of the floor that it is held against, empty for a floor.
        ratio: Its median over the floor's; None for a floor.
        difference: p99 minus the floor's p99, in ``unit``; None for a floor.
        target: What is to be reached, in words; empty where nothing is promised.
        point: Where it is drawn; None: nowhere.
    """

    case: str
    n: int
    p50: float
    p99: float
    largest: float
    unit: str
    size_bytes: int = 0
    floor: str = ""
    ratio: float | None = None
    difference: float | None = None
    target: str = ""
    point: Point | None = None

    @property
    def gb_per_s(self) -> float | None:
        """Bytes read and bytes written per second at the median; None where no bytes moved."""
        if not self.size_bytes or self.unit != "us" or self.p50 <= 0:
            return None
        return gb_per_s(self.size_bytes, self.p50)


@dataclass(frozen=True)
class Count:
    """How often something was so.

    Attributes:
        case: What was counted.
        found: How often.
        of: Out of how many.
        target: What is expected: ``all``, ``>= 1`` or ``inert``; empty for nothing.
    """

    case: str
    found: int
    of: int
    target: str = ""

    @property
    def met(self) -> bool:
        """Whether what must always be so was always so."""
        return self.target != "all" or self.found == self.of


@dataclass
class Result:
    """What one benchmark found.

    Attributes:
        name: Name of the benchmark.
        title: What it measures, in one line.
        rows: The figures.
        curves: What of them is drawn together.
        counts: What was counted.
        notes: What a reader must know to read them.
        skipped: Why there are no figures; empty where there are.
    """

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        rows = [{**asdict(row), "gb_per_s": row.gb_per_s} for row in self.rows]
        return {**asdict(self), "rows": rows}


def percentile(samples: Sequence[float], share: float) -> float:
    """Returns the smallest sample that at least ``share`` of all do not exceed (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def make_row(
    case: str,
    samples: Sequence[float],
    unit: str = "us",
    size_bytes: int = 0,
    floor: Row | None = None,
    target: str = "",
    point: Point | None = None,
) -> Row:
    """Returns the row of these samples, held against ``floor``."""
    p50, p99 = percentile(samples, 0.5), percentile(samples, 0.99)
    return Row(
        case=case,
        n=len(samples),
        p50=p50,
        p99=p99,
        largest=max(samples),
        unit=unit,
        size_bytes=size_bytes,
        floor=floor.case if floor else "",
        ratio=p50 / floor.p50 if floor and floor.p50 > 0 else None,
        difference=p99 - floor.p99 if floor else None,
        target=target,
        point=point,
    )


def table(result: Result) -> str:
    """Returns a result as a text table."""
    lines = [f"== {result.name}: {result.title}"]
    if result.skipped:
        return "\n".join([*lines, f"skipped: {result.skipped}"])
    lines += _rows(result.rows) if result.rows else []
    if result.counts:
        width = max(len(count.case) for count in result.counts)
        lines += [
            f"{count.case:<{width}}  {count.found:>4} of {count.of}  {count.target}".rstrip()
            for count in result.counts
        ]
    return "\n".join(lines + [f"  {note}" for note in result.notes])


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Returns head and body of the table of these rows; columns that are empty are in it."""
    body = [
        (
            row.case,
            str(row.n) if row.n else "-",
            _figure(row.p50),
            _figure(row.p99) if row.n else "",
            _figure(row.largest) if row.n else "",
            row.unit,
            str(row.size_bytes) if row.size_bytes else "",
            _figure(row.gb_per_s),
            _figure(row.ratio, 2),
            _figure(row.difference),
            row.target,
        )
        for row in rows
    ]
    return [HEAD, *body]


def _rows(rows: Sequence[Row]) -> list[str]:
    lines_of_cells = cells(rows)
    used = [i for i in range(len(HEAD)) if any(line[i] for line in lines_of_cells[1:])]
    widths = {i: max(len(line[i]) for line in lines_of_cells) for i in used}
    last, lines = len(HEAD) - 1, []
    for line in lines_of_cells:
        words = [
            line[i].rjust(widths[i]) if 0 < i < last else line[i].ljust(widths[i]) for i in used
        ]
        lines.append("  ".join(words).rstrip())
    return lines


def shown_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """Returns those that stand above all figures; numeric switches are in the JSON alone."""
    return {k: v for k, v in facts.items() if not k.startswith(("torch.", "env."))}


def facts_table(facts: Mapping[str, str]) -> str:
    """Returns the facts that stand above all figures as a text table."""
    shown = shown_facts(facts)
    width = max(len(name) for name in shown)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items())


def _figure(value: float | None, digits: int | None = None) -> str:
    if value is None:
        return ""
    if digits is not None:
        return f"{value:.{digits}f}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if value else "0"
