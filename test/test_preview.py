"""A preview is what restore and a plan would give, and the live state does not notice.

Sessions exchange spare states by copies, by real mappings of the operating system on a CPU, or by
those of a GPU; the results must be the same. Every kind of plan, rows and noise take part.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import session_checks as checks
import torch
from paged_memory import PagedMemory, paged
from preview_rig import KINDS, branched, by_restore, everything, next_chunk, run, waves
from toy_policies import ToyAdvancing, ToyChunk, ToyRecurrent, observations

from flashrt_ros.errors import (
    BusyError,
    FlashRTError,
    InternalError,
    InvalidArgumentError,
    NoMemoryError,
    NotFoundError,
    SpecError,
    SupersededError,
    UnsupportedError,
)
from flashrt_ros.policies.attention import OBSERVATION, AttentionPolicy
from flashrt_ros.runtime.policy import Buffers
from flashrt_ros.runtime.preview import BranchChunk
from flashrt_ros.runtime.session import PolicySession

HOW = ["copied", "mapped", "mapped as one", pytest.param("cuda", marks=pytest.mark.cuda)]
with_kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(name="device", params=HOW)
def _device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param.startswith("mapped"):
        with paged() if request.param == "mapped" else paged(1 << 30):
            yield "cpu"
        return
    yield "cuda" if request.param == "cuda" else "cpu"


@pytest.fixture(name="memory")
def _memory() -> Iterator[PagedMemory]:
    with paged() as memory:
        yield memory


@with_kinds
def test_a_preview_is_what_restore_and_a_plan_give(kind: str, device: str) -> None:
    session, see = branched(kind, device)
    names = ["later", "a", "b", "c"]
    before = everything(session)
    found = session.preview(names, see(90))
    assert everything(session) == before
    assert [chunk.name for chunk in found] == names
    other = session.preview(names, see(92))
    for chunk, otherwise in zip(found, other, strict=True):
        capsule = session.store.get(chunk.name)
        assert (chunk.capsule_id, chunk.chunk) == (capsule.id, capsule.host.chunk + 1)
        assert torch.equal(chunk.actions_HA, by_restore(session, chunk.name, see(90)))
        # The control: another observation gives another chunk.
        assert not torch.equal(chunk.actions_HA, otherwise.actions_HA)
    if kind in ("none", "beside", "advances"):  # these draw noise
        seeds = [chunk.actions_HA for chunk in found[1:]]
        assert not torch.equal(seeds[0], seeds[1])
        assert not torch.equal(seeds[1], seeds[2])
    assert not torch.equal(found[0].actions_HA, found[1].actions_HA)
    session.close()


@with_kinds
def test_a_preview_of_the_live_state_is_its_next_plan(kind: str, device: str) -> None:
    session, see = branched(kind, device)
    before = everything(session)
    (found,) = session.preview([], see(90))
    assert everything(session) == before
    assert (found.name, found.capsule_id) == ("", "")
    run(session, see, 100, 103)
    (later,) = session.preview([], see(90))
    assert not torch.equal(found.actions_HA, later.actions_HA)  # the control: it has gone on
    assert torch.equal(later.actions_HA, next_chunk(session, see(90)))
    session.close()


@with_kinds
def test_an_episode_with_previews_is_one_without(kind: str, device: str) -> None:
    make, see = KINDS[kind]
    plain = PolicySession(make(), device=device, rollback_depth=8)
    session = PolicySession(make(), device=device, rollback_depth=8)
    for each in (plain, session):
        run(each, see, 0, 5)
        each.snapshot("a")
    for step in range(5, 40):
        if step % 13 == 0:
            assert plain.rollback(3) == session.rollback(3)
        actions = [each.step(see(step)).values for each in (plain, session)]
        assert torch.equal(*actions)
        session.preview(["a"] if step % 2 else [], see(step + 3))
    assert plain.state_bytes() == session.state_bytes()
    assert vars(plain.host) == vars(session.host)
    plain.close()
    session.close()


def test_random_lineages_with_rows(device: str) -> None:
    choose = random.Random(5)

    def seen(turn: int) -> dict[str, list[float]]:
        return {
            OBSERVATION: torch.randn(6, generator=torch.Generator().manual_seed(turn)).tolist()
        }

    session = PolicySession(AttentionPolicy(capacity=96), device=device, rollback_depth=4)
    names: list[str] = []
    compared = 0
    for turn in range(500):
        act = choose.random()
        if act < 0.5 or not names:
            for _ in range(choose.randrange(1, 12)):
                with contextlib.suppress(NoMemoryError):
                    session.step(seen(turn))
        elif act < 0.6:
            session.restore(choose.choice(names))
        elif act < 0.65:
            session.reset_()
        else:
            chosen = choose.choice(names)
            before = everything(session)
            try:
                (found,) = session.preview([chosen], seen(turn))
            except NoMemoryError:
                continue
            assert everything(session) == before
            session.snapshot("live", replace=True)
            assert torch.equal(found.actions_HA, by_restore(session, chosen, seen(turn)))
            session.restore("live")
            compared += 1
        if choose.random() < 0.2:
            names.append(f"n{turn}")
            session.snapshot(names[-1])
        if len(names) > 6 or (names and choose.random() < 0.2):
            session.drop(names.pop(choose.randrange(len(names))))
    assert compared > 30
    session.close()


class Raising(ToyAdvancing):
    """Writes half of its state, then raises, where it is told to."""

    raises = False

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().plan(state, inputs, outputs)
        if self.raises:
            raise RuntimeError("told so")


@pytest.mark.parametrize("mapping", [False, True])
def test_a_plan_that_raises_spoils_its_branch_alone(mapping: bool) -> None:
    with paged() if mapping else contextlib.nullcontext():
        policy = Raising()
        session = PolicySession(policy)
    run(session, observations, 0, 6)
    session.snapshot("a")
    expected = session.preview(["a"], observations(9))
    before = everything(session)
    policy.raises = True
    with pytest.raises(RuntimeError, match="told so"):
        session.preview(["a"], observations(9))
    policy.raises = False
    assert everything(session) == before
    assert session.store.get("a").segment.holders == 1
    again = session.preview(["a"], observations(9))
    assert torch.equal(again[0].actions_HA, expected[0].actions_HA)
    session.step(observations(9))


def test_a_dropped_capsule_is_previewed_and_then_freed(device: str) -> None:
    session, see = branched("rows by act", device)
    expected = session.preview(["later"], see(90))
    pages = session.store.free_pages
    begun = session.begin_preview(["a", "later"], see(90))
    assert begun.left == 2
    assert begun.run_next().name == "a"
    session.drop("later")
    for step in range(4):
        session.step(see(step))
    found = begun.run_next()
    assert begun.left == 0
    assert torch.equal(found.actions_HA, expected[0].actions_HA)
    held = session.store.free_pages
    begun.close()
    begun.close()
    assert session.store.free_pages > held  # the control: it was held until now
    assert session.store.free_pages >= pages
    session.close()


def test_a_branch_without_room_for_its_rows_is_refused(device: str) -> None:
    session = PolicySession(AttentionPolicy(capacity=10), device=device, rollback_depth=2)
    run(session, waves, 0, 4)
    session.snapshot("short")
    run(session, waves, 4, 10)
    session.snapshot("full")
    before = everything(session)
    for names in ([], ["full"], ["short", "full"]):
        with pytest.raises(NoMemoryError, match="room for 1 more rows, found 10 of 10"):
            session.preview(names, waves(1))
    assert everything(session) == before
    assert torch.equal(
        session.preview(["short"], waves(1))[0].actions_HA,
        by_restore(session, "short", waves(1)),
    )
    session.close()


def test_a_live_state_that_fills_up_before_its_turn_is_refused() -> None:
    """Room was found when the preview was asked for; control steps have taken it since."""
    session = PolicySession(AttentionPolicy(capacity=12), rollback_depth=2)
    rows = session.policy.rows_per_act
    while session.host.rows + 2 * rows <= 12:
        run(session, waves, session.host.step, session.host.step + 1)
    assert session.host.rows + rows <= 12
    preview = session.begin_preview([], waves(0))
    run(session, waves, session.host.step, session.host.step + 1)
    before = everything(session)
    with pytest.raises(NoMemoryError, match="the live state: expected room for"):
        preview.run_next()
    branch = session.materialise()
    with pytest.raises(NoMemoryError, match="the live state: expected room for"):
        session.run_branch(branch, session._engine.check(waves(0)))
    assert everything(session) == before
    preview.close()
    session.close()


def test_a_plan_beside_comes_first(device: str) -> None:
    session = PolicySession(ToyChunk(), device=device)
    other = PolicySession(ToyChunk(), device=device)
    ticket = session.begin_plan(observations(0))
    for ran in (False, True):
        if ran:
            session.run_plan(ticket)
        assert session.planning
        with pytest.raises(BusyError, match="under way; expected none; adopt or withdraw"):
            session.preview([], observations(1))
    assert session.adopt(ticket)  # nothing of it was lost
    assert not session.planning
    expected = other.begin_plan(observations(0))
    other.run_plan(expected)
    assert other.adopt(expected)
    assert session.state_bytes() == other.state_bytes()
    session.preview([], observations(1))
    ticket = session.begin_plan(observations(2))
    session.withdraw_plan()
    assert not session.planning
    session.preview([], observations(1))
    session.run_plan(ticket)
    assert not session.adopt(ticket)
    session.close()
    other.close()


class Slow(ToyChunk):
    """Its plan waits until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        self.begun.set()
        assert self.go.wait(60)
        super().plan(state, inputs, outputs)


