"""The gated delta rule in plain torch: token by token, and chunk by chunk.

For each value head a state S of (K, V) is kept. With key k, value v, decay g (its logarithm, at
most 0) and rate b of a token:  S <- exp(g) S;  S <- S + k (b (v - k S));  out = q S.
(Yang et al., "Gated Delta Networks", arXiv 2412.06464, sections 3.1 and 3.3.) Both forms compute
in float32 and normalise queries and keys themselves, as a kernel would that takes their place.

Tensor suffixes: T tokens, I key heads, H value heads, K key size, V value size, N chunks,
C tokens of a chunk.
"""

from __future__ import annotations

import torch
from torch.nn import functional

_EPSILON = 1e-6


def _heads(x_TIK: torch.Tensor, heads: int) -> torch.Tensor:
    """Returns float32 ``(T, H, K)``, normalised; each key head serves consecutive value heads."""
    x_TIK = x_TIK.float()
    x_TIK = x_TIK * torch.rsqrt((x_TIK * x_TIK).sum(-1, keepdim=True) + _EPSILON)
    return x_TIK.repeat_interleave(heads // x_TIK.shape[1], dim=1)


def delta_steps(
    query_TIK: torch.Tensor,
    key_TIK: torch.Tensor,
    value_THV: torch.Tensor,
    decay_TH: torch.Tensor,
    rate_TH: torch.Tensor,
    state_HKV: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token by token, keeping the state after each.

    Args:
        query_TIK: Model dtype.
        key_TIK: Model dtype.
        value_THV: Model dtype.
        decay_TH: Logarithm of the decay, float32.
        rate_TH: Model dtype.
        state_HKV: float32, before the first token; read only.

    Returns:
        Outputs ``(T, H, V)`` in the dtype of the values, and states ``(T + 1, H, K, V)`` float32:
        the one given, then the one after each token.
    """
    heads = value_THV.shape[1]
    query_THK = _heads(query_TIK, heads) * query_TIK.shape[-1] ** -0.5
    key_THK = _heads(key_TIK, heads)
    values_THV, rates_TH, decays_TH = value_THV.float(), rate_TH.float(), decay_TH.exp()
    states, outs = [state_HKV], []
    for t in range(value_THV.shape[0]):
        state_HKV = state_HKV * decays_TH[t].view(-1, 1, 1)
        known_HV = (state_HKV * key_THK[t].unsqueeze(-1)).sum(1)
        change_HV = (values_THV[t] - known_HV) * rates_TH[t].unsqueeze(-1)
        state_HKV = state_HKV + key_THK[t].unsqueeze(-1) * change_HV.unsqueeze(1)
        outs.append((state_HKV * query_THK[t].unsqueeze(-1)).sum(1))
        states.append(state_HKV)
    return torch.stack(outs).to(value_THV.dtype), torch.stack(states)


def delta_chunks(
    query_TIK: torch.Tensor,
    key_TIK: torch.Tensor,
    value_THV: torch.Tensor,
    decay_TH: torch.Tensor,
    rate_TH: torch.Tensor,
    state_HKV: torch.Tensor,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chunk by chunk: inside a chunk all tokens at once.

    A token with rate 0 and decay 0 leaves the state as it is, whatever its key and value.

    Args:
        query_TIK: As in ``delta_steps``, as are the others.
        key_TIK: See there.
        value_THV: See there.
        decay_TH: See there.
        rate_TH: See there.
        state_HKV: See there.
        chunk: C; T is a multiple of it.

    Returns:
        Outputs ``(T, H, V)`` in the dtype of the values, and the state after the last token.
    """
    tokens, heads = value_THV.shape[:2]

    def chunked(x: torch.Tensor) -> torch.Tensor:
        return x.float().reshape(tokens // chunk, chunk, *x.shape[1:]).transpose(1, 2)

    query_NHCK = chunked(_heads(query_TIK, heads)) * query_TIK.shape[-1] ** -0.5
    key_NHCK, value_NHCV = chunked(_heads(key_TIK, heads)), chunked(value_THV)
    rate_NHC1 = chunked(rate_TH).unsqueeze(-1)
    # Logarithm of the decay from the start of the chunk up to and with each token.
    fall_NHC = chunked(decay_TH).cumsum(-1)
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=state_HKV.device).triu(1)
    between_NHCC = (fall_NHC.unsqueeze(-1) - fall_NHC.unsqueeze(-2)).masked_fill(later, -torch.inf)
    between_NHCC = between_NHCC.exp()
    # What each token still finds of the earlier ones of its chunk makes a triangular system.
    system_NHCC = (key_NHCK * rate_NHC1) @ key_NHCK.transpose(-1, -2) * between_NHCC
    reads_NHCK = key_NHCK * rate_NHC1 * fall_NHC.exp().unsqueeze(-1)
    solved = torch.linalg.solve_triangular(
        system_NHCC,
        torch.cat((value_NHCV * rate_NHC1, reads_NHCK), dim=-1),
        upper=False,
        unitriangular=True,
    )
    change_NHCV, reads_NHCK = solved.split((value_NHCV.shape[-1], key_NHCK.shape[-1]), dim=-1)
    inner_NHCC = query_NHCK @ key_NHCK.transpose(-1, -2) * between_NHCC
    asks_NHCK = query_NHCK * fall_NHC.exp().unsqueeze(-1)
    leaves_NHCK = key_NHCK * (fall_NHC[..., -1:] - fall_NHC).exp().unsqueeze(-1)
    whole_NH11 = fall_NHC[..., -1].exp().unsqueeze(-1).unsqueeze(-1)
    outs = []
    for n in range(tokens // chunk):
        change_HCV = change_NHCV[n] - reads_NHCK[n] @ state_HKV
        outs.append(asks_NHCK[n] @ state_HKV + inner_NHCC[n] @ change_HCV)
        state_HKV = state_HKV * whole_NH11[n] + leaves_NHCK[n].transpose(-1, -2) @ change_HCV
    out_THV = torch.stack(outs).transpose(1, 2).reshape(value_THV.shape)
    return out_THV.to(value_THV.dtype), state_HKV


def delta_gates(
    a_TH: torch.Tensor, b_TH: torch.Tensor, log_rate_H: torch.Tensor, bias_H: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the decay's logarithm (float32) and the rate (model dtype), each ``(T, H)``."""
    decay_TH = -log_rate_H.float().exp() * functional.softplus(a_TH.float() + bias_H)
    return decay_TH, b_TH.sigmoid()
