"""The session on CPU: exact continuation, independent branches, a bounded ring, atomic verbs.

This is the promise that everything else stands on, so every check of sameness comes with a control
that must fail, and random sequences of verbs are compared with full copies kept outside.
"""

from __future__ import annotations

import gc
import random
import threading
import weakref
from typing import ClassVar

import numpy as np
import pytest
import session_checks as checks
import torch
from toy_policies import ToyAdvancing, ToyChunk, ToyRecurrent, observations

from flashrt_ros import errors
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.device import open_device
from flashrt_ros.runtime.graph import GraphPlan
from flashrt_ros.runtime.policy import Buffers, HostRecord, Port, Ports
from flashrt_ros.runtime.session import PolicySession

every_policy = pytest.mark.parametrize("make", checks.POLICIES)


@every_policy
def test_restore_is_exact(make: checks.MakePolicy) -> None:
    checks.check_restore_is_exact(make, "cpu", cut_points=8, steps=60, seed=0)


@pytest.mark.slow
@every_policy
def test_restore_is_exact_at_100_cut_points(make: checks.MakePolicy) -> None:
    checks.check_restore_is_exact(make, "cpu", cut_points=100, steps=200, seed=1)


@every_policy
def test_controls_differ(make: checks.MakePolicy) -> None:
    checks.check_controls_differ(make, "cpu")


@every_policy
def test_forks_are_independent(make: checks.MakePolicy) -> None:
    checks.check_forks_are_independent(make, "cpu")


@every_policy
def test_rollback(make: checks.MakePolicy) -> None:
    checks.check_rollback(make, "cpu")


@every_policy
def test_seed_and_reset(make: checks.MakePolicy) -> None:
    checks.check_seed_and_reset(make, "cpu")


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


def test_construction_resets_and_reset_counts_episodes() -> None:
    session = PolicySession(ToyRecurrent(), seed=4)
    assert session.host == HostRecord()
    assert session.arena.state["noise.key"].item() == 4
    generation = session.generation
    session.step(observations(0))
    assert session.reset_(task="pick") == generation + 1
    assert session.host == HostRecord(episode=1, task="pick")
    assert session.tick == 1
    assert session.arena.state["noise.counter"].item() == 0
    assert session.step(observations(0)).task == "pick"


def test_reset_leaves_nothing_of_a_buffer_that_the_policy_forgets() -> None:
    class Forgetful(ToyRecurrent):
        def reset_(self, state: Buffers) -> None:
            state["rnn.h"].zero_()

    session = PolicySession(Forgetful())
    fresh = session.state_bytes()
    checks.run(session, 0, 5)
    session.reset_(seed=0)
    assert session.state_bytes() == fresh


def test_actions_are_counted() -> None:
    session = PolicySession(ToyChunk())
    taken = [session.step(observations(t)) for t in range(6)]
    assert [(a.step, a.chunk, a.index) for a in taken] == [
        (0, 1, 0), (1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 2, 0), (5, 2, 1),
    ]  # fmt: skip
    assert {a.values.dtype for a in taken} == {torch.float32}
    kept = taken[0].values.clone()
    session.step(observations(9))
    assert torch.equal(taken[0].values, kept)


def test_no_address_moves_and_no_pool_grows() -> None:
    session = PolicySession(ToyChunk(), rollback_depth=5)

    def addresses() -> list[int]:
        arena = session.arena
        tensors = [arena.fixed, *arena.state.values(), *arena.inputs.values()]
        tensors += [*arena.outputs.values(), session.store.pool._memory]
        return [tensor.data_ptr() for tensor in tensors]

    before = addresses()
    for round_ in range(4):
        checks.run(session, 0, 9)
        session.snapshot("a", replace=True)
        session.fork("a", count=2)
        session.restore("a", seed=round_)
        session.step(observations(1))
        session.rollback(1)
        session.reset_()
    assert addresses() == before


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1.0, 2.0, 3.0], r"shape \(4,\), found \(3,\)"),
        ([[1.0, 2.0, 3.0, 4.0]], r"found \(1, 4\)"),
        ([1.0, float("nan"), 3.0, 4.0], "finite values of float32, found nan at b"),
        ([1.0, 2.0, 3.0, 1e300], "found 1e\\+300 at d"),
        (np.array(["x"] * 4), "expected float32"),
        ([1j, 0, 0, 0], "without loss"),
    ],
)
def test_bad_observation_changes_nothing(value: object, words: str) -> None:
    session = PolicySession(ToyRecurrent())
    session.step(observations(0))
    before = fingerprint_of(session)
    inputs = {name: tensor.clone() for name, tensor in session.arena.inputs.items()}
    bad = {"observation.cue": [9.0, 9.0], "observation.state": value}
    with pytest.raises(errors.SpecError, match=words) as caught:
        session.step(bad)
    assert "observation.state" in str(caught.value)
    assert fingerprint_of(session) == before
    for name, tensor in session.arena.inputs.items():
        assert torch.equal(tensor, inputs[name])


