"""A Diffusion Policy from a LeRobot checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from flashrt_ros.errors import CheckpointError, InvalidArgumentError
from flashrt_ros.policies.checkpoint import CONFIG, WEIGHTS
from flashrt_ros.policies.chunked import ACTION, ChunkedPolicy
from flashrt_ros.policies.diffusion.config import DiffusionConfig
from flashrt_ros.policies.diffusion.encoder import VisionConfig
from flashrt_ros.policies.diffusion.network import DiffusionNetwork
from flashrt_ros.policies.diffusion.predictor import DiffusionPredictor, Senses
from flashrt_ros.policies.diffusion.schedule import PREDICTIONS, SAMPLERS, ScheduleConfig
from flashrt_ros.policies.diffusion.unet import UnetConfig
from flashrt_ros.policies.fast.denoiser import FastDiffusion
from flashrt_ros.policies.fast.mode import DTYPE, Numerics
from flashrt_ros.policies.lerobot.checkpoint import LeRobotCheckpoint
from flashrt_ros.policies.lerobot.feature import ENVIRONMENT, STATE, Feature, Kind
from flashrt_ros.policies.lerobot.normalisation import make_normaliser
from flashrt_ros.policies.lerobot.relative import read_relative
from flashrt_ros.policies.lerobot.settings import Settings, read_guidance
from flashrt_ros.policies.lerobot.weights import check_fit, load_into
from flashrt_ros.policies.relative import RelativeActions
from flashrt_ros.policies.resnet import STAGES
from flashrt_ros.runtime.policy import Port

PREFIX = "diffusion."
_TRAINING = ("crop_is_random", "do_mask_loss_for_padding", "gradient_checkpointing", "compile_*")
MOST_TIMESTEPS, MOST_STEPS = 100_000, 1000
"""Most training timesteps, and most denoising steps: all of them are unrolled into one plan."""


def make(checkpoint: LeRobotCheckpoint, numerics: Numerics = Numerics.EXACT) -> ChunkedPolicy:
    """Makes the policy.

    Raises:
        CheckpointError: A setting, feature, statistic or weight is missing or does not fit; names
            it.
        UnsupportedError: It cannot be fast.
    """
    relative = read_relative(checkpoint)
    predictor = make_predictor(checkpoint, numerics, relative)
    return ChunkedPolicy(predictor, predictor.n_action_steps, relative=relative)


def make_predictor(
    checkpoint: LeRobotCheckpoint,
    numerics: Numerics = Numerics.EXACT,
    relative: RelativeActions | None = None,
) -> DiffusionPredictor:
    """Makes the predictor alone; see ``make`` and ``DiffusionPredictor``."""
    config = read_config(checkpoint)
    normaliser = make_normaliser(checkpoint)
    weights = _plain_names(checkpoint.tensors())
    where = str(checkpoint.directory / WEIGHTS)
    with torch.device("meta"):
        # Without memory: a configuration that is not the weights' may ask for any amount.
        check_fit(DiffusionNetwork(config), weights, PREFIX, where=where)
    network = DiffusionNetwork(config)
    load_into(network, weights, PREFIX, where=where)
    environment = checkpoint.input_features.get(ENVIRONMENT)
    senses = Senses(
        _port(checkpoint.input_features[STATE]),
        tuple(_port(feature) for feature in checkpoint.images),
        None if environment is None else _port(environment),
    )
    _check_buffers(checkpoint, senses)
    feature = checkpoint.action
    action = Port(feature.name, ACTION, feature.shape, feature.names)
    guidance = read_guidance(checkpoint.settings, config.chunk_size)
    fast = FastDiffusion(network, DTYPE) if numerics is Numerics.FAST else None
    return DiffusionPredictor(
        config, network, normaliser, senses, action, guidance, fast, relative
    )


def read_config(checkpoint: LeRobotCheckpoint) -> DiffusionConfig:
    """Sizes and options of a checkpoint.

    Options that change what comes out have no default: that of one LeRobot is not the next one's.

    Raises:
        CheckpointError: One is missing or does not fit; names it.
    """
    settings = checkpoint.settings
    settings.ignore(*_TRAINING)
    _check_features(checkpoint)
    try:
        environment = checkpoint.input_features.get(ENVIRONMENT)
        return DiffusionConfig(
            state_size=checkpoint.input_features[STATE].shape[0],
            environment_size=0 if environment is None else environment.shape[0],
            cameras=len(checkpoint.images),
            action_size=checkpoint.action.shape[0],
            n_obs_steps=settings.integer("n_obs_steps", at_least=1),
            horizon=settings.integer("horizon", at_least=1),
            n_action_steps=settings.integer("n_action_steps", at_least=1),
            use_separate_rgb_encoder_per_camera=settings.boolean(
                "use_separate_rgb_encoder_per_camera"
            ),
            unet=_unet(settings),
            schedule=_schedule(settings),
            vision=_vision(checkpoint),
        )
    except InvalidArgumentError as error:
        option = str(error).partition(":")[0]
        raise CheckpointError(f"{settings.place(option)}: {error}") from None


def _unet(settings: Settings) -> UnetConfig:
    return UnetConfig(
        down_dims=settings.integers("down_dims", at_least=1),
        kernel_size=settings.integer("kernel_size", at_least=1),
        n_groups=settings.integer("n_groups", at_least=1),
        diffusion_step_embed_dim=settings.integer("diffusion_step_embed_dim", at_least=1),
        use_film_scale_modulation=settings.boolean("use_film_scale_modulation"),
    )


def _schedule(settings: Settings) -> ScheduleConfig:
    trained = settings.integer("num_train_timesteps", at_least=1, at_most=MOST_TIMESTEPS)
    steps = settings.integer("num_inference_steps", None, at_least=1)
    steps = trained if steps is None else steps
    if steps > MOST_STEPS:
        raise settings.fault("num_inference_steps", f"at most {MOST_STEPS}", steps)
    return ScheduleConfig(
        noise_scheduler_type=settings.word("noise_scheduler_type", choices=tuple(SAMPLERS)),
        num_train_timesteps=trained,
        num_inference_steps=steps,
        beta_schedule=settings.word("beta_schedule"),
        beta_start=settings.number("beta_start"),
        beta_end=settings.number("beta_end"),
        prediction_type=settings.word("prediction_type", choices=PREDICTIONS),
        clip_sample=settings.boolean("clip_sample"),
        clip_sample_range=settings.number("clip_sample_range"),
    )


def _vision(checkpoint: LeRobotCheckpoint) -> VisionConfig | None:
    settings = checkpoint.settings
    backbone = settings.word("vision_backbone", choices=tuple(STAGES))
    resize = settings.integers("resize_shape", None, length=2, at_least=1)
    crop = settings.integers("crop_shape", None, length=2, at_least=1)
    ratio = settings.number("crop_ratio", 1.0)
    if not 0 < ratio <= 1:
        raise settings.fault("crop_ratio", "a number above 0, at most 1", ratio)
    if resize is not None:
        crop = None if ratio == 1 else (int(resize[0] * ratio), int(resize[1] * ratio))
    group_norm = settings.boolean("use_group_norm")
    keypoints = settings.integer("spatial_softmax_num_keypoints", at_least=1)
    if not checkpoint.images:
        return None
    _, rows, columns = checkpoint.images[0].shape
    return VisionConfig(backbone, group_norm, keypoints, (rows, columns), resize, crop)


def _check_features(checkpoint: LeRobotCheckpoint) -> None:
    features, where = checkpoint.input_features, checkpoint.directory / CONFIG
    needed = features.get(STATE)
    if needed is None or needed.kind is not Kind.STATE:
        raise CheckpointError(
            f"{where}: input_features: expected {STATE!r} of type STATE, found {list(features)}"
        )
    for name, feature in features.items():
        known = name in (STATE, ENVIRONMENT) or feature.kind is Kind.VISUAL
        if not known or (name == ENVIRONMENT and feature.kind is not Kind.ENV):
            raise CheckpointError(
                f"{where}: input_features: {name!r} of type {feature.kind.value}: a diffusion "
                f"policy reads {STATE!r}, images (VISUAL) and {ENVIRONMENT!r} (ENV)"
            )
    for feature in checkpoint.images:
        if feature.shape != checkpoint.images[0].shape or feature.shape[0] != 3:
            raise CheckpointError(
                f"{where}: input_features: {feature.name!r}: expected an image of 3 channels, of "
                f"one size with the others, found {list(feature.shape)}"
            )


def _plain_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Names as they are without ``compile_model``, which puts a word of torch's into them."""
    return {name.replace("unet._orig_mod.", "unet."): value for name, value in tensors.items()}


def _port(feature: Feature) -> Port:
    buffer = re.sub(r"[^a-z0-9_.]", "_", feature.name.lower())
    return Port(feature.name, buffer, feature.shape, feature.names)


def _check_buffers(checkpoint: LeRobotCheckpoint, senses: Senses) -> None:
    buffers = [port.buffer for port in senses.ports]
    if len(set(buffers)) != len(buffers):
        raise CheckpointError(
            f"{checkpoint.directory / CONFIG}: input_features: expected names that differ by more "
            f"than case and punctuation, found {[port.key for port in senses.ports]}"
        )
