"""The attention policy against a reference without a cache, and against its own rules.

The reference recomputes every token of the episode at each step with torch's own attention, so a
row that is lost, doubled or read too far shows in the action.
"""

from __future__ import annotations

import pytest
import session_checks as checks
import torch
from torch.nn import functional

from flashrt_ros.errors import InvalidArgumentError, NoMemoryError
from flashrt_ros.policies.attention import ACTION, AttentionConfig, AttentionPolicy
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.buffers import ROWS_LENGTH
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

OBSERVATION = "observation.state"
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def episode(steps: int, seed: int = 0) -> torch.Tensor:
    return torch.randn((steps, 6), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def reference(policy: AttentionPolicy, seen_TS: torch.Tensor) -> torch.Tensor:
    """The last action of an episode, from all its observations at once; double precision."""
    module = policy.module().double()
    hidden_TD = torch.stack(
        [
            policy.token(seen_S.double(), torch.tensor([position]))
            for position, seen_S in enumerate(seen_TS)
        ]
    )
    for block in module["blocks"]:
        parts = block.qkv(block.norm(hidden_TD)).view(len(seen_TS), 3, *block.heads)
        q_LTK, k_LTK, v_LTK = parts.permute(1, 2, 0, 3).unbind(0)
        mixed = functional.scaled_dot_product_attention(q_LTK, k_LTK, v_LTK, is_causal=True)
        hidden_TD = hidden_TD + block.out(mixed.transpose(0, 1).reshape(len(seen_TS), -1))
        wide = functional.gelu(block.wide(block.forward_norm(hidden_TD)))
        hidden_TD = hidden_TD + block.narrow(wide)
    return module["head"](hidden_TD[-1])


@pytest.mark.parametrize("device", DEVICES)
def test_every_step_equals_a_run_without_a_cache(device: str) -> None:
    session = PolicySession(AttentionPolicy(capacity=32), device=device)
    seen_TS = episode(20)
    for step in range(20):
        action_A = session.step({OBSERVATION: seen_TS[step].tolist()}).values
        expected_A = reference(AttentionPolicy(capacity=32), seen_TS[: step + 1])
        torch.testing.assert_close(action_A.double(), expected_A, rtol=1e-4, atol=1e-5)
        assert session.host.rows == step + 1
    # The control: other observations long ago give another action now.
    seen_TS[3] += 1.0
    assert (reference(AttentionPolicy(capacity=32), seen_TS) - expected_A).abs().max() > 1e-3


@pytest.mark.parametrize("device", DEVICES)
def test_it_conforms(device: str) -> None:
    report = check_policy(AttentionPolicy(capacity=64), device=device)
    assert report.ok, str(report)
    assert set(report.inert) == {"noise.key", "noise.counter"}


@pytest.mark.parametrize("device", DEVICES)
def test_restores_forks_and_rollbacks_continue_to_the_bit(device: str) -> None:
    session = PolicySession(AttentionPolicy(capacity=64), device=device, rollback_depth=8)
    seen_TS = episode(64)

    def run(first: int, steps: int, shift: float = 0.0) -> list[bytes]:
        trace = []
        for step in range(first, first + steps):
            values = session.step({OBSERVATION: (seen_TS[step] + shift).tolist()}).values
            trace.append(values.numpy().tobytes() + session.state_bytes())
        return trace

    run(0, 10)
    session.snapshot("ten")
    expected = run(10, 20)
    session.snapshot("thirty")
    beyond = run(30, 5)
    session.restore("ten")
    assert run(10, 20, shift=0.5) != expected
    session.snapshot("other")
    session.restore("ten")
    assert run(10, 20) == expected
    assert session.rollback(7) == 7
    assert run(23, 7) == expected[13:]
    (branch,) = session.fork("thirty", seeds=[0])  # the session's own, so that all bytes agree
    session.drop("thirty")
    session.restore("other")
    session.restore(branch)
    assert run(30, 5) == beyond
    session.close()


@pytest.mark.parametrize("device", DEVICES)
def test_rows_left_out_of_a_restore_show(device: str) -> None:
    """The control: each row buffer of another episode changes the action."""
    session = PolicySession(AttentionPolicy(capacity=32), device=device)
    seen_TS, other_TS = episode(20), episode(20, seed=1)
    for step in range(10):
        session.step({OBSERVATION: other_TS[step].tolist()})
    checks.settle(session)
    foreign = {slot.spec.name: session.arena.state[slot.spec.name].clone() for slot in
               session.layout.rows}  # fmt: skip
    checks.settle(session)
    session.reset_()
    for step in range(10):
        session.step({OBSERVATION: seen_TS[step].tolist()})
    session.snapshot("ten")
    expected = session.step({OBSERVATION: seen_TS[10].tolist()}).values
    for name, rows in foreign.items():
        session.restore("ten")
        checks.settle(session)
        session.arena.state[name][:10].copy_(rows[:10])
        checks.settle(session)
        found = session.step({OBSERVATION: seen_TS[10].tolist()}).values
        assert not torch.equal(found, expected), name
        session.reset_()  # what was written by hand is in no lineage
    session.restore("ten")
    assert torch.equal(session.step({OBSERVATION: seen_TS[10].tolist()}).values, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_the_end_of_the_capacity_is_an_error_before_anything_moves(device: str) -> None:
    session = PolicySession(AttentionPolicy(capacity=8), device=device)
    seen = {OBSERVATION: [0.5] * 6}
    for _ in range(8):
        session.step(seen)
    before = checks.fingerprint_of(session) if device == "cpu" else session.state_bytes()
    for verb in (session.step, session.act):
        with pytest.raises(NoMemoryError, match=r"1 more rows, found 8 of 8 .*larger capacity"):
            verb(seen)
    assert (checks.fingerprint_of(session) if device == "cpu" else session.state_bytes()) == before
    session.rollback(1)
    session.step(seen)
    session.reset_()
    assert session.host.rows == 0
    checks.settle(session)
    assert session.arena.state[ROWS_LENGTH].item() == 0
    session.step(seen)


def test_capacity_is_in_the_exec_id_alone() -> None:
    small, large = (PolicySession(AttentionPolicy(capacity=n)) for n in (16, 32))
    assert small.state_id == large.state_id
    difference = small.exec_fingerprint.difference(large.exec_fingerprint)
    assert difference == ("rows.capacity", "16", "32")
    assert small.state_fingerprint.fields["state.layers.0.k"] == "rows of float32[2,8]"


def test_bad_sizes_are_refused_and_the_factory_works() -> None:
    with pytest.raises(InvalidArgumentError, match="head_size: expected an even number, found 7"):
        AttentionPolicy(AttentionConfig(head_size=7))
    with pytest.raises(InvalidArgumentError, match="capacity: expected at least 1, found 0"):
        AttentionPolicy(capacity=0)
    policy = load_policy("flashrt_ros.policies.attention:make")
    assert policy.ports().action.buffer == ACTION
