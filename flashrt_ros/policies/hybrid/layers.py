"""The layers of the hybrid model, over named state; their parameters have the published names.

Tensor suffixes: those of ``ops``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.policies.hybrid.config import ModelConfig
from flashrt_ros.policies.hybrid.ops import Ops
from flashrt_ros.runtime.policy import Buffers


@dataclass(frozen=True)
class Step:
    """What all layers are told of one pass.

    Attributes:
        ops: Operations of the device.
        positions_T: int64, row of each token: absolute positions.
        pad_T: True for tokens that are none; they leave no trace in any state. None: all are.
        chunk: Tokens of a chunk of the delta rule; 0 goes token by token and keeps the state after
            each, so that any number of tokens may be committed.
    """

    ops: Ops
    positions_T: torch.Tensor
    pad_T: torch.Tensor | None = None
    chunk: int = 0


class RmsNorm(nn.Module):
    """Root-mean-square norm, its weight around zero."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(size))

    def normed(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """Returns ``x``, its last dimension normed."""
        return ops.rms_norm(x, self.weight, self.eps)


class GateNorm(nn.Module):
    """The weight of the gated norm."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        wide, narrow = config.intermediate_size, config.hidden_size
        self.gate_proj = nn.Linear(narrow, wide, bias=False)
        self.up_proj = nn.Linear(narrow, wide, bias=False)
        self.down_proj = nn.Linear(wide, narrow, bias=False)

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        """``(T, D)`` to ``(T, D)``."""
        gate = functional.silu(self.gate_proj(x_TD))
        return torch.as_tensor(self.down_proj(gate * self.up_proj(x_TD)))


class FullAttention(nn.Module):
    """Attention over rows, with normed queries and keys, partial rotation and an output gate."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size, width, bias = config.head_dim, config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(width, 2 * self.heads * self.size, bias=bias)
        self.k_proj = nn.Linear(width, self.groups * self.size, bias=bias)
        self.v_proj = nn.Linear(width, self.groups * self.size, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.size, width, bias=bias)
        self.q_norm = RmsNorm(self.size, config.rms_norm_eps)
        self.k_norm = RmsNorm(self.size, config.rms_norm_eps)

    def write_(
        self, x_TD: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor], step: Step,
        periods: torch.Tensor,
    ) -> None:  # fmt: skip
        """Writes keys and values of the tokens to their rows."""
        keys_NGS, values_NGS = rows
        shape = (x_TD.shape[0], self.groups, self.size)
        key_TGS = self.k_norm.normed(self.k_proj(x_TD).view(shape), step.ops)
        key_TGS = step.ops.rotate(key_TGS, step.positions_T, periods)
        keys_NGS.index_copy_(0, step.positions_T, key_TGS)
        values_NGS.index_copy_(0, step.positions_T, self.v_proj(x_TD).view(shape))

    def read(
        self, x_TD: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor], step: Step,
        periods: torch.Tensor, first: int = 0,
    ) -> torch.Tensor:  # fmt: skip
        """Returns ``(T, D)``: what the tokens find in the rows up to their own."""
        tokens = x_TD.shape[0]
        query_gate = self.q_proj(x_TD).view(tokens, self.heads, 2 * self.size)
        query_TQS, gate_TQS = query_gate.chunk(2, dim=-1)
        query_TQS = self.q_norm.normed(query_TQS, step.ops)
        query_TQS = step.ops.rotate(query_TQS, step.positions_T, periods)
        mixed_TQS = step.ops.attend(query_TQS, *rows, step.positions_T, first)
        mixed_TQS = mixed_TQS * gate_TQS.sigmoid()
        return torch.as_tensor(self.o_proj(mixed_TQS.reshape(tokens, -1)))


@dataclass(frozen=True)
class Advance:
    """What a delta-rule layer would leave behind, for any number of tokens that are committed.

    Attributes:
        conv: ``(W - 1, C)``, state, written by ``commit_``.
        recurrent: ``(H, K, V)`` float32, state, written by ``commit_``.
        window_UC: Inputs of the convolution, those before the pass in front.
        states: ``(T + 1, H, K, V)`` after each number of tokens; or ``(H, K, V)`` after all that
            are no pads, where the number is known beforehand.
    """

    conv: torch.Tensor
    recurrent: torch.Tensor
    window_UC: torch.Tensor
    states: torch.Tensor

    def commit_(self, count_1: torch.Tensor) -> None:
        """Makes the state that after ``count_1`` tokens, ``(1,)`` int64 on the device."""
        taps = torch.arange(self.conv.shape[0], device=count_1.device)
        self.conv.copy_(self.window_UC.index_select(0, taps + count_1))
        if self.states.dim() == self.recurrent.dim():
            self.recurrent.copy_(self.states)
        else:
            self.recurrent.copy_(self.states.index_select(0, count_1)[0])


