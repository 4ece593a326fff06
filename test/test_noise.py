"""Noise is Philox4x32-10 of the key and counter in the state, the same integers everywhere.

A draw that depended on anything else, a global generator or the size of an earlier draw, would
break restore and fork without any error.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.errors import InvalidArgumentError, SpecError
from flashrt_ros.runtime import noise, philox

words64 = st.integers(0, 2**64 - 1)

KNOWN = [
    # Random123's published vectors: counter, key, result.
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def slow_philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """The definition, one word at a time, in Python's integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (p1 >> 32) ^ c1 ^ k0,
            p1 & 0xFFFFFFFF,
            (p0 >> 32) ^ c3 ^ k1,
            p0 & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def slow_words(key: int, position: int, numel: int) -> list[int]:
    drawn: list[int] = []
    while len(drawn) < numel:
        counter = (position & 0xFFFFFFFF, position >> 32, 0, 0)
        drawn += slow_philox(counter, (key & 0xFFFFFFFF, key >> 32))
        position = (position + 1) % 2**64
    return drawn[:numel]


def state_of(key: int, counter: int) -> dict[str, torch.Tensor]:
    return {
        noise.KEY: torch.tensor([noise.as_signed(key)]),
        noise.COUNTER: torch.tensor([noise.as_signed(counter)]),
    }


def unsigned(words: torch.Tensor) -> list[int]:
    return (words.to(torch.int64) & 0xFFFFFFFF).flatten().tolist()


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    counter_41 = np.array(counter, dtype=np.uint32)[:, None]
    found = philox.words_numpy(counter_41, np.array(key, dtype=np.uint32))
    assert tuple(found[0].tolist()) == expected
    assert slow_philox(counter, key) == expected


@given(words64, words64, st.integers(1, 40), st.integers(0, 5))
def test_words_match_the_definition(key: int, counter: int, numel: int, offset: int) -> None:
    state = state_of(key, counter)
    out = torch.zeros(numel, dtype=torch.int32)
    noise.words_(out, state, offset=offset, advance=False)
    expected = slow_words(key, (counter + offset) % 2**64, numel)
    assert unsigned(out) == expected
    position = state[noise.COUNTER] + offset
    assert unsigned(philox.draw_torch(position, state[noise.KEY], numel, "words")) == expected


@given(words64, words64, st.integers(1, 200))
def test_uniforms_are_equal_everywhere_and_in_range(key: int, counter: int, numel: int) -> None:
    state = state_of(key, counter)
    out = torch.zeros(numel)
    noise.uniform_(out, state, advance=False)
    expected = [(word >> 8) / 2**24 for word in slow_words(key, counter, numel)]
    assert out.tolist() == expected
    assert 0.0 <= min(expected) <= max(expected) < 1.0
    again = philox.draw_torch(state[noise.COUNTER], state[noise.KEY], numel, "uniform")
    assert torch.equal(again, out)


@given(words64, words64, st.integers(1, 60))
def test_normals_match_box_and_muller(key: int, counter: int, numel: int) -> None:
    state = state_of(key, counter)
    out = torch.zeros(numel)
    noise.normal_(out, state, advance=False)
    words = slow_words(key, counter, 4 * noise.blocks_for(numel))
    expected: list[float] = []
    for first, second in zip(words[0::2], words[1::2], strict=True):
        radius = math.sqrt(-2.0 * math.log(((first >> 8) + 1) / 2**24))
        angle = 2.0 * math.pi * (second >> 8) / 2**24
        expected += [radius * math.cos(angle), radius * math.sin(angle)]
    np.testing.assert_allclose(out.numpy(), expected[:numel], rtol=1e-4, atol=3e-6)
    again = philox.draw_torch(state[noise.COUNTER], state[noise.KEY], numel, "normal")
    torch.testing.assert_close(again, out, rtol=1e-5, atol=2e-6)


def test_normals_are_finite_at_the_extremes() -> None:
    for words in ((0, 0, 0, 0), (0xFFFFFFFF,) * 4, (0, 0xFFFFFFFF, 0xFF, 0x80000000)):
        fixed = np.array([words], dtype=np.uint32)
        original = philox.words_numpy
        philox.words_numpy = lambda counter, key, fixed=fixed: fixed.copy()
        try:
            drawn = philox.draw_numpy(0, 0, 4, "normal")
        finally:
            philox.words_numpy = original
        assert np.isfinite(drawn).all()
        assert np.abs(drawn).max() < 5.8


