"""ACT in float16: folded norms, fused attention, and positions projected once.

Queries and keys are projections of tokens with a position added. Positions never change, so their
projection is a constant here, which leaves one product for queries, keys and values together. The
first decoder layer begins with rows of zeros, so what its self-attention makes of them is a
constant, too.

Tensor suffixes: T tokens, H rows of a chunk, D model width, S state, A action.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.policies.fast.resnet import FoldedResNet
from flashrt_ros.policies.lerobot.act_network import (
    ACTNetwork,
    Attention,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
)
from flashrt_ros.runtime.derived import Derived


def attend(
    heads: int, query_TD: torch.Tensor, key_TD: torch.Tensor, value_TD: torch.Tensor
) -> torch.Tensor:
    """Mixes values, ``(T, D)``, head by head."""

    def split(x_TD: torch.Tensor) -> torch.Tensor:
        return x_TD.view(len(x_TD), heads, -1).transpose(0, 1).unsqueeze(0)

    mixed = functional.scaled_dot_product_attention(
        split(query_TD), split(key_TD), split(value_TD)
    )
    return mixed.squeeze(0).transpose(0, 1).reshape(query_TD.shape)


class Projection(nn.Module):
    """Some of the input projections of an attention as one product, positions included.

    Args:
        source: Attention with its weights.
        parts: Of query, key and value in this order: whether it is projected here, and whether
            positions are added to what it is projected from.
        position_TD: Positions of the tokens.
        dtype: Of the arithmetic.
    """

    def __init__(
        self,
        source: Attention,
        parts: tuple[tuple[bool, bool], ...],
        position_TD: torch.Tensor,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        chosen = [
            (weight, bias, placed)
            for (wanted, placed), weight, bias in zip(
                parts,
                source.in_proj_weight.detach().chunk(3),
                source.in_proj_bias.detach().chunk(3),
                strict=True,
            )
            if wanted
        ]
        constants = [
            bias + (position_TD @ weight.T if placed else torch.zeros_like(position_TD))
            for weight, bias, placed in chosen
        ]
        weights = torch.cat([weight for weight, _, _ in chosen])
        self.register_buffer("weight", weights.T.contiguous().to(dtype))
        self.register_buffer("constant", torch.cat(constants, dim=1).to(dtype))
        self.count = len(chosen)

    def forward(self, x_TD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the projections that were asked for, each ``(T, D)``, views of one tensor."""
        found = torch.addmm(self.get_buffer("constant"), x_TD, self.get_buffer("weight"))
        return found.chunk(self.count, dim=1)


ALL = ((True, True), (True, True), (True, False))
QUERY = ((True, True), (False, True), (False, False))
KEY_AND_VALUE = ((False, True), (True, True), (True, False))


