"""``flashrt_ros evaluate --reproduce``: recordings of our node are computed again."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.errors import InvalidArgumentError

if TYPE_CHECKING:
    from flashrt_ros.evaluate.evaluator import Options
    from flashrt_ros.evaluate.reproduce.finding import Reproduction

NOT_HERE = (
    *("fail_if", "fork_at", "mcap", "episodes", "remap", "unnamed_commands", "delay"),
    *("plan_ahead", "keyframes", "seed", "task", "save_tracks", "work_folder", "survey"),
)
"""Options of an evaluation that mean nothing where all of it is on record."""


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Declares the options."""
    group.add_argument(
        "--reproduce",
        action="store_true",
        help="compute every action that our node recorded again, from exactly the inputs that it"
        " used, and compare bit for bit; exit code 1 if one differs or cannot be computed; without"
        " --contract by the one on record",
    )
    group.add_argument(
        "--capsule-folder",
        type=Path,
        metavar="FOLDER",
        help="capsules that were saved during the recording or before it",
    )
    group.add_argument(
        "--node", default="", metavar="NAME", help="whose, where several nodes were recorded"
    )


def check(arguments: argparse.Namespace) -> None:
    """Raises if options do not fit each other.

    Raises:
        InvalidArgumentError: See there.
    """
    if not arguments.reproduce:
        for name in ("capsule_folder", "node"):
            if getattr(arguments, name):
                option = f"--{name.replace('_', '-')}"
                raise InvalidArgumentError(f"{option}: expected --reproduce with it, found none")
        return
    if len(arguments.policy) != 1:
        raise InvalidArgumentError(
            f"--reproduce: expected one --policy, the recorded one, found {len(arguments.policy)}"
        )
    others = {"begin": "--from", "end": "--to"} | {
        name: f"--{name.replace('_', '-')}" for name in NOT_HERE
    }
    if arguments.engine != "serial":
        raise InvalidArgumentError(
            f"--engine {arguments.engine}: expected serial with --reproduce, which goes from one"
            " recording to the next"
        )
    for name, option in others.items():
        if getattr(arguments, name, None):
            raise InvalidArgumentError(
                f"{option}: expected a run without --reproduce, which compares with what was"
                " recorded and nothing else"
            )


def reproduce_all(
    sources: Sequence[str], options: Options, arguments: argparse.Namespace
) -> tuple[dict[str, Any], list[Reproduction]]:
    """Computes each recording again.

    Args:
        sources: Paths.
        options: Of the evaluation: policy, contract, device.
        arguments: Of ``add_arguments``.

    Returns:
        The report, and what was found in each.

    Raises:
        FlashRTError: As ``reproduce``.
    """
    from flashrt_ros.evaluate import report
    from flashrt_ros.evaluate.evaluator import PolicyFacts, SourceFacts
    from flashrt_ros.evaluate.progress import progress_line
    from flashrt_ros.evaluate.reproduce.work import reproduce
    from flashrt_ros.evaluate.source import BagSource

    line = progress_line if arguments.progress or sys.stderr.isatty() else None
    (candidate,) = options.candidates
    facts, found = [], []
    for path in sources:
        source = BagSource(path)
        try:
            found.append(
                reproduce(
                    path,
                    candidate.path,
                    options.contract or None,
                    arguments.capsule_folder,
                    arguments.node,
                    options.device,
                    options.numerics,
                    options.trust,
                    None if line is None else line(source),
                )
            )
            facts.append(dataclasses.replace(SourceFacts.of(source), notes=()))
        finally:
            source.close()
    parts = [report.source_part(each) for each in facts]
    # One policy; of several recordings it is the same, on the same arithmetic.
    policies = [
        PolicyFacts(candidate.label, candidate.path, **each.computed)
        for each in found[:1]
        if each.computed
    ]
    whole = report.join(options, policies, parts, [])
    whole["contract"] = ", ".join(dict.fromkeys(each.contract for each in found))
    whole["summary"] = []
    whole["reproduction"] = [each.to_dict() for each in found]
    return whole, found
