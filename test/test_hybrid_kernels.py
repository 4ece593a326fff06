"""Kernels of the hybrid model against the torch functions whose place they take, on a GPU.

A wrong mask or stride shows in shapes that fill no block, at positions behind a block's end and
where garbage lies behind the rows; so those are tried, in both dtypes, with rows that are views of
wider records. Each comparison would fail with another operand, which the last test shows.
"""

from __future__ import annotations

import pytest
import torch
from hybrid_reference import small_model

from flashrt_ros.policies.hybrid.layers import DeltaLayer, FullAttention, Layer
from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.policies.hybrid.ops import TORCH, Ops
from flashrt_ros.policies.hybrid.step import Step

pytestmark = pytest.mark.cuda
DTYPES = [torch.float32, torch.bfloat16]
MODELS: dict[str, dict[str, object]] = {
    "plain": {},
    "heads": {
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 4,
        "linear_conv_kernel_dim": 3,
        "num_key_value_heads": 1,
    },
    "wide": {
        "hidden_size": 1056,
        "intermediate_size": 2100,
        "head_dim": 256,
        "rotary_dim": 64,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}
N = 1500


def kernels() -> Ops:
    from flashrt_ros.policies.hybrid.kernels.triton_ops import TRITON

    return TRITON


def make(name: str, dtype: torch.dtype) -> HybridModel:
    changes = {**MODELS[name], "dtype": str(dtype).removeprefix("torch.")}
    wide = name == "wide"
    return small_model(scale=0.03 if wide else 0.25, **changes).cuda().requires_grad_(False)


def parts_of(model: HybridModel) -> tuple[Layer, DeltaLayer, FullAttention]:
    first, last = model.model.layers[0], model.model.layers[3]
    assert isinstance(first, Layer)
    assert isinstance(last, Layer)
    assert first.linear_attn is not None
    assert last.self_attn is not None
    return first, first.linear_attn, last.self_attn


def close(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    """Equal but for the rounding of a model of this dtype, whose state may be wider."""
    tol = 2e-4 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(found.float(), wanted.float(), rtol=tol, atol=tol)


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tokens", [1, 2, 7, 16, 17, 100])
def test_products(name: str, dtype: torch.dtype, tokens: int) -> None:
    model = make(name, dtype)
    layer, delta, attention = parts_of(model)
    x = draw(tokens, model.config.hidden_size, dtype=dtype)
    linears = (delta.in_proj_qkv, delta.in_proj_z, delta.in_proj_b, delta.in_proj_a)
    wanted = TORCH.normed_linear(x, layer.input_layernorm, linears)
    for found, want in zip(
        kernels().normed_linear(x, layer.input_layernorm, linears), wanted, strict=True
    ):
        close(found, want, dtype)
    gate, up = layer.mlp.gate_proj, layer.mlp.up_proj
    norm = layer.post_attention_layernorm
    wide = TORCH.swiglu(x, norm, gate, up)
    close(kernels().swiglu(x, norm, gate, up), wide, dtype)
    close(
        kernels().add_linear(x, wide, layer.mlp.down_proj),
        TORCH.add_linear(x, wide, layer.mlp.down_proj),
        dtype,
    )
    weight = attention.q_proj.weight
    close(kernels().linear(x, weight), TORCH.linear(x, weight), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_token_has_the_same_bits_alone_and_among_drafts(name: str, dtype: torch.dtype) -> None:
    from flashrt_ros.policies.hybrid.kernels.linear import VECTOR_TOKENS

    model = make(name, dtype)
    layer = parts_of(model)[0]
    gate, up, down = layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj
    x = draw(VECTOR_TOKENS, model.config.hidden_size, dtype=dtype)

    def products(x: torch.Tensor) -> torch.Tensor:
        wide = kernels().swiglu(x, layer.input_layernorm, gate, up)
        return kernels().add_linear(x, wide, down)

    alone = torch.cat([products(one) for one in x.split(1)])
    assert torch.equal(products(x), alone)
    if dtype == torch.float32:
        # The control: more tokens take another way.
        assert not torch.equal(products(torch.cat((x, x)))[:VECTOR_TOKENS], alone)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 16, 64])
def test_delta_rule(name: str, dtype: torch.dtype, keeps: bool, tokens: int) -> None:
    if tokens > 16 and keeps:
        return  # drafts are few
    model = make(name, dtype)
    layer, delta, _ = parts_of(model)
    config = model.config
    linears = (delta.in_proj_qkv, delta.in_proj_z, delta.in_proj_b, delta.in_proj_a)
    x = draw(tokens, config.hidden_size, dtype=dtype)
    parts = kernels().normed_linear(x, layer.input_layernorm, linears)
    conv = draw(config.linear_conv_kernel_dim - 1, config.conv_size, dtype=dtype, seed=1)
    shape = (config.linear_num_value_heads, config.linear_key_head_dim)
    recurrent = draw(*shape, config.linear_value_head_dim, seed=2)
    chunk = 16 if tokens > 16 else 0
    for count in (None, 0, 1, tokens):
        count_1 = None if count is None else torch.tensor([count], device="cuda")
        real = tokens if count is None else count
        found = []
        for ops in (TORCH, kernels()):
            state = (conv.clone(), recurrent.clone())
            step = Step(
                ops, torch.arange(tokens, device="cuda"), None if keeps else count_1, chunk, keeps
            )
            out, advance = ops.delta(parts, state, delta, step)
            if advance is not None:
                ops.commit_(advance, torch.tensor([real], device="cuda"))
            found.append((out[: tokens if keeps else real], *state))
        for a, b in zip(*found, strict=True):
            close(b, a, dtype)
        if real:
            assert not torch.equal(found[1][2], recurrent), "control: the state moves"
        else:
            assert torch.equal(found[1][1], conv)
            assert torch.equal(found[1][2], recurrent)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tokens", [1, 4, 16, 40])
@pytest.mark.parametrize("start", [0, 5, 63, 1200])
def test_attention(name: str, dtype: torch.dtype, tokens: int, start: int) -> None:
    model = make(name, dtype)
    layer, _, attention = parts_of(model)
    config, size = model.config, attention.size
    groups = config.num_key_value_heads
    linears = (attention.q_proj, attention.k_proj, attention.v_proj)
    x = draw(tokens, config.hidden_size, dtype=dtype)
    parts = kernels().normed_linear(x, layer.input_layernorm, linears)
    gate = parts[0].unflatten(1, (attention.heads, 2 * size))[..., size:]
    record = torch.full((N, 3 * groups * size), torch.nan, device="cuda", dtype=dtype)
    record[:start] = draw(start, 3 * groups * size, dtype=dtype, seed=3)
    for first in (0, 1):
        found = []
        for ops in (TORCH, kernels()):
            mine = record.clone()
            flat = (mine[:, : groups * size], mine[:, 2 * groups * size :])
            rows = (
                flat[0].unflatten(1, (groups, size)),
                flat[1].unflatten(1, (groups, size)),
            )
            step = Step(ops, torch.arange(tokens, device="cuda") + start)
            query = ops.place_(parts, rows, attention, step, model.get_buffer("periods"))
            assert query is not None
            out = ops.attend(query, gate, rows, step, first)
            found.append((query, out, mine[: start + tokens], mine[start + tokens :].isnan()))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(b.isnan(), a.isnan())
            close(b.nan_to_num(), a.nan_to_num(), dtype)
        assert not found[1][1].isnan().any()


def test_another_operand_would_be_seen() -> None:
    model = make("wide", torch.bfloat16)
    layer = parts_of(model)[0]
    x = draw(1, model.config.hidden_size, dtype=torch.bfloat16)
    other = x.clone()
    other[0, -1] += 8.0
    down = layer.mlp
    found = kernels().swiglu(x, layer.input_layernorm, down.gate_proj, down.up_proj)
    wanted = TORCH.swiglu(other, layer.input_layernorm, down.gate_proj, down.up_proj)
    with pytest.raises(AssertionError):
        close(found, wanted, torch.bfloat16)
