"""Configuration of a hybrid robot policy, as its ``config.json`` holds it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashrt_ros.errors import CheckpointError, InvalidArgumentError
from flashrt_ros.policies.hybrid.config import ModelConfig
from flashrt_ros.policies.recurrent_config import VectorConfig

FAMILY = "hybrid"
BOUNDED = ("quantiles", "quantile10", "min_max")
MOST_STEPS = 1 << 24


@dataclass(frozen=True)
class ImageConfig:
    """One camera.

    Attributes:
        key: Name in a contract, e.g. ``observation.images.front``; also the name of the buffer.
        height: Rows of ``(3, H, W)`` float32 from 0 to 1.
        width: Columns.
        patch: Side of the patches that the stem cuts, in pixels.
        grid: The image becomes ``grid * grid`` tokens.
    """

    key: str
    height: int
    width: int
    patch: int = 8
    grid: int = 2

    def __post_init__(self) -> None:
        _expect(isinstance(self.key, str) and bool(self.key), "key", "a name", self.key)
        for name in ("height", "width", "patch", "grid"):
            _whole(f"{self.key}: {name}", getattr(self, name), 1, 1 << 14)
        side = self.patch * self.grid
        for name in ("height", "width"):
            size = getattr(self, name)
            _expect(
                size % side == 0,
                f"{self.key}: {name}",
                f"a multiple of patch times grid ({side})",
                size,
            )


@dataclass(frozen=True)
class RobotConfig:
    """What goes in and out of the model, as tokens.

    Attributes:
        model: Sizes of the language model.
        observations: Vectors, one token each.
        images: Cameras.
        action: The action, one token an element; its normalisation is bounded.
        n_bins: Values that an element can take, evenly spaced between its bounds.
        first_bin: Token of the lowest value; the others follow.
        start_token: Token that an episode begins with.
        drafts: Drafted tokens of a round; above 0 the model needs an MTP head.
        max_steps: Control steps that an episode may have. It is no part of the state id.
    """

    model: ModelConfig
    observations: tuple[VectorConfig, ...]
    action: VectorConfig
    images: tuple[ImageConfig, ...] = ()
    n_bins: int = 128
    first_bin: int = 0
    start_token: int = 0
    drafts: int = 0
    max_steps: int = 1024

    def __post_init__(self) -> None:
        keys = [item.key for item in self.observations] + [item.key for item in self.images]
        _expect(
            bool(keys) and len({*keys, self.action.key}) == len(keys) + 1,
            "observations and images",
            "at least one, with names that differ from each other and from the action's",
            keys,
        )
        mode = self.action.normalisation
        _expect(mode in BOUNDED, "action: normalisation", f"one of {list(BOUNDED)}", mode)
        vocab = self.model.vocab_size
        _whole("n_bins", self.n_bins, 2, vocab)
        _whole("first_bin", self.first_bin, 0, vocab - self.n_bins)
        _whole("start_token", self.start_token, 0, vocab - 1)
        _whole("max_steps", self.max_steps, 1, MOST_STEPS)
        most = self.action.size - 1 if self.model.mtp else 0
        _whole("drafts (needs an MTP head)", self.drafts, 0, most)

    @property
    def observation_tokens(self) -> int:
        """Tokens of all observations of one control step."""
        return len(self.observations) + sum(image.grid**2 for image in self.images)

    @property
    def step_tokens(self) -> int:
        """Rows that one control step appends."""
        return self.observation_tokens + self.action.size

    def to_dict(self) -> dict[str, Any]:
        """JSON values, with ``type`` in front."""
        values = dataclasses.asdict(self)
        values["model"] = self.model.to_dict()
        for item in (*values["observations"], values["action"]):
            item["names"] = list(item["names"])
        values["observations"] = list(values["observations"])
        values["images"] = list(values["images"])
        return {"type": FAMILY, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = FAMILY) -> RobotConfig:
        """Reads what ``to_dict`` wrote; every field must be there and none besides.

        Raises:
            CheckpointError: A key is missing, unknown or holds a wrong value; names ``source``.
        """
        if values.get("type") != FAMILY:
            raise CheckpointError(
                f"{source}: type: expected {FAMILY!r}, found {values.get('type')!r}"
            )
        fields = _exact(cls, {k: v for k, v in values.items() if k != "type"}, source)
        for name in ("observations", "images"):
            if not isinstance(fields[name], list):
                raise CheckpointError(f"{source}: {name}: expected a list, found {fields[name]!r}")
        try:
            fields["model"] = ModelConfig.from_dict(fields["model"], f"{source}: model")
            fields["observations"] = tuple(
                _vector(item, f"{source}: observations.{n}")
                for n, item in enumerate(fields["observations"])
            )
            fields["images"] = tuple(
                ImageConfig(**_exact(ImageConfig, item, f"{source}: images.{n}"))
                for n, item in enumerate(fields["images"])
            )
            fields["action"] = _vector(fields["action"], f"{source}: action")
            return cls(**fields)
        except CheckpointError:
            raise
        except InvalidArgumentError as error:
            raise CheckpointError(f"{source}: {error}") from None


def _vector(values: object, source: str) -> VectorConfig:
    fields = _exact(VectorConfig, values, source)
    if not isinstance(fields["names"], list):
        raise CheckpointError(f"{source}: names: expected a list, found {fields['names']!r}")
    return VectorConfig(**{**fields, "names": tuple(fields["names"])})


def _exact(cls: type, values: object, source: str) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(cls)]
    if not isinstance(values, Mapping) or set(values) != set(names):
        found = sorted(map(str, values)) if isinstance(values, Mapping) else values
        raise CheckpointError(f"{source}: expected an object of exactly {names}, found {found!r}")
    return dict(values)


def _whole(name: str, value: object, least: int, most: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    expected = f"a whole number from {least} to {most}"
    _expect(whole and least <= value <= most, name, expected, value)  # type: ignore[operator]


def _expect(condition: bool, name: str, expected: str, found: object) -> None:
    if not condition:
        raise InvalidArgumentError(f"{name}: expected {expected}, found {found!r}")