def test_missing_and_unknown_observations() -> None:
    session = PolicySession(ToyRecurrent())
    with pytest.raises(errors.SpecError, match=r"'observation.state' of shape \(4,\) is missing"):
        session.step({"observation.cue": [0.0, 0.0]})
    with pytest.raises(errors.SpecError, match=r"'observation\.stat': the policy has no such"):
        session.step({"observation.stat": [0.0] * 4})
    session.step({"observation.state": [0.0] * 4, "observation.cue": [3.0, 3.0]})
    session.step({"observation.state": torch.zeros(4, dtype=torch.float64)})
    assert session.arena.inputs["cue_in"].tolist() == [0.0, 0.0]


def test_integer_observations_are_checked_for_range() -> None:
    class Image(ToyRecurrent):
        def layout(self) -> tuple[BufferSpec, ...]:
            return (*super().layout(), BufferSpec("image", (2,), torch.uint8, Role.INPUT))

        def ports(self) -> Ports:
            ports = super().ports()
            return Ports((*ports.observations, Port("image", "image", (2,))), ports.action)

    session = PolicySession(Image())
    state = {"observation.state": [0.0] * 4}
    session.step({**state, "image": np.array([1, 255], dtype=np.uint8)})
    with pytest.raises(errors.SpecError, match="without loss"):
        session.step({**state, "image": np.array([1.5, 2.0])})
    with pytest.raises(errors.SpecError, match="range of uint8, found 1 to 256"):
        session.step({**state, "image": np.array([1, 256], dtype=np.uint16)})


def test_failing_verbs_change_nothing() -> None:
    session = PolicySession(ToyRecurrent(), rollback_depth=3)
    checks.run(session, 0, 5)
    session.snapshot("a", pin=True)
    session.snapshot("b")
    session.step(observations(5))
    before = fingerprint_of(session)
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
        assert fingerprint_of(session) == before, kind


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
    before = fingerprint_of(session)
    with pytest.raises(errors.NoMemoryError, match=f"{4 * weight} of {4 * weight} bytes"):
        session.snapshot("e")
    with pytest.raises(errors.NoMemoryError):
        session.fork(None, count=2)
    assert fingerprint_of(session) == before
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
        before = fingerprint_of(session)
        assert not session.adopt(ticket)
        assert fingerprint_of(session) == before
    unfinished = session.begin_plan(observations(1))
    assert not session.adopt(unfinished)


def test_snapshot_during_a_plan_takes_the_committed_boundary() -> None:
    class Slow(ToyChunk):
        entered = threading.Event()
        leave = threading.Event()

        def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
            super().plan(state, inputs, outputs)
            self.entered.set()
            assert self.leave.wait(10)

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
    assert policy.entered.wait(10)
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


def test_a_step_that_fails_half_way_must_be_undone() -> None:
    class Fragile(ToyRecurrent):
        broken = False

        def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
            super().act(state, inputs, outputs)
            if self.broken:
                raise RuntimeError("out of luck")

    policy = Fragile()
    session = PolicySession(policy)
    expected = checks.actions(session, 0, 6)
    session.rollback(2)
    policy.broken = True
    with pytest.raises(RuntimeError, match="out of luck"):
        session.step(observations(4))
    policy.broken = False
    for verb in (lambda: session.step(observations(4)), session.snapshot, session.fork):
        with pytest.raises(errors.InternalError, match=r"a step failed: out of luck.*roll back"):
            verb()
    assert session.rollback(1) == 1
    assert checks.actions(session, 3, 3) == expected[3:]


