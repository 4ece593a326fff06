"""Pins the chunk wrapper to a deque, which is how chunking is usually written.

The queue is state here, so the order of rows, the moment of the next plan and the splice of a
chunk that was planned beside must come out of buffers exactly as they come out of a deque.
"""

from __future__ import annotations

from collections import deque

import pytest
import torch
from chunk_predictors import Looking, Remembering, Sampled, Straight

from flashrt_ros.errors import InvalidArgumentError, SpecError
from flashrt_ros.policies.chunked import ACTIONS, CURSOR, ChunkedPolicy
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import PlanKind, Port
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

KEY = "observation.state"


def observations(count: int) -> torch.Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(8))


@pytest.mark.parametrize("n_action_steps", [1, 3, 5, None])
def test_actions_come_as_from_a_deque(n_action_steps: int | None) -> None:
    predictor = Straight(5)
    session = PolicySession(ChunkedPolicy(predictor, n_action_steps))
    queue: deque[torch.Tensor] = deque()
    for index, row in enumerate(observations(14)):
        if not queue:
            with torch.no_grad():
                queue.extend(predictor.net(row).view(5, 2)[:n_action_steps])
        action = session.step({KEY: row})
        assert torch.equal(action.values, queue.popleft())
        assert action.index == index % (n_action_steps or 5)


@pytest.mark.parametrize("predictor", [Straight, Sampled, Remembering, Looking])
@pytest.mark.parametrize("n_action_steps", [1, 4])
def test_conforms(predictor: type[Straight], n_action_steps: int) -> None:
    report = check_policy(ChunkedPolicy(predictor(4), n_action_steps))
    assert report.ok, str(report)
    inert = {ACTIONS, CURSOR} if n_action_steps == 1 else set()
    if predictor is Straight:
        inert |= {"noise.key", "noise.counter"}
    # A chunk that is planned anew at each step is no memory.
    assert set(report.inert) == inert


def test_a_chunk_planned_beside_begins_at_the_row_whose_time_has_come() -> None:
    predictor = Straight(5)
    session = PolicySession(ChunkedPolicy(predictor, 4))
    rows = observations(4)
    session.step({KEY: rows[0]})
    ticket = session.begin_plan({KEY: rows[1]})
    taken = [session.act().values for _ in range(2)]
    session.run_plan(ticket)
    assert session.adopt(ticket)
    spliced = session.act()
    with torch.no_grad():
        old, new = (predictor.net(row).view(5, 2) for row in rows[:2])
    assert torch.equal(torch.stack(taken), old[1:3])
    assert torch.equal(spliced.values, new[2])
    assert not torch.equal(new[2], new[0])
    assert session.arena.state[CURSOR].item() == 3


def test_a_plan_sees_the_observation_of_each_control_step_before_it() -> None:
    """Of those steps, too, that took rows of the old chunk: as a deque that is fed at each."""
    predictor = Looking(4)
    session = PolicySession(ChunkedPolicy(predictor, 3))
    rows = observations(8)
    queue: deque[torch.Tensor] = deque()
    before = rows[0]
    for row in rows:
        if not queue:
            offset = session.arena.state["noise.counter"].item()
            key = session.arena.state["noise.key"]
            drawn_HA = torch.empty(4, 2)
            noise.normal_(drawn_HA, {"noise.key": key, "noise.counter": torch.tensor([offset])})
            with torch.no_grad():
                chunk_HA = predictor.net(row).view(4, 2) + drawn_HA
                queue.extend((chunk_HA + predictor.net(before).view(4, 2))[:3])
        assert torch.equal(session.step({KEY: row}).values, queue.popleft())
        before = row
    assert not torch.equal(before, rows[0])


def test_a_plan_beside_does_not_see_what_acts_read_meanwhile() -> None:
    rows = observations(5)
    chunks = []
    for first, late in ((0, False), (0, True), (4, True)):
        session = PolicySession(ChunkedPolicy(Looking(5), 4))
        session.step({KEY: rows[first]})
        ticket = session.begin_plan({KEY: rows[1]})
        if not late:
            session.run_plan(ticket)
        for row in rows[1:4]:
            session.act({KEY: row})
        if late:
            session.run_plan(ticket)
        assert session.adopt(ticket)
        chunks.append(session.arena.state[ACTIONS].clone())
        assert torch.equal(session.arena.state["history.x"], rows[3])
    assert torch.equal(chunks[0], chunks[1])
    assert not torch.equal(chunks[0], chunks[2]), "the observation before the plan matters"


def test_a_policy_with_a_history_needs_the_observation_of_every_step() -> None:
    session = PolicySession(ChunkedPolicy(Looking(5), 4))
    session.step({KEY: observations(1)[0]})
    with pytest.raises(SpecError, match="acts on observations, and none were given"):
        session.act()


def test_a_spent_chunk_holds_its_last_row() -> None:
    policy = ChunkedPolicy(Straight(3))
    state = {ACTIONS: torch.arange(6.0).view(3, 2), CURSOR: torch.tensor([7])}
    outputs = {"action": torch.zeros(2)}
    policy.act(state, {}, outputs)
    assert outputs["action"].tolist() == [4.0, 5.0]


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected 1 to chunk_size \(5\), found 6"):
        ChunkedPolicy(Straight(5), 6)
    with pytest.raises(InvalidArgumentError, match="found 0"):
        ChunkedPolicy(Straight(5), 0)
    predictor = Straight()
    predictor.plan_kind = PlanKind.NONE
    with pytest.raises(InvalidArgumentError, match="expected BESIDE or ADVANCES, found NONE"):
        ChunkedPolicy(predictor)

    class Greedy(Straight):
        def layout(self) -> tuple[BufferSpec, ...]:
            return (*super().layout(), BufferSpec(CURSOR, (1,), torch.int64, Role.STATE))

    with pytest.raises(SpecError, match=r"\['chunk.cursor'\] belong to the wrapper"):
        ChunkedPolicy(Greedy())

    class Elsewhere(Straight):
        def action(self) -> Port:
            return Port("action", "other", (2,))

    with pytest.raises(SpecError, match="expected an action port on buffer 'action'"):
        ChunkedPolicy(Elsewhere())
