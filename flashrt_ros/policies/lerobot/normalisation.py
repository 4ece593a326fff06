"""Normalisation of a checkpoint's features, from its processors or from among its weights.

What LeRobot passes through when statistics are missing is refused here, and named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flashrt_ros.errors import CheckpointError, InvalidArgumentError
from flashrt_ros.policies.checkpoint import WEIGHTS
from flashrt_ros.policies.lerobot.checkpoint import LeRobotCheckpoint
from flashrt_ros.policies.lerobot.feature import ACTION, Feature, Kind, read_features
from flashrt_ros.policies.lerobot.processor import (
    ABSOLUTE,
    NORMALIZER,
    POSTPROCESSOR,
    PREPROCESSOR,
    RELATIVE,
    UNNORMALIZER,
    Step,
)
from flashrt_ros.policies.normalisation import EPSILON, STATISTICS, Normalisation, Normaliser
from flashrt_ros.runtime.strict_json import shown

# Renaming is the contract's business here: its keys are the names after it.
_ELSEWHERE = (
    "rename_observations_processor",
    "to_batch_processor",
    "device_processor",
    RELATIVE,
    ABSOLUTE,
)
"""Steps that do nothing to values, or that others read."""
_WORDS = {mode.value.upper(): mode for mode in Normalisation}


class CheckpointNormaliser(nn.Module):
    """Normalises all inputs of a checkpoint and restores its action.

    Args:
        inputs: Feature name to its normaliser.
        action: Of the action.
        width_A: Range of each element of the action in the training data; None if not known.
    """

    def __init__(
        self,
        inputs: Mapping[str, Normaliser],
        action: Normaliser,
        width_A: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.width_A = width_A
        # Names with dots cannot name modules.
        self._places = {name: str(place) for place, name in enumerate(inputs)}
        self.inputs = nn.ModuleDict({self._places[name]: inputs[name] for name in inputs})
        self.action = action

    def of(self, name: str) -> Normaliser:
        """The normaliser of one input."""
        found = self.inputs[self._places[name]]
        assert isinstance(found, Normaliser)
        return found

    def has(self, name: str) -> bool:
        """Whether an input of that name is normalised here."""
        return name in self._places

    def normalise(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """An input in the units of its port, in the network's range; same shape."""
        return self.of(name).normalise(x)

    def restore(self, action: torch.Tensor) -> torch.Tensor:
        """Actions ``(..., A)`` in the network's range, in the units of the port."""
        return self.action.restore(action)

    def modes(self) -> dict[str, str]:
        """Feature name to the word of its mode, the action's last."""
        return {
            **{name: self.of(name).mode.value for name in self._places},
            ACTION: self.action.mode.value,
        }


@dataclass(frozen=True)
class _Source:
    """Where modes and statistics of some features come from."""

    where: str
    modes: Mapping[str, Any]
    features: Mapping[str, Feature] | None
    statistics: Mapping[str, torch.Tensor]
    epsilon: float
    only: tuple[str, ...] | None


def make_normaliser(
    checkpoint: LeRobotCheckpoint, also: tuple[str, ...] = ()
) -> CheckpointNormaliser:
    """Makes what normalises a checkpoint's inputs and restores its action.

    With processors, the steps ``normalizer_processor`` and ``unnormalizer_processor`` say how and
    hold the statistics; without, ``normalization_mapping`` of config.json and the weights do. A
    kind of feature that they do not mention is not normalised, as in LeRobot.

    Args:
        checkpoint: Where they stand.
        also: Names of further steps of the preprocessor that the caller rebuilds.

    Raises:
        CheckpointError: A processor has a step that is not known here, or a statistic that is
            needed is missing, ill-shaped, not finite or contradictory; names the feature.
    """
    before = checkpoint.preprocessor
    behind = checkpoint.postprocessor
    if (before is None) != (behind is None):
        there, missing = PREPROCESSOR, POSTPROCESSOR
        if before is None:
            there, missing = missing, there
        raise CheckpointError(f"{checkpoint.directory}: found {there}, but {missing} is missing")
    if before is None or behind is None:
        sources = (
            _old_source(checkpoint, "normalize_inputs"),
            _old_source(checkpoint, "unnormalize_outputs"),
        )
    else:
        sources = (
            _step_source(before, NORMALIZER, checkpoint.directory / PREPROCESSOR, also),
            _step_source(behind, UNNORMALIZER, checkpoint.directory / POSTPROCESSOR),
        )
    inputs = {
        feature.name: _normaliser(sources[0], feature)
        for feature in checkpoint.input_features.values()
        if feature.kind in (Kind.STATE, Kind.VISUAL, Kind.ENV)
    }
    action = _normaliser(sources[1], checkpoint.action)
    return CheckpointNormaliser(inputs, action, _width(sources[1].statistics, action))


