"""Verbs of a session: all or nothing, a bounded ring, a store that says what it evicted.

Random sequences of verbs are compared with full copies kept outside.
"""

from __future__ import annotations

import random

import pytest
import session_checks as checks
import torch
from toy_policies import ToyChunk, ToyRecurrent, observations

from flashrt_ros import errors
from flashrt_ros.runtime.policy import HostRecord
from flashrt_ros.runtime.session import PolicySession


def test_failing_verbs_change_nothing() -> None:
    session = PolicySession(ToyRecurrent(), rollback_depth=3)
    checks.run(session, 0, 5)
    session.snapshot("a", pin=True)
    session.snapshot("b")
    session.step(observations(5))
    before = checks.fingerprint_of(session)
    failing = [
        (errors.AlreadyExistsError, lambda: session.snapshot("b")),
        (errors.PinnedError, lambda: session.snapshot("a", replace=True)),
        (errors.InvalidNameError, lambda: session.snapshot("../up")),
        (errors.InvalidNameError, lambda: session.snapshot("a b", replace=True)),
        (errors.AlreadyExistsError, lambda: session.snapshot(session.store.get("a").id)),
        (errors.NotFoundError, lambda: session.restore("c")),
        (errors.InvalidArgumentError, lambda: session.restore("a", seed=-1)),
        (errors.InvalidArgumentError, lambda: session.restore("a", seed=2**64)),
        (errors.NotFoundError, lambda: session.rollback(4)),
        (errors.InvalidArgumentError, lambda: session.rollback(-1)),
        (errors.InvalidArgumentError, lambda: session.rollback(1, seed=2**64)),
        (errors.InvalidArgumentError, lambda: session.fork("a", count=2, seeds=[1])),
        (errors.InvalidArgumentError, lambda: session.fork("a", count=2, names=["x"])),
        (errors.InvalidArgumentError, lambda: session.fork("a", count=5000)),
        (errors.InvalidArgumentError, lambda: session.fork("a", seeds=[1, -1])),
        (errors.AlreadyExistsError, lambda: session.fork("a", names=["x", "x"])),
        (errors.AlreadyExistsError, lambda: session.fork(None, names=["x", "b"])),
        (errors.InvalidNameError, lambda: session.fork(None, names=["x", ""])),
        (errors.NotFoundError, lambda: session.fork("c")),
        (errors.PinnedError, lambda: session.drop("a")),
        (errors.NotFoundError, lambda: session.drop("c")),
        (errors.InvalidArgumentError, lambda: session.reset_(seed=True)),
        (errors.BusyError, lambda: PolicySession(ToyChunk()).act()),
        (errors.InvalidArgumentError, lambda: session.begin_plan(observations(0))),
        (errors.SpecError, lambda: session.act()),
    ]
    for kind, verb in failing:
        with pytest.raises(kind):
            verb()
        assert checks.fingerprint_of(session) == before, kind


def test_mismatch_names_the_first_field_and_both_values() -> None:
    mine = PolicySession(ToyRecurrent(seed=0))
    weights = PolicySession(ToyRecurrent(seed=1))
    wider = PolicySession(ToyRecurrent(hidden=8))
    for other, field in ((weights, "policy.weights"), (wider, "policy.config")):
        foreign = other.snapshot("foreign")
        mine.store._capsules[foreign.id] = foreign
        mine.store._id_of_name["foreign"] = foreign.id
        mine.store._used[foreign.id] = 0
        before = mine.state_bytes()
        with pytest.raises(errors.StateMismatchError, match=field) as caught:
            mine.restore(foreign, allow_inexact=True)
        expected = mine.state_fingerprint.fields[field]
        found = other.state_fingerprint.fields[field]
        assert f"expected {expected}, found {found}" in str(caught.value)
        assert mine.state_bytes() == before


def test_exec_mismatch_is_refused_unless_inexact_is_allowed() -> None:
    torch.set_num_threads(2)
    try:
        other = PolicySession(ToyRecurrent())
    finally:
        torch.set_num_threads(1)
    mine = PolicySession(ToyRecurrent())
    checks.run(other, 0, 3)
    foreign = other.snapshot("foreign")
    mine.store._capsules[foreign.id] = foreign
    mine.store._id_of_name["foreign"] = foreign.id
    mine.store._used[foreign.id] = 0
    with pytest.raises(errors.ExecMismatchError, match=r"cpu\.threads: expected 1, found 2"):
        mine.restore("foreign")
    mine.restore("foreign", allow_inexact=True)
    assert mine.state_bytes() == other.state_bytes()


