"""What an evaluation leaves for people and their tools, besides JSON: a page, recordings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashrt_ros.evaluate.evaluator import Result
    from flashrt_ros.evaluate.fan import Fan


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Declares the options."""
    group.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with plots there, for a browser"
    )


def check(arguments: argparse.Namespace) -> None:
    """Raises if what is asked for cannot be written here; called before a run.

    Raises:
        UnsupportedError: A package is missing; says which extra brings it.
    """
    if arguments.html is not None:
        from flashrt_ros.evaluate.page.document import check

        check()


def write(
    arguments: argparse.Namespace,
    report: Mapping[str, Any],
    results: Sequence[Result],
    fans: Sequence[Fan] = (),
) -> None:
    """Writes what was asked for.

    Args:
        arguments: Of the command line.
        report: As in the JSON file.
        results: One for each source.
        fans: Of forks.

    Raises:
        StorageError: A file cannot be written.
    """
    tracks = [track for result in results for track in result.tracks]
    if arguments.html is not None:
        from flashrt_ros.evaluate.page.document import write_page

        write_page(arguments.html, report, tracks, fans)
