"""Every operation of the hybrid model for which a kernel may stand, and which one does.

Layers call these through ``Ops``, chosen by the device of the state. The torch functions are the
reference: a kernel that takes the place of one keeps its arguments, shapes and dtypes.

Tensor suffixes: T tokens of a pass, D width, N rows, Q query heads, G key and value heads, S size
of a head, C channels, W taps, U tokens of the window (T + W - 1); those of ``delta_rule``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from flashrt_ros.policies.hybrid.delta_rule import delta_chunks, delta_gates, delta_steps


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
        keys_NGS: All rows of the capacity, strided; those behind the last position are garbage.
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


@dataclass(frozen=True)
class Ops:
    """One set of operations; see the functions of this module and of ``delta_rule``."""

    rms_norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor] = rms_norm
    gated_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor] = (
        gated_norm
    )
    convolve: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = convolve
    rotate: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = rotate
    attend: Callable[..., torch.Tensor] = attend
    delta_gates: Callable[..., tuple[torch.Tensor, torch.Tensor]] = delta_gates
    delta_steps: Callable[..., tuple[torch.Tensor, torch.Tensor]] = delta_steps
    delta_chunks: Callable[..., tuple[torch.Tensor, torch.Tensor]] = delta_chunks


TORCH = Ops()
_BY_DEVICE: dict[str, Ops] = {}


def ops_for(device: torch.device) -> Ops:
    """The operations of a device; the torch functions where it has none of its own."""
    return _BY_DEVICE.get(device.type, TORCH)
