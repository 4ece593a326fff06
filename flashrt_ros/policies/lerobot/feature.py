"""What a LeRobot policy reads and writes: its features."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.lerobot.settings import Settings
from flashrt_ros.runtime.strict_json import shown

STATE, ENVIRONMENT, ACTION = "observation.state", "observation.environment_state", "action"
"""Names that LeRobot gives the robot's state, the environment's state and the action."""
LARGEST = 1 << 26
"""Elements that a feature may have; more is a fault, not a camera."""


class Kind(enum.Enum):
    """Kind of a feature, as the words of LeRobot's configuration."""

    STATE = "STATE"
    VISUAL = "VISUAL"
    ENV = "ENV"
    ACTION = "ACTION"
    REWARD = "REWARD"
    LANGUAGE = "LANGUAGE"


@dataclass(frozen=True)
class Feature:
    """One input or output.

    Attributes:
        name: As the checkpoint has it, e.g. ``observation.images.front``.
        kind: See ``Kind``.
        shape: ``(N,)`` of a vector, ``(C, H, W)`` of an image.
        names: Names of a vector's elements, empty where none are known.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    names: tuple[str, ...] = ()


def read_features(settings: Settings, key: str) -> Mapping[str, Feature]:
    """The features under one key of a configuration, in its order.

    Args:
        settings: The configuration.
        key: ``input_features``, ``output_features`` or ``features``.

    Raises:
        CheckpointError: They are missing or ill-shaped; names the feature.
    """
    found = settings.mapping(key)
    return MappingProxyType(
        {name: _feature(settings.where, key, name, found[name]) for name in found}
    )


def _feature(where: str, key: str, name: str, value: object) -> Feature:
    place = f"{where}: {key}: {name!r}"
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{place}: expected an object, found {shown(value)}")
    words = [kind.value for kind in Kind]
    if value.get("type") not in words:
        raise CheckpointError(
            f"{place}: type: expected one of {', '.join(words)}, found {shown(value.get('type'))}"
        )
    feature = Feature(name, Kind(value["type"]), _shape(place, value.get("shape")))
    if feature.kind is Kind.VISUAL:
        _check_image(place, feature.shape)
    elif feature.kind is not Kind.LANGUAGE and len(feature.shape) != 1:
        raise CheckpointError(
            f"{place}: shape: expected one number, as of a vector, found {list(feature.shape)}"
        )
    return feature


def _shape(place: str, value: Any) -> tuple[int, ...]:
    whole = isinstance(value, (list, tuple)) and all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in value
    )
    elements = 1
    for n in value if whole else ():
        elements *= n
    if not whole or not value or elements > LARGEST:
        raise CheckpointError(
            f"{place}: shape: expected positive whole numbers, at most {LARGEST} elements "
            f"together, found {shown(value)}"
        )
    return tuple(value)


def _check_image(place: str, shape: tuple[int, ...]) -> None:
    if len(shape) == 3 and shape[0] in (1, 3, 4):
        return
    last = len(shape) == 3 and shape[2] in (1, 3, 4)
    hint = "; the image is transposed, its channels come last" if last else ""
    raise CheckpointError(
        f"{place}: shape: expected an image (channels, height, width) with 1, 3 or 4 channels, "
        f"found {list(shape)}{hint}"
    )
