"""A hybrid language model in a session: verbs between passes, and prefill cut by position.

What the paper claims of a capsule is claimed here: a restore goes on to the bit, whatever came
between, and one that restores only the rows does not.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import session_checks as checks
import torch
from hybrid_reference import Reference, small_model
from test_hybrid_model import tokens_of
from test_hybrid_mtp import guessing_model

from flashrt_ros.errors import InvalidArgumentError, NoMemoryError, SpecError
from flashrt_ros.policies.hybrid.decode import ACCEPTED
from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.policies.hybrid.tokens import TokenPolicy, TokenStream
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
on_devices = pytest.mark.parametrize("device", DEVICES)


def stream(
    model: HybridModel, device: str = "cpu", drafts: int = 3, capacity: int = 512
) -> TokenStream:
    policy = TokenPolicy(model, capacity, drafts, sizes=(16, 64))
    return TokenStream(PolicySession(policy, device, rollback_depth=0))


@on_devices
def test_tokens_are_those_of_the_reference(device: str) -> None:
    model, given = guessing_model(), tokens_of(90)
    expected = Reference(guessing_model()).greedy(given, 20)
    for drafts in (0, 3):
        tokens = stream(model, device, drafts)
        assert [tokens.prefill(given), *tokens.decode(19)] == expected
        assert tokens.session.host.rows == 90 + 19
        tokens.session.close()


@pytest.mark.cuda
def test_captured_passes_give_the_bits_of_plain_calls() -> None:
    model, given = guessing_model(), tokens_of(80)
    captured = stream(model, "cuda")
    captured.prefill(given)
    captured.decode(40)
    plain = PolicySession(TokenPolicy(model, 512, 3, (16, 64)), "cuda", rollback_depth=0)
    policy, arena = plain.policy, plain.arena
    assert isinstance(policy, TokenPolicy)
    # The same passes as plain calls, over buffers of their own.
    calls = {shape.name: shape.act for shape in policy.act_shapes()}
    buffers = (arena.state, arena.inputs, arena.outputs)
    with torch.no_grad():
        for first, size in ((0, 64), (64, 16)):
            arena.inputs["tokens"][:size] = torch.tensor(given[first : first + size])
            arena.inputs["tokens.count"].fill_(size)
            calls[f"prefill.{size}"](*buffers)
        left = 40
        while left:
            arena.inputs["decode.limit"].fill_(left)
            policy.act(*buffers)
            left -= int(arena.outputs["chosen"][0])
    torch.cuda.synchronize()
    plain.host.rows = captured.session.host.rows
    assert plain.state_digest() == captured.session.state_digest()


@on_devices
def test_a_suffix_at_a_multiple_of_the_sizes_equals_a_cold_run_to_the_bit(device: str) -> None:
    model, given = guessing_model(), tokens_of(150)
    tokens = stream(model, device)
    cold_first = tokens.prefill(given)
    cold, expected = tokens.session.state_bytes(), tokens.decode(30)
    for cut, same in ((64, True), (128, True), (70, False)):
        tokens.session.reset_(seed=0)
        tokens.prefill(given[:cut])
        tokens.session.snapshot("prefix", replace=True)
        tokens.prefill(given[::-1])
        tokens.decode(9)
        tokens.session.restore("prefix")
        assert tokens.prefill(given[cut:]) == cold_first
        # Elsewhere than at a multiple the chunks are others: the same tokens, other roundings.
        assert (tokens.session.state_bytes() == cold) is same
        assert tokens.decode(30) == expected
    tokens.session.close()


def test_passes_begin_at_multiples_of_their_size() -> None:
    tokens = stream(small_model(), drafts=0)
    for position, left, expected in (
        (0, 200, (64, 64)),
        (64, 63, (16, 16)),
        (112, 15, (16, 15)),
        (16, 200, (16, 16)),
        (70, 200, (16, 10)),
        (70, 3, (16, 3)),
    ):
        assert tokens.piece(position, left) == expected


@on_devices
def test_restores_at_random_boundaries_continue_to_the_bit(device: str) -> None:
    choose, tokens = random.Random(2), stream(guessing_model(), device)
    session = tokens.session
    # Random weights often say the same whatever they remember: some cut must show it.
    unrestored, rows_alone = 0, 0
    for _ in range(10):
        session.reset_()
        tokens.prefill(tokens_of(choose.randrange(1, 90), choose.randrange(99)))
        tokens.decode(choose.randrange(1, 30))
        session.snapshot("here", replace=True)
        expected, state = tokens.decode(48), session.state_bytes()
        tokens.prefill(tokens_of(20, seed=5))
        session.restore("here")
        assert tokens.decode(48) == expected
        assert session.state_bytes() == state
        # The controls: no restore, and one of the rows alone.
        unrestored += tokens.decode(48) != expected
        other = session.arena.fixed.clone()
        checks.settle(session)
        session.restore("here")
        checks.settle(session)
        length = session.arena.state["rows.length"].clone()
        session.arena.fixed.copy_(other)
        session.arena.state["rows.length"].copy_(length)
        checks.settle(session)
        rows_alone += tokens.decode(48) != expected
        session.restore("here")
        assert tokens.decode(48) == expected
    assert unrestored
    assert rows_alone
    session.close()


def test_forks_and_rollbacks_share_rows() -> None:
    policy = TokenPolicy(guessing_model(), 512, 3, (16, 64))
    tokens = TokenStream(PolicySession(policy, rollback_depth=16))
    tokens.prefill(tokens_of(64))
    whole = tokens.decode(20)
    rows = tokens.session.host.rows
    tokens.session.rollback(3)
    back = rows - tokens.session.host.rows
    assert 3 <= back <= 12
    assert tokens.decode(back) == whole[-back:]
    (branch,) = tokens.session.fork(seeds=(5,))
    ahead = tokens.decode(10)
    tokens.session.restore(branch)
    assert tokens.decode(10) == ahead


def test_it_conforms() -> None:
    report = check_policy(TokenPolicy(guessing_model(), 512, 2, (16,)), steps=12)
    assert report.ok, str(report)


def test_drafts_are_counted_and_save_passes() -> None:
    tokens = stream(guessing_model())
    tokens.prefill(tokens_of(40))
    before = tokens.session.host.step
    tokens.decode(96)
    rounds = tokens.session.host.step - before
    accepted = tokens.session.arena.state[ACCEPTED].tolist()
    assert sum(accepted) == rounds < 64
    assert sum(count * (n + 1) for n, count in enumerate(accepted)) == 96


def test_wrong_use_is_refused_before_anything_runs(tmp_path: Path) -> None:
    tokens = stream(small_model(), drafts=0, capacity=80)
    for wrong, words in (([], "found .. among 0"), ([1, 96], r"found \[96\] among 2")):
        with pytest.raises(InvalidArgumentError, match=words):
            tokens.prefill(wrong)
    with pytest.raises(SpecError, match="expected int64, found float64"):
        tokens.prefill([1.5])  # type: ignore[list-item]
    assert tokens.session.host.step == 0
    tokens.prefill(tokens_of(70))
    with pytest.raises(NoMemoryError, match="room for 16 more rows, found 70 of 80"):
        tokens.prefill(tokens_of(3))
    tokens.decode(10)
    with pytest.raises(NoMemoryError, match="room for 1 more rows, found 80 of 80"):
        tokens.decode(1)
    for arguments, words in (
        ({"sizes": ()}, "sizes: expected"),
        ({"sizes": (16, 40)}, "multiples of the least"),
        ({"capacity": 9}, "capacity: expected at least 256, found 9"),
        ({"drafts": 1}, "no MTP head"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            TokenPolicy(small_model(), **arguments)  # type: ignore[arg-type]
