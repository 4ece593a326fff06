"""Configuration of a recurrent policy, as ``config.json`` holds it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashrt_ros.errors import CheckpointError, InvalidArgumentError
from flashrt_ros.policies.normalisation import Normalisation

FAMILY = "recurrent"

CELLS = ("gru", "lstm")
HEADS = ("deterministic", "gmm")
DRAWS = ("sample", "likely")
ACTIVATIONS = ("relu", "elu", "silu", "gelu", "tanh")

LARGEST_SIZE = 1 << 20
"""Of every number in a configuration: a damaged one must not take all of the memory."""
MOST_LAYERS = 256


@dataclass(frozen=True)
class VectorConfig:
    """One observation, or the action.

    Attributes:
        key: Name in a contract, e.g. ``observation.state``; also the name of the buffer.
        size: Elements of the vector.
        names: Names of the elements; empty where the policy knows none.
        unit: Unit of all elements; empty where mixed.
        normalisation: Word of ``Normalisation``.
        required: False where a contract may leave the observation out; it is then zero.
    """

    key: str
    size: int
    names: tuple[str, ...] = ()
    unit: str = ""
    normalisation: str = "mean_std"
    required: bool = True

    def __post_init__(self) -> None:
        _expect(bool(self.key) and isinstance(self.key, str), "key", "a name", self.key)
        _at_least(self.size, 1, f"{self.key}: size")
        _expect(
            len(self.names) in (0, self.size) and len(set(self.names)) == len(self.names),
            f"{self.key}: names",
            f"{self.size} different names, or none",
            list(self.names),
        )
        modes = [mode.value for mode in Normalisation]
        _one_of(self.normalisation, modes, f"{self.key}: normalisation")
        _expect(isinstance(self.required, bool), f"{self.key}: required", "a bool", self.required)


@dataclass(frozen=True)
class RecurrentConfig:
    """All that shapes a recurrent policy besides its weights.

    Attributes:
        observations: Vectors that are read, concatenated in this order.
        action: The vector that is written.
        cell: ``gru`` or ``lstm``.
        hidden_size: D, width of each layer's hidden state.
        n_layers: L, stacked recurrent layers.
        encoder_sizes: Widths of the layers of an MLP before the recurrence; empty for none.
        head_sizes: Widths of the hidden layers of the MLP after it; empty for none.
        activation: Nonlinearity of both MLPs.
        head: ``deterministic`` (the action itself) or ``gmm`` (a Gaussian mixture).
        tanh: Bound the normalised action (``gmm``: the means) to -1..1.
        n_modes: K, modes of the mixture (``gmm``).
        min_std: Least standard deviation of a mode, normalised (``gmm``).
        draw: ``sample`` the mixture, or take the ``likely`` mode's mean (``gmm``).
        horizon: Every so many control steps the hidden state is zeroed; 0 for never.
        open_loop: Between two resets the observation at the first of them is used throughout;
            needs a horizon.
    """

    observations: tuple[VectorConfig, ...]
    action: VectorConfig
    cell: str = "gru"
    hidden_size: int = 64
    n_layers: int = 1
    encoder_sizes: tuple[int, ...] = ()
    head_sizes: tuple[int, ...] = ()
    activation: str = "relu"
    head: str = "deterministic"
    tanh: bool = False
    n_modes: int = 5
    min_std: float = 0.01
    draw: str = "sample"
    horizon: int = 0
    open_loop: bool = False

    def __post_init__(self) -> None:
        keys = [vector.key for vector in self.observations]
        _expect(
            bool(keys) and len(set(keys)) == len(keys) and self.action.key not in keys,
            "observations",
            "at least one, with names that differ from each other and from the action's",
            keys,
        )
        _one_of(self.cell, CELLS, "cell")
        _one_of(self.activation, ACTIVATIONS, "activation")
        _one_of(self.head, HEADS, "head")
        _one_of(self.draw, DRAWS, "draw")
        for name in ("hidden_size", "n_modes"):
            _at_least(getattr(self, name), 1, name)
        _at_least(self.n_layers, 1, "n_layers", MOST_LAYERS)
        for name in ("encoder_sizes", "head_sizes"):
            for size in getattr(self, name):
                _at_least(size, 1, name)
        for name in ("tanh", "open_loop"):
            value = getattr(self, name)
            _expect(isinstance(value, bool), name, "a bool", value)
        std = self.min_std
        _expect(
            isinstance(std, (int, float)) and not isinstance(std, bool) and 0 < std < float("inf"),
            "min_std",
            "a number above 0",
            std,
        )
        _at_least(self.horizon, 0, "horizon")
        _expect(
            self.horizon > 0 or not self.open_loop,
            "horizon",
            "at least 1, because open_loop is set",
            self.horizon,
        )

    @property
    def observation_size(self) -> int:
        """S, elements of all observations together."""
        return sum(vector.size for vector in self.observations)

    @property
    def draws_noise(self) -> bool:
        """Whether an action depends on the noise."""
        return self.head == "gmm" and self.draw == "sample"

    def to_dict(self) -> dict[str, Any]:
        """JSON values, with ``type`` in front."""

        def plain(value: object) -> object:
            if isinstance(value, dict):
                return {key: plain(item) for key, item in value.items()}
            return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value

        fields = dataclasses.asdict(self)
        return {"type": FAMILY, **{key: plain(value) for key, value in fields.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = FAMILY) -> RecurrentConfig:
        """Reads what ``to_dict`` wrote.

        Every field must be there and none besides: a setting that is dropped in silence would
        make another policy of the same weights.

        Args:
            values: JSON values.
            source: What an error names, e.g. the file.

        Raises:
            CheckpointError: A key is missing, unknown or holds a wrong value.
        """
        values = dict(values)
        found = values.pop("type", None)
        if found != FAMILY:
            raise CheckpointError(f"{source}: type: expected {FAMILY!r}, found {found!r}")
        fields = _checked(cls, values, source)
        if not isinstance(fields["observations"], list):
            raise CheckpointError(f"{source}: observations: expected a list")
        try:
            fields["observations"] = tuple(
                _vector(item, f"{source}: observations.{index}")
                for index, item in enumerate(fields["observations"])
            )
            fields["action"] = _vector(fields["action"], f"{source}: action")
            for name in ("encoder_sizes", "head_sizes"):
                _expect(isinstance(fields[name], list), name, "a list", fields[name])
                fields[name] = tuple(fields[name])
            return cls(**fields)
        except CheckpointError:
            raise
        except InvalidArgumentError as error:
            raise CheckpointError(f"{source}: {error}") from None


def _vector(values: object, source: str) -> VectorConfig:
    fields = _checked(VectorConfig, values, source)
    _expect(isinstance(fields["names"], list), f"{source}: names", "a list", fields["names"])
    return VectorConfig(**{**fields, "names": tuple(fields["names"])})


def _checked(cls: type, values: object, source: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{source}: expected an object, found {values!r}")
    expected = [field.name for field in dataclasses.fields(cls)]
    missing = [name for name in expected if name not in values]
    unknown = [name for name in values if name not in expected]
    if missing or unknown:
        raise CheckpointError(
            f"{source}: missing keys {missing}, unknown keys {unknown}; "
            f"expected exactly {expected}"
        )
    return dict(values)


def _expect(condition: bool, name: str, expected: str, found: object) -> None:
    if not condition:
        raise InvalidArgumentError(f"{name}: expected {expected}, found {found!r}")


def _at_least(value: object, least: int, name: str, most: int = LARGEST_SIZE) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    number = value if isinstance(value, int) and whole else least - 1
    _expect(number >= least, name, f"a whole number of at least {least}", value)
    _expect(number <= most, name, f"a whole number of at most {most}", value)


def _one_of(value: object, words: tuple[str, ...] | list[str], name: str) -> None:
    _expect(value in words, name, f"one of {list(words)}", value)
