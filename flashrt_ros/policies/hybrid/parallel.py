"""All tokens of many sequences in one differentiable pass: how a hybrid model is trained.

Serving keeps state in named buffers and takes a few tokens at a time; here there is no state, and
every sequence begins at row 0. It is the same computation, but for rounding.

Tensor suffixes: T tokens, B sequences, D width, C channels, Q query heads, G key and value heads,
S size of a head, H value heads, U keys.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from flashrt_ros.policies.hybrid.delta_rule import delta_chunks, delta_gates
from flashrt_ros.policies.hybrid.layers import DeltaLayer, FullAttention, Layer
from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.policies.hybrid.ops import TORCH, gated_norm, rotate
from flashrt_ros.policies.hybrid.step import Step

_WIPE = -30.0
"""Logarithm of a decay after which nothing is left."""

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries ``(T, B, Q, S)``, keys and values ``(T, B, G, S)``."""


def hidden_values(
    model: HybridModel,
    embedded_TBD: torch.Tensor,
    chunk: int = 64,
    wiped_TB: torch.Tensor | None = None,
    between: list[torch.Tensor] | None = None,
) -> torch.Tensor:
    """Hidden values behind the last norm.

    Args:
        model: It.
        embedded_TBD: Embeddings; T is a multiple of ``chunk``. Pads behind a sequence disturb
            nothing before them.
        chunk: Tokens of a chunk of the delta rule.
        wiped_TB: True where the recurrent state is lost just before the token. So a model learns
            to keep in its rows what must outlast that. None: nowhere.
        between: The residual stream behind each layer is appended, for further losses.

    Returns:
        ``(T, B, D)``.
    """
    step, x_TBD = _step(model, embedded_TBD, chunk), embedded_TBD
    for layer in model.model.layers:
        assert isinstance(layer, Layer)
        normed_TBD = layer.input_layernorm.normed(x_TBD, step.ops)
        if layer.linear_attn is not None:
            mixed_TBD = _delta(layer.linear_attn, normed_TBD, step, wiped_TB)
        else:
            assert layer.self_attn is not None
            periods = model.get_buffer("periods")
            query_TBQS, key_TBGS, value_TBGS = _heads(layer.self_attn, normed_TBD, step, periods)
            found_TBQS = _attend(query_TBQS, key_TBGS, value_TBGS, None)
            mixed_TBD = _gated(layer.self_attn, normed_TBD, found_TBQS)
        x_TBD = layer.finish(x_TBD + mixed_TBD, step)
        if between is not None:
            between.append(x_TBD)
    return model.model.norm.normed(x_TBD, step.ops)


def drafted_values(
    model: HybridModel, hidden_TBD: torch.Tensor, embedded_TBD: torch.Tensor, drafts: int
) -> list[torch.Tensor]:
    """What the MTP head makes of every prefix: hidden values of its first, second, ... draft.

    Args:
        model: It, with an MTP head.
        hidden_TBD: Of ``hidden_values``.
        embedded_TBD: See there.
        drafts: k.

    Returns:
        k times ``(T, B, D)``. Row t of the n-th, from 0 on, stands for the hidden values of token
        t where those of the model are known up to token t - n - 1.
    """
    assert model.mtp is not None
    head, periods = model.mtp, model.get_buffer("periods")
    layer, attention = head.parts()
    step = _step(model, embedded_TBD, 0)
    tokens, device = len(embedded_TBD), embedded_TBD.device
    row_T = torch.arange(tokens, device=device)
    # Row 0 has no hidden values before it and is seen by its own token only.
    seen_TU = (row_T <= row_T[:, None]) & ((row_T > 0) | (row_T == row_T[:, None]))
    before, keys, values, masks, found = hidden_TBD, [], [], [], []
    for n in range(drafts):
        shifted_TBD = functional.pad(before[:-1], (0, 0, 0, 0, 1, 0))
        x_TBD = head.joined(shifted_TBD, embedded_TBD, step)
        normed_TBD = layer.input_layernorm.normed(x_TBD, step.ops)
        query, key, value = _heads(attention, normed_TBD, step, periods)
        keys.append(key)
        values.append(value)
        # Rows of the model's own hidden values up to where they end, then one of each draft.
        ends = [row_T[:, None] - row_T == n - m for m in range(1, n + 1)]
        masks = [seen_TU & (row_T[:, None] - row_T >= n), *ends]
        mask_TU = torch.cat(masks, dim=1)
        drawn_TBQS = _attend(query, torch.cat(keys), torch.cat(values), mask_TU)
        x_TBD = x_TBD + _gated(attention, normed_TBD, drawn_TBQS)
        before = head.norm.normed(layer.finish(x_TBD, step), step.ops)
        found.append(before)
    return found


