"""``delta_rule.delta_chunks`` as Triton kernels: what a chunk does to any state, then the states.

Within a chunk the rule is linear in the state S that it begins with: S' = e S + turn S + gain and
out = ask S + own, with e the decay of the whole chunk. So all that takes matrix products of tokens
with tokens is made for every chunk at once, and the walk from chunk to chunk is one product each:
  A[i, j] = b_i (k_i k_j) exp(fall_i - fall_j) below the diagonal, X = (1 + A)^-1
  change = X (b v), reads = -X (b exp(fall) k)
  gain | turn = leaves' (change | reads), own | ask = inner (change | reads) + (0 | asks)
``delta_rule`` names the rest. Norms, rates and decays are factors of rows and columns of products
of queries, keys and values as they came, so in bfloat16 those enter unrounded; the state is
carried in float32, and turned by products of the model's dtype.

Tensor suffixes: those of ``delta_rule``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from flashrt_ros.policies.hybrid.kernels.few_delta import shift
from flashrt_ros.policies.hybrid.kernels.inverse import inverse, softplus
from flashrt_ros.policies.hybrid.kernels.layout import last_dense

_EPSILON = tl.constexpr(1e-6)
# Its exponential is 0 in float32; what is less would make sums coarse, or infinity less infinity.
_LEAST_DECAY = tl.constexpr(-104.0)


@triton.jit  # type: ignore[untyped-decorator]
def _chunk_kernel(  # type: ignore[no-untyped-def]
    query_ptr,
    key_ptr,
    value_ptr,
    decay_ptr,
    rate_ptr,
    speed_ptr,
    bias_ptr,
    count_ptr,
    move_ptr,
    tell_ptr,
    whole_ptr,
    query_token,
    query_head,
    key_token,
    key_head,
    value_token,
    value_head,
    decay_token,
    rate_token,
    scale,
    raw: tl.constexpr,
    counted: tl.constexpr,
    chunk: tl.constexpr,
    keys: tl.constexpr,
    values: tl.constexpr,
    served: tl.constexpr,
    block_c: tl.constexpr,
    block_k: tl.constexpr,
    block_s: tl.constexpr,
    first_key: tl.constexpr,
    base: tl.constexpr,
    merge: tl.constexpr,
    precision: tl.constexpr,
):
    part = tl.program_id(0)
    head = tl.program_id(1)
    n = tl.program_id(2)
    at = n * tl.num_programs(1) + head
    dtype: tl.constexpr = value_ptr.dtype.element_ty
    value_slices: tl.constexpr = first_key // block_s
    slices: tl.constexpr = value_slices + block_k // block_s
    c = tl.arange(0, block_c)
    known = c < chunk
    token = n * chunk + c
    decay = tl.load(decay_ptr + token * decay_token + head, mask=known, other=0.0).to(tl.float32)
    rate = tl.load(rate_ptr + token * rate_token + head, mask=known, other=0.0).to(tl.float32)
    if raw:
        # As ``delta_rule.delta_gates``; pads leave no trace.
        decay += tl.load(bias_ptr + head)
        decay = -tl.exp(tl.load(speed_ptr + head)) * softplus(decay)
        rate = (1.0 / (1.0 + tl.exp(-rate))).to(dtype).to(tl.float32)
        real = known
        if counted:
            real &= token < tl.load(count_ptr)
        decay = tl.where(real, decay, 0.0)
        rate = tl.where(real, rate, 0.0)
    fall = tl.cumsum(tl.maximum(decay, _LEAST_DECAY), 0)
    # Not later than any token's, however sums were rounded.
    end = tl.minimum(tl.min(fall, 0), 0.0)
    if part == 0:
        tl.store(whole_ptr + at, tl.exp(end))

    k = tl.arange(0, block_k)[None, :]
    inside = known[:, None] & (k < keys)
    query_at = query_ptr + token[:, None] * query_token + head // served * query_head
    key_at = key_ptr + token[:, None] * key_token + head // served * key_head
    value_at = value_ptr + token[:, None] * value_token + head * value_head
    query = tl.load(query_at + k, mask=inside, other=0.0)
    key = tl.load(key_at + k, mask=inside, other=0.0)
    wide = query.to(tl.float32)
    query_norm = tl.rsqrt(tl.sum(wide * wide, 1) + _EPSILON) * scale
    wide = key.to(tl.float32)
    key_norm = tl.rsqrt(tl.sum(wide * wide, 1) + _EPSILON)

    # Above the diagonal it would overflow.
    near = tl.exp(tl.minimum(fall[:, None] - fall[None, :], 0.0))
    near = tl.where(c[:, None] >= c[None, :], near * key_norm[None, :], 0.0)
    system = tl.dot(key, tl.trans(key), input_precision=precision) * near
    system = tl.where(c[:, None] > c[None, :], system * (rate * key_norm)[:, None], 0.0)
    inner = tl.dot(query, tl.trans(key), input_precision=precision) * near
    inner = (inner * query_norm[:, None]).to(dtype)
    solved = inverse(system, block_c, base, merge)
    leave = key_norm * tl.exp(end - fall)

    s = tl.arange(0, block_s)[None, :]
    row = tl.arange(0, block_k)[:, None]
    width: tl.constexpr = slices * block_s
    for piece in range(part, slices, tl.num_programs(0)):
        if piece < value_slices:
            column = piece * block_s + s
            x = tl.load(value_at + column, mask=known[:, None] & (column < values), other=0.0)
            factor = rate
            ask = tl.zeros((block_c, block_s), tl.float32)
        else:
            column = (piece - value_slices) * block_s + s
            within = known[:, None] & (column < keys)
            x = tl.load(key_at + column, mask=within, other=0.0)
            factor = -rate * key_norm * tl.exp(fall)
            ask = tl.load(query_at + column, mask=within, other=0.0).to(tl.float32)
            ask *= (query_norm * tl.exp(fall))[:, None]
        change = tl.dot((solved * factor[None, :]).to(dtype), x, input_precision=precision)
        tell = tl.dot(inner, change.to(dtype), acc=ask, input_precision=precision)
        left = (change * leave[:, None]).to(dtype)
        move = tl.dot(tl.trans(key), left, input_precision=precision)
        column = piece * block_s + s
        to = tell_ptr + at * (block_c * width) + c[:, None] * width + column
        tl.store(to, tell.to(dtype))
        tl.store(move_ptr + at * (block_k * width) + row * width + column, move.to(dtype))


# Not specialised on their number, so that one chunk is computed as each of many.
@triton.jit(do_not_specialize=["chunks"])  # type: ignore[untyped-decorator]
def _walk_kernel(  # type: ignore[no-untyped-def]
    move_ptr,
    whole_ptr,
    state_ptr,
    begin_ptr,
    after_ptr,
    chunks,
    keys: tl.constexpr,
    values: tl.constexpr,
    block_k: tl.constexpr,
    block_v: tl.constexpr,
    first_key: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
    stages: tl.constexpr,
):
    head = tl.program_id(1)
    dtype: tl.constexpr = move_ptr.dtype.element_ty
    k = tl.arange(0, block_k)[:, None]
    column = tl.arange(0, block_k)[None, :]
    v = tl.program_id(0) * block_v + tl.arange(0, block_v)[None, :]
    inside = (k < keys) & (v < values)
    place = head * (keys * values) + k * values + v
    state = tl.load(state_ptr + place, mask=inside, other=0.0)
    for n in tl.range(0, chunks, num_stages=stages):
        at = n * tl.num_programs(1) + head
        begin = state.to(dtype)
        row = move_ptr + at * (block_k * width) + k * width
        turn = tl.load(row + first_key + column)
        gain = tl.load(row + v).to(tl.float32)
        whole = tl.load(whole_ptr + at)
        tl.store(begin_ptr + at * (block_k * first_key) + k * first_key + v, begin)
        state = tl.dot(turn, begin, acc=state * whole + gain, input_precision=precision)
    tl.store(after_ptr + place, state, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _tell_kernel(  # type: ignore[no-untyped-def]
    tell_ptr,
    begin_ptr,
    out_ptr,
    gate_ptr,
    norm_ptr,
    conv_ptr,
    inputs_ptr,
    count_ptr,
    gate_token,
    gate_head,
    inputs_token,
    tokens,
    eps,
    norms: tl.constexpr,
    counted: tl.constexpr,
    chunk: tl.constexpr,
    values: tl.constexpr,
    channels: tl.constexpr,
    taps: tl.constexpr,
    block_c: tl.constexpr,
    block_k: tl.constexpr,
    block_v: tl.constexpr,
    block_w: tl.constexpr,
    first_key: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    n = tl.program_id(0)
    head = tl.program_id(1)
    at = n * tl.num_programs(1) + head
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    c = tl.arange(0, block_c)[:, None]
    k = tl.arange(0, block_k)
    v = tl.arange(0, block_v)[None, :]
    begin = tl.load(begin_ptr + at * (block_k * first_key) + k[:, None] * first_key + v)
    row = tell_ptr + at * (block_c * width) + c * width
    own = tl.load(row + v).to(tl.float32)
    ask = tl.load(row + first_key + k[None, :])
    out = tl.dot(ask, begin, acc=own, input_precision=precision).to(dtype)
    token = n * chunk + c
    inside = (c < chunk) & (v < values)
    if norms:
        # As ``ops.gated_norm``, rounded where it rounds.
        wide = out.to(tl.float32)
        wide *= tl.rsqrt(tl.sum(wide * wide, 1)[:, None] / values + eps)
        weight = tl.load(norm_ptr + v, mask=v < values, other=0.0).to(tl.float32)
        wide = (wide.to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)
        gate_at = gate_ptr + token * gate_token + head * gate_head + v
        gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
        out = (wide * (gate / (1.0 + tl.exp(-gate)))).to(dtype)
    tl.store(out_ptr + (token * tl.num_programs(1) + head) * values + v, out, mask=inside)
    if norms and n == 0:
        # The convolution has been made, so what it looks back at may move on.
        count = tokens
        if counted:
            count = tl.load(count_ptr).to(tl.int32)
        for start in range(head * block_w, channels, tl.num_programs(1) * block_w):
            channel = start + tl.arange(0, block_w)
            shift(
                conv_ptr, inputs_ptr, inputs_token, count, channel, channel < channels,
                channels, taps,
            )  # fmt: skip


@dataclass(frozen=True)
class Blocks:
    """How the work is cut.

    Attributes:
        chunk: Longer chunks are cut into equal ones of at most so many tokens.
        slice: Columns of one product with the inverse.
        base: Blocks of the inverse that are made by substitution.
        merge: Precision of the products that merge them, in bfloat16 models.
        parts: Programs for each chunk and head; 0 takes as many as the device is filled by.
        chunk_warps: Of a program that makes them.
        registers: Most of a thread of such a program; None leaves it to the compiler.
        walk: Columns of the state that one program carries.
        walk_warps: Of such a program.
        stages: Chunks that it loads ahead, and one.
        tell_warps: Of a program that makes the outputs of one chunk and head.
    """

    chunk: int = 64
    slice: int = 64
    base: int = 16
    merge: str = "tf32"
    parts: int = 0
    chunk_warps: int = 4
    registers: int | None = None
    walk: int = 32
    walk_warps: int = 4
    stages: int = 3
    tell_warps: int = 4


NARROW = Blocks()
SMALL = Blocks(chunk=16)
"""For heads of less than 32 elements, of whose longer chunks Triton 3.6 makes NaN on Hopper."""
WIDE = Blocks(chunk=16, slice=16, walk=16, walk_warps=8, stages=1)
"""For float32, which tensor cores do not take: products are small, since all is unrolled."""
_FILLED = 128


@dataclass(frozen=True)
class Layer:
    """What a layer does around the rule itself.

    Attributes:
        speed_H: Logarithm of the decay's speed, float32.
        bias_H: Of the decay, float32.
        count_1: How many are tokens, int64; None: all.
        gate_THV: Of the output.
        norm_V: Of the output.
        eps: Of the norm.
        conv: ``(W - 1, C)``, what the convolution looks back at; moved on.
        inputs_TC: Of the convolution.
    """

    speed_H: torch.Tensor
    bias_H: torch.Tensor
    count_1: torch.Tensor | None
    gate_THV: torch.Tensor
    norm_V: torch.Tensor
    eps: float
    conv: torch.Tensor
    inputs_TC: torch.Tensor


def delta_chunks(
    query_TIK: torch.Tensor,
    key_TIK: torch.Tensor,
    value_THV: torch.Tensor,
    decay_TH: torch.Tensor,
    rate_TH: torch.Tensor,
    state_HKV: torch.Tensor,
    chunk: int,
    blocks: Blocks | None = None,
    layer: Layer | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``delta_rule.delta_chunks``.

    Args:
        query_TIK: See there.
        key_TIK: See there.
        value_THV: See there.
        decay_TH: See there; with ``layer`` what ``delta_rule.delta_gates`` makes it of.
        rate_TH: The same.
        state_HKV: Contiguous; with ``layer`` it is advanced.
        chunk: See there.
        blocks: None: ``NARROW``, ``SMALL`` or ``WIDE``, by sizes and dtype.
        layer: Gates come before, and gated norm behind.
    """
    query_TIK, key_TIK, value_THV = map(last_dense, (query_TIK, key_TIK, value_THV))
    tokens, heads, values = value_THV.shape
    keys = key_TIK.shape[-1]
    half = value_THV.dtype != torch.float32
    block_k, first_key = _block(keys), _block(values)
    if blocks is None:
        blocks = WIDE if not half else SMALL if min(block_k, first_key) < 32 else NARROW
    chunk = max(size for size in range(1, blocks.chunk + 1) if chunk % size == 0)
    chunks, block_c = tokens // chunk, max(16, triton.next_power_of_2(chunk))
    width = first_key + block_k
    block_s, block_v = min(blocks.slice, block_k, first_key), min(blocks.walk, first_key)
    parts = min(width // block_s, blocks.parts or max(1, _FILLED // (chunks * heads)))
    move = value_THV.new_empty((chunks, heads, block_k, width))
    tell = value_THV.new_empty((chunks, heads, block_c, width))
    begin = value_THV.new_empty((chunks, heads, block_k, first_key))
    whole = state_HKV.new_empty((chunks, heads))
    out_THV = value_THV.new_empty((tokens, heads, values))
    after_HKV = torch.empty_like(state_HKV) if layer is None else state_HKV
    count = None if layer is None else layer.count_1
    common: dict[str, Any] = {
        "values": values, "block_k": block_k, "first_key": first_key,
        "precision": "tf32" if half else "ieee",
    }  # fmt: skip
    cut: dict[str, Any] = {"chunk": chunk, "block_c": block_c, "counted": count is not None}
    _chunk_kernel[(parts, heads, chunks)](
        query_TIK, key_TIK, value_THV, decay_TH, rate_TH,
        whole if layer is None else layer.speed_H, whole if layer is None else layer.bias_H,
        whole if count is None else count, move, tell, whole,
        *query_TIK.stride()[:2], *key_TIK.stride()[:2], *value_THV.stride()[:2],
        decay_TH.stride(0), rate_TH.stride(0), keys**-0.5,
        **common, **cut, raw=layer is not None, keys=keys, served=heads // key_TIK.shape[1],
        block_s=block_s, base=min(blocks.base, block_c), merge=blocks.merge if half else "ieee",
        num_warps=blocks.chunk_warps, maxnreg=blocks.registers,
    )  # fmt: skip
    _walk_kernel[(first_key // block_v, heads)](
        move, whole, state_HKV, begin, after_HKV, chunks,
        **common, keys=keys, block_v=block_v, width=width, stages=blocks.stages,
        num_warps=blocks.walk_warps,
    )  # fmt: skip
    given: tuple[Any, ...] = (out_THV,) * 5 + (0, 0, 0, tokens, 0.0)
    channels, taps = 0, 1
    if layer is not None:
        gate_THV, inputs_TC = last_dense(layer.gate_THV), layer.inputs_TC
        channels, taps = inputs_TC.shape[1], layer.conv.shape[0] + 1
        given = (
            gate_THV, layer.norm_V, layer.conv, inputs_TC, out_THV if count is None else count,
            *gate_THV.stride()[:2], inputs_TC.stride(0), tokens, layer.eps,
        )  # fmt: skip
    _tell_kernel[(chunks, heads)](
        tell, begin, out_THV, *given, **common, **cut, norms=layer is not None, channels=channels,
        taps=taps, block_v=first_key, block_w=256, width=width, num_warps=blocks.tell_warps,
    )  # fmt: skip
    return out_THV, after_HKV


def _block(size: int) -> int:
    # The least that the tensor cores take.
    return int(max(16, triton.next_power_of_2(size)))
