"""``flashrt_ros export``: a policy as programs that need none of its code."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``export``."""
    parser.add_argument(
        "policy", help="directory with config.json, registered name, or package.module:factory"
    )
    parser.add_argument("directory", type=Path, help="where to write; must be empty or absent")
    parser.add_argument(
        "--rate-hz", type=float, default=None, help="control rate that the policy is meant for"
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the programs and says what they are."""
    import torch

    from flashrt_ros.policies.program.export import export_policy
    from flashrt_ros.policies.registry import load_policy

    torch.set_num_threads(1)
    directory: Path = arguments.directory
    made = export_policy(load_policy(arguments.policy), directory, arguments.rate_hz)
    print(f"{made.family} in {directory}:")
    for path in sorted(directory.iterdir()):
        print(f"  {path.name:24}{path.stat().st_size:12,} bytes")
    print(f"flashrt_ros check {directory}    # then, if it keeps its state where it says")
    return 0
