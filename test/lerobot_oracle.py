"""LeRobot itself, where it is installed; its policies and processors, made from small settings.

``scripts/oracle.sh`` installs it beside a torch that its pins do not allow.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from flashrt_ros.bench.lerobot_peer import allow_any_torchvision, installed

WHY_NOT = "LeRobot is not installed; scripts/oracle.sh installs it and runs these tests"
oracle = [pytest.mark.oracle, pytest.mark.skipif(not installed(), reason=WHY_NOT)]


def save(directory: Path, settings: Mapping[str, Any], stats: Any, seed: int = 0) -> Path:
    """Lets LeRobot write a checkpoint of random weights.

    Args:
        directory: Made if it is not there.
        settings: As in config.json; ``type`` chooses the policy.
        stats: Feature to statistics.
        seed: Of the weights.
    """
    allow_any_torchvision()
    types = importlib.import_module("lerobot.configs.types")
    factory = importlib.import_module("lerobot.policies.factory")
    values = dict(settings)

    def features(key: str) -> Any:
        found = values.pop(key)
        return {
            name: types.PolicyFeature(types.FeatureType(f["type"]), tuple(f["shape"]))
            for name, f in found.items()
        }

    modes = values.pop("normalization_mapping", None)
    if modes is not None:
        values["normalization_mapping"] = {
            kind: types.NormalizationMode(mode) for kind, mode in modes.items()
        }
    config = factory.make_policy_config(
        values.pop("type"),
        input_features=features("input_features"),
        output_features=features("output_features"),
        device="cpu",
        push_to_hub=False,
        **values,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        policy = factory.get_policy_class(config.type)(config)
        for name, buffer in policy.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0.0, 0.1)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
    policy.save_pretrained(directory)
    for processor in factory.make_pre_post_processors(config, dataset_stats=stats):
        processor.save_pretrained(directory)
    return directory


class Oracle:
    """A checkpoint as LeRobot runs it: processor, ``select_action``, processor.

    Args:
        directory: Of the checkpoint.
        changed: Values of its configuration, as on LeRobot's command line.
    """

    def __init__(self, directory: Path, **changed: object) -> None:
        allow_any_torchvision()
        factory = importlib.import_module("lerobot.policies.factory")
        configs = importlib.import_module("lerobot.configs.policies")
        config = configs.PreTrainedConfig.from_pretrained(directory)
        for key, value in changed.items():
            setattr(config, key, value)
        self.policy = factory.get_policy_class(config.type).from_pretrained(
            directory, config=config
        )
        self._before, self._behind = factory.make_pre_post_processors(
            self.policy.config, pretrained_path=str(directory)
        )
        self.policy.reset()

    @torch.no_grad()
    def step(self, row: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the action ``(A,)`` of one control step."""
        action: torch.Tensor = self._behind(self.policy.select_action(self._before(dict(row))))
        return action[0]

    def run(self, rows: Iterable[Mapping[str, torch.Tensor]]) -> torch.Tensor:
        """Returns all actions ``(T, A)`` of an episode."""
        self.policy.reset()
        return torch.stack([self.step(row) for row in rows])
