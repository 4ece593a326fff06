"""``flashrt_ros trees``: behaviour trees on the simulated arm, and what came of them."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from flashrt_ros.process import free_domain, log_folder, set_environment

EXAMPLES = {
    "pick": "the block is knocked away under the hand: snapshot, and on failure try again",
    "branches": "two ways round a post from one capsule, one of which is closed",
    "watchdog": "a sensor falls silent: pause, wait until it is fresh, resume",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.description = "; ".join(f"{name}: {words}" for name, words in EXAMPLES.items())
    parser.add_argument("example", choices=EXAMPLES)
    parser.add_argument(
        "--svg", type=Path, help="draw the first tree with its outcomes (needs graphviz)"
    )
    parser.add_argument("--json", type=Path, help="also write what came of it to this file")
    parser.add_argument(
        "--xml", action="store_true", help="then play it as XML, too, by BehaviorTree.CPP"
    )
    parser.add_argument("--viewer", action="store_true", help="open MuJoCo's window")
    parser.add_argument(
        "--domain-id", type=int, help="ROS domain (default: a free one is looked for)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Plays an example.

    Args:
        arguments: As ``add_arguments`` declares them.

    Returns:
        0 if each tree ended as it should, and so did the block.

    Raises:
        FlashRTError: Something did not start, or ended too early; says what to do.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    with log_folder("trees") as (log_directory, well):
        as_expected = _play(arguments, log_directory)
        if as_expected:
            well()
    return 0 if as_expected else 1


def _play(arguments: argparse.Namespace, log_directory: Path) -> bool:
    """Plays an example; returns whether all went as it should."""
    domain = free_domain() if arguments.domain_id is None else arguments.domain_id
    set_environment(domain, log_directory)
    # rclpy reads the environment when it is loaded.
    from flashrt_ros.demo.trees.play import Outcome, opened
    from flashrt_ros.trees import write_svg

    if arguments.xml:
        # Of an extra that only this needs.
        from flashrt_ros.demo.trees import xml_tree
    module: Any = importlib.import_module(f"flashrt_ros.demo.trees.{arguments.example}")
    print(f"starting cell and policy in ROS domain {domain}", flush=True)
    outcomes: list[Outcome] = []
    with opened(log_directory, module.WALL, arguments.viewer) as theatre:
        episodes = module.episodes(theatre.onlooker)
        if arguments.xml:
            episodes.append(xml_tree.episode(arguments.example, theatre.onlooker))
        for episode in episodes:
            print(f"\n{episode.name}", flush=True)
            outcome = theatre.play(episode)
            print(outcome.tree, end="", flush=True)
            if arguments.svg is not None and not outcomes:
                write_svg(episode.root, arguments.svg)
            outcomes.append(outcome)
        verbs = theatre.verbs
    print(f"\n{verbs}\n{'episode':36}{'tree':>9}{'block placed':>14}{'expected':>10}{'s':>6}")
    for outcome in outcomes:
        facts = ", ".join(f"{key} {value}" for key, value in outcome.facts.items())
        print(
            f"{outcome.name:36}{outcome.status:>9}{_word(outcome.placed):>14}"
            f"{_word(outcome.as_expected):>10}{outcome.duration_s:>6.1f}  {facts}"
        )
    if arguments.json is not None:
        rows = [asdict(outcome) for outcome in outcomes]
        text = json.dumps({"example": arguments.example, "episodes": rows}, indent=1)
        arguments.json.write_text(text, encoding="utf-8")
    return all(outcome.as_expected for outcome in outcomes)


def _word(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
