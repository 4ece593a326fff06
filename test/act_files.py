"""Small ACT checkpoints with random weights, written without LeRobot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lerobot_files import ACTION, FRONT, STATE, feature, statistics, write_checkpoint

from flashrt_ros.policies.lerobot.act_config import read_act_config
from flashrt_ros.policies.lerobot.act_network import ACTNetwork
from flashrt_ros.policies.lerobot.checkpoint import read_checkpoint

ENV, WRIST = "observation.environment_state", "observation.images.wrist"
SMALL = {
    "type": "act",
    "n_obs_steps": 1,
    "input_features": {STATE: feature("STATE", 3), ENV: feature("ENV", 4)},
    "output_features": {ACTION: feature("ACTION", 2)},
    "chunk_size": 6,
    "n_action_steps": 4,
    "vision_backbone": "resnet18",
    "pretrained_backbone_weights": None,
    "replace_final_stride_with_dilation": False,
    "pre_norm": False,
    "dim_model": 16,
    "n_heads": 2,
    "dim_feedforward": 24,
    "feedforward_activation": "relu",
    "n_encoder_layers": 2,
    "n_decoder_layers": 1,
    "use_vae": True,
    "latent_dim": 8,
    "n_vae_encoder_layers": 1,
    "temporal_ensemble_coeff": None,
    "dropout": 0.1,
    "kl_weight": 10.0,
}
CAMERA = {"input_features": {STATE: feature("STATE", 3), FRONT: feature("VISUAL", 3, 32, 48)}}
VARIANTS: dict[str, dict[str, Any]] = {
    "vectors": {},
    "camera": CAMERA,
    "ensemble": {"temporal_ensemble_coeff": 0.01, "n_action_steps": 1},
    "newest first": {"temporal_ensemble_coeff": -0.5, "n_action_steps": 1},
    "no robot state": {"input_features": {ENV: feature("ENV", 4)}},
    "everything": {
        "input_features": {
            FRONT: feature("VISUAL", 3, 32, 48),
            STATE: feature("STATE", 3),
            ENV: feature("ENV", 4),
            WRIST: feature("VISUAL", 3, 40, 24),
        }
    },
    "pre-norm": {"pre_norm": True, "feedforward_activation": "gelu", "n_decoder_layers": 2},
    "deep and dilated": {
        **CAMERA,
        "vision_backbone": "resnet50",
        "replace_final_stride_with_dilation": True,
    },
    "resnet34": {**CAMERA, "vision_backbone": "resnet34"},
}


def write_act(directory: Path, version: str = "0.4", seed: int = 0, **changed: Any) -> Path:
    """Writes a checkpoint whose configuration is ``SMALL`` with changes."""
    config = {**SMALL, **changed}
    stats = statistics(config["input_features"], config["output_features"], seed)
    write_checkpoint(directory, config, {}, stats, version)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = ACTNetwork(read_act_config(read_checkpoint(directory)))
        weights = {f"model.{name}": value for name, value in network.state_dict().items()}
        for name, value in weights.items():
            if "running_var" in name:
                value.uniform_(0.5, 1.5)
            elif "running_mean" in name:
                value.normal_(0.0, 0.1)
        if config["use_vae"]:
            weights["model.vae_encoder.layers.0.linear1.weight"] = torch.zeros(2, 2)
            weights["model.vae_encoder_cls_embed.weight"] = torch.zeros(1, 16)
    return write_checkpoint(directory, config, weights, stats, version)


def observations(inputs: dict[str, Any], seed: int = 0) -> Iterator[dict[str, torch.Tensor]]:
    """An endless episode: vectors of about unit size, images from 0 to 1."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield {
            name: torch.rand(value["shape"], generator=generator)
            if value["type"] == "VISUAL"
            else torch.randn(value["shape"], generator=generator)
            for name, value in inputs.items()
        }
