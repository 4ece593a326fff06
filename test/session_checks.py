"""Checks of a session that hold on every device; the test modules choose device and policy.

Every check of sameness has its control: without the restore, or with one buffer left out, the
same comparison must fail.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import torch
from toy_policies import ToyAdvancing, ToyChunk, ToyRecurrent, observations

from flashrt_ros.runtime.policy import HostRecord, Policy
from flashrt_ros.runtime.session import PolicySession

MakePolicy = Callable[[], Policy]
POLICIES: tuple[MakePolicy, ...] = (ToyRecurrent, ToyChunk, ToyAdvancing)
LOAD_BEARING = {
    ToyRecurrent: ("rnn.h", "trace", "count", "noise.key", "noise.counter"),
    ToyChunk: ("chunk.actions", "chunk.cursor", "trace", "noise.key", "noise.counter"),
    ToyAdvancing: ("chunk.actions", "chunk.cursor", "trace", "noise.key", "noise.counter"),
}

Trace = list[tuple[bytes, tuple[float, ...], HostRecord]]


def settle(session: PolicySession) -> None:
    """Waits for all work: tests look at buffers from another stream than the session's."""
    if session.device.torch_device.type == "cuda":
        torch.cuda.synchronize()


def run(session: PolicySession, first: int, steps: int) -> Trace:
    """Steps and records every state byte, action and host record."""
    trace: Trace = []
    for step in range(first, first + steps):
        action = session.step(observations(step))
        host = HostRecord(**vars(session.host))
        trace.append((session.state_bytes(), tuple(action.values.tolist()), host))
    return trace


def actions(session: PolicySession, first: int, steps: int) -> list[list[float]]:
    """Steps and records the actions alone."""
    return [session.step(observations(t)).values.tolist() for t in range(first, first + steps)]


def check_restore_is_exact(
    make: MakePolicy, device: str, cut_points: int, steps: int, seed: int
) -> None:
    """Restore, then ``steps`` steps, gives every byte again, at ``cut_points`` random moments."""
    choose = random.Random(seed)
    session = PolicySession(make(), device=device, seed=seed, rollback_depth=0)
    last_cut = 120
    whole = run(session, 0, last_cut + steps)
    session.reset_(seed=seed)
    cuts = sorted(choose.sample(range(1, last_cut), min(cut_points, last_cut - 1)))
    taken = 0
    for cut in cuts:
        run(session, taken, cut - taken)
        session.snapshot(f"cut-{cut}", replace=True)
        taken = cut
    for cut in choose.sample(cuts, len(cuts)):
        capsule = session.restore(f"cut-{cut}")
        assert capsule.host.step == cut
        expected = whole[cut : cut + steps]
        found = run(session, cut, steps)
        for (state, action, host), (state_2, action_2, host_2) in zip(
            expected, found, strict=True
        ):
            host_2.episode = host.episode
            assert (state_2, action_2, host_2) == (state, action, host), f"cut {cut}"
    session.close()


def check_controls_differ(make: MakePolicy, device: str) -> None:
    """Without the restore, or with any one buffer left out of it, the continuation differs."""
    policy = make()
    session = PolicySession(policy, device=device, seed=5)
    run(session, 0, 9)
    session.snapshot("cut")
    expected = run(session, 9, 30)
    assert run(session, 9, 30) != expected, "continuation without a restore is the same"
    session.reset_(seed=77)
    run(session, 100, 14)
    session.snapshot("elsewhere")
    for name in LOAD_BEARING[make]:
        session.restore("elsewhere")
        settle(session)
        left_out = session.arena.state[name].clone()
        settle(session)
        session.restore("cut")
        settle(session)
        session.arena.state[name].copy_(left_out)
        settle(session)
        found = run(session, 9, 30)
        same_actions = [a for _, a, _ in found] == [a for _, a, _ in expected]
        assert not same_actions, f"{name} left out of the restore changes no action"
    session.restore("cut")
    assert run(session, 9, 30) == expected
    session.close()


