"""Spare states take the place of the live one under fixed addresses, by mapping or by copies.

Both must give the same bytes, since captured graphs look at addresses alone. Mapping has states
that copies have not: an exchange that fails half-way must leave the live state in its place or say
that nothing is, and no address may lose its memory while somebody holds a tensor there.
"""

from __future__ import annotations

import gc
import mmap
import random
import threading

import pytest
import torch
from paged_memory import PagedMemory, paged

from flashrt_ros.errors import InternalError, NoMemoryError
from flashrt_ros.runtime.device import LIVE, StateMemory, open_device
from flashrt_ros.runtime.device.mapped_state import MappedState, cut

PAGE = mmap.PAGESIZE
FIXED, ROWS = 2 * 256, 11 * PAGE + 1024
"""Rows make three pieces of four pages each."""


@pytest.fixture(name="memory")
def _memory() -> object:
    with paged(piece_bytes=3 * PAGE) as memory:
        yield memory


def make(sets: int = 2) -> StateMemory:
    return open_device("cpu").allocate_state(FIXED, ROWS, sets)


def fill(state: StateMemory) -> None:
    """Gives each state bytes of its own."""
    for number, each in ((LIVE, state), *enumerate(state.sets)):
        each.fixed.fill_(10 + number)
        each.rows.fill_(20 + number)


def test_pieces_are_few_and_hold_everything() -> None:
    mib = 1 << 20
    assert cut(4096, 0, 2 * mib) == ((2 * mib,), 4096)
    assert cut(64 * mib, 1535 * mib, 2 * mib) == ((1600 * mib,), 64 * mib)
    assert cut(64 * mib, 1600 * mib, 2 * mib) == (
        (64 * mib, 534 * mib, 534 * mib, 532 * mib),
        64 * mib,
    )
    for rows in range(1536 * mib, 6000 * mib, 123_457_024):
        sizes, start = cut(256, rows, 2 * mib)
        assert start == 2 * mib
        assert 0 <= sum(sizes[1:]) - rows < 2 * mib * len(sizes)
        assert len(sizes) - 1 <= rows // (512 * mib)
        assert all(size % (2 * mib) == 0 for size in sizes)


@pytest.mark.parametrize("mapping", [False, True])
def test_a_placed_set_is_what_the_addresses_show(mapping: bool) -> None:
    with paged(3 * PAGE) as memory:
        state = make() if mapping else None
    if state is None:
        state = make()
    assert isinstance(state, MappedState) == mapping
    where = state.fixed.data_ptr(), state.rows.data_ptr()
    assert not state.fixed.any()
    assert not state.rows.any()
    fill(state)
    kept = state.kept(9 * PAGE)
    assert kept == (8 * PAGE if mapping else 9 * PAGE)
    state.place(1, kept, ROWS)
    assert (state.placed, state.away) == (1, True)
    assert (state.fixed == 11).all()
    assert (state.rows[:kept] == 19).all()
    assert (state.rows[kept:] == 21).all()
    state.fixed[3] = 77  # as a graph would
    state.rows[-1] = 78
    state.place(0, 0, ROWS)  # from set to set
    assert (state.fixed == 10).all()
    assert (state.rows == 20).all()
    state.place_live()
    state.place_live()
    assert (state.placed, state.away) == (LIVE, False)
    assert (state.fixed == 9).all()
    assert (state.rows == 19).all()
    assert state.sets[1].fixed[3] == 77
    assert state.sets[1].rows[-1] == 78
    assert where == (state.fixed.data_ptr(), state.rows.data_ptr())
    state.close()
    del state
    gc.collect()
    assert memory.empty


def test_unused_rows_are_not_exchanged(memory: PagedMemory) -> None:
    state = make()
    fill(state)
    maps = memory.calls["map"]
    state.place(0, 4 * PAGE, 5 * PAGE)
    assert memory.calls["map"] - maps == 2  # the fixed part, and the second piece of rows
    assert (state.rows[4 * PAGE : 8 * PAGE] == 20).all()
    assert (state.rows[8 * PAGE :] == 19).all()
    state.place_live()
    maps = memory.calls["map"]
    state.place(0, 0, ROWS)
    assert memory.calls["map"] - maps == 4  # the control: all