def test_a_plan_that_nobody_wants_any_more_still_has_the_outputs() -> None:
    policy = Slow()
    session = PolicySession(policy)
    policy.begun.clear()
    policy.go.clear()
    ticket = session.begin_plan(observations(0))
    planner = threading.Thread(target=session.run_plan, args=(ticket,))
    planner.start()
    assert policy.begun.wait(60)
    session.withdraw_plan()
    begun = session.begin_preview([], observations(1))
    with pytest.raises(BusyError, match="under way"):
        begun.run_next()
    assert begun.left == 1
    policy.go.set()
    planner.join()
    assert begun.run_next().chunk == 1
    begun.close()


def test_a_restore_between_branches_ends_a_preview(device: str) -> None:
    session, see = branched("none", device)
    begun = session.begin_preview(["a", "b"], see(1))
    begun.run_next()
    session.restore("later")
    with pytest.raises(SupersededError, match="restore, rollback or reset came between"):
        begun.run_next()
    begun.close()
    session.close()


def refused(session: PolicySession, error: type[FlashRTError], words: str, *args: Any) -> None:
    before = everything(session)
    with pytest.raises(error, match=words):
        session.preview(*args)
    assert everything(session) == before


def test_what_cannot_be_previewed_is_refused_before_anything_runs() -> None:
    session, see = branched("none", "cpu")
    (boundary,) = session.store.list()[:1]
    refused(session, NotFoundError, "'nobody'", ["a", "nobody"], see(1))
    refused(session, InvalidArgumentError, "'a' is given twice", ["a", "b", "a"], see(1))
    refused(session, InvalidArgumentError, "given twice", [boundary.id, boundary], see(1))
    refused(session, InvalidArgumentError, "at most 64 branches, found 65", ["a"] * 65, see(1))
    refused(session, SpecError, "observation.state", ["a"], {})
    none = PolicySession(ToyRecurrent(), preview_sets=0)
    refused(none, UnsupportedError, "found preview_sets 0", [], see(1))
    for wrong in (-1, 17, True, 1.5):
        with pytest.raises(InvalidArgumentError, match="preview_sets"):
            PolicySession(ToyRecurrent(), preview_sets=wrong)  # type: ignore[arg-type]
    session._torn = "a test says so"
    refused(session, InternalError, "state is incomplete", ["a"], see(1))
    session.close()
    with pytest.raises(FlashRTError, match="closed"):
        session.preview([], see(1))


