"""Pins plans beside the control steps: what a delay of d control steps does, the same each time.

The reference is a plan in a thread of its own that takes d control periods. A plan that saw
anything of what came after it began, or a chunk that was joined a row off, would differ from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from chunk_predictors import Looking, Remembering, Sampled, Straight
from flow_policy import flow
from periods import Periods, driven

from flashrt_ros.errors import BusyError, InvalidArgumentError
from flashrt_ros.policies.chunked import ACTIONS, ChunkedPolicy
from flashrt_ros.policies.guidance import GuidanceConfig
from flashrt_ros.policies.splice import TemporalEnsemble
from flashrt_ros.runtime.policy import HostRecord, Policy
from flashrt_ros.runtime.session import PolicySession

KEY = "observation.state"
H, STEPS = 16, 60
POLICIES: dict[str, Callable[[], Policy]] = {
    "queue": lambda: ChunkedPolicy(Sampled(H)),
    "fewer rows": lambda: ChunkedPolicy(Sampled(H), 9),
    "history": lambda: ChunkedPolicy(Looking(H), 12),
    "real time": lambda: flow(GuidanceConfig("EXP", 12, 6.0)),
    "ensemble": lambda: ChunkedPolicy(Sampled(H), splice=TemporalEnsemble(0.1, H), beside=True),
}
Drive = Callable[..., Periods]
Trace = list[tuple[list[float], str, HostRecord]]


__all__ = ["driven"]  # a fixture


def seen(step: int) -> dict[str, Any]:
    return {KEY: torch.randn(3, generator=torch.Generator().manual_seed(step))}


def record(session: PolicySession, values: torch.Tensor) -> tuple[list[float], str, HostRecord]:
    return values.tolist(), session.state_digest(), HostRecord(**vars(session.host))


def stepped(session: PolicySession, steps: int, delay: int, plan_ahead: int | None) -> Trace:
    trace = []
    for _ in range(steps):
        action = session.step(seen(session.host.step), delay, plan_ahead)
        trace.append(record(session, action.values))
    return trace


def beside(rig: Periods, steps: int) -> Trace:
    trace = []
    for _ in range(steps):
        action = rig.step(seen(rig.session.host.step))
        trace.append(record(rig.session, action.values))
    return trace


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("delay", "ahead"), [(1, 1), (5, 5), (5, 8), (5, 16), (7, 3)])
def test_a_delay_is_a_plan_that_takes_so_many_periods(
    driven: Drive, name: str, delay: int, ahead: int
) -> None:
    rig = driven(POLICIES[name](), delay, ahead, seed=4)
    expected = beside(rig, STEPS)
    assert rig.refused == 0
    session = PolicySession(POLICIES[name](), seed=4)
    assert stepped(session, STEPS, delay, ahead) == expected
    assert expected[-1][2].chunk > 3
    other = PolicySession(POLICIES[name](), seed=4)
    actions = [actions for actions, _, _ in stepped(other, STEPS, delay - 1, ahead)]
    # The control; where the chunk is used up before either is done, they are alike.
    assert (actions == [actions for actions, _, _ in expected]) == (delay > ahead)


def test_a_plan_begun_early_enough_lets_no_period_pass_without_an_action(driven: Drive) -> None:
    rig = driven(ChunkedPolicy(Straight(H)), 5, 5)
    beside(rig, 200)
    assert rig.missed == 5, "the first plan alone is waited for"
    short = driven(ChunkedPolicy(Straight(H)), 5, 3)
    beside(short, 200)
    assert short.missed == 5 + 2 * (short.session.host.chunk - 1)
    alone = driven(ChunkedPolicy(Straight(H)), 5, 0)
    beside(alone, 200)
    assert alone.missed == 5 * alone.session.host.chunk


def test_rows_for_steps_that_were_taken_are_skipped() -> None:
    predictor = Straight(H)
    session = PolicySession(ChunkedPolicy(predictor))
    taken = [session.step(seen(step), 5).values for step in range(20)]
    with torch.no_grad():
        first, second = (predictor.net(seen(step)[KEY]).view(H, 2) for step in (0, 11))
    # At step 11 five rows are left; the plan that begins there is adopted at step 16.
    assert torch.equal(torch.stack(taken[:16]), first)
    assert torch.equal(torch.stack(taken[16:]), second[5:9])
    assert (session.host.chunk, session.host.cursor, session.host.length) == (2, 9, H)


def test_without_a_delay_a_plan_begins_when_the_chunk_is_used_up() -> None:
    chunks = []
    for arguments in ((), (0,), (0, 0), (0, None)):
        session = PolicySession(ChunkedPolicy(Sampled(H)), seed=1)
        chunks.append([session.step(seen(step), *arguments).values for step in range(40)])
    for others in chunks[1:]:
        assert torch.equal(torch.stack(others), torch.stack(chunks[0]))
    eager = PolicySession(ChunkedPolicy(Sampled(H)), seed=1)
    for step in range(40):
        assert eager.step(seen(step), 0, H).index == 0, "a plan in each step"


def test_a_delay_may_change_from_step_to_step() -> None:
    session = PolicySession(ChunkedPolicy(Sampled(H), 8))
    for step, delay in enumerate((4, 4, 4, 4, 4, 4, 6, 2, 0, 0, 3, 5, 1, 1, 0, 0, 0, 0, 0, 2)):
        session.step(seen(step), delay, 8)
        assert session.rows_left or session.host.cursor


@pytest.mark.parametrize("takes", ["snapshot", "restore", "rollback", "reset"])
@pytest.mark.parametrize("name", POLICIES)
def test_verbs_while_a_plan_of_five_periods_runs(driven: Drive, name: str, takes: str) -> None:
    rig = driven(POLICIES[name](), 5, 8, seed=4)
    session = rig.session
    beside(rig, 4)
    session.snapshot("early")
    while not rig.planning:
        beside(rig, 1)
    beside(rig, 2)
    assert rig.planning
    before = session.state_bytes()
    session.snapshot("late")
    if takes == "snapshot":
        assert rig.finish(), "a snapshot disturbs no plan"
        session.restore("late")
        assert session.state_bytes() == before
        return
    chunk = session.host.chunk
    verbs = {
        "restore": lambda: session.restore("early"),
        "rollback": lambda: session.rollback(3),
        "reset": session.reset_,
    }
    verbs[takes]()
    whole = session.state_bytes()
    assert not rig.finish(), "a late chunk is discarded"
    assert session.state_bytes() == whole
    assert session.host.chunk <= chunk
    # What follows is what follows without a late chunk.
    session.snapshot("after")
    went_on = beside(rig, 30)
    for capsule, bytes_ in (("late", before), ("after", whole)):
        session.restore(capsule)
        if rig.planning:
            assert not rig.finish()
        assert session.state_bytes() == bytes_, "nothing of the plan is in it"
    assert beside(rig, 30) == went_on
    assert went_on[-1][2].chunk > session.store.get("after").host.chunk + 1


@pytest.mark.parametrize("name", POLICIES)
def test_capsules_within_a_chunk_and_after_a_splice_go_on_bit_equally(name: str) -> None:
    session = PolicySession(POLICIES[name](), seed=2, store_bytes=1 << 24)
    cuts = []
    for _ in range(50):
        stepped(session, 1, 5, 5)
        # With a plan under way the run before goes on with it, and the capsule holds none of it.
        if not session.planning:
            cuts.append((session.snapshot(), stepped(session, 25, 5, 5)))
            session.restore(cuts[-1][0])
    assert len({capsule.host.cursor for capsule, _ in cuts}) >= 4
    for capsule, expected in cuts:
        session.restore(capsule)
        assert stepped(session, 25, 5, 5) == expected
    session.restore(cuts[0][0])
    assert stepped(session, 25, 4, 5) != cuts[0][1]


@pytest.mark.parametrize("name", POLICIES)
def test_a_capsule_taken_while_a_plan_runs_goes_on_the_same_way_each_time(name: str) -> None:
    session = PolicySession(POLICIES[name](), seed=2)
    while not session.planning or session.host.chunk < 2:
        stepped(session, 1, 5, 8)
    stepped(session, 2, 5, 8)
    session.snapshot("cut")
    session.withdraw_plan()
    without = stepped(session, 25, 5, 8)
    for _ in range(2):
        session.restore("cut")
        assert stepped(session, 25, 5, 8) == without


def test_a_preview_says_that_a_plan_is_under_way() -> None:
    session = PolicySession(ChunkedPolicy(Sampled(H)))
    stepped(session, 10, 5, 16)
    assert session.planning
    with pytest.raises(BusyError, match="adopt or withdraw"):
        session.preview((), seen(10))
    session.withdraw_plan()
    assert session.preview((), seen(10))[0].actions_HA.shape == (H, 2)
    stepped(session, 30, 5, 16)


def test_wrong_delays_are_refused_and_change_nothing() -> None:
    session = PolicySession(ChunkedPolicy(Sampled(H)))
    advancing = PolicySession(ChunkedPolicy(Remembering(H)))
    for other, arguments, words in (
        (session, (H,), f"delay: expected less than chunk_size \\({H}\\)"),
        (session, (-1,), "delay"),
        (session, (1.5,), "delay"),
        (session, (1, -2), "plan_ahead"),
        (advancing, (1,), "expected plans that run beside, and a buffer 'plan.consumed'"),
        (advancing, (0, 3), "expected plans that run beside"),
    ):
        before = other.state_bytes()
        with pytest.raises(InvalidArgumentError, match=words):
            other.step(seen(0), *arguments)
        assert other.state_bytes() == before
        assert other.host.step == 0
    assert session.step(seen(0)).step == 0
    assert ACTIONS in session.arena.state
