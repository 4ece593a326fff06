"""The file of figures: everything that a run found, as JSON, from which a report is made.

It carries a format number. A reader takes its own format only: figures are measured again sooner
than they are converted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashrt_ros.bench.report import Count, Curve, Point, Result, Row
from flashrt_ros.errors import CorruptError, InvalidArgumentError, NotFoundError

FORMAT = 1


@dataclass(frozen=True)
class Figures:
    """One run.

    Attributes:
        facts: What all of it depends on, numeric switches included.
        results: Of each benchmark, in the order in which they ran.
    """

    facts: Mapping[str, str]
    results: tuple[Result, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {
            "format": FORMAT,
            "facts": dict(self.facts),
            "results": [result.to_json() for result in self.results],
        }


def write(path: Path, figures: Figures) -> None:
    """Writes the file."""
    path.write_text(json.dumps(figures.to_json(), indent=2, allow_nan=False) + "\n")


def read(path: Path) -> Figures:
    """Returns what ``write`` wrote.

    Raises:
        NotFoundError: There is no such file.
        CorruptError: It is no JSON, or not what a file of figures holds; names file and field.
        InvalidArgumentError: It has another format.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{path}: no such file; `flashrt_ros bench --json {path}` writes one"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptError(f"{path}: expected a JSON file of figures, found {error}") from error
    if not isinstance(content, dict) or "facts" not in content:
        raise CorruptError(f"{path}: expected an object with 'facts' and 'results', found neither")
    found = content.get("format")
    if found != FORMAT:
        raise InvalidArgumentError(
            f"{path}: format: expected {FORMAT}, found {found!r}: another flashrt_ros wrote it;"
            " measure again, or make the report with that one"
        )
    try:
        facts = {str(name): str(value) for name, value in content["facts"].items()}
        return Figures(facts, tuple(_result(value) for value in content["results"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptError(
            f"{path}: expected what `flashrt_ros bench --json` writes, found"
            f" {type(error).__name__}: {error}"
        ) from error


def _result(value: Mapping[str, Any]) -> Result:
    rows = [_row(dict(row)) for row in value["rows"]]
    curves = [Curve(**curve) for curve in value["curves"]]
    counts = [Count(**count) for count in value["counts"]]
    return Result(**{**value, "rows": rows, "curves": curves, "counts": counts})


def _row(value: dict[str, Any]) -> Row:
    del value["gb_per_s"]  # it follows from the others
    point = value.pop("point")
    row = Row(**value, point=None if point is None else Point(**point))
    for name in ("p50", "p99", "largest"):
        if not isinstance(getattr(row, name), (int, float)):
            raise ValueError(f"{name} of {row.case!r}: expected a number")
    return row
