"""Writes small Diffusion Policy checkpoints in the shape of LeRobot's, without LeRobot.

Every weight is drawn from its name. That LeRobot reads these directories, and acts as we do, is
held by ``test_diffusion_oracle.py``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from lerobot_files import feature, statistics, write_checkpoint

from flashrt_ros.policies.diffusion.checkpoint import PREFIX, read_config
from flashrt_ros.policies.diffusion.network import DiffusionNetwork
from flashrt_ros.policies.lerobot.checkpoint import read_checkpoint

STATE, ENVIRONMENT = "observation.state", "observation.environment_state"
CAMERAS = ("observation.images.front", "observation.images.wrist")
IMAGE = (3, 48, 56)
MODES = {"VISUAL": "MEAN_STD", "STATE": "MIN_MAX", "ENV": "MEAN_STD", "ACTION": "MIN_MAX"}
SMALL: dict[str, Any] = {
    "n_obs_steps": 2,
    "horizon": 16,
    "n_action_steps": 8,
    "normalization_mapping": MODES,
    "drop_n_last_frames": 7,
    "vision_backbone": "resnet18",
    "resize_shape": None,
    "crop_ratio": 1.0,
    "crop_shape": None,
    "crop_is_random": True,
    "pretrained_backbone_weights": None,
    "use_group_norm": True,
    "spatial_softmax_num_keypoints": 8,
    "use_separate_rgb_encoder_per_camera": False,
    "down_dims": [16, 32],
    "kernel_size": 5,
    "n_groups": 8,
    "diffusion_step_embed_dim": 16,
    "use_film_scale_modulation": True,
    "noise_scheduler_type": "DDIM",
    "num_train_timesteps": 100,
    "beta_schedule": "squaredcos_cap_v2",
    "beta_start": 0.0001,
    "beta_end": 0.02,
    "prediction_type": "epsilon",
    "clip_sample": True,
    "clip_sample_range": 1.0,
    "num_inference_steps": 5,
    "do_mask_loss_for_padding": False,
}
"""Every field of LeRobot's configuration that both 0.4 and 0.6 have, made small."""


def config(cameras: int = 0, environment: int = 3, **options: Any) -> dict[str, Any]:
    """A whole ``config.json``: four elements of state, two of action."""
    inputs = {STATE: feature("STATE", 4)}
    inputs |= {name: feature("VISUAL", *IMAGE) for name in CAMERAS[:cameras]}
    if environment:
        inputs[ENVIRONMENT] = feature("ENV", environment)
    outputs = {"action": feature("ACTION", 2)}
    features = {"input_features": inputs, "output_features": outputs}
    unknown = set(options) - set(SMALL)
    assert not unknown, unknown
    return {"type": "diffusion", **features, **SMALL, **options}


def weights(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A value for everything in the state of a network, drawn from its name."""
    return {name: drawn(name, value) for name, value in network.state_dict().items()}


def drawn(name: str, like: torch.Tensor) -> torch.Tensor:
    """Numbers of a size that keeps activations near unit size; a constant is left as it is."""
    if name.endswith(("pos_grid", "num_batches_tracked")):
        return like.clone()
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    value = torch.randn(like.shape, generator=generator)
    if name.endswith("running_var"):
        return 1 + 0.2 * value.abs()
    if like.ndim == 1:
        return (1.0 if name.endswith("weight") else 0.0) + 0.2 * value
    return value / like[0].numel() ** 0.5


def write(directory: Path, version: str = "0.4", **options: Any) -> Path:
    """Writes a checkpoint.

    Args:
        directory: Made if it is not there.
        version: As ``write_checkpoint`` has it.
        options: ``cameras``, ``environment`` and fields of ``SMALL``.

    Returns:
        The directory.
    """
    values = config(**options)
    stats = statistics(values["input_features"], values["output_features"])
    write_checkpoint(directory, values, {}, stats, version)
    network = DiffusionNetwork(read_config(read_checkpoint(directory)))
    tensors = {PREFIX + name: value for name, value in weights(network).items()}
    return write_checkpoint(directory, values, tensors, stats, version)


def observations(values: Mapping[str, Any], steps: int, seed: int = 8) -> Iterator[dict[str, Any]]:
    """Random observations for each control step; images are 0 to 1."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield {
            name: torch.rand(item["shape"], generator=generator)
            if item["type"] == "VISUAL"
            else torch.randn(item["shape"], generator=generator)
            for name, item in values["input_features"].items()
        }


CASES: dict[str, dict[str, Any]] = {
    "ddim": {},
    "ddpm": {"noise_scheduler_type": "DDPM"},
    "ddim sample": {"prediction_type": "sample"},
    "ddpm sample": {"noise_scheduler_type": "DDPM", "prediction_type": "sample"},
    "all timesteps": {
        "noise_scheduler_type": "DDPM",
        "num_train_timesteps": 20,
        "num_inference_steps": None,
    },
    "uneven": {"num_train_timesteps": 50, "num_inference_steps": 7},
    "linear": {"noise_scheduler_type": "DDPM", "beta_schedule": "linear"},
    "scaled linear": {"beta_schedule": "scaled_linear", "beta_end": 0.03},
    "sigmoid": {"noise_scheduler_type": "DDPM", "beta_schedule": "sigmoid"},
    "not clipped": {"prediction_type": "sample", "clip_sample": False},
    "clipped wider": {"noise_scheduler_type": "DDPM", "clip_sample_range": 1.7},
    "shift alone": {"use_film_scale_modulation": False, "kernel_size": 3, "n_groups": 4},
    "one observation": {"n_obs_steps": 1, "down_dims": [16], "n_action_steps": 3, "horizon": 6},
    "four observations": {"n_obs_steps": 4, "n_action_steps": 5, "down_dims": [8, 16, 24]},
    "camera": {"cameras": 1, "environment": 0, "crop_shape": [37, 50]},
    "two cameras": {"cameras": 2, "n_obs_steps": 3, "noise_scheduler_type": "DDPM"},
    "two encoders": {
        "cameras": 2,
        "environment": 0,
        "use_separate_rgb_encoder_per_camera": True,
        "crop_shape": [45, 33],
    },
    "resized": {
        "cameras": 1,
        "resize_shape": [40, 36],
        "crop_ratio": 0.9,
        "use_group_norm": False,
        "vision_backbone": "resnet34",
    },
    "bottlenecks": {"cameras": 1, "vision_backbone": "resnet50", "environment": 0},
}
"""Options by name; together they take every value that LeRobot has."""
