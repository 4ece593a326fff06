"""``flashrt_ros ablate``: restores that leave something out, and where actions first diverge."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.errors import InvalidArgumentError, StorageError

if TYPE_CHECKING:
    from flashrt_ros.runtime.policy import Policy
    from flashrt_ros.testing.ablation import Ablation, Finding
    from flashrt_ros.testing.drive import Episode

EPISODES = {"hybrid_reach": "flashrt_ros.demo.rollout_hybrid:recorded"}
"""Registered policies to ``module:function`` of episodes that mean something to them."""
SIZES = ("tiny", "small", "large")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``ablate``."""
    parser.add_argument(
        "policy",
        nargs="?",
        default="",
        help="directory with config.json, registered name, or package.module:factory",
    )
    parser.add_argument(
        "--random-large",
        nargs="?",
        const="large",
        default="",
        choices=SIZES,
        metavar="SIZE",
        help="instead: a hybrid language model with random weights: large (1.5 billion, bfloat16; "
        "the default), small or tiny",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--cuts", type=int, default=4, help="random cut points (default: 4)")
    parser.add_argument(
        "--steps", type=int, default=16, help="control steps compared behind each (default: 16)"
    )
    parser.add_argument(
        "--latest", type=int, default=40, help="most control steps before a cut (default: 40)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the cut points")
    parser.add_argument(
        "--episodes",
        default="",
        metavar="MODULE:FUNCTION",
        help="function of (number, steps) that gives observations (default: random walks)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the findings there")


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings; 1 if the full restore was not equal."""
    if bool(arguments.policy) == bool(arguments.random_large):
        raise InvalidArgumentError("ablate: expected a policy or --random-large, one of them")
    import torch

    from flashrt_ros.policies.registry import load_policy
    from flashrt_ros.testing.ablation import ablate

    torch.set_num_threads(1)
    if arguments.random_large:
        from flashrt_ros.bench.random_hybrid import random_hybrid

        policy: Policy = random_hybrid(arguments.random_large, arguments.device)
    else:
        policy = load_policy(arguments.policy)
    report = ablate(
        policy,
        arguments.device,
        arguments.cuts,
        arguments.steps,
        _episode(arguments.episodes or EPISODES.get(arguments.policy, "")),
        arguments.seed,
        arguments.latest,
    )
    print(table(report))
    if arguments.json is not None:
        try:
            arguments.json.write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{arguments.json}: cannot be written: {error.strerror}") from None
    return 0 if report.ok else 1


def table(report: Ablation) -> str:
    """The findings as text."""
    cuts = ", ".join(map(str, report.cuts))
    lines = [
        f"policy {report.family!r} on {report.device}: cut after {cuts} of the first "
        f"{report.latest} control steps, {report.steps} compared behind each"
    ]
    width = max(len(finding.name) for finding in report.findings)
    kind = ""
    for finding in report.findings:
        if finding.kind != kind:
            kind = finding.kind
            lines.append({"together": "left out together", "left out": "left out"}.get(kind, kind))
        lines.append(f"  {finding.name:{width}}  {finding.verdict:18}  {_words(finding, report)}")
    if not report.ok:
        lines.append("NOT equal: the full restore went on otherwise than the first run")
    elif not report.has_force:
        lines.append("equal, but so is no restore at all: these episodes use no state")
    else:
        lines.append("the full restore is equal to the last byte at every cut")
    return "\n".join(lines).replace(" \n", "\n")


def _words(finding: Finding, report: Ablation) -> str:
    parts = []
    if finding.first is not None:
        at, whole = finding.first, report.unit == "token"
        one, other = (f"{v:.0f}" if whole else f"{v:.6g}" for v in (at.expected, at.found))
        parts.append(
            f"first at step {at.step}, {report.unit} {at.element}: {one} became {other}"
            f" (cut {at.cut})"
        )
    for count, what in (
        (finding.actions, "other actions"),
        (finding.accepted, "other acceptance"),
        (finding.state, "other state"),
        (finding.refused, "refused"),
        (finding.alike, "same value"),
    ):
        if count:
            parts.append(f"{what} {count} of {finding.cuts}")
    if finding.words:
        parts.append(finding.words)
    return "; ".join(parts)


def _episode(target: str) -> Episode | None:
    if not target:
        return None
    module, _, name = target.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(
            f"--episodes: expected module:function, found {target!r}: {error}"
        ) from error
    episode: Episode = found
    return episode
