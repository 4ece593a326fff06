"""Moves and loads in three phases, and what the store moves by itself.

Between the phases anything may happen: steps, drops, forks, restores, a close. What is being
copied must neither be reused nor lost.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from capsule_child import continuation
from separate_host import separate_host
from tier_sessions import DEVICE, DISK, HOST, WEIGHT, run, session_of
from toy_policies import ToyRecurrent, observations

from flashrt_ros.errors import (
    BusyError,
    FlashRTError,
    NoMemoryError,
    NotConfiguredError,
    NotFoundError,
)
from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.session import PolicySession


@pytest.fixture
def folder(tmp_path: Path) -> CapsuleFolder:
    return CapsuleFolder(tmp_path / "capsules")


@pytest.fixture
def session(folder: CapsuleFolder) -> Iterator[PolicySession]:
    session = session_of(folder)
    yield session
    session.close()


def test_steps_go_on_while_it_is_moved_and_slots_are_not_reused(session: PolicySession) -> None:
    """Dropped at once, and everything rewritten, while the copy waits for its turn."""
    run(session)
    session.snapshot("cut")
    expected = bytes(session.export("cut").by_name()["rnn.h"].data)
    move = session.begin_move("cut", HOST)
    assert move is not None
    with pytest.raises(BusyError, match=r"'cut', or a branch .*, is being moved already"):
        session.begin_move("cut", DISK)
    assert session.store.get("cut").segment.tier is DEVICE
    assert session.drop("cut") == 0, "it is still read"
    for number in range(9):
        run(session, 1)
        session.snapshot(f"s{number}")
    other = threading.Thread(target=session.carry, args=(move,))
    other.start()
    run(session, 5)
    other.join()
    assert move.target is not None
    slot = next(s for s in session.layout.state if s.spec.name == "rnn.h")
    (block_N,) = move.target.views()
    found = block_N[slot.offset : slot.offset + slot.size_bytes].numpy().tobytes()
    assert found == expected
    with pytest.raises(NotFoundError, match="'cut' was dropped while it was moved"):
        session.commit_move(move)
    used = session.store.bytes_used
    session.give_back(move)
    assert session.store.bytes_used == used - WEIGHT
    assert session.store.host_bytes_used == 0


def test_a_restore_while_it_is_moved_takes_what_is_there(session: PolicySession) -> None:
    run(session)
    session.snapshot("cut")
    digest = session.state_digest()
    for tier in (HOST, DISK):
        move = session.begin_move("cut", tier)
        assert move is not None
        run(session)
        session.restore("cut")
        assert session.state_digest() == digest
        session.fork("cut", names=(f"late-{tier.value}",))
        held = session.hold("cut")
        session.carry(move)
        session.commit_move(move)
        assert session.store.get(f"late-{tier.value}").segment.tier is tier
        assert session.read(held).facts.name == "cut", "a save reads where it was held"
        session.restore("cut")
        assert session.state_digest() == digest
    run(session, 1)
    assert session.state_digest() != digest, "control"


def test_a_closed_session_gives_all_back(session: PolicySession) -> None:
    session.snapshot("a")
    session.snapshot("b", tier=HOST)
    moves = [session.begin_move("a", HOST), session.begin_move("b", DEVICE)]
    session.close()
    for move in moves:
        assert move is not None
        with pytest.raises(NotConfiguredError, match="the session is closed"):
            session.commit_move(move)
        session.give_back(move)
    with pytest.raises(NotConfiguredError, match="the session is closed"):
        session.move("a", HOST)


def test_a_load_in_phases_is_given_back_when_its_name_was_taken(session: PolicySession) -> None:
    session.snapshot("cut")
    staged = session.stage(session.export("cut"))
    used = session.store.bytes_used
    arrival = session.begin_import(staged, "new")
    assert session.store.bytes_used == used + WEIGHT
    assert "new" not in session.store
    session.carry_import(arrival)
    session.snapshot("new")
    with pytest.raises(FlashRTError, match="capsule 'new' exists already"):
        session.commit_import(arrival)
    session.give_back_import(arrival)
    assert session.store.bytes_used == used + WEIGHT, "of the snapshot"


# What the store does by itself


def test_the_least_recently_used_goes_to_the_host_before_slots_run_out(
    session: PolicySession,
) -> None:
    """Six slots: two for the ring, four for names, of which one is to be free."""
    session.snapshot("pinned", pin=True)
    session.snapshot("a")
    session.snapshot("b")
    assert session.to_park() is None
    session.snapshot("c")
    session.restore("a")  # so b is the least recently used

    def park() -> str | None:
        capsule = session.to_park()
        if capsule is None:
            return None
        move = session.begin_move(capsule, HOST, parked=True)
        assert move is not None
        session.carry(move)
        session.commit_move(move)
        return capsule.name

    assert [park(), park()] == ["b", None]
    for name in ("d", "e", "f", "g", "h"):
        session.snapshot(name)
        assert not session.last_evicted, "nothing is evicted while the host has room"
        parked = park()
    assert parked is not None
    # In a full host those give way that were put there so, but none that was asked for.
    session.move("h", HOST)
    names = {c.name for c in session.store.list() if c.segment.tier is HOST}
    assert "h" in names
    assert len(names) == 3
    assert "b" not in session.store
    for _ in range(3):
        for capsule in [c for c in session.store.list() if c.segment.parked]:
            session.move(capsule, DEVICE)
            session.move(capsule, HOST)
    session.snapshot("i")
    assert session.to_park() is None, "the host is full of what was asked for"


def test_without_a_host_tier_nothing_is_parked() -> None:
    session = session_of(None, blocks=0)
    for number in range(9):
        session.snapshot(f"s{number}")
        assert session.to_park() is None


def test_the_forecast_counts_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(None, blocks=4)
    (item,) = [i for i in session.forecast.items if i.name == "host store"]
    assert (item.size_bytes, item.host) == (4 * WEIGHT, True)
    assert session.forecast.needed_bytes < sum(i.size_bytes for i in session.forecast.items)
    assert session.store.host_bytes_budget == 4 * WEIGHT
    with separate_host(), pytest.raises(NoMemoryError, match="lower host_store_bytes from"):
        PolicySession(ToyRecurrent(), host_store_bytes=1 << 40)


def test_a_preview_reaches_every_tier_and_holds_what_it_runs(session: PolicySession) -> None:
    run(session)
    session.snapshot("cut")
    session.fork("cut", seeds=(9,), names=("branch",))
    seen = observations(3)
    names = ("cut", "branch")
    expected = [chunk.actions_HA.tolist() for chunk in session.preview(names, seen)]
    assert expected[0] != expected[1], "control: another noise key"
    run(session)
    for tier in (HOST, DISK):
        session.move("cut", tier)
        digest = session.state_digest()
        preview = session.begin_preview(names, seen)
        found = [preview.run_next().actions_HA.tolist()]
        session.move("cut", tier)
        session.drop("branch")
        found.append(preview.run_next().actions_HA.tolist())
        preview.close()
        assert found == expected
        assert session.state_digest() == digest
        session.fork("cut", seeds=(9,), names=("branch",))
    assert session.store.bytes_used == 2 * WEIGHT, "of the ring: nothing stays held"


def test_the_branches_of_a_preview_do_not_give_way_to_each_other(session: PolicySession) -> None:
    seen = observations(3)
    session.snapshot("away", tier=DISK)
    run(session)
    session.snapshot("here")
    expected = [chunk.actions_HA.tolist() for chunk in session.preview(("away", "here"), seen)]
    session.move("away", DISK)
    for name in ("b", "c", "d"):
        run(session, 1)
        session.snapshot(name, pin=True)
    assert session.store.pool.free == 0
    found = session.preview(("away", "here"), seen)
    assert [chunk.actions_HA.tolist() for chunk in found] == expected
    # Where there is no room for all, none has gone.
    session.move("away", DISK)
    run(session, 1)
    session.snapshot("e", pin=True)
    with pytest.raises(NoMemoryError, match="no room for one more capsule"):
        session.preview(("away", "here"), seen)
    assert {"away", "here"} <= {c.name for c in session.store.list()}
    assert all(c.segment.place.holders == 1 for c in session.store.list())


def test_a_move_makes_no_capsule_more(
    session: PolicySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many have a name: nobody gives way to one that has its name already."""
    for name in ("parked", "b", "c"):
        session.snapshot(name)
    parked = session.begin_move("parked", HOST, parked=True)
    assert parked is not None
    session.carry(parked)
    session.commit_move(parked)
    monkeypatch.setattr("flashrt_ros.runtime.store.MAX_CAPSULES", 3)
    assert session.move("parked", DEVICE).segment.tier is DEVICE
    assert {c.name for c in session.store.list() if not c.automatic} == {"parked", "b", "c"}
    # And who is on the way to where nobody gives way does not, either.
    moving = session.begin_move("b", HOST)
    assert moving is not None
    session.store.touch(session.store.get("parked"))
    session.snapshot("d")
    session.carry(moving)
    assert session.last_evicted == ["c"]
    session.commit_move(moving)
    assert session.store.get("b").segment.tier is HOST


def test_a_file_that_is_gone_is_written_again(
    session: PolicySession, folder: CapsuleFolder
) -> None:
    """Else the only copy would be given up for a file that somebody has removed."""
    run(session)
    session.snapshot("cut", tier=DISK)
    expected = continuation(session, 12)
    for harm in ("removed", "shortened", "replaced"):
        session.restore("cut")
        (file,) = folder.files()
        path = folder.path / file
        if harm == "shortened":
            path.write_bytes(path.read_bytes()[:-1])
        else:
            path.unlink()
        if harm == "replaced":
            path.mkdir()
        assert session.move("cut", DISK).segment.tier is DISK
        (other,) = (name for name in folder.files() if name != file)
        session.restore("cut")
        assert continuation(session, 12) == expected
        if harm == "replaced":
            path.rmdir()
        assert folder.files() == [other]
    session.drop("cut")
    session.close()
    assert folder.files() == []
