"""The layers of the hybrid model, over named state; their parameters have the published names.

Tensor suffixes: those of ``ops``.
"""

from __future__ import annotations

import torch
from torch import nn

from flashrt_ros.policies.hybrid.config import ModelConfig
from flashrt_ros.policies.hybrid.ops import Ops, Rows
from flashrt_ros.policies.hybrid.step import Advance, Step
from flashrt_ros.runtime.policy import Buffers


class RmsNorm(nn.Module):
    """Root-mean-square norm, its weight around zero."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(size))

    def normed(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """Returns ``x``, its last dimension normed."""
        return ops.rms_norm(x, self)


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

    def same_input(self) -> tuple[nn.Linear, ...]:
        """The layers that take one input."""
        return self.gate_proj, self.up_proj

    def add(self, x_TD: torch.Tensor, norm: RmsNorm, ops: Ops) -> torch.Tensor:
        """Returns ``x`` and what the net makes of ``x`` normed, ``(T, D)``."""
        wide_TE = ops.swiglu(x_TD, norm, self.gate_proj, self.up_proj)
        return ops.add_linear(x_TD, wide_TE, self.down_proj)


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

    def same_input(self) -> tuple[nn.Linear, ...]:
        """The layers that take one input."""
        return self.q_proj, self.k_proj, self.v_proj

    def write_(
        self, x_TD: torch.Tensor, norm: RmsNorm, rows: Rows, step: Step, periods: torch.Tensor
    ) -> None:
        """Writes keys and values of the tokens to their rows."""
        parts = step.ops.normed_linear(x_TD, norm, (self.k_proj, self.v_proj))
        step.ops.place_(parts, rows, self, step, periods)

    def add_(
        self, x_TD: torch.Tensor, norm: RmsNorm, rows: Rows, step: Step, periods: torch.Tensor,
        first: int = 0,
    ) -> torch.Tensor:  # fmt: skip
        """As ``write_``; returns ``x`` and what its tokens find in the rows up to their own."""
        parts = step.ops.normed_linear(x_TD, norm, self.same_input())
        query_TQS = step.ops.place_(parts, rows, self, step, periods)
        assert query_TQS is not None
        gate_TQS = parts[0].view(-1, self.heads, 2 * self.size)[..., self.size :]
        mixed_TE = step.ops.attend(query_TQS, gate_TQS, rows, step, first)
        return step.ops.add_linear(x_TD, mixed_TE, self.o_proj)


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

    def same_input(self) -> tuple[nn.Linear, ...]:
        """The layers that take one input."""
        return self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a

    def add(
        self, x_TD: torch.Tensor, norm: RmsNorm, state: tuple[torch.Tensor, torch.Tensor],
        step: Step,
    ) -> tuple[torch.Tensor, Advance | None]:  # fmt: skip
        """Returns ``x`` and what the layer makes of ``x`` normed, and what to commit.

        Args:
            x_TD: Residual stream.
            norm: In front.
            state: See ``Ops.delta``.
            step: See ``Step``.
        """
        parts = step.ops.normed_linear(x_TD, norm, self.same_input())
        mixed_TE, advance = step.ops.delta(parts, state, self, step)
        return step.ops.add_linear(x_TD, mixed_TE, self.out_proj), advance


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
        """Runs the tokens through: rows are written, other state as ``Ops.delta`` says.

        Args:
            x_TD: Residual stream.
            state: Holds ``<name>.k`` and ``<name>.v``, or ``<name>.conv`` and
                ``<name>.recurrent``.
            name: ``layers.N``.
            step: See ``Step``.
            periods: For ``ops.rotate``.
        """
        advance, norm = None, self.input_layernorm
        if self.linear_attn is not None:
            both = (state[f"{name}.conv"], state[f"{name}.recurrent"])
            x_TD, advance = self.linear_attn.add(x_TD, norm, both, step)
        else:
            assert self.self_attn is not None
            rows = (state[f"{name}.k"], state[f"{name}.v"])
            x_TD = self.self_attn.add_(x_TD, norm, rows, step, periods)
        return self.finish(x_TD, step), advance

    def finish(self, x_TD: torch.Tensor, step: Step) -> torch.Tensor:
        """The feed-forward half."""
        return self.mlp.add(x_TD, self.post_attention_layernorm, step.ops)
