"""The network of ACT (Action Chunking Transformer) as it runs at inference.

Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", RSS 2023; weight
names and arithmetic are those of ``huggingface/lerobot:src/lerobot/policies/act/modeling_act.py``.
Left out: the variational encoder, whose latent is zero at inference, and dropout. Constants that
LeRobot makes anew in each call (zero latent, zero queries, positions) are buffers here: making
them would need the host.

Tensor suffixes: T tokens, H horizon, B batch (1), D model width, S state, A action.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.policies.lerobot.act_config import ACTConfig
from flashrt_ros.policies.lerobot.position import map_positions
from flashrt_ros.policies.resnet import FrozenBatchNorm, feature_channels, make_resnet


class Attention(nn.MultiheadAttention):
    """Attention with the kernels that LeRobot's call takes, which also asks for weights."""

    def attend(
        self, query_TBD: torch.Tensor, key_TBD: torch.Tensor, value_TBD: torch.Tensor
    ) -> torch.Tensor:
        """Returns the mixed values, one for each query."""
        # Asked for weights, torch multiplies matrices; else it would fuse, with other bits.
        mixed_TBD, _ = self(query_TBD, key_TBD, value_TBD, average_attn_weights=False)
        return torch.as_tensor(mixed_TBD)


class FeedForward(nn.Module):
    """What encoder and decoder layers have in common: two linear layers and the order of norms."""

    def __init__(self, config: ACTConfig) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.gelu = config.feedforward_activation == "gelu"
        self.linear1 = nn.Linear(config.dim_model, config.dim_feedforward)
        self.linear2 = nn.Linear(config.dim_feedforward, config.dim_model)

    def feed(self, x_TBD: torch.Tensor) -> torch.Tensor:
        """Through both linear layers."""
        wide = self.linear1(x_TBD)
        return torch.as_tensor(
            self.linear2(functional.gelu(wide) if self.gelu else functional.relu(wide))
        )

    def before(self, norm: nn.Module, x_TBD: torch.Tensor) -> torch.Tensor:
        """What a sub-layer reads."""
        return torch.as_tensor(norm(x_TBD)) if self.pre_norm else x_TBD

    def behind(self, norm: nn.Module, x_TBD: torch.Tensor) -> torch.Tensor:
        """What a sub-layer, its shortcut added, leaves."""
        return x_TBD if self.pre_norm else torch.as_tensor(norm(x_TBD))


class EncoderLayer(FeedForward):
    """Self-attention and feed-forward, each beside a shortcut."""

    def __init__(self, config: ACTConfig) -> None:
        super().__init__(config)
        self.self_attn = Attention(config.dim_model, config.n_heads)
        self.norm1, self.norm2 = (nn.LayerNorm(config.dim_model) for _ in range(2))

    def forward(self, x_TBD: torch.Tensor, position_TBD: torch.Tensor) -> torch.Tensor:
        """Returns tokens of the same shape."""
        seen = self.before(self.norm1, x_TBD)
        query = seen + position_TBD
        x_TBD = self.behind(self.norm1, x_TBD + self.self_attn.attend(query, query, seen))
        seen = self.before(self.norm2, x_TBD)
        return self.behind(self.norm2, x_TBD + self.feed(seen))


class DecoderLayer(FeedForward):
    """Self-attention, attention to the encoder's tokens and feed-forward."""

    def __init__(self, config: ACTConfig) -> None:
        super().__init__(config)
        self.self_attn = Attention(config.dim_model, config.n_heads)
        self.multihead_attn = Attention(config.dim_model, config.n_heads)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(config.dim_model) for _ in range(3))

    def forward(
        self,
        x_HBD: torch.Tensor,
        query_HBD: torch.Tensor,
        memory_TBD: torch.Tensor,
        memory_key_TBD: torch.Tensor,
    ) -> torch.Tensor:
        """Returns rows of the same shape.

        Args:
            x_HBD: One for each row of the chunk.
            query_HBD: Their positions.
            memory_TBD: The encoder's tokens.
            memory_key_TBD: The same with their positions added.
        """
        seen = self.before(self.norm1, x_HBD)
        query = seen + query_HBD
        x_HBD = self.behind(self.norm1, x_HBD + self.self_attn.attend(query, query, seen))
        query = self.before(self.norm2, x_HBD) + query_HBD
        mixed = self.multihead_attn.attend(query, memory_key_TBD, memory_TBD)
        x_HBD = self.behind(self.norm2, x_HBD + mixed)
        return self.behind(self.norm3, x_HBD + self.feed(self.before(self.norm3, x_HBD)))