def test_nothing_is_created_by_an_exchange(memory: PagedMemory) -> None:
    state = make()
    made = {call: memory.calls[call] for call in ("reserve", "create", "wrap", "release", "free")}
    for turn in range(20):
        state.place(turn % 2, state.kept(turn * PAGE // 2), ROWS)
        state.place_live()
    assert made == {call: memory.calls[call] for call in made}


def test_memory_outlives_the_session_as_long_as_somebody_looks(memory: PagedMemory) -> None:
    for order in (0, 1, 2):
        state = make()
        fill(state)
        live, spare = state.fixed[5:9], state.sets[0].rows.view(torch.int32)[7:]
        state.place(0, 0, ROWS)  # closed with a set in place: the live state is put back
        state.close()
        state.close()
        assert live.tolist() == [9] * 4
        assert (spare == 0x14141414).all()
        assert not memory.empty
        if order == 0:
            del state, live, spare
        elif order == 1:
            del live, state, spare
        else:
            del spare, live, state
        gc.collect()
        assert memory.empty


def test_who_forgets_to_close_leaks_nothing(memory: PagedMemory) -> None:
    state = make()
    held = state.rows
    del state
    gc.collect()
    assert not memory._handles
    assert not held.any()
    # The last view goes in another thread.
    box = [held]
    del held
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert memory.empty


def test_addresses_are_freed_later_where_that_must_not_be_now(memory: PagedMemory) -> None:
    state = make()
    memory.busy = True
    state.close()
    del state
    gc.collect()
    assert memory._mappings  # the control: not freed yet
    memory.busy = False
    memory.settled()
    assert memory.empty


CALLS_OF_A_START = [("reserve", 3), ("create", 12), ("map", 12), ("allow", 3), ("wrap", 3)]


@pytest.mark.parametrize("error", [NoMemoryError, InternalError])
@pytest.mark.parametrize(("call", "most"), CALLS_OF_A_START)
def test_a_failing_start_keeps_nothing(
    call: str, most: int, error: type[Exception], memory: PagedMemory
) -> None:
    for at in range(1, most + 1):
        memory.fail(call, at, error)
        with pytest.raises(error, match=f"{call} fails as told"):
            make()
        gc.collect()
        assert memory.empty, at
    calls = memory.calls[call]
    make()
    assert memory.calls[call] - calls == most  # the control: none was left out


@pytest.mark.parametrize("call", ["unmap", "map", "allow"])
def test_a_failing_exchange_leaves_the_live_state_in_place(call: str, memory: PagedMemory) -> None:
    state = make()
    fill(state)
    tried = 0
    for at in range(1, 8):
        memory.fail(call, at)
        try:
            state.place(1, 4 * PAGE, ROWS)
        except NoMemoryError:
            tried += 1
            assert not state.away
        else:
            assert state.placed == 1
            memory.heal()
            state.place_live()
        assert (state.fixed == 9).all()
        assert (state.rows == 19).all()
    # Two runs of pieces differ, of three pieces in all: the first, and all but the kept one.
    assert tried == {"unmap": 2, "map": 3, "allow": 2}[call]


@pytest.mark.parametrize("call", ["unmap", "map", "allow"])
def test_what_cannot_be_put_back_is_said_and_can_be_tried_again(
    call: str, memory: PagedMemory
) -> None:
    state = make()
    fill(state)
    memory.fail(call, 1)
    memory.fail(call, 2)
    with pytest.raises(InternalError, match=r"could not be put back .* it is whole") as caught:
        state.place(0, 0, ROWS)
    assert isinstance(caught.value.__context__, NoMemoryError)
    assert state.away
    assert state.placed == LIVE
    assert state.lost == f"{call} fails as told"
    memory.fail(call, 1)
    with pytest.raises(InternalError):
        state.place_live()
    assert state.lost
    state.place_live()
    assert (state.lost, state.away) == ("", False)
    assert (state.fixed == 9).all()
    assert (state.rows == 19).all()
    # The way back from a set may fail as well.
    state.place(0, 0, ROWS)
    memory.fail(call, 1)
    with pytest.raises(InternalError):
        state.place_live()
    state.place_live()
    assert (state.fixed == 9).all()
    assert (state.sets[0].fixed == 10).all()
    # Closed while nothing is in place: no crash, no leak.
    memory.fail(call, 1)
    memory.fail(call, 2)
    memory.fail(call, 3)
    with pytest.raises(InternalError):
        state.place(0, 0, ROWS)
    state.close()
    memory.heal()
    del state, caught
    gc.collect()
    assert memory.empty


def test_random_exchanges_with_failures_show_what_was_written(memory: PagedMemory) -> None:
    choose = random.Random(3)
    state = make(sets=3)
    fill(state)
    failures = 0
    for _ in range(1000):
        kept = state.kept(choose.randrange(ROWS))
        used = choose.randrange(kept, ROWS + 1)
        number = choose.randrange(3)
        if choose.random() < 0.3:
            memory.fail(choose.choice(("unmap", "map", "allow")), choose.randrange(1, 5))
        try:
            state.place(number, kept, used)
            assert (state.fixed == 10 + number).all()
            assert (state.rows[:kept] == 19).all()
            assert (state.rows[kept:used] == 20 + number).all()
            if choose.random() < 0.5:
                state.place_live()
        except (NoMemoryError, InternalError):
            failures += 1
        memory.heal()
        if state.away and state.placed == LIVE:
            state.place_live()
        if not state.away:
            assert (state.fixed == 9).all()
            assert (state.rows == 19).all()
    assert failures > 50
