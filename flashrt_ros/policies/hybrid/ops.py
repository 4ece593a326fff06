"""Every operation of the hybrid model for which a kernel may stand, and which one does.

Layers call these through ``Ops``, chosen by the device of the weights. The torch functions are the
reference: a kernel that takes the place of one keeps its arguments, shapes, dtypes and the places
where a value is rounded to the model's dtype.

Tensor suffixes: T tokens of a pass, D width, E another width, N rows, Q query heads, G key and
value heads, S size of a head, C channels, W taps, U tokens of the window (T + W - 1); those of
``delta_rule``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.policies.hybrid.delta_rule import delta_chunks, delta_gates, delta_steps
from flashrt_ros.policies.hybrid.step import Advance, Step

if TYPE_CHECKING:
    from flashrt_ros.policies.hybrid.layers import DeltaLayer, FullAttention

Rows = tuple[torch.Tensor, torch.Tensor]
"""Keys and values ``(N, G, S)``: all rows of the capacity, strided; what lies behind the last
position is garbage, and may be no number."""


class Norm(Protocol):
    """Weight and epsilon of a root-mean-square norm."""

    weight: nn.Parameter
    eps: float


def rms_norm(x_D: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm of the last dimension, with a weight around zero."""
    wide_D = x_D.float()
    wide_D = wide_D * torch.rsqrt(wide_D.pow(2).mean(-1, keepdim=True) + eps)
    return (wide_D * (1.0 + weight_D.float())).to(x_D.dtype)


def gated_norm(
    x_V: torch.Tensor, gate_V: torch.Tensor, weight_V: torch.Tensor, eps: float
) -> torch.Tensor:
    """Root-mean-square norm of the last dimension, then a SiLU gate."""
    wide_V = x_V.float()
    wide_V = wide_V * torch.rsqrt(wide_V.pow(2).mean(-1, keepdim=True) + eps)
    # Rounded before the weight, as the model was trained.
    return (weight_V * wide_V.to(x_V.dtype) * functional.silu(gate_V.float())).to(x_V.dtype)


def convolve(window_UC: torch.Tensor, weight_CW: torch.Tensor) -> torch.Tensor:
    """Causal convolution of each channel, then SiLU: ``(U, C)`` to ``(T, C)``."""
    channels = weight_CW.shape[0]
    mixed_CT = functional.conv1d(
        window_UC.t().unsqueeze(0), weight_CW.unsqueeze(1), groups=channels
    )[0]
    return functional.silu(mixed_CT).t()


def rotate(x_THS: torch.Tensor, positions_T: torch.Tensor, periods: torch.Tensor) -> torch.Tensor:
    """Turns the first ``2 * len(periods)`` elements of each head by the position.

    Args:
        x_THS: Queries or keys.
        positions_T: int64.
        periods: Angle per position of each pair, float32.
    """
    angles_T = positions_T.float().unsqueeze(-1) * periods
    cos = torch.cat((angles_T, angles_T), -1).cos().to(x_THS.dtype).unsqueeze(1)
    sin = torch.cat((angles_T, angles_T), -1).sin().to(x_THS.dtype).unsqueeze(1)
    turned, kept = x_THS.split((2 * len(periods), x_THS.shape[-1] - 2 * len(periods)), dim=-1)
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, kept), dim=-1)


