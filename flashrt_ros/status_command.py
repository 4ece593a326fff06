"""``flashrt_ros status``: what a policy node does now, why, and what it complains of."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from flashrt_ros.call_command import add_common
from flashrt_ros.errors import DeadlineError

if TYPE_CHECKING:
    from flashrt_ros.ros.client import Client

ANSWER_S = 2.0
"""A node that is frozen still has a status."""
LEVELS = ("ok", "warning", "error", "stale")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``status``."""
    add_common(parser)
    parser.add_argument(
        "--all", action="store_true", help="every entry of /diagnostics with its figures"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints mode and reason, then what /diagnostics say of the node that is not well."""
    from flashrt_ros.hardware.memory import in_words
    from flashrt_ros.ros.client import connected
    from flashrt_ros.ros.motion import Mode

    with connected(arguments.timeout) as client:
        node = client.find(arguments.node)
        status = client.status(node)
        named = _named(client, node) if status.policy else None
        entries = client.diagnostics(node)  # takes all the time that is left, if none come
    reason = f": {status.reason}" if status.reason else ""
    shadow = " (dry run)" if status.dry_run else ""
    print(f"{node}: {Mode(status.mode).name}{shadow}{reason}")
    if status.policy:
        task = f", task {status.task!r}" if status.task else ""
        used, budget = in_words(status.bytes_used), in_words(status.bytes_budget)
        print(f"policy {status.policy} on {status.device}{task}")
        print(f"episode {status.episode}, step {status.step}, generation {status.generation}")
        kinds = ""
        if named is not None:
            kinds = f": {named} named, {max(status.capsules - named, 0)} automatic"
        print(f"{status.capsules} capsules{kinds}; {used} of {budget}")
    for entry in entries:
        level = ord(entry.level)
        if level or arguments.all:
            print(f"{LEVELS[level]}: {entry.name.removeprefix(f'{node}: ')}: {entry.message}")
        if arguments.all:
            for pair in entry.values:
                print(f"    {pair.key}: {pair.value}")
    if not entries:
        print("no /diagnostics came from it")
    return 0


def _named(client: Client, node: str) -> int | None:
    """How many capsules have a name; None if the node does not answer."""
    try:
        return len(client.call(node, "list_capsules", {}, ANSWER_S).capsules)
    except DeadlineError:
        return None