def test_nothing_else_is_done_while_a_branch_is_in_place(device: str) -> None:
    session, see = branched("rows by act", device)
    before = everything(session)
    branch = session.materialise("later")
    verbs: list[Callable[[], object]] = [
        lambda: session.step(see(1)),
        lambda: session.snapshot("x"),
        lambda: session.restore("a"),
        lambda: session.rollback(1),
        lambda: session.reset_(),
        lambda: session.state_bytes(),
        lambda: session.preview([], see(1)),
        lambda: session.arena,
    ]
    with session.placed(branch):
        for verb in verbs:
            with pytest.raises(BusyError, match="branch 0 is in the place of the live state"):
                verb()
    assert everything(session) == before
    session.restore("a")
    with pytest.raises(SupersededError), session.placed(branch):
        pass
    with pytest.raises(InternalError, match="spare set 1: expected one of 1"):
        session.materialise("a", 1)
    session.close()


def test_rows_that_are_shared_are_not_copied(memory: PagedMemory) -> None:
    session, _ = branched("rows by act", "cpu")
    row_bytes = session.layout.row_bytes
    branch = session.materialise("later")
    # Pieces of two pages; the lineages share 60 rows of 256 bytes.
    assert row_bytes == 256
    assert branch.kept_bytes == 60 * row_bytes // 8192 * 8192 == 8192
    spare = session.arena.memory.sets[0]
    assert not spare.rows[:8192].any()
    assert spare.rows[8192 : 71 * row_bytes].any()
    session.close()