def attend(
    query_TQS: torch.Tensor,
    keys_NGS: torch.Tensor,
    values_NGS: torch.Tensor,
    positions_T: torch.Tensor,
    first: int = 0,
) -> torch.Tensor:
    """Attention of each token over the rows up to its own.

    Args:
        query_TQS: Queries; each key head serves consecutive query heads.
        keys_NGS: See ``Rows``.
        values_NGS: The same.
        positions_T: Row of each token, int64, rising; these rows have been written.
        first: Rows before it are not seen, but by their own token.

    Returns:
        ``(T, Q, S)``.
    """
    tokens, _, size = query_TQS.shape
    rows, groups = keys_NGS.shape[:2]
    row_N = torch.arange(rows, device=query_TQS.device)
    hidden_TN = row_N > positions_T.unsqueeze(-1)
    if first:
        hidden_TN = hidden_TN | ((row_N < first) & (row_N != positions_T.unsqueeze(-1)))
    query_GMS = query_TQS.view(tokens, groups, -1, size).transpose(0, 1).reshape(groups, -1, size)
    scores_GMN = query_GMS @ keys_NGS.permute(1, 2, 0) * size**-0.5
    scores_GTN = scores_GMN.view(groups, tokens, -1, rows).masked_fill(
        hidden_TN.view(1, tokens, 1, rows), -torch.inf
    )
    weights_GMN = scores_GTN.float().softmax(-1).to(query_TQS.dtype).view(groups, -1, rows)
    # Behind the written rows lies garbage, and zero times no number is no number.
    known_NGS = values_NGS.masked_fill((row_N > positions_T[-1]).view(-1, 1, 1), 0.0)
    mixed_GMS = torch.matmul(weights_GMN, known_NGS.transpose(0, 1))
    return mixed_GMS.view(groups, tokens, -1, size).transpose(0, 1).reshape(query_TQS.shape)


