"""What the recordings that a policy was trained on say of it: their rate, and names of elements.

A checkpoint has neither. Both are in the data set's ``meta/info.json``; a copy of it in the
checkpoint's directory is read. With names, a contract whose joints are in another order is refused
at configure; without, nobody can tell.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.lerobot.feature import Feature, Kind
from flashrt_ros.policies.lerobot.json_file import read_object
from flashrt_ros.runtime.strict_json import shown

PLACES = ("info.json", "meta/info.json")


@dataclasses.dataclass(frozen=True)
class Recording:
    """What is known of the recordings.

    Attributes:
        path: The file; None where there is none.
        rate_hz: Control steps a second; None where unknown.
        names: Feature to the names of its elements, of vectors that have some.
    """

    path: Path | None = None
    rate_hz: float | None = None
    names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def name(self, features: Mapping[str, Feature]) -> Mapping[str, Feature]:
        """Returns the features with the names of their elements.

        Raises:
            CheckpointError: A feature has another number of elements here and there.
        """
        named = {}
        for key, feature in features.items():
            names = () if feature.kind is Kind.VISUAL else self.names.get(key, ())
            if names and len(names) != math.prod(feature.shape):
                raise CheckpointError(
                    f"{self.path}: features: {key!r}: expected {math.prod(feature.shape)} names "
                    f"as config.json has elements, found {len(names)}; is it of another data set?"
                )
            named[key] = dataclasses.replace(feature, names=names)
        return MappingProxyType(named)


def read_recording(directory: Path) -> Recording:
    """Reads the data set's ``info.json`` in a checkpoint's directory, if there is one.

    Raises:
        CheckpointError: It is ill-shaped.
    """
    for place in PLACES:
        if (directory / place).is_file():
            return _read(directory / place)
    return Recording()


def _read(path: Path) -> Recording:
    content = read_object(path)
    rate = content.get("fps")
    number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
    if rate is not None and not (number and 0 < rate < 1e4):
        raise CheckpointError(f"{path}: fps: expected a number above 0, found {shown(rate)}")
    features = content.get("features", {})
    if not isinstance(features, dict):
        raise CheckpointError(f"{path}: features: expected an object, found {shown(features)}")
    names = {
        key: element_names(f"{path}: features: {key!r}", value.get("names"))
        for key, value in features.items()
        if isinstance(value, dict)
    }
    return Recording(
        path, None if rate is None else float(rate), {k: v for k, v in names.items() if v}
    )


def element_names(where: str, value: Any) -> tuple[str, ...]:
    """Names of a vector's elements, from what ``names`` of a feature holds; empty for none.

    Raises:
        CheckpointError: It is ill-shaped.
    """
    # Older data sets group them, e.g. {"motors": [...]}.
    if isinstance(value, dict):
        value = [name for group in value.values() if isinstance(group, list) for name in group]
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise CheckpointError(f"{where}: names: expected a list of names, found {shown(value)}")
    if len(set(value)) != len(value):
        raise CheckpointError(f"{where}: names: expected each once, found {shown(value)}")
    return tuple(value)
