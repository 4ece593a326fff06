"""Settings beside a checkpoint: how it is to be run, other than its ``config.json`` says.

LeRobot takes such settings on its command line. Here they are a file in the checkpoint's
directory, so that node, benchmarks, evaluation and capsules mean the same policy; without the file
it is as it was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.lerobot.json_file import read_object

CHANGES = "flashrt_ros.json"
_HOSTED = ("n_action_steps", "rtc_config")
CHANGEABLE: Mapping[str, tuple[str, ...]] = {
    "act": ("n_action_steps", "temporal_ensemble_coeff"),
    "diffusion": ("n_action_steps", "noise_scheduler_type", "num_inference_steps", "rtc_config"),
    "pi0": _HOSTED,
    "pi05": _HOSTED,
    "smolvla": _HOSTED,
}
"""Of each type the keys that say how the network is run; all others say what it is."""


def read_changes(directory: Path, family: str) -> Mapping[str, Any]:
    """Keys of ``config.json`` that shall have another value; empty without the file.

    An ensemble takes one row of each chunk, so ``n_action_steps`` need not be said with it.

    Args:
        directory: Of the checkpoint.
        family: Its type.

    Raises:
        CheckpointError: The file is no JSON object, or has a key that may not be changed.
    """
    path = directory / CHANGES
    if not path.exists():
        return MappingProxyType({})
    changes, allowed = read_object(path), CHANGEABLE.get(family, ())
    for key in changes:
        if key not in allowed:
            raise CheckpointError(
                f"{path}: expected keys that may differ from config.json in a policy of type "
                f"{family!r}: {', '.join(allowed) or 'none'}; found {key!r}"
            )
    if changes.get("temporal_ensemble_coeff") is not None:
        changes.setdefault("n_action_steps", 1)
    return MappingProxyType(changes)