class Ops:
    """The operations, in plain torch. A subclass may replace any of them."""

    def lay_out_(self, groups: Iterable[Sequence[nn.Linear]]) -> None:
        """Lays weights of layers that take the same input as the other operations want them.

        Args:
            groups: All of a model, before any of its passes is captured.
        """

    def rms_norm(self, x_D: torch.Tensor, norm: Norm) -> torch.Tensor:
        """See ``rms_norm``."""
        return rms_norm(x_D, norm.weight, norm.eps)

    def linear(self, x_TD: torch.Tensor, weight_ED: torch.Tensor) -> torch.Tensor:
        """Returns ``(T, E)``."""
        return functional.linear(x_TD, weight_ED)

    def normed_linear(
        self, x_TD: torch.Tensor, norm: Norm, linears: Sequence[nn.Linear]
    ) -> tuple[torch.Tensor, ...]:
        """Several linear layers of the same normed input, ``(T, E)`` each."""
        normed_TD = self.rms_norm(x_TD, norm)
        return tuple(functional.linear(normed_TD, one.weight, one.bias) for one in linears)

    def swiglu(
        self, x_TD: torch.Tensor, norm: Norm, gate: nn.Linear, up: nn.Linear
    ) -> torch.Tensor:
        """``silu(gate(normed)) * up(normed)``, ``(T, E)``."""
        normed_TD = self.rms_norm(x_TD, norm)
        gate_TE = functional.silu(functional.linear(normed_TD, gate.weight))
        return gate_TE * functional.linear(normed_TD, up.weight)

    def add_linear(
        self, x_TD: torch.Tensor, y_TE: torch.Tensor, linear: nn.Linear
    ) -> torch.Tensor:
        """``x + linear(y)``."""
        return x_TD + functional.linear(y_TE, linear.weight, linear.bias)

    def delta(
        self,
        parts: tuple[torch.Tensor, ...],
        state: tuple[torch.Tensor, torch.Tensor],
        layer: DeltaLayer,
        step: Step,
    ) -> tuple[torch.Tensor, Advance | None]:
        """Convolution, gated delta rule, gated norm.

        Args:
            parts: What the layer's projections made: of queries, keys and values ``(T, C)``, of
                the output gate ``(T, H * V)``, of rate and of decay ``(T, H)``.
            state: ``(W - 1, C)``, the inputs of the convolution before the pass, and
                ``(H, K, V)`` float32.
            layer: Its weights.
            step: See ``Step``. Where the number of tokens is known beforehand a kernel may advance
                the state by itself; otherwise it is only read.

        Returns:
            ``(T, H * V)``, and what ``commit_`` takes; None: the state has advanced.
        """
        inputs_TC, gate_TV, b_TH, a_TH = parts
        conv, recurrent = state
        config, tokens = layer.config, inputs_TC.shape[0]
        keys = (tokens, config.linear_num_key_heads, config.linear_key_head_dim)
        values = (tokens, config.linear_num_value_heads, config.linear_value_head_dim)
        mixed_TC = convolve(torch.cat((conv, inputs_TC)), layer.conv1d.weight.squeeze(1))
        query, key, value = mixed_TC.split(
            (config.key_size, config.key_size, config.value_size), 1
        )
        decay_TH, rate_TH = delta_gates(a_TH, b_TH, layer.A_log, layer.dt_bias)
        if step.pad_T is not None:
            decay_TH = decay_TH.masked_fill(step.pad_T.unsqueeze(-1), 0.0)
            rate_TH = rate_TH.masked_fill(step.pad_T.unsqueeze(-1), 0.0)
        heads = (query.reshape(keys), key.reshape(keys), value.reshape(values))
        if step.chunk:
            out_THV, states = delta_chunks(*heads, decay_TH, rate_TH, recurrent, step.chunk)
        else:
            out_THV, states = delta_steps(*heads, decay_TH, rate_TH, recurrent)
            states = states if step.keeps else states[-1]
        gate_THV = gate_TV.reshape(values)
        out_THV = gated_norm(out_THV, gate_THV, layer.norm.weight, config.rms_norm_eps)
        return out_THV.reshape(tokens, -1), Advance(conv, recurrent, inputs_TC, states)

    def commit_(self, advance: Advance, count_1: torch.Tensor) -> None:
        """Makes the state that after ``count_1`` tokens, ``(1,)`` int64 on the device."""
        conv, recurrent = advance.conv, advance.recurrent
        taps = torch.arange(conv.shape[0], device=count_1.device)
        window_UC = torch.cat((conv, advance.inputs_TC))
        conv.copy_(window_UC.index_select(0, taps + count_1))
        if advance.states.dim() == recurrent.dim():
            recurrent.copy_(advance.states)
        else:
            recurrent.copy_(advance.states.index_select(0, count_1)[0])

    def place_(
        self,
        parts: tuple[torch.Tensor, ...],
        rows: Rows,
        layer: FullAttention,
        step: Step,
        periods: torch.Tensor,
    ) -> torch.Tensor | None:
        """Norms and rotates queries and keys, and writes keys and values to their rows.

        Args:
            parts: What the layer's projections made: queries with their gates
                ``(T, Q * 2 * S)``, keys and values ``(T, G * S)``; or the last two alone.
            rows: See ``Rows``.
            layer: Its norms.
            step: Says which rows.
            periods: See ``rotate``.

        Returns:
            Queries ``(T, Q, S)``; None without.
        """
        key_TE, value_TE = parts[-2:]
        shape = (key_TE.shape[0], layer.groups, layer.size)
        key_TGS = rotate(
            self.rms_norm(key_TE.reshape(shape), layer.k_norm), step.positions_T, periods
        )
        rows[0].index_copy_(0, step.positions_T, key_TGS)
        rows[1].index_copy_(0, step.positions_T, value_TE.reshape(shape))
        if len(parts) == 2:
            return None
        query_TQS = parts[0].reshape(-1, layer.heads, 2 * layer.size)[..., : layer.size]
        return rotate(self.rms_norm(query_TQS, layer.q_norm), step.positions_T, periods)

    def attend(
        self, query_TQS: torch.Tensor, gate_TQS: torch.Tensor, rows: Rows, step: Step, first: int
    ) -> torch.Tensor:
        """See ``attend``; each element times the sigmoid of its gate, ``(T, Q * S)``."""
        found_TQS = attend(query_TQS, *rows, step.positions_T, first)
        return (found_TQS * gate_TQS.sigmoid()).reshape(len(query_TQS), -1)


TORCH = Ops()


def ops_for(device: torch.device) -> Ops:
    """The operations of a device; the torch functions where it has none of its own."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from flashrt_ros.policies.hybrid.kernels.triton_ops import TRITON

        return TRITON
    return TORCH