class DeltaLayer(nn.Module):
    """Gated delta rule behind a causal convolution."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width, values = config.hidden_size, config.linear_num_value_heads
        self.in_proj_qkv = nn.Linear(width, config.conv_size, bias=False)
        self.in_proj_z = nn.Linear(width, config.value_size, bias=False)
        self.in_proj_b = nn.Linear(width, values, bias=False)
        self.in_proj_a = nn.Linear(width, values, bias=False)
        self.conv1d = nn.Conv1d(
            config.conv_size,
            config.conv_size,
            config.linear_conv_kernel_dim,
            groups=config.conv_size,
            bias=False,
        )
        self.A_log = nn.Parameter(torch.zeros(values))
        self.dt_bias = nn.Parameter(torch.ones(values))
        self.norm = GateNorm(config.linear_value_head_dim)
        self.out_proj = nn.Linear(config.value_size, width, bias=False)

    def mix(
        self, x_TD: torch.Tensor, conv: torch.Tensor, recurrent: torch.Tensor, step: Step
    ) -> tuple[torch.Tensor, Advance]:
        """Returns ``(T, D)`` and what to commit; the state is only read.

        Args:
            x_TD: Normed input.
            conv: ``(W - 1, C)``: the inputs of the convolution before the pass.
            recurrent: ``(H, K, V)`` float32.
            step: See ``Step``.
        """
        config, tokens = self.config, x_TD.shape[0]
        keys = (tokens, config.linear_num_key_heads, config.linear_key_head_dim)
        values = (tokens, config.linear_num_value_heads, config.linear_value_head_dim)
        window_UC = torch.cat((conv, self.in_proj_qkv(x_TD)))
        mixed_TC = step.ops.convolve(window_UC, self.conv1d.weight.squeeze(1))
        query, key, value = mixed_TC.split(
            (config.key_size, config.key_size, config.value_size), 1
        )
        decay_TH, rate_TH = step.ops.delta_gates(
            self.in_proj_a(x_TD), self.in_proj_b(x_TD), self.A_log, self.dt_bias
        )
        if step.pad_T is not None:
            decay_TH = decay_TH.masked_fill(step.pad_T.unsqueeze(-1), 0.0)
            rate_TH = rate_TH.masked_fill(step.pad_T.unsqueeze(-1), 0.0)
        parts = (query.reshape(keys), key.reshape(keys), value.reshape(values))
        if step.chunk:
            out_THV, states = step.ops.delta_chunks(
                *parts, decay_TH, rate_TH, recurrent, step.chunk
            )
        else:
            out_THV, states = step.ops.delta_steps(*parts, decay_TH, rate_TH, recurrent)
        gate_THV = self.in_proj_z(x_TD).view(values)
        out_THV = step.ops.gated_norm(out_THV, gate_THV, self.norm.weight, config.rms_norm_eps)
        mixed_TD = torch.as_tensor(self.out_proj(out_THV.reshape(tokens, -1)))
        return mixed_TD, Advance(conv, recurrent, window_UC, states)


class Layer(nn.Module):
    """One mixer and one feed-forward net, each behind a norm and beside a residual.

    Attributes:
        linear_attn: The mixer of a ``linear_attention`` layer, else None.
        self_attn: The mixer of a ``full_attention`` layer, else None.
    """

    def __init__(self, config: ModelConfig, linear: bool) -> None:
        super().__init__()
        self.linear_attn = DeltaLayer(config) if linear else None
        self.self_attn = None if linear else FullAttention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def run_(
        self, x_TD: torch.Tensor, state: Buffers, name: str, step: Step, periods: torch.Tensor
    ) -> tuple[torch.Tensor, Advance | None]:
        """Runs the tokens through; rows are written, other state is only read.

        Args:
            x_TD: Residual stream.
            state: Holds ``<name>.k`` and ``<name>.v``, or ``<name>.conv`` and
                ``<name>.recurrent``.
            name: ``layers.N``.
            step: See ``Step``.
            periods: For ``ops.rotate``.
        """
        advance = None
        normed_TD = self.input_layernorm.normed(x_TD, step.ops)
        if self.linear_attn is not None:
            conv, recurrent = state[f"{name}.conv"], state[f"{name}.recurrent"]
            mixed_TD, advance = self.linear_attn.mix(normed_TD, conv, recurrent, step)
        else:
            assert self.self_attn is not None
            rows = (state[f"{name}.k"], state[f"{name}.v"])
            self.self_attn.write_(normed_TD, rows, step, periods)
            mixed_TD = self.self_attn.read(normed_TD, rows, step, periods)
        return self.finish(x_TD + mixed_TD, step), advance

    def finish(self, x_TD: torch.Tensor, step: Step) -> torch.Tensor:
        """The feed-forward half."""
        normed_TD = self.post_attention_layernorm.normed(x_TD, step.ops)
        return x_TD + torch.as_tensor(self.mlp(normed_TD))