def _width(statistics: Mapping[str, torch.Tensor], action: Normaliser) -> torch.Tensor | None:
    """Range of each element of the action; without its limits what most of a bell covers."""
    limits = [statistics.get(f"{ACTION}.{name}") for name in ("min", "max")]
    low, high = (
        None if x is None or tuple(x.shape) != action.shape else x.to(torch.float32)
        for x in limits
    )
    if low is not None and high is not None and bool(torch.isfinite(high - low).all()):
        return high - low
    if action.mode is Normalisation.IDENTITY:
        return None
    if action.mode is Normalisation.MEAN_STD:
        return 4 * action.get_buffer("std")
    first, last = (action.get_buffer(name) for name in STATISTICS[action.mode])
    return last - first


def _step_source(
    steps: tuple[Step, ...], name: str, path: Path, also: tuple[str, ...] = ()
) -> _Source:
    for step in steps:
        if step.name not in (*_ELSEWHERE, *also, name):
            raise CheckpointError(
                f"{step.where}: this step is not known here; known are "
                f"{', '.join((*_ELSEWHERE, *also, name))}"
            )
        if step.config.get("float_dtype") not in (None, "float32"):
            raise CheckpointError(
                f"{step.where}: float_dtype: expected null or float32, found "
                f"{shown(step.config['float_dtype'])}"
            )
    found = [step for step in steps if step.name == name]
    if len(found) != 1:
        raise CheckpointError(
            f"{path}: steps: expected one step {name!r} in this processor, found {len(found)}"
        )
    step = found[0]
    settings = step.settings()
    only = step.config.get("normalize_observation_keys")
    if only is not None and not isinstance(only, (list, tuple)):
        raise settings.fault("normalize_observation_keys", "a list of names or null", only)
    return _Source(
        where=step.where,
        modes=settings.mapping("norm_map"),
        features=read_features(settings, "features"),
        statistics=step.tensors,
        epsilon=settings.number("eps", EPSILON, at_least=0.0),
        only=None if only is None else tuple(only),
    )


def _old_source(checkpoint: LeRobotCheckpoint, group: str) -> _Source:
    """Statistics from among the weights, under the names that the processors give them."""
    features = {**checkpoint.input_features, **checkpoint.output_features}
    statistics: dict[str, torch.Tensor] = {}
    for key, tensor in checkpoint.statistics_in_weights().items():
        prefix, _, statistic = key.rpartition(".")
        for name in features:
            if prefix == f"{group}.buffer_{name.replace('.', '_')}":
                statistics[f"{name}.{statistic}"] = tensor
    where = f"{checkpoint.directory / WEIGHTS}: {group}"
    modes = checkpoint.settings.mapping("normalization_mapping")
    return _Source(where, modes, None, statistics, EPSILON, None)


def _normaliser(source: _Source, feature: Feature) -> Normaliser:
    where = f"{source.where}: {feature.name!r}"
    word = source.modes.get(feature.kind.value, "IDENTITY")
    if not isinstance(word, str) or word not in _WORDS:
        raise CheckpointError(
            f"{where}: normalisation of {feature.kind.value}: expected one of "
            f"{', '.join(_WORDS)}, found {shown(word)}"
        )
    mode = _WORDS[word]
    if (
        source.only is not None
        and feature.kind is not Kind.ACTION
        and feature.name not in source.only
    ):
        mode = Normalisation.IDENTITY
    image = feature.kind is Kind.VISUAL
    shape = (feature.shape[0], 1, 1) if image else feature.shape
    normaliser = Normaliser(mode, shape, source.epsilon)
    if mode is Normalisation.IDENTITY:
        return normaliser
    if source.features is not None:
        _check_known(where, source.features, feature)
    statistics = {}
    for name in STATISTICS[mode]:
        value = source.statistics.get(f"{feature.name}.{name}")
        if value is None:
            raise CheckpointError(
                f"{where}: statistic {name!r} of normalisation {mode.value!r} is missing; without "
                "it the policy would act on values of another scale: save the checkpoint with the "
                "statistics of its data set"
            )
        # Flat statistics of images, (C,), are allowed as LeRobot 0.6 allows them.
        statistics[name] = (
            value.reshape(shape)
            if image and value.ndim == 1 and value.numel() == shape[0]
            else value
        )
    try:
        return normaliser.set_(statistics)
    except InvalidArgumentError as error:
        raise CheckpointError(f"{where}: {error}") from None


def _check_known(where: str, features: Mapping[str, Feature], feature: Feature) -> None:
    known = features.get(feature.name)
    if known is None or known.kind is not feature.kind or known.shape != feature.shape:
        found = "no such feature" if known is None else f"{known.kind.value} of {known.shape}"
        raise CheckpointError(
            f"{where}: expected {feature.kind.value} of {feature.shape} as in config.json, "
            f"found {found}"
        )