def test_store_too_small_is_refused_with_figures() -> None:
    weight = PolicySession(ToyRecurrent()).layout.fixed_bytes
    with pytest.raises(errors.NoMemoryError, match=str(9 * weight)) as caught:
        PolicySession(ToyRecurrent(), store_bytes=9 * weight - 1, rollback_depth=8)
    assert str(9 * weight - 1) in str(caught.value)
    PolicySession(ToyRecurrent(), store_bytes=9 * weight, rollback_depth=8)


def test_full_store_evicts_then_refuses() -> None:
    weight = PolicySession(ToyRecurrent()).layout.fixed_bytes
    session = PolicySession(ToyRecurrent(), store_bytes=4 * weight, rollback_depth=2)
    checks.run(session, 0, 5)  # the ring holds 2 of 4
    for name in ("a", "b", "c"):
        session.snapshot(name, pin=name == "b")
    assert session.last_evicted == []  # the older boundary gave way
    session.snapshot("d")
    assert session.last_evicted == ["a"]
    session.store.pin("c")
    session.store.pin("d")
    before = checks.fingerprint_of(session)
    with pytest.raises(errors.NoMemoryError, match=f"{4 * weight} of {4 * weight} bytes"):
        session.snapshot("e")
    with pytest.raises(errors.NoMemoryError):
        session.fork(None, count=2)
    assert checks.fingerprint_of(session) == before
    checks.run(session, 5, 3)  # the ring goes on with its single slot
    assert session.rollback(1) == 1


def test_ring_without_storage_is_no_error() -> None:
    weight = PolicySession(ToyRecurrent()).layout.fixed_bytes
    session = PolicySession(ToyRecurrent(), store_bytes=3 * weight, rollback_depth=2)
    for name in ("a", "b", "c"):
        session.snapshot(name, pin=True)
    checks.run(session, 0, 3)
    with pytest.raises(errors.NotFoundError, match="holds no boundary"):
        session.rollback(1)
    session.restore("a")


def test_ring_period_and_depth() -> None:
    session = PolicySession(ToyRecurrent(), rollback_depth=3, rollback_period_steps=4)
    checks.run(session, 0, 18)  # boundaries 8, 12, 16
    with pytest.raises(errors.NotFoundError, match="oldest boundary lies 10 steps back"):
        session.rollback(11)
    assert session.rollback(3) == 6
    assert session.host.step == 12
    assert session.rollback(1) == 4
    assert session.host.step == 8
    with pytest.raises(errors.NotFoundError):
        session.rollback(1)
    assert [c.host.step for c in session.store.list()] == [8]


def test_rollback_by_depth_and_to_the_parent() -> None:
    session = PolicySession(ToyRecurrent(), rollback_depth=5)
    checks.run(session, 0, 5)
    with pytest.raises(errors.NotFoundError, match="descends from a reset"):
        session.rollback()
    session.rollback(5)
    assert session.host.step == 0
    checks.run(session, 0, 2)
    parent = session.snapshot("parent")
    state = session.state_bytes()
    checks.run(session, 2, 7)
    assert session.rollback(3) == 3
    assert session.capsule_id == parent.id
    assert session.rollback() == 4
    assert session.state_bytes() == state
    session.drop("parent")
    with pytest.raises(errors.NotFoundError, match=parent.id):
        session.rollback()


def test_ring_follows_the_lineage() -> None:
    session = PolicySession(ToyRecurrent(), rollback_depth=32)
    checks.run(session, 0, 4)
    session.snapshot("early")
    checks.run(session, 4, 4)
    session.snapshot("late")
    late = session.state_bytes()
    session.restore("early")
    checks.run(session, 50, 2)  # another way onwards: steps 4 and 5 are not on the way to "late"
    session.restore("late")
    assert session.state_bytes() == late
    with pytest.raises(errors.NotFoundError, match="from step 8"):
        session.rollback(9)
    assert session.rollback(1) == 5  # 4 to 7 went with the restore of "early"; 3 led to both
    assert session.host.step == 3
    session.reset_()
    assert [c.name for c in session.store.list()] == ["early", "late"]
    with pytest.raises(errors.NotFoundError):
        session.rollback(1)


def test_no_boundary_is_kept_twice() -> None:
    session = PolicySession(ToyRecurrent(), rollback_depth=4)
    checks.run(session, 0, 6)
    session.rollback(2)
    checks.run(session, 4, 1)
    session.rollback(1)
    checks.run(session, 4, 1)
    assert [c.host.step for c in session.store.list()] == [2, 3, 4]


def test_new_seed_at_rollback_takes_another_way() -> None:
    session = PolicySession(ToyRecurrent())
    first = checks.actions(session, 0, 8)
    session.rollback(4)
    assert checks.actions(session, 4, 4) == first[4:]
    session.rollback(4, seed=99)
    assert checks.actions(session, 4, 4) != first[4:]
    session.rollback(2)
    assert session.arena.state["noise.key"].item() == 99