def check_forks_are_independent(make: MakePolicy, device: str) -> None:
    """Each branch equals its own cold run, whatever the others did before; they differ."""
    session = PolicySession(make(), device=device, seed=3)
    run(session, 0, 7)
    origin = session.snapshot("origin")
    held_bytes = session.store.bytes_used
    branches = session.fork("origin", count=3)
    assert session.store.bytes_used == held_bytes
    cold = {}
    for branch in branches:
        assert branch.noise_key is not None
        session.restore("origin", seed=branch.noise_key)
        cold[branch.name] = run(session, 7, 20)
    for branch in (branches[1], branches[2], branches[0], branches[1]):
        session.restore(branch)
        assert run(session, 7, 20) == cold[branch.name]
    streams = [[action for _, action, _ in trace] for trace in cold.values()]
    assert streams[0] != streams[1] != streams[2] != streams[0]
    session.restore(origin)
    assert origin.noise_key is None
    session.close()


def check_rollback(make: MakePolicy, device: str) -> None:
    """Rolling back k steps gives the state of k steps ago, byte for byte, again and again."""
    session = PolicySession(make(), device=device, seed=3, rollback_depth=12)
    states = [session.state_bytes()]
    for step in range(30):
        session.step(observations(step))
        states.append(session.state_bytes())
    live = 30
    for back in (1, 4, 2, 5):
        generation = session.generation
        assert session.rollback(back) == back
        live -= back
        assert session.host.step == live
        assert session.state_bytes() == states[live]
        assert session.state_bytes() != states[live + 1]
        assert session.generation == generation + 1
        assert session.tick == 30
    session.close()


def check_seed_and_reset(make: MakePolicy, device: str) -> None:
    """Resets with one seed repeat each other; another seed and the next episode differ."""
    session = PolicySession(make(), device=device, seed=11)
    first = actions(session, 0, 12)
    session.reset_(seed=11)
    assert actions(session, 0, 12) == first
    session.reset_(seed=12)
    assert actions(session, 0, 12) != first
    session.reset_()
    assert actions(session, 0, 12) != first
    session.close()


def check_plans_run_beside_steps(device: str) -> None:
    """A planner thread plans while the control thread acts and restores; none is mixed up."""
    session = PolicySession(ToyChunk(splices=True), device=device, seed=2, rollback_depth=4)
    session.step(observations(0))
    session.snapshot("start", pin=True)
    adopted = refused = 0
    for round_ in range(100):
        ticket = session.begin_plan(observations(round_))
        planner = threading.Thread(target=session.run_plan, args=(ticket,))
        planner.start()
        if not session.plan_due:
            session.act()
        if round_ % 5 == 0:
            session.restore("start")
        planner.join()
        if session.adopt(ticket):
            adopted += 1
        else:
            refused += 1
            assert round_ % 5 == 0
    assert (adopted, refused) == (80, 20)
    session.close()


def check_plan_depends_on_its_boundary_alone(device: str) -> None:
    """Acts between begin and run do not change the chunk; another boundary does."""
    chunks = []
    for before, between in ((1, 0), (1, 2), (2, 0)):
        session = PolicySession(ToyChunk(splices=True), device=device, seed=2)
        run(session, 0, before)
        ticket = session.begin_plan(observations(1))
        for _ in range(between):
            session.act()
        session.run_plan(ticket)
        assert session.adopt(ticket)
        settle(session)
        chunks.append(session.arena.state["chunk.actions"].cpu())
        session.close()
    assert torch.equal(chunks[0], chunks[1])
    assert not torch.equal(chunks[0], chunks[2])


def fingerprint_of(session: PolicySession) -> tuple[object, ...]:
    """Everything that a verb may change, for comparison before and after one that failed."""
    store = session.store
    return (
        session.state_bytes(),
        HostRecord(**vars(session.host)),
        session.generation,
        session.tick,
        session.capsule_id,
        store.bytes_used,
        [(c.id, c.name, c.pinned, c.segment.bytes.numpy().tobytes()) for c in store.list()],
    )
