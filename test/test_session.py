"""The session on CPU: exact continuation, independent branches, a bounded ring, atomic verbs.

This is the promise that everything else stands on, so every check of sameness comes with a control
that must fail, and random sequences of verbs are compared with full copies kept outside.
"""

from __future__ import annotations

import gc
import random
import threading
import weakref
from typing import Any, ClassVar

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


def test_nothing_is_prepared_again_after_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second episode costs no reload and no recapture, and neither does any verb."""
    prepared: list[str] = []
    prepare = GraphPlan.prepare

    def counted(plan: GraphPlan, *arguments: Any) -> None:
        prepared.append(plan.name)
        prepare(plan, *arguments)

    monkeypatch.setattr(GraphPlan, "prepare", counted)
    policy = ToyChunk()
    session = PolicySession(policy)
    assert sorted(prepared) == ["act", "adopt", "plan"], "control: the count counts"
    monkeypatch.setattr(policy, "module", None)  # the weights are not asked for either
    for episode in range(3):
        session.reset_(seed=episode)
        session.step(observations(0))
        session.snapshot("a", replace=True)
        session.restore("a")
        session.rollback(1)
    assert len(prepared) == 3


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
    before = checks.fingerprint_of(session)
    inputs = {name: tensor.clone() for name, tensor in session.arena.inputs.items()}
    bad = {"observation.cue": [9.0, 9.0], "observation.state": value}
    with pytest.raises(errors.SpecError, match=words) as caught:
        session.step(bad)
    assert "observation.state" in str(caught.value)
    assert checks.fingerprint_of(session) == before
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
    before = checks.fingerprint_of(session)
    works = session.device.copy_

    def fails(dst: torch.Tensor, src: torch.Tensor) -> None:
        raise RuntimeError("no such luck")

    session.device.copy_ = fails  # type: ignore[method-assign]
    for verb in (lambda: session.snapshot("b"), lambda: session.fork(None, count=3)):
        with pytest.raises(RuntimeError, match="no such luck"):
            verb()
        assert checks.fingerprint_of(session) == before
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


def test_task_text_is_bounded() -> None:
    session = PolicySession(ToyRecurrent(), rollback_depth=0)
    before = session.state_bytes()
    with pytest.raises(errors.InvalidArgumentError, match="at most 4096 characters, found 5000"):
        session.reset_(task="t" * 5000)
    assert session.host.episode == 0
    assert session.state_bytes() == before
