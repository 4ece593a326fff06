"""A delta-rule layer over many tokens between its projections: four kernels.

Tensor suffixes: those of ``delta_rule``.
"""

from __future__ import annotations

import torch

from flashrt_ros.policies.hybrid.kernels.chunk import Layer, delta_chunks
from flashrt_ros.policies.hybrid.kernels.convolve import convolve_behind


def many_delta(
    parts: tuple[torch.Tensor, ...],
    state: tuple[torch.Tensor, torch.Tensor],
    weights: tuple[torch.Tensor, ...],
    eps: float,
    chunk: int,
    count_1: torch.Tensor | None = None,
) -> torch.Tensor:
    """Runs many tokens through and advances the state.

    Args:
        parts: See ``Ops.delta``.
        state: See there.
        weights: Of the convolution ``(C, W)``; logarithm of the decay's speed and its bias,
            ``(H,)`` float32; of the norm ``(V,)``.
        eps: Of the norm.
        chunk: See ``Step``.
        count_1: See there.

    Returns:
        ``(T, H * V)``.
    """
    inputs_TC, gate_TV, rate_TH, decay_TH = parts
    conv, recurrent = state
    taps_CW, speed_H, bias_H, norm_V = weights
    tokens, (heads, keys, values) = inputs_TC.shape[0], recurrent.shape
    mixed_TC = convolve_behind(conv, inputs_TC, taps_CW)
    both = (inputs_TC.shape[1] - heads * values) // 2
    query, key, value = mixed_TC.split((both, both, heads * values), dim=1)
    gate_THV = gate_TV.unflatten(1, (heads, values))
    layer = Layer(speed_H, bias_H, count_1, gate_THV, norm_V, eps, conv, inputs_TC)
    query_TIK, key_TIK = query.unflatten(1, (-1, keys)), key.unflatten(1, (-1, keys))
    given = (query_TIK, key_TIK, value.unflatten(1, (heads, values)), decay_TH, rate_TH)
    out_THV, _ = delta_chunks(*given, recurrent, chunk, layer=layer)
    return out_THV.view(tokens, -1)