class Layers(nn.Module):
    """Layers in a row and the norm behind them, under the names of the weights."""

    def __init__(self, layers: Sequence[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm


class ACTNetwork(nn.Module):
    """From normalised observations to a chunk of normalised actions.

    Args:
        config: See ``ACTConfig``.
    """

    def __init__(self, config: ACTConfig) -> None:
        super().__init__()
        width = config.dim_model
        if config.images:
            self.backbone = make_resnet(
                config.vision_backbone,
                FrozenBatchNorm,
                dilate_last=config.replace_final_stride_with_dilation,
            )
            channels = feature_channels(config.vision_backbone)
            self.encoder_img_feat_input_proj = nn.Conv2d(channels, width, 1)
        self.encoder = Layers(
            [EncoderLayer(config) for _ in range(config.n_encoder_layers)],
            nn.LayerNorm(width) if config.pre_norm else nn.Identity(),
        )
        self.decoder = Layers(
            [DecoderLayer(config) for _ in range(config.n_decoder_layers)], nn.LayerNorm(width)
        )
        self.encoder_latent_input_proj = nn.Linear(config.latent_dim, width)
        vectors = 1
        if config.state is not None:
            self.encoder_robot_state_input_proj = nn.Linear(config.state.shape[0], width)
            vectors += 1
        if config.environment is not None:
            self.encoder_env_state_input_proj = nn.Linear(config.environment.shape[0], width)
            vectors += 1
        self.encoder_1d_feature_pos_embed = nn.Embedding(vectors, width)
        self.decoder_pos_embed = nn.Embedding(config.chunk_size, width)
        self.action_head = nn.Linear(width, config.action.shape[0])
        constants = {
            "latent": torch.zeros(1, config.latent_dim),
            "rows": torch.zeros(config.chunk_size, 1, width),
            "positions": _positions(config),
        }
        for name, value in constants.items():
            self.register_buffer(name, value, persistent=False)

    def forward(
        self,
        state_S: torch.Tensor | None,
        environment_S: torch.Tensor | None,
        images: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Predicts a chunk; arguments are None or empty where the configuration has none.

        Args:
            state_S: Robot state, normalised.
            environment_S: State of the environment, normalised.
            images: ``(3, H, W)`` each, normalised.

        Returns:
            ``(H, A)`` normalised actions.
        """
        vectors = [self.encoder_latent_input_proj(self.get_buffer("latent"))]
        if state_S is not None:
            vectors.append(self.encoder_robot_state_input_proj(state_S.unsqueeze(0)))
        if environment_S is not None:
            vectors.append(self.encoder_env_state_input_proj(environment_S.unsqueeze(0)))
        tokens = [vector_BD.unsqueeze(0) for vector_BD in vectors]
        for image in images:
            cells = self.encoder_img_feat_input_proj(self.backbone(image.unsqueeze(0)))
            tokens.append(cells.flatten(2).permute(2, 0, 1))
        x_TBD = torch.cat(tokens)
        position_TBD = torch.cat(
            (self.encoder_1d_feature_pos_embed.weight.unsqueeze(1), self.get_buffer("positions"))
        )
        for layer in self.encoder.layers:
            x_TBD = layer(x_TBD, position_TBD)
        x_TBD = self.encoder.norm(x_TBD)
        key_TBD = x_TBD + position_TBD
        query_HBD = self.decoder_pos_embed.weight.unsqueeze(1)
        x_HBD = self.get_buffer("rows")
        for layer in self.decoder.layers:
            x_HBD = layer(x_HBD, query_HBD, x_TBD, key_TBD)
        chunk_BHA = self.action_head(self.decoder.norm(x_HBD).transpose(0, 1))
        return torch.as_tensor(chunk_BHA[0])


def _positions(config: ACTConfig) -> torch.Tensor:
    """Of the tokens of all cameras, ``(T, 1, D)``."""
    halvings = 4 if config.replace_final_stride_with_dilation else 5
    parts = [torch.zeros(0, 1, config.dim_model)]
    for image in config.images:
        rows, columns = image.shape[1:]
        for _ in range(halvings):
            rows, columns = (rows + 1) // 2, (columns + 1) // 2
        parts.append(map_positions(rows, columns, config.dim_model))
    return torch.cat(parts)
