"""Options of ``evaluate`` that have to do with single moments: keyframes, and forks there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flashrt_ros.errors import InvalidArgumentError

if TYPE_CHECKING:
    from flashrt_ros.evaluate.fan import Fan
    from flashrt_ros.evaluate.fork import ForkPlan

BRANCHES = 16


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Declares the options."""
    group.add_argument(
        "--keyframes",
        metavar="TIME",
        help="write the whole state every so often, 10s say, so that --from and --fork-at begin "
        "there at once next time",
    )
    group.add_argument(
        "--keyframe-folder",
        default="",
        metavar="FOLDER",
        help="where they lie (default: beside each source, SOURCE.keyframes)",
    )
    group.add_argument(
        "--no-keyframes", action="store_true", help="do not enter any, run up from the start"
    )
    group.add_argument(
        "--fork-at",
        metavar="TIME",
        help="run branches on from the state there: every policy with every task and seed",
    )
    group.add_argument(
        "--branches",
        type=int,
        metavar="N",
        help="branches with other noise, the first as it was (default: 16, or 1 with tasks)",
    )
    group.add_argument(
        "--branch-seeds", type=int, nargs="+", default=(), metavar="KEY", help="noise of each"
    )
    group.add_argument(
        "--branch-tasks", nargs="+", default=(), metavar="TEXT", help="a task for each branch"
    )
    group.add_argument("--fork-for", metavar="TIME", help="how long branches run (default: 2s)")
    group.add_argument(
        "--fork-replan",
        action="store_true",
        help="drop the rows that are left of a chunk, so that branches differ at once",
    )


def fork_of(arguments: argparse.Namespace, policies: Sequence[str]) -> ForkPlan | None:
    """What is to be forked; None: nothing.

    Args:
        arguments: Of the command line.
        policies: Labels.

    Raises:
        InvalidArgumentError: A time, a seed or a number of branches is none.
    """
    from flashrt_ros.evaluate.episodes import seconds
    from flashrt_ros.evaluate.fork import FOR_S, ForkPlan

    if arguments.fork_at is None:
        for option in ("branches", "branch_seeds", "branch_tasks", "fork_for", "fork_replan"):
            given = getattr(arguments, option)
            if given or (given == 0 and given is not False):
                raise InvalidArgumentError(
                    f"--{option.replace('_', '-')}: expected --fork-at TIME too, found none"
                )
        return None
    count = arguments.branches or 0
    if count < 1 and arguments.branches is not None:
        raise InvalidArgumentError(f"--branches: expected a number from 1, found {count}")
    if not count and not arguments.branch_seeds:
        count = 1 if arguments.branch_tasks else BRANCHES
    return ForkPlan.of(
        seconds("--fork-at", arguments.fork_at),
        policies,
        count,
        arguments.branch_seeds,
        arguments.branch_tasks,
        FOR_S if arguments.fork_for is None else seconds("--fork-for", arguments.fork_for),
        arguments.fork_replan,
    )


def words_of(fan: Fan) -> list[str]:
    """A fan for a terminal."""
    facts = fan.as_json()
    lines = [
        f"{fan.source}: {len(fan.branches)} branches from control step {fan.index}, "
        f"{len(fan.recorded_HA)} steps"
    ]
    for joint in facts["joints"]:
        name = f"  {joint['name']}" + (f" [{joint['unit']}]" if joint["unit"] else "")
        if not any(branch["steps"] for branch in facts["branches"]):
            lines.append(f"{name}: no branch made a step")
            continue
        if joint["diverges_step"] is None:
            lines.append(f"{name}: all branches are the same, to the bit")
            continue
        lines.append(
            f"{name}: apart after {joint['diverges_s']:.3g} s (step {joint['diverges_step']}), "
            f"spread at most {_number(joint['spread_max'])}, {_number(joint['spread_end'])} at "
            "the end"
        )
    lines += [
        f"  {branch['label']}: {branch['steps']} steps; from the recorded command "
        + ", ".join(
            f"{name} {_number(distance)}"
            for name, distance in zip(fan.names, branch["distance"], strict=True)
        )
        for branch in facts["branches"]
    ]
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What they say, as arguments of ``Options``.

    Raises:
        InvalidArgumentError: A time is none.
    """
    from flashrt_ros.evaluate.episodes import seconds

    every_s = 0.0
    if arguments.keyframes is not None:
        every_s = seconds("--keyframes", arguments.keyframes)
        if every_s <= 0:
            raise InvalidArgumentError(
                f"--keyframes: expected a time above 0, found {arguments.keyframes}"
            )
    return {
        "keyframes_s": every_s,
        "keyframe_folder": arguments.keyframe_folder,
        "enters_keyframes": not arguments.no_keyframes,
    }
