"""The multi-token-prediction head, which drafts the tokens that the model then verifies.

Its one layer attends over rows of its own. Row t belongs to token t and is made of that token's
embedding and the *model's* hidden values of token t - 1, both of which are known as soon as token
t is committed. So committed rows of the head are final, there are exactly as many as the model
has, and the head needs no length of its own. Row 0 has no hidden values before it and is not seen
by later tokens. (Other runtimes count these rows from token 1; rotation is relative, so it is the
same attention.) Rows of drafted tokens are made of the head's own hidden values; they lie behind
the committed ones and are written anew when tokens are committed.

Tensor suffixes: T tokens of a pass, D width.
"""

from __future__ import annotations

import torch
from torch import nn

from flashrt_ros.policies.hybrid.config import ModelConfig
from flashrt_ros.policies.hybrid.layers import FullAttention, Layer, RmsNorm
from flashrt_ros.policies.hybrid.step import Step
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers

HIDDEN, KEYS, VALUES = "mtp.hidden", "mtp.k", "mtp.v"


class MtpHead(nn.Module):
    """One full-attention layer over embedding and hidden values; it shares the output weights."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = RmsNorm(width, eps)
        self.pre_fc_norm_hidden = RmsNorm(width, eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layers = nn.ModuleList([Layer(config, linear=False)])
        self.norm = RmsNorm(width, eps)

    def layout(self, capacity: int) -> list[BufferSpec]:
        """Rows, and the hidden values of the last committed token."""
        config, dtype = self.config, self.config.torch_dtype
        row = (config.num_key_value_heads, config.head_dim)
        return [
            BufferSpec(KEYS, row, dtype, Role.STATE, "", capacity),
            BufferSpec(VALUES, row, dtype, Role.STATE, "", capacity),
            BufferSpec(HIDDEN, (1, config.hidden_size), dtype, Role.STATE),
        ]

    def parts(self) -> tuple[Layer, FullAttention]:
        """The head's one layer, and its attention."""
        layer = self.layers[0]
        assert isinstance(layer, Layer)
        assert layer.self_attn is not None
        return layer, layer.self_attn

    def joined(
        self, hidden_TD: torch.Tensor, embedded_TD: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """What the layer takes in: hidden values of the token before, and the embedding."""
        parts = (
            self.pre_fc_norm_embedding.normed(embedded_TD, step.ops),
            self.pre_fc_norm_hidden.normed(hidden_TD, step.ops),
        )
        return step.ops.linear(torch.cat(parts, dim=-1), self.fc.weight)

    def catch_up_(
        self, hidden_TD: torch.Tensor, embedded_TD: torch.Tensor, state: Buffers, step: Step,
        periods: torch.Tensor,
    ) -> None:  # fmt: skip
        """Writes the rows of tokens whose hidden values are known.

        Args:
            hidden_TD: The model's, of the token before each.
            embedded_TD: Embedding of each token.
            state: Rows at ``step.positions_T`` are written.
            step: See ``Step``.
            periods: For ``ops.rotate``.
        """
        layer, attention = self.parts()
        x_TD = self.joined(hidden_TD, embedded_TD, step)
        rows = (state[KEYS], state[VALUES])
        attention.write_(x_TD, layer.input_layernorm, rows, step, periods)

    def draft_(
        self, hidden_TD: torch.Tensor, embedded_TD: torch.Tensor, state: Buffers, step: Step,
        periods: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """As ``catch_up_``, and returns the head's hidden values behind its norm, ``(T, D)``.

        They stand for the model's hidden values of the token, so the output weights turn them
        into the token that follows it.
        """
        layer, attention = self.parts()
        rows = (state[KEYS], state[VALUES])
        x_TD = self.joined(hidden_TD, embedded_TD, step)
        x_TD = attention.add_(x_TD, layer.input_layernorm, rows, step, periods, first=1)
        return self.norm.normed(layer.finish(x_TD, step), step.ops)