def test_a_driver_that_refuses_leaves_the_live_state(memory: PagedMemory) -> None:
    session, see = branched("advances", "cpu")
    before = everything(session)
    memory.fail("map", 1)
    with pytest.raises(NoMemoryError, match="map fails as told"):
        session.preview(["a"], see(1))
    assert everything(session) == before
    # Nor can the live state be put back: nothing touches its addresses until that works.
    for at in (1, 2, 3):
        memory.fail("map", at)
    with pytest.raises(InternalError, match=r"could not be put back .* it is whole"):
        session.preview(["a"], see(1))
    with pytest.raises(InternalError, match="not in its place: map fails as told"):
        _ = session.arena
    memory.fail("map", 1)
    with pytest.raises(InternalError, match="could not be put back"):
        session.step(see(1))
    assert everything(session) == before  # which tries once more
    expected: list[BranchChunk] = session.preview(["a"], see(1))
    assert torch.equal(expected[0].actions_HA, by_restore(session, "a", see(1)))
    session.close()
    assert memory.empty


def test_an_episode_is_the_same_however_states_are_exchanged(memory: PagedMemory) -> None:
    mapped, see = branched("rows by act", "cpu")
    assert "mapping" in mapped.arena.memory.words
    trace = [chunk.actions_HA for chunk in mapped.preview(["a", "later"], see(3))]
    with pytest.MonkeyPatch.context() as patch:
        from flashrt_ros.runtime.device.base import Device
        from flashrt_ros.runtime.device.cpu import CpuDevice

        patch.setattr(CpuDevice, "allocate_state", Device.allocate_state)
        patch.setattr(CpuDevice, "state_bytes", Device.state_bytes)
        copied, _ = branched("rows by act", "cpu")
    assert "copies" in copied.arena.memory.words
    assert copied.exec_id == mapped.exec_id
    for one, other in zip(trace, copied.preview(["a", "later"], see(3)), strict=True):
        assert torch.equal(one, other.actions_HA)
    assert copied.state_bytes() == mapped.state_bytes()
    checks.settle(copied)


def test_nothing_is_copied_while_a_plan_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a plan that runs beside asks again every few milliseconds."""
    session, see = branched("beside", "cpu")
    preview = session.begin_preview(["a"], see(90))
    ticket = session.begin_plan(see(91))
    copied: list[int] = []
    copy_ = session.device.copy_

    def counted(dst: torch.Tensor, src: torch.Tensor) -> None:
        copied.append(dst.nbytes)
        copy_(dst, src)

    monkeypatch.setattr(session.device, "copy_", counted)
    with pytest.raises(BusyError, match="a plan that runs beside is under way"):
        preview.run_next()
    assert not copied
    session.run_plan(ticket)
    assert session.adopt(ticket)
    copied.clear()
    preview.run_next()
    assert copied, "control: else it does"
    preview.close()
    session.close()
