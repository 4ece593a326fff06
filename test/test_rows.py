"""Rows: token-major, appended only, stored once, and copied only where lineages differ.

What a verb costs is the promise here, so bytes and segments are counted; that the right bytes end
up in the right place is compared at large in ``test_rows_random``.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ledger_policy import Ledger

from flashrt_ros.errors import InternalError, NoMemoryError, SpecError
from flashrt_ros.runtime.buffers import (
    ALIGNMENT,
    ROW_ALIGNMENT,
    ROWS_LENGTH,
    Arena,
    BufferSpec,
    Role,
    StateLayout,
)
from flashrt_ros.runtime.capsule import Capsule
from flashrt_ros.runtime.device import Lane, Pieces, open_device
from flashrt_ros.runtime.policy import Buffers
from flashrt_ros.runtime.row_pool import RowPool
from flashrt_ros.runtime.session import PolicySession

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
on_devices = pytest.mark.parametrize("device", DEVICES)
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
grown = st.lists(
    st.tuples(st.lists(st.integers(1, 5), max_size=3).map(tuple), st.sampled_from(DTYPES)),
    min_size=1,
    max_size=6,
)


@given(grown, st.integers(1, 9))
def test_rows_of_a_token_lie_side_by_side(shapes: list[Any], capacity: int) -> None:
    specs = [
        BufferSpec(f"r{n}", shape, dtype, Role.STATE, "", capacity)
        for n, (shape, dtype) in enumerate(shapes)
    ]
    fixed = BufferSpec("fixed", (3,), torch.float32, Role.STATE)
    arena = Arena(StateLayout([*specs, fixed]), open_device("cpu"))
    assert [slot.spec.name for slot in arena.layout.state] == ["fixed"]
    assert arena.rows.data_ptr() % ALIGNMENT == 0
    end = 0
    for number, (spec, slot) in enumerate(zip(specs, arena.layout.rows, strict=True)):
        view = arena.state[spec.name]
        assert tuple(view.shape) == (capacity, *spec.shape)
        assert slot.offset % ROW_ALIGNMENT == 0
        assert slot.offset >= end
        end = slot.offset + slot.size_bytes
        assert view.data_ptr() == arena.rows.data_ptr() + slot.offset
        if capacity > 1:
            assert view.stride(0) * spec.dtype.itemsize == arena.layout.row_bytes
        view.fill_(number % 2 if spec.dtype == torch.bool else number)
    assert end <= arena.layout.row_bytes
    for number, spec in enumerate(specs):
        value = bool(number % 2) if spec.dtype == torch.bool else number
        assert (arena.state[spec.name] == value).all()
    assert (arena.rows == arena.rows[0]).all()  # one token's row like the next


def test_wrong_declarations() -> None:
    def spec(name: str, capacity: Any, role: Role = Role.STATE) -> BufferSpec:
        return BufferSpec(name, (2,), torch.float32, role, "", capacity)

    with pytest.raises(SpecError, match="only state grows by rows, found role output"):
        spec("k", 4, Role.OUTPUT)
    with pytest.raises(SpecError, match=r"capacity of at least 1 row, .* found -1"):
        spec("k", -1)
    with pytest.raises(SpecError, match=r"'v': expected a capacity of 4 rows, as 'k' has"):
        StateLayout([spec("k", 4), spec("v", 5), spec("s", 0)])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows_per_act": 0}, "rows_per_act above 0 if a buffer has a capacity"),
        ({"rows_per_act": -1}, "found 0 and -1"),
        ({"rows_per_act": 41}, "appends up to 41 rows, but its buffers have a capacity of 40"),
        ({"rows_per_plan": 1}, "expected rows_per_plan 0, since it never plans"),
        ({"layout": lambda: (LENGTH, *Ledger().layout())}, "'rows.length' belongs to the runtime"),
        ({"reset_": lambda state: state[ROWS_LENGTH].fill_(3)}, "reset_ left 3 in 'rows.length'"),
    ],
)
def test_rows_must_be_declared_soundly(changes: dict[str, Any], words: str) -> None:
    policy = Ledger()
    for name, value in changes.items():
        setattr(policy, name, value)
    with pytest.raises(SpecError, match=words):
        PolicySession(policy)


LENGTH = BufferSpec(ROWS_LENGTH, (2,), torch.int64, Role.STATE)


@pytest.mark.parametrize(
    ("change", "words"), [(5, "found 2 before and 7"), (-1, "2 before and 1")]
)
def test_a_count_that_was_not_declared_stops_the_session(change: int, words: str) -> None:
    class Wrong(Ledger):
        def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
            count = torch.where(inputs["told"][1:] > 1, change, inputs["told"][:1])
            super().act(state, {"told": torch.cat((count, inputs["told"][1:]))}, outputs)

    session = PolicySession(Wrong())
    session.step({"told": [2, 1]})
    session.snapshot("good")
    good = session.state_bytes()
    with pytest.raises(InternalError, match=words):
        session.step({"told": [2, 2]})
    with pytest.raises(InternalError, match="the state is incomplete"):
        session.snapshot("bad")
    session.restore("good")
    assert session.state_bytes() == good


class Counted:
    """A session whose copies are counted."""

    def __init__(self, policy: Ledger, **arguments: Any) -> None:
        self.session = PolicySession(policy, **arguments)
        self.bytes = self.calls = 0
        device = self.session.device
        plain, pieces = device.copy_, device.copy_pieces_

        def copy_(dst: torch.Tensor, src: torch.Tensor) -> None:
            self.bytes += dst.nbytes
            self.calls += 1
            plain(dst, src)

        def copy_pieces_(dst: Any, src: Any, many: Any) -> None:
            self.bytes += int(many.sizes.sum())
            self.calls += len(many.sizes)
            pieces(dst, src, many)

        device.copy_ = copy_  # type: ignore[method-assign]
        device.copy_pieces_ = copy_pieces_  # type: ignore[method-assign]

    def run(self, steps: int, rows: int = 2, stamp: int = 1) -> None:
        for step in range(steps):
            self.session.step({"told": [rows, stamp + step]})
        self.bytes = self.calls = 0


@on_devices
def test_what_verbs_copy(device: str) -> None:
    counted = Counted(Ledger(4000), device=device, rollback_depth=64)
    session = counted.session
    fixed, row = session.layout.fixed_bytes, session.layout.row_bytes
    counted.run(10)
    session.snapshot("a")
    # The ring has stored all but the rows of the last step.
    assert (counted.bytes, counted.calls) == (fixed + 2 * row, 2)
    counted.run(900)
    state = session.state_bytes()
    session.snapshot("b")
    assert counted.bytes == fixed + 2 * row
    counted.run(3)
    counted.bytes = counted.calls = 0
    assert session.rollback(40) == 40
    assert (counted.bytes, counted.calls) == (fixed, 1)
    counted.bytes = 0
    session.restore("b")
    assert counted.bytes == fixed + 37 * 2 * row
    assert session.state_bytes() == state
    counted.bytes = 0
    session.restore("b")
    assert counted.bytes == fixed
    session.reset_()
    counted.bytes = 0
    session.restore("b")
    assert counted.bytes == fixed + 910 * 2 * row
    assert session.state_bytes() == state


def pieces(capsule: Capsule) -> int:
    assert capsule.segment.rows is not None
    return len(capsule.segment.rows.pieces())


def test_a_lineage_stays_in_one_piece_however_it_goes_back_and_forth() -> None:
    counted = Counted(Ledger(4000), rollback_depth=8)
    session = counted.session
    session.snapshot("start")
    for round_ in range(50):
        counted.run(12, stamp=100 * round_)
        session.rollback(3)
        session.snapshot(f"s{round_ % 3}", replace=True)
    assert pieces(session.store.get("s1")) == 1
    # Two lineages that grow in turn do not hinder each other either.
    for round_ in range(30):
        for name in ("s0", "s1"):
            session.restore(name)
            counted.run(40, stamp=round_)
            session.snapshot(name, replace=True)
    assert pieces(session.store.get("s0")) <= 3
    assert pieces(session.store.get("s1")) <= 3


def test_dropping_frees_what_nobody_needs() -> None:
    counted = Counted(Ledger(4000), rollback_depth=0)
    session, store = counted.session, counted.session.store
    assert store.rows is not None
    slot, page, rows = store.pool.slot_bytes, store.rows.page_bytes, store.rows.page_rows
    for name, steps in (("a", rows), ("b", 2 * rows), ("c", rows)):
        counted.run(steps, rows=1)
        session.snapshot(name)
    assert store.bytes_used == 3 * slot + 4 * page
    assert [store.unique_bytes(store.get(n)) for n in "abc"] == [slot, slot, slot + page]
    session.fork("b", names=["d"])
    assert session.drop("b") == 0
    assert session.drop("c") == slot + page
    assert session.drop("d") == slot + 2 * page
    assert store.bytes_used == slot + page
    # The live rows behind "a" are stored no longer, so the next snapshot stores them again.
    counted.bytes = 0
    session.snapshot("e")
    assert counted.bytes == session.layout.fixed_bytes + 3 * rows * session.layout.row_bytes
    assert session.drop("a") == slot
    assert session.drop("e") == slot + 4 * page
    assert store.bytes_used == 0


def test_a_ring_of_one_boundary_and_a_capsule_that_is_replaced_keep_the_lineage() -> None:
    for depth in (0, 1):
        counted = Counted(Ledger(400), rollback_depth=depth)
        counted.run(100)
        counted.session.snapshot("a")
        for _ in range(5):
            counted.run(1)
            counted.session.snapshot("a", replace=True)
            assert counted.bytes == counted.session.layout.fixed_bytes + 2 * 32


def test_what_the_store_must_have_room_for() -> None:
    layout = PolicySession(Ledger(4000)).layout
    least = 9 * layout.fixed_bytes + -(-4000 // 64) * 64 * 32
    with pytest.raises(
        NoMemoryError, match=f"expected at least {least} .*for the rows of one of them"
    ):
        PolicySession(Ledger(4000), store_bytes=least - 1, rollback_depth=8)
    session = PolicySession(Ledger(4000), store_bytes=least, rollback_depth=8)
    counted_rows = 0
    while counted_rows + 2 <= 4000:
        session.step({"told": [2, 1]})
        counted_rows += 2
    session.snapshot("full", pin=True)
    session.reset_()
    session.step({"told": [2, 1]})
    with pytest.raises(NoMemoryError, match=r"and 2048 bytes of new rows: \d+ of"):
        session.snapshot("another")
    session.step({"told": [2, 1]})  # the ring goes without, no step fails for it
    session.restore("full")


def fragment(pool: RowPool, pages: int) -> None:
    """Leaves only runs of ``pages`` pages free; the pages between them stay taken."""
    pool.take(pool.free)
    for start in range(0, pool.pages - pages + 1, pages + 1):
        pool.give_back(start, pages)


@on_devices
@pytest.mark.parametrize(("pages", "least"), [(1, 100), (7, 14), (60, 2)])
def test_capsules_over_many_segments(device: str, pages: int, least: int) -> None:
    """Stored and restored over scattered pages: every byte, and few launches."""
    session = PolicySession(Ledger(8000), device=device, rollback_depth=0, store_bytes=2 << 20)
    assert session.store.rows is not None
    fragment(session.store.rows, pages)
    for step in range(3300):
        session.step({"told": [2, step]})
    state = session.state_bytes()
    capsule = session.snapshot("many")
    assert pieces(capsule) >= least
    session.reset_()
    for step in range(3300):
        session.step({"told": [2, step + 5]})
    other = session.state_bytes()
    assert other != state
    session.restore("many")
    assert session.state_bytes() == state
    for step in range(40):
        session.step({"told": [1, step]})
    later = session.state_bytes()
    session.snapshot("later")
    session.restore("many")
    assert session.state_bytes() == state
    session.restore("later")
    assert session.state_bytes() == later
    session.close()


@pytest.mark.cuda
def test_pieces_are_copied_right_whatever_their_sizes() -> None:
    device = open_device("cuda")
    choose = np.random.default_rng(3)
    src = torch.randint(0, 256, (8 << 20,), dtype=torch.uint8, device="cuda")
    dst = torch.zeros(8 << 20, dtype=torch.uint8, device="cuda")
    with device.bind(Lane.CONTROL):
        torch.cuda.synchronize()
        device.prepare_pieces(dst, src, 2000)
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        for count in (1, 4, 5, 37, 1000):
            sizes = choose.integers(1, (7 << 20) // (16 * count), count) * 16
            gaps = choose.integers(0, 9, count) * 16
            fro = np.cumsum(sizes + gaps) - sizes
            order = choose.permutation(count)
            to = np.empty_like(fro)
            to[order] = np.cumsum(sizes[order]) - sizes[order]
            expected = torch.zeros_like(dst).cpu()
            host = src.cpu()
            for a, b, n in zip(to.tolist(), fro.tolist(), sizes.tolist(), strict=True):
                expected[a : a + n] = host[b : b + n]
            dst.zero_()
            device.copy_pieces_(dst, src, Pieces(to, fro, sizes))
            # At once again with another table: the first must not see it.
            device.copy_pieces_(dst, src, Pieces(to[::-1], fro[::-1], sizes[::-1]))
            device.synchronize()
            assert torch.equal(dst.cpu(), expected), count
        del expected
        assert torch.cuda.memory_stats()["allocation.all.allocated"] >= before


@pytest.mark.cuda
def test_verbs_on_rows_take_no_device_memory() -> None:
    session = PolicySession(Ledger(4000), device="cuda", rollback_depth=8, store_bytes=2 << 20)
    assert session.store.rows is not None
    fragment(session.store.rows, 1)
    for step in range(700):
        session.step({"told": [2, step]})
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()
    for round_ in range(5):
        session.snapshot("a", replace=True)
        session.fork("a", count=2)
        session.reset_()
        for step in range(12):
            session.step({"told": [2, step]})
        session.restore("a", seed=round_)
        session.step({"told": [2, round_]})
        session.rollback(1)
    after = torch.cuda.memory_stats()
    for counter in ("allocation.all.allocated", "segment.all.allocated"):
        assert after[counter] == before[counter], counter
    session.close()


@on_devices
def test_close_lets_go_of_all_rows(device: str) -> None:
    session = PolicySession(Ledger(), device=device)
    session.step({"told": [2, 5]})
    capsule = session.snapshot("a")
    pool = session.store.rows
    assert pool is not None
    storage = weakref.ref(session.arena.rows.untyped_storage())
    session.close()
    assert pool.memory.numel() == pool.pages == 0
    assert session._rows is None
    assert storage() is None
    capsule.segment.release()  # by whoever still read it beside
    assert pool.free == 0


def test_digest_is_of_committed_rows_alone() -> None:
    session = PolicySession(Ledger())
    session.step({"told": [1, 5]})
    digest, state = session.state_digest(), session.state_bytes()
    assert len(state) == session.layout.fixed_bytes + 32
    session.arena.rows[1:].fill_(9)
    assert (session.state_digest(), session.state_bytes()) == (digest, state)
    session.arena.state["mark"][0, 1] += 1
    assert session.state_digest() != digest


def test_runs_of_pages_join_again() -> None:
    pool = RowPool(open_device("cpu"), 32, 64 * 32 * 20)
    assert (pool.pages, pool.page_rows) == (20, 64)
    first = pool.take(20)
    assert first == [(0, 20)]
    with pytest.raises(NoMemoryError, match="1 more pages of rows of 2048 bytes each: 0 of 20"):
        pool.take(1)
    for page in (3, 5, 4, 9, 8, 0, 19):
        pool.give_back(page, 1)
    assert pool.runs() == [(0, 1), (3, 3), (8, 2), (19, 1)]
    assert pool.extend(6, 1) == 0
    assert pool.extend(8, 5) == 2
    assert sorted(pool.take(5)) == [(0, 1), (3, 3), (19, 1)]
    pool.give_back(9, 1)
    with pytest.raises(InternalError, match="freed twice"):
        pool.give_back(9, 1)
    pool.give_back(0, 9)
    pool.give_back(10, 10)
    assert pool.runs() == [(0, 20)]
    assert pool.free == 20
