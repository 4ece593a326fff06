"""A LeRobot checkpoint directory, as ``save_pretrained`` of LeRobot 0.4 and 0.6 writes it.

Read with json and safetensors alone. LeRobot itself is not needed: its pins fight the robot's
torch, and a directory that it refuses for one key it does not know is read here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.checkpoint import CONFIG, WEIGHTS, read_tensors
from flashrt_ros.policies.lerobot.changes import CHANGES, read_changes
from flashrt_ros.policies.lerobot.feature import ACTION, Feature, Kind, read_features
from flashrt_ros.policies.lerobot.json_file import read_object
from flashrt_ros.policies.lerobot.processor import POSTPROCESSOR, PREPROCESSOR, Step, read_steps
from flashrt_ros.policies.lerobot.recording import Recording, read_recording
from flashrt_ros.policies.lerobot.settings import Settings

STATISTICS_IN_WEIGHTS = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")
"""How names of statistics begin in ``model.safetensors`` of before the processors."""


@dataclass(frozen=True)
class LeRobotCheckpoint:
    """One checkpoint; every file but the weights has been read.

    Attributes:
        directory: Where it lies.
        type: Policy family, e.g. ``act``.
        config: ``config.json`` as it is.
        settings: The same with ``changes``, for typed access, which keeps account of what was
            read.
        changes: What ``flashrt_ros.json`` beside it says instead.
        input_features: Name to feature, in the order of the file.
        output_features: The same for outputs.
        recording: What is known of the recordings that it learned from.
        preprocessor: Steps before the network; None where there is no such file.
        postprocessor: Steps behind the network; None where there is no such file.
    """

    directory: Path
    type: str
    config: Mapping[str, Any]
    settings: Settings = field(repr=False)
    changes: Mapping[str, Any]
    input_features: Mapping[str, Feature]
    output_features: Mapping[str, Feature]
    recording: Recording = field(repr=False)
    preprocessor: tuple[Step, ...] | None = field(repr=False)
    postprocessor: tuple[Step, ...] | None = field(repr=False)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Keys of ``config.json`` that nothing has read; complete once a policy was made."""
        return self.settings.unknown

    @property
    def images(self) -> tuple[Feature, ...]:
        """Image inputs, in the order of the file, which is the order that networks take."""
        return tuple(f for f in self.input_features.values() if f.kind is Kind.VISUAL)

    @property
    def action(self) -> Feature:
        """The action.

        Raises:
            CheckpointError: There is none.
        """
        feature = self.output_features.get(ACTION)
        if feature is None or feature.kind is not Kind.ACTION:
            raise CheckpointError(
                f"{self.directory / CONFIG}: output_features: expected {ACTION!r} of type ACTION, "
                f"found {list(self.output_features)}"
            )
        return feature

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The network's weights, name to tensor on the CPU, without statistics.

        Raises:
            CheckpointError: ``model.safetensors`` is missing, damaged or no such file.
        """
        return self._weights[0]

    def statistics_in_weights(self) -> Mapping[str, torch.Tensor]:
        """Statistics that an old checkpoint keeps among its weights; empty for others.

        They are named like ``normalize_inputs.buffer_observation_state.mean``.

        Raises:
            CheckpointError: As in ``tensors``.
        """
        return self._weights[1]

    @functools.cached_property
    def _weights(self) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
        found = read_tensors(self.directory / WEIGHTS)
        statistics = {k: v for k, v in found.items() if k.startswith(STATISTICS_IN_WEIGHTS)}
        weights = {k: v for k, v in found.items() if k not in statistics}
        return MappingProxyType(weights), MappingProxyType(statistics)


def read_checkpoint(directory: Path | str) -> LeRobotCheckpoint:
    """Reads a checkpoint directory; of ``model.safetensors`` only once it is asked for.

    Raises:
        CheckpointError: A file or key that every family needs is missing or ill-shaped.
    """
    directory = Path(directory)
    config = read_object(directory / CONFIG)
    settings = Settings(str(directory / CONFIG), config)
    family = settings.word("type")
    if "input_shapes" in config and "input_features" not in config:
        raise CheckpointError(
            f"{directory / CONFIG}: expected the key 'input_features', found 'input_shapes' of a "
            "LeRobot before 2025; load and save it with LeRobot 0.3 first"
        )
    if settings.boolean("use_peft", False) or (directory / "adapter_config.json").exists():
        raise CheckpointError(
            f"{directory}: expected whole weights, found a PEFT adapter; merge it into its base "
            "model and save that"
        )
    changes = read_changes(directory, family)
    settings.change(str(directory / CHANGES), changes)
    settings.ignore("use_amp")
    recording = read_recording(directory)
    return LeRobotCheckpoint(
        directory=directory,
        type=family,
        config=MappingProxyType(config),
        settings=settings,
        changes=changes,
        input_features=recording.name(read_features(settings, "input_features")),
        output_features=recording.name(read_features(settings, "output_features")),
        recording=recording,
        preprocessor=read_steps(directory, PREPROCESSOR),
        postprocessor=read_steps(directory, POSTPROCESSOR),
    )