def test_policies_run_without_gradients_but_outside_inference_mode() -> None:
    class Watching(ToyChunk):
        modes: ClassVar[set[tuple[bool, bool]]] = set()

        def note(self) -> None:
            self.modes.add((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

        def reset_(self, state: Buffers) -> None:
            self.note()
            super().reset_(state)

        def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
            self.note()
            super().plan(state, inputs, outputs)

        def adopt(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
            self.note()
            super().adopt(state, inputs, outputs)

        def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
            self.note()
            super().act(state, inputs, outputs)

    policy = Watching()
    session = PolicySession(policy)
    checks.run(session, 0, 6)
    ticket = session.begin_plan(observations(0))
    planner = threading.Thread(target=session.run_plan, args=(ticket,))
    planner.start()
    planner.join()
    assert policy.modes == {(False, False)}


def test_a_copy_that_fails_leaks_nothing_and_is_noticed() -> None:
    session = PolicySession(ToyRecurrent(), rollback_depth=0)
    checks.run(session, 0, 3)
    session.snapshot("a")
    before = fingerprint_of(session)
    works = session.device.copy_

    def fails(dst: torch.Tensor, src: torch.Tensor) -> None:
        raise RuntimeError("no such luck")

    session.device.copy_ = fails  # type: ignore[method-assign]
    for verb in (lambda: session.snapshot("b"), lambda: session.fork(None, count=3)):
        with pytest.raises(RuntimeError, match="no such luck"):
            verb()
        assert fingerprint_of(session) == before
    for verb in (lambda: session.restore("a"), lambda: session.rollback(), session.reset_):
        with pytest.raises(RuntimeError, match="no such luck"):
            verb()
        with pytest.raises(errors.InternalError, match="failed: no such luck"):
            session.step(observations(3))
    session.device.copy_ = works  # type: ignore[method-assign]
    session.restore("a")
    session.step(observations(3))


def test_global_generators_are_neither_read_nor_moved() -> None:
    session = PolicySession(ToyRecurrent(), seed=1)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    first = checks.actions(session, 0, 10)
    session.fork(None, count=3)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert np.random.get_state()[1].tolist() == numpy_before
    session.reset_(seed=1)
    torch.manual_seed(123)
    np.random.seed(123)
    assert checks.actions(session, 0, 10) == first


def test_digest_is_of_the_state_alone() -> None:
    session = PolicySession(ToyRecurrent(), seed=1)
    checks.run(session, 0, 3)
    digest = session.state_digest()
    session.reset_(seed=1)
    assert session.state_digest() != digest
    checks.run(session, 0, 3)
    assert session.state_digest() == digest
    session.arena.state["count"].add_(1)
    assert session.state_digest() != digest


def test_close_frees_and_forbids() -> None:
    session = PolicySession(ToyChunk())
    capsule = session.snapshot("a")
    ticket = session.begin_plan(observations(0))
    memory = [weakref.ref(t) for t in (session.arena.fixed, session.store.pool._memory)]
    gc.disable()
    try:
        session.close()
        assert [ref() for ref in memory] == [None, None]
    finally:
        gc.enable()
    session.close()
    for use in (
        lambda: session.step(observations(0)),
        lambda: session.act(),
        lambda: session.begin_plan(observations(0)),
        lambda: session.run_plan(ticket),
        lambda: session.adopt(ticket),
        lambda: session.plan_due,
        lambda: session.arena,
        lambda: session.reset_(),
        lambda: session.snapshot(),
        lambda: session.restore("a"),
        lambda: session.fork("a"),
        lambda: session.fork(),
        lambda: session.rollback(),
        lambda: session.drop("a"),
        lambda: session.state_bytes(),
        lambda: session.state_digest(),
        lambda: capsule.segment.bytes,
    ):
        with pytest.raises(errors.NotConfiguredError, match="closed"):
            use()


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"seed": -1}, "seed"),
        ({"store_bytes": 0}, "store_bytes"),
        ({"rollback_depth": -1}, "rollback_depth"),
        ({"rollback_period_steps": 0}, "rollback_period_steps"),
        ({"warm_up": 1.5}, "warm_up"),
        ({"device": "tpu"}, "'tpu'"),
        ({"device": "mps"}, "'mps'"),
    ],
)
def test_bad_arguments(kwargs: dict[str, object], words: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=words):
        PolicySession(ToyRecurrent(), **kwargs)  # type: ignore[arg-type]


def test_warm_up_leaves_no_trace() -> None:
    bytes_ = {
        PolicySession(make(), warm_up=n).state_bytes()
        for make in (ToyAdvancing,)
        for n in (0, 1, 5)
    }
    assert len(bytes_) == 1


def test_a_plan_must_be_prepared() -> None:
    plan = GraphPlan("act", lambda: None, open_device("cpu"))
    with pytest.raises(errors.NotConfiguredError, match="'act' was never prepared"):
        plan.replay()


def test_numpy_integers_are_accepted() -> None:
    session = PolicySession(ToyRecurrent())
    session.step(observations(0))
    session.fork(None, seeds=[np.uint64(2**64 - 1)])  # type: ignore[list-item]
    assert session.rollback(np.uint32(1), seed=np.uint64(7)) == 1  # type: ignore[arg-type]


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
