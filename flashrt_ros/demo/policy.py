"""The demo's trained policy, registered under the name ``cue_reach``."""

from __future__ import annotations

from pathlib import Path

from flashrt_ros.policies.recurrent import RecurrentPolicy

WEIGHTS = Path(__file__).parent / "weights"
"""Directory with ``config.json`` and ``model.safetensors``, part of the package."""


def make(directory: Path | None = None) -> RecurrentPolicy:
    """Factory of the registered name ``cue_reach``.

    Args:
        directory: Another directory of the same kind, as ``train`` writes it; None for the
            weights in the package.

    Raises:
        CheckpointError: See ``RecurrentPolicy.load``.
    """
    return RecurrentPolicy.load(directory or WEIGHTS)
