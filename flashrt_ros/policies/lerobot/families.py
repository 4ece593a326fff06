"""Which module runs which LeRobot policy type."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import cast

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.checkpoint import CONFIG
from flashrt_ros.policies.fast.mode import Numerics
from flashrt_ros.policies.lerobot.changes import CHANGES
from flashrt_ros.policies.lerobot.checkpoint import LeRobotCheckpoint
from flashrt_ros.runtime.policy import Policy

_HOSTED = "flashrt_ros.policies.hosted.lerobot"
FAMILIES: dict[str, str] = {
    "act": "flashrt_ros.policies.lerobot.act",
    "diffusion": "flashrt_ros.policies.diffusion.checkpoint",
    "pi0": _HOSTED,
    "pi05": _HOSTED,
    "smolvla": _HOSTED,
}
"""LeRobot's ``type`` to the module whose ``make(checkpoint, numerics)`` makes the policy."""


def is_lerobot(config: dict[str, object]) -> bool:
    """Whether a configuration is LeRobot's: of a known type, or with features as it has them."""
    return config.get("type") in FAMILIES or "input_features" in config or "input_shapes" in config


def runs_in_lerobot(family: str) -> bool:
    """Whether the network of a type is LeRobot's own, which then is needed."""
    return FAMILIES.get(family) == _HOSTED


def make(checkpoint: LeRobotCheckpoint, numerics: Numerics = Numerics.EXACT) -> Policy:
    """Makes the policy of a checkpoint.

    Raises:
        CheckpointError: The checkpoint is wrong, or of a type that is not run here.
        UnsupportedError: It cannot calculate like that.
    """
    module = FAMILIES.get(checkpoint.type)
    if module is None:
        raise CheckpointError(
            f"{checkpoint.directory / CONFIG}: type: expected a LeRobot policy of type "
            f"{', '.join(sorted(FAMILIES))}, found {checkpoint.type!r}"
        )
    factory = cast(
        Callable[[LeRobotCheckpoint, Numerics], Policy], importlib.import_module(module).make
    )
    policy = factory(checkpoint, numerics)
    policy.origin = _origin(checkpoint)
    return policy


def _origin(checkpoint: LeRobotCheckpoint) -> tuple[str, ...]:
    """What a user should know of it who does not inspect it; a policy was made from it."""
    changes = tuple(
        f"{checkpoint.directory / CHANGES}: {key} is {json.dumps(value)} instead of "
        f"{json.dumps(checkpoint.config.get(key))}"
        for key, value in checkpoint.changes.items()
    )
    if not checkpoint.unknown:
        return changes
    keys = ", ".join(checkpoint.unknown)
    return (*changes, f"{checkpoint.directory / CONFIG}: nothing reads the keys {keys}")