class FastLayer(nn.Module):
    """What encoder and decoder layers share: the order of norms, and both linear layers."""

    def __init__(
        self, source: FeedForward, norms: Sequence[nn.Module], dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.pre_norm, self.gelu = source.pre_norm, source.gelu
        self.norms = nn.ModuleList(copy.deepcopy(norm).to(dtype) for norm in norms)
        self.linear1, self.linear2 = (
            copy.deepcopy(layer).to(dtype) for layer in (source.linear1, source.linear2)
        )

    def before(self, number: int, x_TD: torch.Tensor) -> torch.Tensor:
        """What sub-layer ``number`` reads."""
        return torch.as_tensor(self.norms[number](x_TD)) if self.pre_norm else x_TD

    def behind(self, number: int, x_TD: torch.Tensor) -> torch.Tensor:
        """What it leaves, its shortcut added."""
        return x_TD if self.pre_norm else torch.as_tensor(self.norms[number](x_TD))

    def feed(self, number: int, x_TD: torch.Tensor) -> torch.Tensor:
        """The feed-forward sub-layer."""
        wide = self.linear1(self.before(number, x_TD))
        active = functional.gelu(wide) if self.gelu else functional.relu_(wide)
        return self.behind(number, x_TD + self.linear2(active))


class FastEncoderLayer(FastLayer):
    """See ``EncoderLayer``."""

    def __init__(
        self, source: EncoderLayer, position_TD: torch.Tensor, dtype: torch.dtype
    ) -> None:
        super().__init__(source, (source.norm1, source.norm2), dtype)
        self.heads = source.self_attn.num_heads
        self.project = Projection(source.self_attn, ALL, position_TD, dtype)
        self.out = copy.deepcopy(source.self_attn.out_proj).to(dtype)

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Returns tokens of the same shape."""
        mixed_TD = attend(self.heads, *self.project(self.before(0, x_TD)))
        x_TD = self.behind(0, x_TD + self.out(mixed_TD))
        return self.feed(1, x_TD)


class FastDecoderLayer(FastLayer):
    """See ``DecoderLayer``.

    Args:
        source: With its weights.
        query_HD: Positions of the rows.
        position_TD: Positions of the encoder's tokens.
        dtype: Of the arithmetic.
        begins: Whether it is the first layer, whose self-attention is in ``rows_HD`` already.
    """

    def __init__(
        self,
        source: DecoderLayer,
        query_HD: torch.Tensor,
        position_TD: torch.Tensor,
        dtype: torch.dtype,
        begins: bool,
    ) -> None:
        super().__init__(source, (source.norm1, source.norm2, source.norm3), dtype)
        self.heads = source.self_attn.num_heads
        self.project: Projection | None = None
        if not begins:
            self.project = Projection(source.self_attn, ALL, query_HD, dtype)
            self.out = copy.deepcopy(source.self_attn.out_proj).to(dtype)
        self.cross = Projection(source.multihead_attn, QUERY, query_HD, dtype)
        self.memory = Projection(source.multihead_attn, KEY_AND_VALUE, position_TD, dtype)
        self.cross_out = copy.deepcopy(source.multihead_attn.out_proj).to(dtype)

    def forward(self, x_HD: torch.Tensor, memory_TD: torch.Tensor) -> torch.Tensor:
        """Returns rows of the same shape."""
        if self.project is not None:
            mixed_HD = attend(self.heads, *self.project(self.before(0, x_HD)))
            x_HD = self.behind(0, x_HD + self.out(mixed_HD))
        (query_HD,) = self.cross(self.before(1, x_HD))
        mixed_HD = attend(self.heads, query_HD, *self.memory(memory_TD))
        x_HD = self.behind(1, x_HD + self.cross_out(mixed_HD))
        return self.feed(2, x_HD)


class FastACT(Derived):
    """``ACTNetwork`` for one dtype; takes and returns float32.

    Args:
        network: With its weights, on the CPU; not changed.
        dtype: Of the arithmetic.
    """

    @torch.no_grad()
    def __init__(self, network: ACTNetwork, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.backbone = None
        if hasattr(network, "backbone"):
            self.backbone = FoldedResNet(network.backbone, dtype)
            weight = network.encoder_img_feat_input_proj.weight.detach().flatten(1)
            self.register_buffer("cells_weight", weight.to(dtype))
            bias = cast(torch.Tensor, network.encoder_img_feat_input_proj.bias)
            self.register_buffer("cells_bias", bias.detach().to(dtype))
        # What makes the first tokens and the actions takes no time, so it stays in float32.
        self.vectors = nn.ModuleDict(
            {
                name: copy.deepcopy(getattr(network, f"encoder_{name}_input_proj"))
                for name in ("robot_state", "env_state")
                if hasattr(network, f"encoder_{name}_input_proj")
            }
        )
        latent_1D, position_TBD = network.fixed.get()
        self.register_buffer("latent", latent_1D)
        position_TD = position_TBD[:, 0]
        query_HD = network.decoder_pos_embed.weight
        self.encoder = nn.Sequential(
            *(
                FastEncoderLayer(cast(EncoderLayer, layer), position_TD, dtype)
                for layer in network.encoder.layers
            ),
            copy.deepcopy(network.encoder.norm).to(dtype),
        )
        self.decoder = nn.ModuleList(
            FastDecoderLayer(cast(DecoderLayer, layer), query_HD, position_TD, dtype, not number)
            for number, layer in enumerate(network.decoder.layers)
        )
        self.register_buffer("rows", _first_rows(network).to(dtype))
        self.decoder_norm = copy.deepcopy(network.decoder.norm).to(dtype)
        self.head = copy.deepcopy(network.action_head)

    def forward(
        self,
        state_S: torch.Tensor | None,
        environment_S: torch.Tensor | None,
        images: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """As ``ACTNetwork.forward``."""
        tokens = [self.get_buffer("latent")]
        for name, vector_S in (("robot_state", state_S), ("env_state", environment_S)):
            if vector_S is not None:
                tokens.append(self.vectors[name](vector_S.unsqueeze(0)))
        x_TD = torch.cat(tokens).to(self.dtype)
        if images:
            x_TD = torch.cat((x_TD, *self._cells(images)))
        x_TD = self.encoder(x_TD)
        x_HD = self.get_buffer("rows")
        for layer in self.decoder:
            x_HD = layer(x_HD, x_TD)
        return torch.as_tensor(self.head(self.decoder_norm(x_HD).float()))

    def _cells(self, images: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tokens of all cameras, ``(T, D)`` each; images of one size go through together."""
        assert self.backbone is not None
        if len({image.shape for image in images}) == 1:
            batches = [torch.stack(list(images))]
        else:
            batches = [image.unsqueeze(0) for image in images]
        found = []
        for batch_BCHW in batches:
            maps_BHWC = self.backbone(batch_BCHW).permute(0, 2, 3, 1)
            cells_TC = maps_BHWC.reshape(-1, maps_BHWC.shape[-1])
            weight, bias = self.get_buffer("cells_weight"), self.get_buffer("cells_bias")
            found.append(functional.linear(cells_TC, weight, bias))
        return found


def _first_rows(network: ACTNetwork) -> torch.Tensor:
    """Rows ``(H, D)`` behind the first decoder layer's self-attention, which sees only zeros."""
    begun = network.begun.get()
    return (begun[0] if begun else network.get_buffer("rows"))[:, 0]
