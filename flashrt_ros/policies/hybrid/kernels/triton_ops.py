"""The operations of the hybrid model by Triton kernels, where they fit; else by torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.policies.hybrid.kernels.attention import attend
from flashrt_ros.policies.hybrid.kernels.few_attend import few_attend, place_
from flashrt_ros.policies.hybrid.kernels.few_delta import commit_, few_delta
from flashrt_ros.policies.hybrid.kernels.joined import joined
from flashrt_ros.policies.hybrid.kernels.linear import MOST_TOKENS, few_linear
from flashrt_ros.policies.hybrid.kernels.many_delta import many_delta
from flashrt_ros.policies.hybrid.kernels.norm import rms_norm, silu_product
from flashrt_ros.policies.hybrid.ops import Norm, Ops, Rows
from flashrt_ros.policies.hybrid.step import Advance, Step

if TYPE_CHECKING:
    from flashrt_ros.policies.hybrid.layers import DeltaLayer, FullAttention


class TritonOps(Ops):
    """See ``Ops``."""

    def lay_out_(self, groups: Iterable[Sequence[nn.Linear]]) -> None:
        """See ``Ops``."""
        for linears in groups:
            joined(linears)

    def rms_norm(self, x_D: torch.Tensor, norm: Norm) -> torch.Tensor:
        """See ``Ops``."""
        return rms_norm(x_D, norm.weight, norm.eps)

    def linear(self, x_TD: torch.Tensor, weight_ED: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        if len(x_TD) > MOST_TOKENS:
            return super().linear(x_TD, weight_ED)
        return few_linear(x_TD, weight_ED)

    def normed_linear(
        self, x_TD: torch.Tensor, norm: Norm, linears: Sequence[nn.Linear]
    ) -> tuple[torch.Tensor, ...]:
        """See ``Ops``; columns of one matrix."""
        weight, sizes = joined(linears), [one.out_features for one in linears]
        if len(x_TD) > MOST_TOKENS:
            found = functional.linear(self.rms_norm(x_TD, norm), weight)
        else:
            found = few_linear(x_TD, weight, norm.weight, norm.eps)
        if linears[0].bias is not None:
            found = found + torch.cat([one.bias for one in linears])
        return tuple(found.split(sizes, dim=1))

    def swiglu(
        self, x_TD: torch.Tensor, norm: Norm, gate: nn.Linear, up: nn.Linear
    ) -> torch.Tensor:
        """See ``Ops``."""
        weight = joined((gate, up))
        if len(x_TD) <= MOST_TOKENS:
            return few_linear(x_TD, weight, norm.weight, norm.eps, gated=True)
        gate_TE, up_TE = functional.linear(self.rms_norm(x_TD, norm), weight).chunk(2, dim=1)
        return silu_product(gate_TE, up_TE)

    def add_linear(
        self, x_TD: torch.Tensor, y_TE: torch.Tensor, linear: nn.Linear
    ) -> torch.Tensor:
        """See ``Ops``."""
        if len(x_TD) > MOST_TOKENS or linear.bias is not None:
            return super().add_linear(x_TD, y_TE, linear)
        return few_linear(y_TE, linear.weight, add_TE=x_TD)

    def delta(
        self,
        parts: tuple[torch.Tensor, ...],
        state: tuple[torch.Tensor, torch.Tensor],
        layer: DeltaLayer,
        step: Step,
    ) -> tuple[torch.Tensor, Advance | None]:
        """See ``Ops``."""
        taps_CW = layer.conv1d.weight.squeeze(1)
        weights = (taps_CW, layer.A_log, layer.dt_bias, layer.norm.weight)
        eps = layer.config.rms_norm_eps
        if len(parts[0]) > MOST_TOKENS:
            if step.keeps or not step.chunk:
                return super().delta(parts, state, layer, step)
            return many_delta(parts, state, weights, eps, step.chunk, step.count_1), None
        return few_delta(parts, state, weights, eps, step.keeps, step.count_1)

    def commit_(self, advance: Advance, count_1: torch.Tensor) -> None:
        """See ``Ops``."""
        if advance.states.dim() == advance.recurrent.dim():
            super().commit_(advance, count_1)
        else:
            commit_(advance, count_1)

    def place_(
        self,
        parts: tuple[torch.Tensor, ...],
        rows: Rows,
        layer: FullAttention,
        step: Step,
        periods: torch.Tensor,
    ) -> torch.Tensor | None:
        """See ``Ops``."""
        norms = (layer.q_norm.weight, layer.k_norm.weight)
        eps = (layer.q_norm.eps, layer.k_norm.eps)
        return place_(parts, rows, norms, eps, step.positions_T, periods)

    def attend(
        self, query_TQS: torch.Tensor, gate_TQS: torch.Tensor, rows: Rows, step: Step, first: int
    ) -> torch.Tensor:
        """See ``Ops``."""
        if len(query_TQS) > MOST_TOKENS:
            found = attend(query_TQS, *rows, step.positions_T, first, gate_TQS)
            return found.view(len(query_TQS), -1)
        return few_attend(query_TQS, gate_TQS, rows, step.positions_T, first)


TRITON = TritonOps()
