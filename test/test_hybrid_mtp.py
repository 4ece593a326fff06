"""Decoding with drafts: tokens of plain decoding, and its state after each rejection.

The heads here are made by hand: the trunk's next token depends mostly on the present one, which
the head sees too, so that drafts are right at times, wrong at others, and depend on the head's own
rows. With a random head nothing is ever accepted and every comparison would be empty.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hybrid_reference import Reference, small_model
from hybrid_run import Run
from test_hybrid_model import tokens_of

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.hybrid.decode import Decoder
from flashrt_ros.policies.hybrid.model import HybridModel

MIXERS = ("out_proj.weight", "o_proj.weight")


def guessing_model(seed: int = 0, **changes: object) -> HybridModel:
    """Trunk and head both guess mostly from the present token, and look back a little each."""
    model = small_model(seed=seed, mtp=True, **changes)
    assert model.mtp is not None
    width = model.config.hidden_size
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(12.0)
        for name, parameter in model.named_parameters():
            if name.endswith(MIXERS):
                parameter.mul_(0.5 if name.startswith("model") else 0.2)
            elif name.endswith("down_proj.weight"):
                parameter.mul_(0.05 if name.startswith("model") else 0.2)
        model.mtp.norm.weight.copy_(model.model.norm.weight)
        model.mtp.fc.weight[:, :width] = 3.0 * torch.eye(width)
        model.mtp.fc.weight[:, width:] = 0.8 * torch.eye(width)
    return model


def share(accepted: list[int]) -> float:
    """Of the drafts that were looked at, how many were right."""
    right = sum(n * rounds for n, rounds in enumerate(accepted))
    return right / max(1, right + sum(accepted[:-1]))


@pytest.mark.parametrize("drafts", [1, 2, 4])
@pytest.mark.parametrize(
    ("make", "least", "most"), [(guessing_model, 0.3, 0.95), (small_model, 0.0, 0.1)]
)
def test_tokens_are_those_of_plain_decoding(
    make: Callable[..., HybridModel], least: float, most: float, drafts: int
) -> None:
    made: list[int] = [0] * (drafts + 1)
    for seed in range(3):
        model = make(seed=seed, mtp=True) if make is small_model else make(seed)
        given = tokens_of(19, seed)
        plain, drafting = Run(model), Run(model, drafts)
        assert plain.prefill(given) == drafting.prefill(given)
        assert drafting.decode(96) == plain.decode(96)
        assert drafting.length == plain.length == 19 + 96
        assert drafting.last == plain.last
        made = [a + b for a, b in zip(made, drafting.accepted, strict=True)]
        for name, value in plain.buffers().items():
            torch.testing.assert_close(
                drafting.buffers()[name], value, rtol=1e-3, atol=1e-3, msg=name
            )
    assert least <= share(made) <= most, made


@pytest.mark.parametrize("make", [guessing_model, lambda: small_model(seed=2, mtp=True)])
def test_drafts_are_those_of_the_reference(make: Callable[[], HybridModel]) -> None:
    """Their numbers too: a row that the head sees too much or not at all rarely turns a token."""
    model = make()
    reference, run = Reference(model), Run(model, drafts=3)
    given = tokens_of(17)
    tokens = [*given, run.prefill(given)]
    for _ in range(8):
        run.all_logits.clear()
        with torch.no_grad():
            window = run.decoder.draft_(run.state, run.choose, model.embed).tolist()
        found_TV = torch.cat(run.all_logits).double()
        expected, expected_TV = reference.drafts(tokens, 3)
        assert window == [tokens[-1], *expected]
        torch.testing.assert_close(found_TV, expected_TV, rtol=1e-3, atol=2e-3)
        # The control: the head does look at its rows.
        shorter_TV = reference.drafts(tokens[-6:], 3)[1]
        assert (shorter_TV - expected_TV).abs().max() > 0.02
        tokens += run.decode(3)  # cuts a round that would accept more


def test_a_rejection_at_every_position_leaves_the_state_of_plain_decoding() -> None:
    model, drafts = guessing_model(), 4
    start = Run(model, drafts)
    start.prefill(tokens_of(23))
    saved = start.save()
    plain = Run(model, drafts)
    plain.load(saved)
    right = [plain.last, *plain.decode(drafts + 1)]
    # Plain decoding by the same head's bookkeeping: one token a pass.
    states = []
    for count in range(drafts + 2):
        plain.load(saved)
        for token in right[:count]:
            feed(plain, [token], 1)
        states.append((plain.buffers(), plain.last))
    for wrong in range(drafts + 1):
        found = []
        for junk in (1, 2):
            run = Run(model, drafts)
            run.load(saved)
            window = right[: drafts + 1]
            window[wrong + 1 :] = [(t + junk) % 96 for t in window[wrong + 1 :]]
            feed(run, window, drafts + 1)
            assert run.length == 23 + wrong + 1
            assert run.last == right[wrong + 1]
            assert run.accepted[wrong] == start.accepted[wrong] + 1
            found.append(run.buffers())
        for name, value in found[0].items():
            # What was drafted behind the wrong one leaves no bit anywhere,
            assert torch.equal(value, found[1][name]), name
            if name == "mtp.accepted":
                continue
            # and but for rounding, which depends on the tokens of a pass, it is as if never done.
            plain_state = states[wrong + 1][0][name]
            torch.testing.assert_close(value, plain_state, rtol=1e-4, atol=1e-4, msg=name)
            control = states[wrong][0][name]
            assert value.shape != control.shape or not torch.allclose(value, control, atol=1e-4)


def feed(run: Run, window: list[int], most: int) -> None:
    """Verifies a window that was not drafted but given."""
    window_T = torch.tensor(window)
    with torch.no_grad():
        embedded_TD = run.model.embed(window_T)
        limit_1 = torch.tensor([most])
        run.decoder.verify_(run.state, run.choose, limit_1, window_T, embedded_TD)


def test_passes_over_no_tokens_change_nothing() -> None:
    run = Run(guessing_model(), drafts=3)
    run.prefill(tokens_of(9))
    before = run.buffers()
    with torch.no_grad():
        made = run.decoder.round_(run.state, run.choose, torch.tensor([0]))
        nothing_TD, none_1 = run.model.embed(torch.zeros(16, dtype=torch.int64)), torch.tensor([0])
        run.decoder.prefill_(run.state, nothing_TD, run.choose, 16, none_1)
    assert int(made.count_1) == 0
    assert all(torch.equal(value, before[name]) for name, value in run.buffers().items())


def test_restores_at_random_boundaries_are_equal_to_the_bit() -> None:
    run = Run(guessing_model(), drafts=3)
    run.prefill(tokens_of(21))
    generator = torch.Generator().manual_seed(7)
    for _ in range(20):
        run.decode(int(torch.randint(1, 6, (), generator=generator)))
        saved = run.save()
        expected = run.decode(12), run.buffers()
        run.prefill(tokens_of(5, seed=run.length))
        run.load(saved)
        assert run.decode(12) == expected[0]
        assert all(torch.equal(v, expected[1][n]) for n, v in run.buffers().items())
        run.load(saved)


KINDS = {
    "recurrent": ("layers.0.recurrent", "layers.1.recurrent", "layers.2.recurrent"),
    "conv": ("layers.0.conv", "layers.1.conv", "layers.2.conv"),
    "rows": ("layers.3.k", "layers.3.v"),
    "everything but rows": (
        *(f"layers.{n}.{part}" for n in range(3) for part in ("recurrent", "conv")),
        "token.last",
        "mtp.hidden",
    ),
    "mtp rows": ("mtp.k", "mtp.v"),
    "mtp hidden": ("mtp.hidden",),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_state_left_out_shows(kind: str) -> None:
    """Restores all but one kind, which keeps the value of another sequence of equal length."""
    run = Run(guessing_model(), drafts=3)
    run.prefill(tokens_of(40))
    saved = run.save()
    expected, accepted = run.decode(64), run.accepted
    tokens_differ, accepts_differ = [], []
    for seed in range(9, 15):
        other = Run(run.model, drafts=3)
        other.prefill(tokens_of(40, seed))
        run.load(saved)
        for name in KINDS[kind]:
            rows = slice(0, 40) if name.endswith((".k", ".v")) else slice(None)
            run.state[name][rows].copy_(other.state[name][rows])
        tokens_differ.append(run.decode(64) != expected)
        accepts_differ.append(run.accepted != accepted)
    if kind.startswith("mtp"):
        # The model corrects every draft: tokens stay, only how many were right changes.
        assert not any(tokens_differ)
        assert any(accepts_differ)
    else:
        assert all(tokens_differ)
    run.load(saved)
    assert (run.decode(64), run.accepted) == (expected, accepted)


def test_drafts_need_a_head_and_are_few() -> None:
    with pytest.raises(InvalidArgumentError, match="no MTP head, found 2"):
        Decoder(small_model(), 2)
    with pytest.raises(InvalidArgumentError, match="drafts: expected 0 to 15, found 16"):
        Decoder(small_model(mtp=True), 16)
