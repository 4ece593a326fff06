"""Typed access to a configuration that other programs wrote and may have added to."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.guidance import SCHEDULES, GuidanceConfig
from flashrt_ros.runtime.strict_json import shown

T = TypeVar("T")
_NEEDED: Any = object()

TRAINING = (
    "device",
    "drop_n_last_frames",
    "hub_*",
    "input_features",
    "license",
    "normalization_mapping",
    "optimizer_*",
    "output_features",
    "pretrained_*",
    "private",
    "push_to_hub",
    "repo_id",
    "scheduler_*",
    "tags",
    "type",
)
"""Keys of every family that say nothing about inference, or that the checkpoint reads itself."""


class Settings:
    """One JSON object, read key by key; what nobody has read is listed in ``unknown``.

    Args:
        where: Begins every message: the file, and the place in it.
        values: The object.
    """

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = dict(values)
        self._known: list[str] = list(TRAINING)
        self._changed: dict[str, str] = {}

    @property
    def unknown(self) -> tuple[str, ...]:
        """Keys that were neither read nor declared irrelevant so far, sorted."""
        return tuple(sorted(key for key in self.values if not _fits(key, self._known)))

    def change(self, where: str, values: Mapping[str, Any]) -> None:
        """Takes other values for some keys, from another file, which messages then name."""
        self.values.update(values)
        self._changed.update(dict.fromkeys(values, where))

    def place(self, key: str) -> str:
        """The file and the place in it that a key comes from."""
        return self._changed.get(key, self.where)

    def ignore(self, *patterns: str) -> None:
        """Declares keys irrelevant for inference; ``*`` at the end stands for any rest."""
        self._known += patterns

    def integer(
        self, key: str, default: int | None = _NEEDED, *, at_least: int = 0, at_most: int = 2**31
    ) -> Any:
        """A whole number; None only where the default is None.

        Args:
            key: Its name.
            default: Where the key is missing; without one it is needed.
            at_least: Smallest allowed value.
            at_most: Largest allowed value.

        Raises:
            CheckpointError: It is missing, no whole number or out of range.
        """

        def fits(value: Any) -> bool:
            whole = isinstance(value, int) and not isinstance(value, bool)
            return whole and at_least <= value <= at_most

        return self._read(key, default, fits, f"a whole number from {at_least} to {at_most}")

    def number(
        self, key: str, default: float | None = _NEEDED, *, at_least: float = -math.inf
    ) -> Any:
        """A finite number as a float; None only where the default is None.

        Raises:
            CheckpointError: It is missing, no finite number or below ``at_least``.
        """
        low = "" if at_least == -math.inf else f" of at least {at_least}"
        value = self._read(
            key, default, lambda v: _is_number(v) and v >= at_least, f"a finite number{low}"
        )
        return None if value is None else float(value)

    def boolean(self, key: str, default: bool = _NEEDED) -> bool:
        """True or false; 0 and 1, which some configurations hold, are taken for them.

        Raises:
            CheckpointError: It is missing or something else.
        """
        return bool(self._read(key, default, lambda v: v in (False, True), "true or false"))

    def word(self, key: str, default: str | None = _NEEDED, *, choices: Sequence[str] = ()) -> Any:
        """A text, one of ``choices`` if there are some; None only where the default is None.

        Raises:
            CheckpointError: It is missing or something else.
        """
        expected = f"one of {', '.join(choices)}" if choices else "a text"
        return self._read(
            key, default, lambda v: isinstance(v, str) and (not choices or v in choices), expected
        )

    def integers(
        self,
        key: str,
        default: Sequence[int] | None = _NEEDED,
        *,
        length: int | None = None,
        at_least: int = 0,
    ) -> Any:
        """A tuple of whole numbers; None only where the default is None.

        Raises:
            CheckpointError: It is missing, no list, of another length, or holds something else.
        """

        def fits(value: object) -> bool:
            if not isinstance(value, (list, tuple)) or length not in (None, len(value)):
                return False
            return all(isinstance(v, int) and not isinstance(v, bool) for v in value) and all(
                v >= at_least for v in value
            )

        many = "" if length is None else f"{length} "
        value = self._read(
            key, default, fits, f"a list of {many}whole numbers of at least {at_least}"
        )
        return None if value is None else tuple(value)

    def mapping(self, key: str, default: Mapping[str, Any] | None = _NEEDED) -> Any:
        """An object as it is; None only where the default is None.

        Raises:
            CheckpointError: It is missing or no object.
        """
        return self._read(key, default, lambda v: isinstance(v, Mapping), "an object")

    def fault(self, key: str, expected: str, found: object) -> CheckpointError:
        """The error to raise where a value, though well-formed, cannot be used."""
        return CheckpointError(
            f"{self.place(key)}: {key}: expected {expected}, found {shown(found)}"
        )

    def _read(self, key: str, default: T, fits: Callable[[Any], bool], expected: str) -> T:
        self._known.append(key)
        if key not in self.values:
            if default is _NEEDED:
                raise CheckpointError(f"{self.where}: {key!r} is missing; expected {expected}")
            return default
        value = self.values[key]
        if (value is None and default is None) or fits(value):
            found: T = value
            return found
        raise self.fault(key, expected + (" or null" if default is None else ""), value)


def read_guidance(settings: Settings, chunk_size: int) -> GuidanceConfig | None:
    """Options of real-time chunking: ``rtc_config``, as LeRobot has it for flow policies.

    Args:
        settings: Of the policy.
        chunk_size: Rows of a chunk.

    Returns:
        None where there is none, or it is not ``enabled``.

    Raises:
        CheckpointError: An option does not fit; names it.
    """
    values = settings.mapping("rtc_config", None)
    if values is None:
        return None
    options = Settings(f"{settings.place('rtc_config')}: rtc_config", values)
    if not options.boolean("enabled", False):
        return None
    most = options.number("max_guidance_weight", 10.0)
    if most <= 0:
        raise options.fault("max_guidance_weight", "a number above 0", most)
    return GuidanceConfig(
        options.word("prefix_attention_schedule", "LINEAR", choices=SCHEDULES),
        options.integer("execution_horizon", 10, at_least=1, at_most=chunk_size),
        most,
    )


def _fits(key: str, patterns: Sequence[str]) -> bool:
    return any(key.startswith(p[:-1]) if p.endswith("*") else key == p for p in patterns)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    # An integer may be too large for a float.
    return abs(value) <= sys.float_info.max
