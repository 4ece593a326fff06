"""Options of ``evaluate`` that say who does the work, and where results are kept meanwhile."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_ros.errors import InvalidArgumentError, NotFoundError, reason_of

if TYPE_CHECKING:
    from flashrt_ros.evaluate.spread import Engine

ENGINES = ("serial", "processes", "ray")
FOLDER = "evaluate.work"
LIST = "@"
"""Before the name of a file of paths."""


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Declares the options."""
    group.add_argument(
        "--engine",
        choices=ENGINES,
        default="serial",
        help="who does the work: this process (default), processes, or actors of Ray",
    )
    group.add_argument(
        "--workers", type=int, metavar="N", help="processes or actors (default: one a core)"
    )
    group.add_argument(
        "--work-folder",
        metavar="FOLDER",
        help="keep the result of each source there, so that the same call goes on where it was "
        f"interrupted (default: {FOLDER}; none with --engine serial)",
    )
    group.add_argument(
        "--ray-address",
        default="",
        metavar="ADDRESS",
        help="of a running cluster: auto or HOST:PORT (default: one of our own on this machine)",
    )
    group.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="of torch in each process; another number is other arithmetic (default: 1)",
    )


def sources_of(given: Sequence[str]) -> list[str]:
    """The sources, those of lists in place of the lists.

    Raises:
        NotFoundError: A list cannot be read, or there is no source at all.
    """
    found = []
    for source in given:
        if not source.startswith(LIST):
            found.append(source)
            continue
        try:
            lines = Path(source[1:]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise NotFoundError(
                f"{source}: expected a readable list of paths: {reason_of(error)}"
            ) from error
        found += [line.strip() for line in lines if line.strip() and line[0] != "#"]
    if not found:
        raise NotFoundError(f"expected a source, found none in {', '.join(given)}")
    return found


def engine_of(arguments: argparse.Namespace) -> tuple[Engine, str] | None:
    """The engine and its work folder; None: this process, without one.

    Raises:
        InvalidArgumentError: Options contradict each other, or a number is out of range.
        UnsupportedError: Ray is not installed.
    """
    if arguments.threads < 1:
        raise InvalidArgumentError(
            f"--threads: expected a number from 1, found {arguments.threads}"
        )
    serial = arguments.engine == "serial"
    if arguments.ray_address and arguments.engine != "ray":
        raise InvalidArgumentError("--ray-address: expected --engine ray too, found another")
    if serial and arguments.workers not in (None, 1):
        raise InvalidArgumentError(
            f"--workers {arguments.workers}: expected --engine processes or ray, found serial"
        )
    if serial and not arguments.work_folder:
        return None
    from flashrt_ros.evaluate.spread import Engine

    workers = arguments.workers
    if workers is None:
        workers = 1 if serial else len(os.sched_getaffinity(0))
    if workers < 1:
        raise InvalidArgumentError(f"--workers: expected a number from 1, found {workers}")
    if arguments.engine == "ray":
        from flashrt_ros.evaluate import ray_engine

        ray_engine.check()
    engine = Engine(arguments.engine, workers, arguments.ray_address)
    return engine, arguments.work_folder or FOLDER


def tell(text: str) -> None:
    """Writes a line over the last one, on stderr."""
    sys.stderr.write(f"\r{text}    ")
    sys.stderr.flush()