def test_boundary_can_be_restored_and_forked_by_id() -> None:
    session = PolicySession(ToyRecurrent(), rollback_depth=4)
    session.snapshot("root")
    checks.run(session, 0, 4)
    boundary = session.store.list()[-2]
    assert boundary.automatic
    assert boundary.host.step == 2
    with pytest.raises(errors.InvalidArgumentError, match="rollback ring"):
        session.store.pin(boundary.id)
    (branch,) = session.fork(boundary.id, seeds=[5])
    assert not branch.automatic
    assert branch.parent_id == session.store.get("root").id
    for _ in range(2):
        session.restore(boundary.id)
        assert session.host.step == 2
    checks.run(session, 2, 9)  # turns the ring over; the branch keeps its storage
    session.restore(branch)
    assert session.host.step == 2


def test_fork_of_the_live_state_takes_one_slot() -> None:
    session = PolicySession(ToyRecurrent(), rollback_depth=0)
    checks.run(session, 0, 3)
    live = session.state_bytes()
    weight = session.layout.fixed_bytes
    branches = session.fork(None, seeds=[7, 8, 9], names=["x", "y", "z"])
    assert session.store.bytes_used == weight
    assert [b.size_bytes for b in branches] == [weight] * 3
    assert session.state_bytes() == live
    assert session.drop("x") == session.drop("y") == 0
    assert session.store.unique_bytes(session.store.get("z")) == weight
    session.restore("z")
    assert session.arena.state["noise.key"].item() == 9
    assert session.drop("z") == weight
    assert session.store.bytes_used == 0


def test_repeated_forks_get_other_keys() -> None:
    session = PolicySession(ToyRecurrent())
    session.snapshot("a")
    keys = [b.noise_key for _ in range(3) for b in session.fork("a", count=2)]
    assert len(set(keys)) == 6
    live = [b.noise_key for _ in range(2) for b in session.fork(None)]
    assert len(set(live)) == 2


def test_dropped_capsule_cannot_be_restored() -> None:
    session = PolicySession(ToyRecurrent())
    capsule = session.snapshot("a")
    session.drop("a")
    session.snapshot("a")
    with pytest.raises(errors.NotFoundError, match=capsule.id):
        session.restore(capsule)


@pytest.mark.parametrize("seed", range(12))
def test_random_verbs_against_full_copies(seed: int) -> None:
    choose = random.Random(seed)
    make = choose.choice(checks.POLICIES)
    session = PolicySession(make(), seed=seed, rollback_depth=10)
    named: dict[str, tuple[bytes, HostRecord]] = {}
    path = [(session.state_bytes(), HostRecord(**vars(session.host)))]
    reachable = 0  # boundaries of the path that the ring must hold
    for number in range(120):
        verb = choose.choice(["step"] * 6 + ["snapshot", "restore", "fork", "rollback", "reset"])
        generation, tick = session.generation, session.tick
        live = path[-1]
        if verb == "step":
            session.step(observations(choose.randrange(50)))
            path.append((session.state_bytes(), HostRecord(**vars(session.host))))
            reachable = min(reachable + 1, 10)
            tick += 1
        elif verb == "snapshot":
            session.snapshot(f"s{number}")
            named[f"s{number}"] = live
        elif verb == "fork":
            (branch,) = session.fork(None, seeds=[number], names=[f"f{number}"])
            assert branch.noise_key == number
            named[f"f{number}"] = (_with_key(session, live[0], number), live[1])
        elif verb == "restore" and named:
            name = choose.choice(sorted(named))
            session.restore(name)
            path, reachable, generation = [named[name]], 0, generation + 1
        elif verb == "rollback" and reachable:
            steps = choose.randint(1, reachable)
            assert session.rollback(steps) == steps
            path = path[:-steps]
            reachable -= steps
            generation += 1
        elif verb == "reset":
            session.reset_(seed=number)
            path = [(session.state_bytes(), HostRecord(**vars(session.host)))]
            assert path[0][1].step == 0
            reachable, generation = 0, generation + 1
        assert (session.state_bytes(), session.host) == path[-1], f"{number} {verb}"
        assert (session.generation, session.tick) == (generation, tick)
    for name, (state, host) in named.items():
        session.restore(name)
        assert (session.state_bytes(), session.host) == (state, host), name


def _with_key(session: PolicySession, state: bytes, key: int) -> bytes:
    (slot,) = (s for s in session.layout.state if s.spec.name == "noise.key")
    return state[: slot.offset] + key.to_bytes(8, "little") + state[slot.offset + 8 :]
