"""Entry point of the executable ``policy_node``; the node itself is in ``node.py``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from flashrt_ros.ros.runner import run


def main(args: Sequence[str] | None = None) -> int:
    """Runs the node until a signal ends it; returns the exit code."""
    return run(_make, args)


def _make() -> Any:
    # Loading torch takes a second or more, in which a signal must already be heeded.
    from flashrt_ros.ros.node import PolicyNode

    return PolicyNode()


if __name__ == "__main__":
    sys.exit(main())
