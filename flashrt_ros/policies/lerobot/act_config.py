"""What of an ACT checkpoint's config.json shapes the computation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from flashrt_ros.policies.lerobot.checkpoint import LeRobotCheckpoint
from flashrt_ros.policies.lerobot.feature import STATE as STATE_NAME
from flashrt_ros.policies.lerobot.feature import Feature, Kind
from flashrt_ros.policies.resnet import STAGES

LARGEST, MOST_LAYERS = 1 << 16, 256


@dataclass(frozen=True)
class ACTConfig:
    """Sizes and choices; names as in LeRobot.

    Attributes:
        state: Robot state, None without.
        environment: State of the environment, None without.
        images: Cameras, in the order of their tokens.
        action: The action.
        chunk_size: H, rows predicted.
        n_action_steps: Rows taken of them; 1 with temporal ensembling.
        temporal_ensemble_coeff: See ``TemporalEnsemble``; None for a queue.
        vision_backbone: Name of the residual network; unused without images.
        replace_final_stride_with_dilation: Whether its last stage keeps the resolution.
        pre_norm: Norms before the layers rather than behind them.
        dim_model: D.
        n_heads: Heads of each attention.
        dim_feedforward: Width between the two linear layers.
        feedforward_activation: ``relu`` or ``gelu``.
        n_encoder_layers: Of the transformer that is kept at inference.
        n_decoder_layers: Of the same.
        latent_dim: Of the latent, zero at inference.
    """

    state: Feature | None
    environment: Feature | None
    images: tuple[Feature, ...]
    action: Feature
    chunk_size: int
    n_action_steps: int
    temporal_ensemble_coeff: float | None
    vision_backbone: str
    replace_final_stride_with_dilation: bool
    pre_norm: bool
    dim_model: int
    n_heads: int
    dim_feedforward: int
    feedforward_activation: str
    n_encoder_layers: int
    n_decoder_layers: int
    latent_dim: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        values = asdict(self)
        for key in ("state", "environment", "action"):
            values[key] = _plain(getattr(self, key))
        values["images"] = [_plain(image) for image in self.images]
        return values


def _plain(feature: Feature | None) -> dict[str, Any] | None:
    return None if feature is None else {"name": feature.name, "shape": list(feature.shape)}


def read_act_config(checkpoint: LeRobotCheckpoint) -> ACTConfig:
    """Reads the configuration.

    Raises:
        CheckpointError: A key is missing, out of range or contradicts another.
    """
    settings = checkpoint.settings
    # What only training reads, and the encoder that only training runs.
    settings.ignore("dropout", "kl_weight", "n_vae_encoder_layers", "use_vae")
    settings.integer("n_obs_steps", at_least=1, at_most=1)
    inputs = checkpoint.input_features
    for feature in inputs.values():
        used = feature.kind in (Kind.ENV, Kind.VISUAL) or feature.name == STATE_NAME
        if not used or (feature.kind is Kind.VISUAL and feature.shape[0] != 3):
            raise settings.fault(
                f"input_features: {feature.name!r}",
                f"'{STATE_NAME}' of type STATE, one of type ENV, or images of 3 channels",
                f"{feature.kind.value} of {list(feature.shape)}",
            )
    environments = [f for f in inputs.values() if f.kind is Kind.ENV]
    if len(environments) > 1 or not (environments or checkpoint.images):
        raise settings.fault("input_features", "images, or one of type ENV, or both", list(inputs))
    size, layers = {"at_least": 1, "at_most": LARGEST}, {"at_least": 0, "at_most": MOST_LAYERS}
    chunk = settings.integer("chunk_size", **size)
    coefficient = settings.number("temporal_ensemble_coeff", None)
    width, heads = settings.integer("dim_model", **size), settings.integer("n_heads", **size)
    if width % heads or (checkpoint.images and width % 4):
        raise settings.fault("dim_model", f"a multiple of n_heads ({heads}) and of 4", width)
    backbone = settings.word("vision_backbone", choices=tuple(STAGES))
    dilated = settings.boolean("replace_final_stride_with_dilation", False)
    if dilated and checkpoint.images and not STAGES[backbone][0]:
        raise settings.fault(
            "replace_final_stride_with_dilation", f"false with {backbone}, as in torchvision", True
        )
    most = chunk if coefficient is None else 1
    return ACTConfig(
        state=inputs.get(STATE_NAME),
        environment=environments[0] if environments else None,
        images=checkpoint.images,
        action=checkpoint.action,
        chunk_size=chunk,
        n_action_steps=settings.integer("n_action_steps", at_least=1, at_most=most),
        temporal_ensemble_coeff=coefficient,
        vision_backbone=backbone,
        replace_final_stride_with_dilation=dilated,
        pre_norm=settings.boolean("pre_norm"),
        dim_model=width,
        n_heads=heads,
        dim_feedforward=settings.integer("dim_feedforward", **size),
        feedforward_activation=settings.word("feedforward_activation", choices=("relu", "gelu")),
        n_encoder_layers=settings.integer("n_encoder_layers", **layers),
        n_decoder_layers=settings.integer("n_decoder_layers", **layers),
        latent_dim=settings.integer("latent_dim", **size),
    )
