"""Plans beside the control thread: late ones are discarded, chunks spliced where time stands."""

from __future__ import annotations

import threading

import session_checks as checks
import torch
from toy_policies import ToyChunk, observations

from flashrt_ros.runtime.policy import Buffers
from flashrt_ros.runtime.session import PolicySession


def test_plan_under_an_older_generation_is_refused() -> None:
    session = PolicySession(ToyChunk())
    session.step(observations(0))
    session.snapshot("a")
    for overtake in (
        lambda: session.restore("a"),
        lambda: session.rollback(1),
        lambda: session.reset_(),
        lambda: session.begin_plan(observations(3)),
    ):
        session.reset_()
        session.step(observations(0))
        ticket = session.begin_plan(observations(1))
        session.run_plan(ticket)
        overtake()
        before = checks.fingerprint_of(session)
        assert not session.adopt(ticket)
        assert checks.fingerprint_of(session) == before
    unfinished = session.begin_plan(observations(1))
    assert not session.adopt(unfinished)


def test_snapshot_during_a_plan_takes_the_committed_boundary() -> None:
    class Slow(ToyChunk):
        entered = threading.Event()
        leave = threading.Event()

        def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
            super().plan(state, inputs, outputs)
            self.entered.set()
            assert self.leave.wait(60)

    policy = Slow()
    policy.leave.set()
    session = PolicySession(policy)
    session.step(observations(0))
    policy.entered.clear()
    policy.leave.clear()
    before = session.state_bytes()
    ticket = session.begin_plan(observations(1))
    planner = threading.Thread(target=session.run_plan, args=(ticket,))
    planner.start()
    assert policy.entered.wait(60)
    capsule = session.snapshot("a")
    assert capsule.segment.bytes.numpy().tobytes() == before
    action = session.act()  # the chunk still has rows, so the control thread is not held up
    assert action.index == 1
    policy.leave.set()
    planner.join()
    assert not session.adopt(ticket)  # a row was taken, and this policy cannot splice
    session.restore("a")
    assert session.state_bytes() == before


def test_splice_skips_the_rows_that_time_has_passed() -> None:
    session = PolicySession(ToyChunk(splices=True))
    session.step(observations(0))
    ticket = session.begin_plan(observations(1))
    session.act()
    session.act()
    session.run_plan(ticket)
    assert session.adopt(ticket)
    assert (session.host.cursor, session.host.length, session.host.chunk) == (2, 6, 2)
    planned = session.arena.state["chunk.actions"].clone()
    action = session.act()
    assert torch.equal(action.values, planned[2])
    assert (action.step, action.index) == (3, 2)


def test_plans_run_beside_steps() -> None:
    checks.check_plans_run_beside_steps("cpu")


def test_plan_depends_on_its_boundary_alone() -> None:
    checks.check_plan_depends_on_its_boundary_alone("cpu")


def test_stepwise_and_seam_give_the_same_actions() -> None:
    stepped = PolicySession(ToyChunk(), seed=6)
    seamed = PolicySession(ToyChunk(), seed=6)
    for step in range(13):
        if seamed.plan_due:
            ticket = seamed.begin_plan(observations(step))
            seamed.run_plan(ticket)
            assert seamed.adopt(ticket)
        assert torch.equal(seamed.act().values, stepped.step(observations(step)).values)
        assert seamed.state_digest() == stepped.state_digest()
    assert seamed.rollback(6) == stepped.rollback(6)
    assert seamed.state_digest() == stepped.state_digest()