def test_moments() -> None:
    out = torch.zeros(200_000)
    noise.normal_(out, state_of(42, 0))
    assert abs(out.mean().item()) < 0.01
    assert abs(out.var().item() - 1.0) < 0.01
    assert abs((out[0::2] * out[1::2]).mean().item()) < 0.01
    noise.uniform_(out, state_of(43, 0))
    assert abs(out.mean().item() - 0.5) < 0.003
    assert abs(out.var().item() - 1 / 12) < 0.001


@given(words64, st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_draws_follow_each_other_without_overlap(key: int, sizes: list[int]) -> None:
    state = state_of(key, 0)
    position = 0
    for numel in sizes:
        out = torch.zeros(numel, dtype=torch.int32)
        noise.words_(out, state)
        assert unsigned(out) == slow_words(key, position, numel)
        position += noise.blocks_for(numel)
        assert state[noise.COUNTER].item() == position


def test_a_plan_that_does_not_advance_commits_in_adopt() -> None:
    advancing, beside = state_of(5, 100), state_of(5, 100)
    first, second = torch.zeros(6), torch.zeros(9)
    first_2, second_2 = torch.zeros(6), torch.zeros(9)
    noise.normal_(first, advancing)
    noise.normal_(second, advancing)
    noise.normal_(first_2, beside, advance=False)
    noise.normal_(second_2, beside, offset=noise.blocks_for(6), advance=False)
    assert beside[noise.COUNTER].item() == 100
    noise.advance_(beside, noise.blocks_for(6) + noise.blocks_for(9))
    assert torch.equal(first, first_2)
    assert torch.equal(second, second_2)
    assert beside[noise.COUNTER].item() == advancing[noise.COUNTER].item()


def test_shape_does_not_matter_and_keys_do() -> None:
    flat, square, other = torch.zeros(36), torch.zeros(6, 6), torch.zeros(36)
    noise.normal_(flat, state_of(1, 0))
    noise.normal_(square, state_of(1, 0))
    noise.normal_(other, state_of(2, 0))
    assert torch.equal(flat, square.flatten())
    assert not torch.equal(flat, other)


def test_global_generators_are_untouched() -> None:
    out = torch.zeros(64)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    noise.normal_(out, state_of(1, 0))
    first = out.clone()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    noise.normal_(out, state_of(1, 0))
    assert torch.equal(out, first)


def test_bad_outputs() -> None:
    with pytest.raises(SpecError, match=r"expected a contiguous tensor of torch\.float32"):
        noise.normal_(torch.zeros(3, dtype=torch.float64), state_of(0, 0))
    with pytest.raises(SpecError, match=r"strides \(1, 4\)"):
        noise.uniform_(torch.zeros(4, 4).t(), state_of(0, 0))
    with pytest.raises(SpecError, match=r"torch\.int32"):
        noise.words_(torch.zeros(3), state_of(0, 0))
    noise.normal_(torch.zeros(0), state_of(0, 0))


def test_derived_keys() -> None:
    # The first values of splitmix64 seeded with 0, as published.
    assert noise.derive_key(0, 0) == 0xE220A8397B1DCDAF
    assert noise.derive_key(0, 1) == 0x6E789E6AA1B965F4
    assert noise.derive_key(0, 2) == 0x06C45D188009454F
    keys = {noise.derive_key(key, index) for key in range(50) for index in range(200)}
    assert len(keys) == 50 * 200


@pytest.mark.parametrize("seed", [-1, 2**64, True, 1.0, "1", None])
def test_bad_seeds(seed: object) -> None:
    with pytest.raises(InvalidArgumentError, match="seed: expected an integer in 0"):
        noise.check_seed(seed)  # type: ignore[arg-type]


@given(words64)
def test_signed_key_has_the_same_bits(key: int) -> None:
    assert noise.as_signed(key) % 2**64 == key
    assert -(2**63) <= noise.as_signed(key) < 2**63
