"""A delta-rule layer over a few tokens between its projections: two kernels, and one to commit.

Convolution, gates and delta rule, a program for some values of each head, so that no two touch
the same state; then the gated norm of each head, whose programs move the convolution's window.

Tensor suffixes: those of ``delta_rule``; C channels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashrt_ros.policies.hybrid.kernels.early import begin, begins_early
from flashrt_ros.policies.hybrid.kernels.inverse import softplus
from flashrt_ros.policies.hybrid.step import Advance

BLOCK_VALUE, WARPS = 32, 4


@triton.jit  # type: ignore[untyped-decorator]
def _mixed(  # type: ignore[no-untyped-def]
    conv_ptr, inputs_ptr, taps_ptr, stride, t, channel, known,
    channels: tl.constexpr, taps: tl.constexpr,
):  # fmt: skip
    """The convolution at token ``t``, and SiLU, for some channels; float32."""
    total = tl.zeros(channel.shape, tl.float32)
    for tap in tl.static_range(taps):
        place = t + tap
        before = place < taps - 1
        old = tl.load(conv_ptr + place * channels + channel, mask=known & before, other=0.0)
        at = inputs_ptr + (place - taps + 1) * stride + channel
        new = tl.load(at, mask=known & (place >= taps - 1), other=0.0)
        factor = tl.load(taps_ptr + channel * taps + tap, mask=known, other=0.0)
        total += (old.to(tl.float32) + new.to(tl.float32)) * factor.to(tl.float32)
    total = total.to(conv_ptr.dtype.element_ty).to(tl.float32)
    return (total / (1.0 + tl.exp(-total))).to(conv_ptr.dtype.element_ty).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def shift(  # type: ignore[no-untyped-def]
    conv_ptr, inputs_ptr, stride, count, channel, known,
    channels: tl.constexpr, taps: tl.constexpr,
):  # fmt: skip
    """Moves the window of some channels on by ``count`` tokens."""
    for tap in tl.static_range(taps - 1):
        # In this order nothing is overwritten that is still to be read.
        place = tap + count
        old = tl.load(
            conv_ptr + place * channels + channel, mask=known & (place < taps - 1), other=0.0
        )
        at = inputs_ptr + (place - taps + 1) * stride + channel
        new = tl.load(at, mask=known & (place >= taps - 1), other=0.0)
        value = tl.where(place < taps - 1, old, new)
        tl.store(conv_ptr + tap * channels + channel, value, mask=known)


@triton.jit  # type: ignore[untyped-decorator]
def _few_delta(  # type: ignore[no-untyped-def]
    inputs_ptr,
    rate_ptr,
    decay_ptr,
    conv_ptr,
    state_ptr,
    taps_ptr,
    log_rate_ptr,
    bias_ptr,
    count_ptr,
    states_ptr,
    out_ptr,
    tokens,
    stride,
    keeps: tl.constexpr,
    counted: tl.constexpr,
    key_heads: tl.constexpr,
    heads: tl.constexpr,
    key_size: tl.constexpr,
    value_size: tl.constexpr,
    taps: tl.constexpr,
    block_key: tl.constexpr,
    block_value: tl.constexpr,
    early: tl.constexpr,
):
    channels: tl.constexpr = 2 * key_heads * key_size + heads * value_size
    h = tl.program_id(0)
    i = h // (heads // key_heads)
    dtype = out_ptr.dtype.element_ty
    k, v = tl.arange(0, block_key), tl.program_id(1) * block_value + tl.arange(0, block_value)
    k_known, v_known = k < key_size, v < value_size
    inside = k_known[:, None] & v_known[None, :]
    place = h * key_size * value_size + k[:, None] * value_size + v[None, :]
    # The kernel in front makes the inputs, not the state.
    state = tl.load(state_ptr + place, mask=inside, other=0.0)
    speed = tl.exp(tl.load(log_rate_ptr + h))
    bias = tl.load(bias_ptr + h)
    begin(early)
    count = tokens
    if counted:
        count = tl.load(count_ptr).to(tl.int32)
    if keeps:
        tl.store(states_ptr + place, state, mask=inside)
    for t in range(0, tokens):
        q = _mixed(conv_ptr, inputs_ptr, taps_ptr, stride, t, i * key_size + k, k_known,
                   channels, taps)  # fmt: skip
        key = _mixed(conv_ptr, inputs_ptr, taps_ptr, stride, t, (key_heads + i) * key_size + k,
                     k_known, channels, taps)  # fmt: skip
        value = _mixed(conv_ptr, inputs_ptr, taps_ptr, stride, t,
                       2 * key_heads * key_size + h * value_size + v, v_known,
                       channels, taps)  # fmt: skip
        q = q * tl.rsqrt(tl.sum(q * q, 0) + 1e-6) * (key_size**-0.5)
        key = key * tl.rsqrt(tl.sum(key * key, 0) + 1e-6)
        a = tl.load(decay_ptr + t * stride + h).to(tl.float32) + bias
        b = tl.load(rate_ptr + t * stride + h).to(tl.float32)
        rate = (1.0 / (1.0 + tl.exp(-b))).to(dtype).to(tl.float32)
        real = t < count
        decay = tl.where(real, tl.exp(-speed * softplus(a)), 1.0)
        rate = tl.where(real, rate, 0.0)
        state = state * decay
        change = (value - tl.sum(state * key[:, None], 0)) * rate
        state = state + key[:, None] * change[None, :]
        out = tl.sum(state * q[:, None], 0).to(dtype)
        tl.store(out_ptr + t * heads * value_size + h * value_size + v, out, mask=v_known)
        if keeps:
            kept = states_ptr + (t + 1) * heads * key_size * value_size
            tl.store(kept + place, state, mask=inside)
    if not keeps:
        tl.store(state_ptr + place, state, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _few_outputs(  # type: ignore[no-untyped-def]
    out_ptr,
    gate_ptr,
    norm_ptr,
    inputs_ptr,
    conv_ptr,
    count_ptr,
    tokens,
    stride,
    eps,
    moves: tl.constexpr,
    counted: tl.constexpr,
    key_heads: tl.constexpr,
    heads: tl.constexpr,
    key_size: tl.constexpr,
    value_size: tl.constexpr,
    taps: tl.constexpr,
    block_key: tl.constexpr,
    block_value: tl.constexpr,
    early: tl.constexpr,
):
    h, t = tl.program_id(0), tl.program_id(1)
    k, v = tl.arange(0, block_key), tl.arange(0, block_value)
    k_known, v_known = k < key_size, v < value_size
    dtype = out_ptr.dtype.element_ty
    norm = tl.load(norm_ptr + v, mask=v_known, other=0.0).to(tl.float32)
    begin(early)
    at = out_ptr + (t * heads + h) * value_size + v
    out = tl.load(at, mask=v_known, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + t * stride + h * value_size + v, mask=v_known, other=0.0)
    gate = gate.to(tl.float32)
    out = out * tl.rsqrt(tl.sum(out * out, 0) / value_size + eps)
    out = (norm * out.to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    out = out * (gate / (1.0 + tl.exp(-gate)))
    tl.store(at, out.to(dtype), mask=v_known)
    if moves:  # noqa: SIM102 (decided when it is compiled)
        if t == 0:
            channels: tl.constexpr = 2 * key_heads * key_size + heads * value_size
            count = tokens
            if counted:
                count = tl.load(count_ptr).to(tl.int32)
            value = 2 * key_heads * key_size + h * value_size + v
            shift(conv_ptr, inputs_ptr, stride, count, value, v_known, channels, taps)
            each: tl.constexpr = heads // key_heads
            if h % each == 0:
                query = h // each * key_size + k
                key = query + key_heads * key_size
                shift(conv_ptr, inputs_ptr, stride, count, query, k_known, channels, taps)
                shift(conv_ptr, inputs_ptr, stride, count, key, k_known, channels, taps)


@triton.jit  # type: ignore[untyped-decorator]
def _commit(  # type: ignore[no-untyped-def]
    conv_ptr, state_ptr, inputs_ptr, states_ptr, count_ptr, stride, size, channels: tl.constexpr,
    taps: tl.constexpr, block: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    begin(early)
    count = tl.load(count_ptr).to(tl.int64)
    at = tl.program_id(0) * block + tl.arange(0, block)
    state = tl.load(states_ptr + count * size + at, mask=at < size, other=0.0)
    tl.store(state_ptr + at, state, mask=at < size)
    shift(conv_ptr, inputs_ptr, stride, count, at, at < channels, channels, taps)


def few_delta(
    parts: tuple[torch.Tensor, ...],
    state: tuple[torch.Tensor, torch.Tensor],
    weights: tuple[torch.Tensor, ...],
    eps: float,
    keeps: bool,
    count_1: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Advance | None]:
    """Runs a few tokens through.

    Args:
        parts: See ``Ops.delta``; columns of one matrix, so that all have its row stride.
        state: See there. It is advanced, unless ``keeps``.
        weights: Of the convolution ``(C, W)``; logarithm of the decay's speed and its bias,
            ``(H,)`` float32; of the norm ``(V,)``.
        eps: Of the norm.
        keeps: The state after each token is kept for ``commit_``.
        count_1: How many are tokens, int64; None: all.

    Returns:
        See ``Ops.delta``.
    """
    inputs_TC, gate_TV, rate_TH, decay_TH = parts
    conv, recurrent = state
    taps_CW, log_rate_H, bias_H, norm_V = weights
    tokens, (heads, key_size, value_size) = inputs_TC.shape[0], recurrent.shape
    key_heads = (inputs_TC.shape[1] - heads * value_size) // (2 * key_size)
    out_TE = inputs_TC.new_empty((tokens, heads * value_size))
    states = recurrent.new_empty((tokens + 1, *recurrent.shape)) if keeps else recurrent
    count = conv if count_1 is None else count_1
    sizes = {
        "counted": count_1 is not None,
        "key_heads": key_heads,
        "heads": heads,
        "key_size": key_size,
        "value_size": value_size,
        "taps": taps_CW.shape[1],
        "block_key": triton.next_power_of_2(key_size),
        **begins_early(out_TE.device),
    }
    stride, block = inputs_TC.stride(0), triton.next_power_of_2(value_size)
    _few_delta[(heads, triton.cdiv(value_size, min(block, BLOCK_VALUE)))](
        inputs_TC,
        rate_TH,
        decay_TH,
        conv,
        recurrent,
        taps_CW,
        log_rate_H,
        bias_H,
        count,
        states,
        out_TE,
        tokens,
        stride,
        keeps=keeps,
        block_value=min(block, BLOCK_VALUE),
        num_warps=WARPS,
        **sizes,
    )
    _few_outputs[(heads, tokens)](
        out_TE,
        gate_TV,
        norm_V,
        inputs_TC,
        conv,
        count,
        tokens,
        stride,
        eps,
        moves=not keeps,
        block_value=block,
        num_warps=1,
        **sizes,
    )
    return out_TE, Advance(conv, recurrent, inputs_TC, states) if keeps else None


def commit_(advance: Advance, count_1: torch.Tensor) -> None:
    """Makes the state that after ``count_1`` tokens, of those that ``few_delta`` kept."""
    conv, recurrent = advance.conv, advance.recurrent
    size, block = max(recurrent.numel(), conv.shape[1]), 1024
    _commit[(triton.cdiv(size, block),)](
        conv,
        recurrent,
        advance.inputs_TC,
        advance.states,
        count_1,
        advance.inputs_TC.stride(0),
        recurrent.numel(),
        channels=conv.shape[1],
        taps=conv.shape[0] + 1,
        block=block,
        num_warps=4,
        **begins_early(recurrent.device),
    )
