"""The processors of a checkpoint: ``policy_preprocessor.json``, ``policy_postprocessor.json``.

The steps are read, not run: what they do to values is rebuilt inside the policy, where it is
captured, and steps that nobody rebuilds are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.checkpoint import read_tensors
from flashrt_ros.policies.lerobot.json_file import read_object
from flashrt_ros.policies.lerobot.settings import Settings
from flashrt_ros.runtime.strict_json import shown

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
NORMALIZER, UNNORMALIZER = "normalizer_processor", "unnormalizer_processor"
RELATIVE, ABSOLUTE = "relative_actions_processor", "absolute_actions_processor"
TOKENIZER = "tokenizer_processor"
NEW_LINE = ("smolvla_new_line_processor", "pi0_new_line_processor")
WITH_STATE = "pi05_prepare_state_tokenizer_processor_step"
LANGUAGE = (*NEW_LINE, WITH_STATE, TOKENIZER)
"""Names of steps; of the last ones, only policies that read a task have some."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\.safetensors")


@dataclass(frozen=True)
class Step:
    """One step of a processor.

    Attributes:
        name: The name that LeRobot registers it under, e.g. ``normalizer_processor``.
        where: Begins messages about it.
        config: Its configuration.
        tensors: Its ``state_file``, read whole; empty without one.
    """

    name: str
    where: str
    config: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)

    def settings(self) -> Settings:
        """Its configuration, for typed access."""
        return Settings(self.where, self.config)


def read_steps(directory: Path, name: str) -> tuple[Step, ...] | None:
    """The steps of one processor in their order; None where the file is missing.

    Args:
        directory: Of the checkpoint.
        name: ``PREPROCESSOR`` or ``POSTPROCESSOR``.

    Raises:
        CheckpointError: The file, a step or its state file is ill-shaped.
    """
    path = directory / name
    if not path.exists():
        return None
    steps = read_object(path).get("steps")
    if not isinstance(steps, list):
        raise CheckpointError(f"{path}: steps: expected a list, found {shown(steps)}")
    return tuple(_step(path, number, value) for number, value in enumerate(steps))


def _step(path: Path, number: int, value: object) -> Step:
    where = f"{path}: steps[{number}]"
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: expected an object, found {shown(value)}")
    # A step that is not registered is named by the path of its class instead.
    name = value.get("registry_name", value.get("class"))
    if not isinstance(name, str):
        raise CheckpointError(f"{where}: registry_name: expected a text, found {shown(name)}")
    where = f"{where} ({name})"
    config = value.get("config", {})
    if not isinstance(config, dict):
        raise CheckpointError(f"{where}: config: expected an object, found {shown(config)}")
    file = value.get("state_file")
    if file is None:
        return Step(name, where, MappingProxyType(config))
    if not isinstance(file, str) or not _PLAIN_NAME.fullmatch(file):
        raise CheckpointError(
            f"{where}: state_file: expected the plain name of a .safetensors file beside it, "
            f"found {shown(file)}"
        )
    tensors = MappingProxyType(read_tensors(path.parent / file))
    return Step(name, where, MappingProxyType(config), tensors)