def _step(model: HybridModel, embedded_TBD: torch.Tensor, chunk: int) -> Step:
    positions_T = torch.arange(len(embedded_TBD), device=embedded_TBD.device)
    # Kernels have no gradients.
    return Step(TORCH, positions_T, None, chunk)


def _delta(
    layer: DeltaLayer, x_TBD: torch.Tensor, step: Step, wiped_TB: torch.Tensor | None
) -> torch.Tensor:
    config, (tokens, count) = layer.config, x_TBD.shape[:2]
    taps = config.linear_conv_kernel_dim
    window = functional.pad(layer.in_proj_qkv(x_TBD), (0, 0, 0, 0, taps - 1, 0))
    weight_CW = layer.conv1d.weight.squeeze(1)
    mixed_TBC = functional.silu(
        sum(window[n : n + tokens] * weight_CW[:, n] for n in range(taps))  # type: ignore[arg-type]
    )
    query, key, value = mixed_TBC.split((config.key_size, config.key_size, config.value_size), -1)
    decay_TBH, rate_TBH = delta_gates(
        layer.in_proj_a(x_TBD), layer.in_proj_b(x_TBD), layer.A_log, layer.dt_bias
    )
    if wiped_TB is not None:
        decay_TBH = decay_TBH.masked_fill(wiped_TB.unsqueeze(-1), _WIPE)
    # Sequences side by side are so many heads more.
    heads = config.linear_num_value_heads
    keys = (tokens, count * config.linear_num_key_heads, config.linear_key_head_dim)
    values = (tokens, count * heads, config.linear_value_head_dim)
    empty_HKV = x_TBD.new_zeros(values[1], keys[2], values[2], dtype=torch.float32)
    out, _ = delta_chunks(
        query.reshape(keys),
        key.reshape(keys),
        value.reshape(values),
        decay_TBH.flatten(1),
        rate_TBH.flatten(1),
        empty_HKV,
        step.chunk,
    )
    shape = (tokens, count, heads, config.linear_value_head_dim)
    gate_TBHV = layer.in_proj_z(x_TBD).view(shape)
    out_TBHV = gated_norm(out.reshape(shape), gate_TBHV, layer.norm.weight, config.rms_norm_eps)
    return torch.as_tensor(layer.out_proj(out_TBHV.flatten(2)))


def _heads(layer: FullAttention, x_TBD: torch.Tensor, step: Step, periods: torch.Tensor) -> Heads:
    tokens, count = x_TBD.shape[:2]

    def rotated(x_TBGS: torch.Tensor) -> torch.Tensor:
        return rotate(x_TBGS.flatten(1, 2), step.positions_T, periods).view_as(x_TBGS)

    query_TBQS = layer.q_proj(x_TBD).view(tokens, count, layer.heads, -1)[..., : layer.size]
    key_TBGS = layer.k_proj(x_TBD).view(tokens, count, layer.groups, layer.size)
    value_TBGS = layer.v_proj(x_TBD).view(tokens, count, layer.groups, layer.size)
    query_TBQS = layer.q_norm.normed(query_TBQS, step.ops)
    key_TBGS = layer.k_norm.normed(key_TBGS, step.ops)
    return rotated(query_TBQS), rotated(key_TBGS), value_TBGS


def _gated(layer: FullAttention, x_TBD: torch.Tensor, found_TBQS: torch.Tensor) -> torch.Tensor:
    shape = (*x_TBD.shape[:2], layer.heads, -1)
    gate_TBQS = layer.q_proj(x_TBD).view(shape)[..., layer.size :].sigmoid()
    return torch.as_tensor(layer.o_proj((found_TBQS * gate_TBQS).flatten(2)))


def _attend(
    query_TBQS: torch.Tensor,
    key_UBGS: torch.Tensor,
    value_UBGS: torch.Tensor,
    mask_TU: torch.Tensor | None,
) -> torch.Tensor:
    each = query_TBQS.shape[2] // key_UBGS.shape[2]
    key_BQUS, value_BQUS = (
        x.permute(1, 2, 0, 3).repeat_interleave(each, dim=1) for x in (key_UBGS, value_UBGS)
    )
    found_BQTS = functional.scaled_dot_product_attention(
        query_TBQS.permute(1, 2, 0, 3), key_BQUS, value_BQUS, mask_TU, is_causal=mask_TU is None
    )
    return found_BQTS.permute(2, 0, 1, 3)
