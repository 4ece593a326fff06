"""Writes checkpoint directories in the shape of LeRobot's ``save_pretrained``, without LeRobot.

``old`` is the shape of before the processors: statistics lie among the weights. What 0.6 writes
differs from 0.4 in a key of config.json; both are compared with what LeRobot itself writes in
``test_lerobot_oracle.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Stats = Mapping[str, Mapping[str, torch.Tensor]]
STATE, FRONT, ACTION = "observation.state", "observation.images.front", "action"
MODES = {"VISUAL": "MEAN_STD", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
SPARE = {
    "device": "cpu",
    "use_amp": False,
    "use_peft": False,
    "push_to_hub": False,
    "repo_id": None,
    "private": None,
    "tags": None,
    "license": None,
    "pretrained_path": None,
    "optimizer_lr": 1e-05,
}


def feature(kind: str, *shape: int) -> dict[str, Any]:
    return {"type": kind, "shape": list(shape)}


def statistics(inputs: Mapping[str, Any], outputs: Mapping[str, Any], seed: int = 0) -> Stats:
    """Random ones for every feature, all kinds of them."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in {**inputs, **outputs}.items():
        shape = value["shape"]
        size = (shape[0], 1, 1) if value["type"] == "VISUAL" else tuple(shape)
        low, high = (torch.rand(size, generator=generator) for _ in range(2))
        found[name] = {
            "mean": low,
            "std": high + 0.1,
            "min": low - 2,
            "max": low + high + 2,
            "q01": low - 1,
            "q99": low + high + 1,
            "q10": low - 0.5,
            "q90": low + high + 0.5,
            "count": torch.tensor([100.0]),
        }
    return found


def write_checkpoint(
    directory: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    stats: Stats,
    version: str = "0.4",
) -> Path:
    """Writes all files.

    Args:
        directory: Made if it is not there.
        config: ``type``, features and what the family needs.
        tensors: Weights under their full names.
        stats: Feature to statistics.
        version: ``0.4``, ``0.6`` or ``old``.

    Returns:
        The directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    values = {**SPARE, "normalization_mapping": MODES, **config}
    if version == "0.6":
        values["pretrained_revision"] = None
    (directory / "config.json").write_text(json.dumps(values, indent=4))
    weights = dict(tensors)
    if version == "old":
        for name, values_of in stats.items():
            place = name.replace(".", "_")
            groups = ("normalize_inputs",)
            if name in config["output_features"]:
                groups = ("normalize_targets", "unnormalize_outputs")
            for group in groups:
                for statistic in ("mean", "std", "min", "max"):
                    weights[f"{group}.buffer_{place}.{statistic}"] = values_of[statistic].clone()
    else:
        _write_processors(directory, values, stats)
    save_file(weights, directory / "model.safetensors")
    return directory


def _write_processors(directory: Path, values: Mapping[str, Any], stats: Stats) -> None:
    features = {**values["input_features"], **values["output_features"]}
    device = {
        "registry_name": "device_processor",
        "config": {"device": "cpu", "float_dtype": None},
    }
    before = [
        {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
        {"registry_name": "to_batch_processor", "config": {}},
        device,
        _normaliser("normalizer_processor", values, features, "policy_preprocessor", 3),
    ]
    behind = [
        _normaliser(
            "unnormalizer_processor", values, values["output_features"], "policy_postprocessor", 0
        ),
        device,
    ]
    flat = {f"{name}.{key}": v for name, found in stats.items() for key, v in found.items()}
    for name, steps in (("policy_preprocessor", before), ("policy_postprocessor", behind)):
        (directory / f"{name}.json").write_text(json.dumps({"name": name, "steps": steps}))
        for step in steps:
            if "state_file" in step:
                save_file({k: v.clone() for k, v in flat.items()}, directory / step["state_file"])


def _normaliser(
    step: str, values: Mapping[str, Any], features: Mapping[str, Any], processor: str, at: int
) -> dict[str, Any]:
    return {
        "registry_name": step,
        "config": {
            "eps": 1e-08,
            "features": dict(features),
            "norm_map": values["normalization_mapping"],
        },
        "state_file": f"{processor}_step_{at}_{step}.safetensors",
    }


def edit_json(path: Path, change: Any) -> None:
    """Lets ``change`` alter the value of a JSON file in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_tensors(path: Path, change: Any) -> None:
    """Lets ``change`` alter the tensors of a safetensors file in place."""
    from safetensors.torch import load_file

    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
