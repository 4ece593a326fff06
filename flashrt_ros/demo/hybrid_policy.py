"""The trained hybrid of the recall task, registered under the name ``hybrid_reach``."""

from __future__ import annotations

from pathlib import Path

from flashrt_ros.policies.hybrid.policy import HybridPolicy

WEIGHTS = Path(__file__).parent / "hybrid_weights"
"""Directory with ``config.json`` and ``model.safetensors``, part of the package."""


def make(directory: Path | None = None) -> HybridPolicy:
    """Factory of the registered name ``hybrid_reach``.

    Args:
        directory: Another directory of the same kind, as ``train_hybrid`` writes it; None for the
            weights in the package.

    Raises:
        CheckpointError: See ``HybridPolicy.load``.
    """
    return HybridPolicy.load(directory or WEIGHTS)
