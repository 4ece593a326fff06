"""What a checkpoint says of itself, for people and programs that inspect it."""

from __future__ import annotations

from typing import Any

from flashrt_ros.policies.lerobot.checkpoint import LeRobotCheckpoint
from flashrt_ros.policies.lerobot.normalisation import make_normaliser
from flashrt_ros.policies.lerobot.processor import LANGUAGE


def summary(checkpoint: LeRobotCheckpoint) -> dict[str, Any]:
    """Returns type, rate, features with their normalisation, and keys that nothing has read.

    Args:
        checkpoint: A policy was made from it, else every key of its family is among the unread.

    Raises:
        CheckpointError: The normalisation cannot be made; see ``make_normaliser``.
    """
    modes = make_normaliser(checkpoint, LANGUAGE).modes()
    features = {**checkpoint.input_features, **checkpoint.output_features}
    steps = (*(checkpoint.preprocessor or ()), *(checkpoint.postprocessor or ()))
    return {
        "type": checkpoint.type,
        "rate_hz": checkpoint.recording.rate_hz,
        "element_names": str(checkpoint.recording.path or ""),
        "statistics": "processors" if steps else "weights",
        "steps": [step.name for step in steps],
        "features": [
            {
                "name": feature.name,
                "kind": feature.kind.value,
                "shape": list(feature.shape),
                "normalisation": modes.get(feature.name, ""),
            }
            for feature in features.values()
        ],
        "changes": {
            key: {"is": value, "config": checkpoint.config.get(key)}
            for key, value in checkpoint.changes.items()
        },
        "unknown_keys": list(checkpoint.unknown),
    }
