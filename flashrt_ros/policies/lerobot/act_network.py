"""The network of ACT (Action Chunking Transformer) as it runs at inference.

Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", RSS 2023; weight
names and arithmetic are those of ``huggingface/lerobot:src/lerobot/policies/act/modeling_act.py``.
Left out: the variational encoder, whose latent is zero at inference, and dropout. Zeros that
LeRobot makes anew in each call (latent, queries) are buffers here, as making them would need the
host. Positions, and what follows from these and from weights alone, are calculated once. What does
not depend on each other is calculated side by side on a GPU.

Tensor suffixes: T tokens, H horizon, B batch (1), D model width, S state, A action.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import linear

from flashrt_ros.policies.exact.once import Once
from flashrt_ros.policies.lerobot.act_config import ACTConfig
from flashrt_ros.policies.lerobot.position import map_positions
from flashrt_ros.policies.resnet import FrozenBatchNorm, feature_channels, make_resnet
from flashrt_ros.runtime.device.side_by_side import side_by_side


class Attention(nn.MultiheadAttention):
    """Attention by the operators that LeRobot's call comes down to, which asks for weights."""

    def attend(
        self, query_TBD: torch.Tensor, key_TBD: torch.Tensor, value_TBD: torch.Tensor
    ) -> torch.Tensor:
        """Returns the mixed values, one for each query."""
        parts = enumerate((query_TBD, key_TBD, value_TBD))
        calls = [functools.partial(self.project, part, x_TBD) for part, x_TBD in parts]
        return self.mix(*side_by_side(query_TBD.device, *calls))

    def project(self, part: int, x_TBD: torch.Tensor) -> torch.Tensor:
        """Projects to queries (0), keys (1) or values (2)."""
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        return linear(x_TBD, weights[part], biases[part])

    def mix(
        self, query_TBD: torch.Tensor, key_TBD: torch.Tensor, value_TBD: torch.Tensor
    ) -> torch.Tensor:
        """Mixes values, all three projected, head by head, and projects what comes out."""
        tokens, batch, width = query_TBD.shape
        # Torch would fuse what follows if it were not asked for weights, with other bits.
        query, key, value = (
            x_TBD.view(len(x_TBD), batch * self.num_heads, self.head_dim).transpose(0, 1)
            for x_TBD in (query_TBD, key_TBD, value_TBD)
        )
        scores = torch.bmm(query * math.sqrt(1.0 / self.head_dim), key.transpose(1, 2))
        mixed = torch.bmm(functional.softmax(scores, dim=-1), value)
        rows = mixed.transpose(0, 1).contiguous().view(tokens * batch, width)
        return torch.as_tensor(self.out_proj(rows)).view(tokens, batch, width)


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
        """Returns rows of the same shape; see ``begin`` and ``finish``."""
        return self.finish(*self.begin(x_HBD, query_HBD), memory_TBD, memory_key_TBD)

    def begin(
        self, x_HBD: torch.Tensor, query_HBD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Self-attention.

        Args:
            x_HBD: One for each row of the chunk.
            query_HBD: Their positions.

        Returns:
            Rows of the same shape, and their queries to the encoder's tokens.
        """
        seen = self.before(self.norm1, x_HBD)
        query = seen + query_HBD
        x_HBD = self.behind(self.norm1, x_HBD + self.self_attn.attend(query, query, seen))
        query = self.before(self.norm2, x_HBD) + query_HBD
        return x_HBD, self.multihead_attn.project(0, query)

    def finish(
        self,
        x_HBD: torch.Tensor,
        query_HBD: torch.Tensor,
        memory_TBD: torch.Tensor,
        memory_key_TBD: torch.Tensor,
    ) -> torch.Tensor:
        """Attention to the encoder's tokens, and feed-forward.

        Args:
            x_HBD: Rows as ``begin`` returned them.
            query_HBD: Their queries as ``begin`` returned them.
            memory_TBD: The encoder's tokens.
            memory_key_TBD: The same with their positions added.

        Returns:
            Rows of the same shape.
        """
        attention = self.multihead_attn
        key, value = side_by_side(
            x_HBD.device,
            functools.partial(attention.project, 1, memory_key_TBD),
            functools.partial(attention.project, 2, memory_TBD),
        )
        x_HBD = self.behind(self.norm2, x_HBD + attention.mix(query_HBD, key, value))
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
        self.config = config
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
        }
        for name, value in constants.items():
            self.register_buffer(name, value, persistent=False)
        self.fixed = Once(self._fixed)
        self.begun = Once(self._begin)

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
        token_BD, position_TBD = self.fixed.get()

        def vectors() -> torch.Tensor:
            tokens = [token_BD]
            if state_S is not None:
                tokens.append(self.encoder_robot_state_input_proj(state_S.unsqueeze(0)))
            if environment_S is not None:
                tokens.append(self.encoder_env_state_input_proj(environment_S.unsqueeze(0)))
            return torch.stack(tokens)

        cells = [functools.partial(self._cells, image) for image in images]
        where = self.get_buffer("rows").device
        x_TBD = torch.cat(side_by_side(where, vectors, *cells))
        for layer in self.encoder.layers:
            x_TBD = layer(x_TBD, position_TBD)
        x_TBD = self.encoder.norm(x_TBD)
        key_TBD = x_TBD + position_TBD
        query_HBD = self.decoder_pos_embed.weight.unsqueeze(1)
        x_HBD = self.get_buffer("rows")
        for number, part in enumerate(self.decoder.layers):
            layer = cast(DecoderLayer, part)
            if number:
                x_HBD = layer(x_HBD, query_HBD, x_TBD, key_TBD)
            else:
                x_HBD, asked_HBD = self.begun.get()
                x_HBD = layer.finish(x_HBD, asked_HBD, x_TBD, key_TBD)
        chunk_BHA = self.action_head(self.decoder.norm(x_HBD).transpose(0, 1))
        return torch.as_tensor(chunk_BHA[0])

    def _cells(self, image: torch.Tensor) -> torch.Tensor:
        """Tokens of a camera."""
        maps_BDRS = self.encoder_img_feat_input_proj(self.backbone(image.unsqueeze(0)))
        return torch.as_tensor(maps_BDRS.flatten(2).permute(2, 0, 1))

    def _fixed(self) -> tuple[torch.Tensor, ...]:
        """The latent's token, and the positions of all tokens."""
        latent_BL = self.get_buffer("latent")
        vectors_VBD = self.encoder_1d_feature_pos_embed.weight.unsqueeze(1)
        position_TBD = torch.cat((vectors_VBD, *_positions(self.config, latent_BL.device)))
        return self.encoder_latent_input_proj(latent_BL), position_TBD

    def _begin(self) -> tuple[torch.Tensor, ...]:
        """How the first decoder layer begins: it sees no observation yet."""
        if not len(self.decoder.layers):
            return ()
        first = cast(DecoderLayer, self.decoder.layers[0])
        return first.begin(self.get_buffer("rows"), self.decoder_pos_embed.weight.unsqueeze(1))


def _positions(config: ACTConfig, device: torch.device) -> list[torch.Tensor]:
    """Of the tokens of each camera, ``(T, 1, D)``."""
    halvings = 4 if config.replace_final_stride_with_dilation else 5
    parts = []
    for image in config.images:
        rows, columns = image.shape[1:]
        for _ in range(halvings):
            rows, columns = (rows + 1) // 2, (columns + 1) // 2
        parts.append(map_positions(rows, columns, config.dim_model, device))
    return parts
