"""The hybrid language model: embeddings, layers, output weights and the MTP head.

Parameters have the names of published checkpoints (``model.layers.0.linear_attn.A_log``,
``mtp.fc.weight``), so that weights load by name.

Tensor suffixes: T tokens of a pass, D width.
"""

from __future__ import annotations

import torch
from torch import nn

from flashrt_ros.policies.hybrid.config import FULL, LINEAR, ModelConfig
from flashrt_ros.policies.hybrid.layers import (
    DeltaLayer,
    FeedForward,
    FullAttention,
    Layer,
    RmsNorm,
)
from flashrt_ros.policies.hybrid.mtp import MtpHead
from flashrt_ros.policies.hybrid.ops import Ops, ops_for
from flashrt_ros.policies.hybrid.step import Advance, Step
from flashrt_ros.runtime.buffers import ROWS_LENGTH, BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers

_FLOAT32 = ("A_log", "dt_bias")
_SAME_INPUT = (DeltaLayer, FeedForward, FullAttention)


class Trunk(nn.Module):
    """Embeddings and layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, kind == LINEAR) for kind in config.layer_types)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)


class HybridModel(nn.Module):
    """A hybrid language model whose state lies in named buffers.

    State, for a model dtype of ``dtype``: ``layers.N.recurrent`` ``(H, K, V)`` float32 and
    ``layers.N.conv`` ``(W - 1, C)`` of each delta-rule layer; rows ``layers.N.k`` and
    ``layers.N.v`` ``(G, S)`` of each full-attention layer; with an MTP head rows ``mtp.k`` and
    ``mtp.v``, and ``mtp.hidden`` ``(1, D)``, which the head drafts from.

    Args:
        config: Sizes. Weights are random until they are loaded.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head: nn.Linear | None = None
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.mtp = MtpHead(config) if config.mtp else None
        self.to(config.torch_dtype)
        for name, parameter in self.named_parameters():
            if name.endswith(_FLOAT32):
                parameter.data = parameter.data.float()
        self.register_buffer("periods", self._periods(), persistent=False)

    def _periods(self) -> torch.Tensor:
        size = self.config.rotary_dim
        exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
        return 1.0 / self.config.rope_theta**exponents

    @classmethod
    def empty(cls, config: ModelConfig) -> HybridModel:
        """Makes a model on the CPU whose weights hold garbage, in less time than random ones.

        Every weight of ``state_dict()`` must be written before use.
        """
        with torch.device("meta"):
            model = cls(config)
        model.to_empty(device="cpu")
        model.get_buffer("periods").copy_(model._periods())
        return model

    def ops(self) -> Ops:
        """Operations of the device that the weights are on."""
        return ops_for(self.model.embed_tokens.weight.device)

    def layout(self, capacity: int) -> tuple[BufferSpec, ...]:
        """State buffers; see the class."""
        config, dtype = self.config, self.config.torch_dtype
        row = (config.num_key_value_heads, config.head_dim)
        recurrent = (
            config.linear_num_value_heads,
            config.linear_key_head_dim,
            config.linear_value_head_dim,
        )
        conv = (config.linear_conv_kernel_dim - 1, config.conv_size)
        specs: list[BufferSpec] = []
        for n, kind in enumerate(config.layer_types):
            if kind == FULL:
                specs += [
                    BufferSpec(f"layers.{n}.{part}", row, dtype, Role.STATE, "", capacity)
                    for part in ("k", "v")
                ]
            else:
                specs += [
                    BufferSpec(f"layers.{n}.recurrent", recurrent, torch.float32, Role.STATE),
                    BufferSpec(f"layers.{n}.conv", conv, dtype, Role.STATE),
                ]
        if self.mtp is not None:
            specs += self.mtp.layout(capacity)
        return tuple(specs)

    def reset_(self, state: Buffers) -> None:
        """Zeroes the state that is no rows."""
        for spec in self.layout(1):
            if not spec.capacity:
                state[spec.name].zero_()

    def embed(self, tokens_T: torch.Tensor) -> torch.Tensor:
        """Returns ``(T, D)``."""
        return torch.as_tensor(self.model.embed_tokens(tokens_T))

    def run_(
        self, embedded_TD: torch.Tensor, state: Buffers, chunk: int = 0,
        count_1: torch.Tensor | None = None, keeps: bool = False,
    ) -> tuple[torch.Tensor, list[Advance]]:  # fmt: skip
        """Runs tokens behind the committed rows.

        Args:
            embedded_TD: Embeddings of the tokens.
            state: Their rows are written behind the committed ones. The rest is only read, or
                advanced where ``keeps`` is False and the device has a kernel that does.
            chunk: See ``Step``.
            count_1: See ``Step``.
            keeps: See ``Step``.

        Returns:
            Hidden values behind the last norm, and what ``Ops.commit_`` takes.
        """
        step = self.step(embedded_TD.shape[0], state[ROWS_LENGTH], chunk, count_1, keeps)
        periods, advances, x_TD = self.get_buffer("periods"), [], embedded_TD
        for n, layer in enumerate(self.model.layers):
            assert isinstance(layer, Layer)
            x_TD, advance = layer.run_(x_TD, state, f"layers.{n}", step, periods)
            if advance is not None:
                advances.append(advance)
        return self.model.norm.normed(x_TD, step.ops), advances

    def step(
        self, tokens: int, start_1: torch.Tensor, chunk: int = 0,
        count_1: torch.Tensor | None = None, keeps: bool = False,
    ) -> Step:  # fmt: skip
        """Returns the ``Step`` of so many tokens that begin at row ``start_1``."""
        ops = self.ops()
        # Before the first pass, whatever that needs: what is captured must not move later.
        ops.lay_out_(part.same_input() for part in self.modules() if isinstance(part, _SAME_INPUT))
        positions_T = torch.arange(tokens, device=start_1.device) + start_1
        return Step(ops, positions_T, count_1, chunk, keeps)

    def logits(self, hidden_TD: torch.Tensor, first: int = 0, count: int = 0) -> torch.Tensor:
        """Returns the logits of ``count`` tokens from ``first`` on; 0: of all."""
        table = self.model.embed_tokens if self.lm_head is None else self.lm_head
        weight = table.weight[first : first + count] if count else table.weight
        return self.ops().linear(hidden_TD, weight)
