"""Relative actions of a checkpoint, from LeRobot's pair of processor steps."""

from __future__ import annotations

from typing import Any

from flashrt_ros.errors import CheckpointError, InvalidArgumentError
from flashrt_ros.policies.lerobot.checkpoint import LeRobotCheckpoint
from flashrt_ros.policies.lerobot.feature import STATE
from flashrt_ros.policies.lerobot.processor import (
    ABSOLUTE,
    NORMALIZER,
    POSTPROCESSOR,
    PREPROCESSOR,
    RELATIVE,
    UNNORMALIZER,
    Step,
)
from flashrt_ros.policies.relative import RelativeActions
from flashrt_ros.runtime.policy import Port


def read_relative(
    checkpoint: LeRobotCheckpoint, state_buffer: str = STATE
) -> RelativeActions | None:
    """What makes the actions of a checkpoint absolute; None where they are.

    Which elements are relative is decided as in ``huggingface/lerobot:
    src/lerobot/processor/relative_action_processor.py``: all of them, but for those whose name
    contains one of ``exclude_joints``, where the names are known.

    Args:
        checkpoint: Where ``relative_actions_processor`` and ``absolute_actions_processor`` stand.
        state_buffer: Input buffer of the robot's state, not normalised.

    Raises:
        CheckpointError: One step is there and enabled without the other, one stands on the wrong
            side of the normalisation, or there is no state to be relative to.
    """
    before = _enabled(checkpoint.preprocessor, RELATIVE, NORMALIZER, first=True)
    behind = _enabled(checkpoint.postprocessor, ABSOLUTE, UNNORMALIZER, first=False)
    if before is None and behind is None:
        return None
    if before is None or behind is None:
        there, missing = (RELATIVE, ABSOLUTE) if behind is None else (ABSOLUTE, RELATIVE)
        raise CheckpointError(
            f"{checkpoint.directory}: {PREPROCESSOR} and {POSTPROCESSOR}: found {there!r} enabled "
            f"and {missing!r} not: actions would be off by the robot's state"
        )
    feature = checkpoint.input_features.get(STATE)
    if feature is None:
        raise CheckpointError(
            f"{before.where}: expected the input {STATE!r}, which actions are relative to, found "
            f"{list(checkpoint.input_features)}"
        )
    size = checkpoint.action.shape[0]
    port = Port(feature.name, state_buffer, feature.shape, feature.names)
    try:
        return RelativeActions(port, _mask(before, size))
    except InvalidArgumentError as error:
        raise CheckpointError(f"{before.where}: {error}") from None


def _enabled(
    steps: tuple[Step, ...] | None, name: str, normaliser: str, first: bool
) -> Step | None:
    names = [step.name for step in steps or ()]
    if steps is None or name not in names:
        return None
    step = steps[names.index(name)]
    if names.count(name) > 1:
        raise CheckpointError(
            f"{step.where}: expected it once, found it {names.count(name)} times"
        )
    if not step.settings().boolean("enabled", False):
        return None
    if normaliser in names and (names.index(name) < names.index(normaliser)) != first:
        raise CheckpointError(
            f"{step.where}: expected it {'before' if first else 'behind'} {normaliser!r}, since "
            "actions are relative in the robot's units"
        )
    return step


def _mask(step: Step, size: int) -> list[bool]:
    excluded = [word.lower() for word in _words(step, "exclude_joints") if word]
    names = [word.lower() for word in _words(step, "action_names")][:size]
    relative = [not any(word in name for word in excluded) for name in names]
    return relative + [True] * (size - len(relative))


def _words(step: Step, key: str) -> list[str]:
    found: Any = step.config.get(key)
    if found is None:
        return []
    if not isinstance(found, (list, tuple)) or not all(isinstance(word, str) for word in found):
        raise step.settings().fault(key, "a list of names or null", found)
    return list(found)
