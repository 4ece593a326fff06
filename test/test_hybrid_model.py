"""The hybrid model against a slow reference: same numbers and tokens, whatever the passes.

A pad, a row that is not committed or a wrong tap of the convolution would change a number a little
and a token rarely, so numbers are compared, at several lengths around the chunk, and each
comparison has a control that must fail.
"""

from __future__ import annotations

import pytest
import torch
from hybrid_reference import Reference, small_config, small_model
from hybrid_run import Run

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.hybrid.config import FULL, LINEAR, ModelConfig
from flashrt_ros.policies.hybrid.delta_rule import delta_chunks, delta_steps

MODELS: dict[str, dict[str, object]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "bias": {"attention_bias": True, "rotary_dim": 16},
    "deep": {"layer_types": (LINEAR, FULL, LINEAR, LINEAR, FULL, LINEAR)},
    "heads": {
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 4,
        "linear_conv_kernel_dim": 3,
        "num_key_value_heads": 1,
    },
}


def tokens_of(count: int, seed: int = 0, vocab: int = 96) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (count,), generator=generator).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_the_reference_at_every_length(name: str) -> None:
    model = small_model(**MODELS[name])
    reference, given = Reference(model), tokens_of(50)
    expected_TV = reference.logits(reference.hidden(reference.embed(given)))
    for length in (1, 2, 15, 16, 17, 31, 33, 48, 50):
        run = Run(model)
        run.prefill(given[:length])
        assert run.length == length
        torch.testing.assert_close(
            run.logits[-1].double(), expected_TV[length - 1], rtol=1e-4, atol=1e-4
        )
    # The control: a token long ago that is another one makes other logits now.
    run = Run(model)
    run.prefill([(given[0] + 1) % 96, *given[1:]])
    assert (run.logits[-1].double() - expected_TV[-1]).abs().max() > 1e-2


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_the_reference(name: str) -> None:
    model = small_model(seed=1, **MODELS[name])
    given = tokens_of(21, seed=1)
    expected = Reference(model).greedy(given, 24)
    assert len(set(expected)) > 3
    run = Run(model)
    assert [run.prefill(given), *run.decode(23)] == expected


def test_suffixes_continue_at_any_boundary() -> None:
    model, given = small_model(), tokens_of(60)
    whole = Run(model)
    whole.prefill(given)
    for cut in (1, 7, 16, 32, 40, 59):
        run = Run(model)
        run.prefill(given[:cut])
        run.prefill(given[cut:])
        same = {n: torch.equal(b, whole.buffers()[n]) for n, b in run.buffers().items()}
        if cut % 16 == 0:
            assert all(same.values()), same  # the same passes, so the same bits
        assert not all(same.values()) or cut % 16 == 0
        for name, value in run.buffers().items():
            torch.testing.assert_close(value, whole.buffers()[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("heads", [(2, 2), (2, 6)])
def test_chunks_of_the_delta_rule_equal_steps(heads: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    few, many = heads
    query, key, value = draw(24, few, 8), draw(24, few, 8), draw(24, many, 5)
    decay, rate, state = -draw(24, many).abs(), draw(24, many).sigmoid(), draw(many, 8, 5)
    out, states = delta_steps(query, key, value, decay, rate, state)
    assert torch.equal(states[0], state)
    for chunk in (1, 4, 8, 24):
        found, last = delta_chunks(query, key, value, decay, rate, state, chunk)
        torch.testing.assert_close(found, out, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(last, states[-1], rtol=1e-4, atol=1e-5)
    # Pads leave the state as it is to the bit, wherever the garbage in them leads.
    decay[10:], rate[10:], key[10:], value[10:] = 0.0, 0.0, 1e6, -1e6
    found, last = delta_chunks(query, key, value, decay, rate, state, 24)
    torch.testing.assert_close(last, states[10], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[:10], out[:10], rtol=1e-4, atol=1e-5)


def test_what_is_in_pads_changes_no_bit() -> None:
    model = small_model(mtp=True)
    given, states = tokens_of(11), []
    for pad in (0, 95):
        run = Run(model, drafts=2)
        ids_T, count_1 = torch.tensor(given + [pad] * 5), torch.tensor([11])
        with torch.no_grad():
            run.decoder.prefill_(run.state, model.embed(ids_T), run.choose, 16, count_1)
        states.append(run.buffers())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    # The control: were the pads counted, they would be seen.
    run = Run(model, drafts=2)
    run.prefill([*given, *[0] * 5])
    assert not torch.equal(run.state["layers.0.recurrent"], states[0]["layers.0.recurrent"])


def test_bfloat16_keeps_its_recurrent_state_in_float32() -> None:
    model = small_model(dtype="bfloat16")
    run = Run(model)
    run.prefill(tokens_of(20))
    run.decode(4)
    assert run.state["layers.0.recurrent"].dtype == torch.float32
    assert run.state["layers.0.conv"].dtype == torch.bfloat16
    assert run.state["layers.3.k"].dtype == torch.bfloat16
    assert run.logits.isfinite().all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 0}, "hidden_size: expected a whole number from 1 to"),
        ({"layer_types": (LINEAR,)}, "at least one 'full_attention'"),
        ({"layer_types": ("mamba", FULL)}, "layer_types: expected 1 to 512 of"),
        ({"num_key_value_heads": 3}, "expected a multiple of num_key_value_heads"),
        ({"rotary_dim": 5}, "rotary_dim: expected an even number of at most head_dim"),
        ({"linear_conv_kernel_dim": 1}, "at least 2, found 1"),
        ({"dtype": "int8"}, "dtype: expected one of"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps: expected a number above 0"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        small_config(**change)


def test_a_configuration_survives_its_dictionary() -> None:
    config = small_config(mtp=True)
    assert ModelConfig.from_dict(config.to_dict(), "here") == config
