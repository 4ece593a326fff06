"""Capsules in host memory and on disk: moved whole or not at all, and never lost on the way.

A tier is a property of the bytes. So branches move together, what is being copied is not reused,
and a robot that restores from there goes on as it did; with another capsule as the control.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from capsule_child import continuation
from row_images import ledger
from separate_host import separate_host
from tier_sessions import DEVICE, DISK, HOST, WEIGHT, run, session_of, standing
from toy_policies import ToyRecurrent

from flashrt_ros.errors import (
    CorruptError,
    FlashRTError,
    InvalidArgumentError,
    NoMemoryError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.place import Tier
from flashrt_ros.runtime.session import PolicySession


@pytest.fixture
def folder(tmp_path: Path) -> CapsuleFolder:
    return CapsuleFolder(tmp_path / "capsules")


@pytest.fixture
def session(folder: CapsuleFolder) -> Iterator[PolicySession]:
    session = session_of(folder)
    yield session
    session.close()


@pytest.mark.parametrize("way", [(HOST,), (DISK,), (HOST, DISK), (DISK, HOST), (HOST, DISK, HOST)])
def test_what_was_elsewhere_continues_bit_equally(
    session: PolicySession, way: tuple[Tier, ...]
) -> None:
    run(session)
    session.snapshot("cut")
    expected = continuation(session, 20)
    session.snapshot("other")
    (branch,) = session.fork("cut", seeds=(8,), names=("branch",))
    used = session.store.bytes_used
    for tier in way:
        moved = session.move("cut", tier)
        assert moved.segment.tier is tier
        assert session.store.get("branch").segment is moved.segment, "branches move together"
        assert session.store.bytes_used == used - WEIGHT
    (late,) = session.fork("cut", seeds=(9,), names=("late",))
    assert late.segment is branch.segment
    assert session.store.bytes_used == used - WEIGHT, "a fork copies nothing, wherever it lies"
    session.restore("cut")
    assert session.store.get("cut").segment.tier is DEVICE
    assert continuation(session, 20) == expected
    session.restore("branch")
    assert continuation(session, 20) != expected, "control: another noise key"
    session.restore("other")
    assert continuation(session, 20) != expected, "control: another capsule"
    assert session.store.host_bytes_used == 0


def test_rows_go_with_it(folder: CapsuleFolder) -> None:
    with separate_host():
        session = ledger(host_store_bytes=10_000, folder=folder)  # type: ignore[arg-type]
    for step in range(6):
        session.step({"told": [2, step]})
    session.snapshot("cut")
    digest = session.state_digest()
    for step in range(4):
        session.step({"told": [1, step + 50]})
    session.snapshot("more")
    for tier in (HOST, DISK, HOST):
        session.move("cut", tier)
        session.restore("more")
        session.step({"told": [1, 60]})
        assert session.host.rows == 17
        session.restore("cut")
        assert session.host.rows == 12
        assert session.state_digest() == digest
        assert session.rollback() == 0, "to the parent, which it is"
    session.step({"told": [1, 1]})
    assert session.state_digest() != digest, "control"
    session.close()


def test_rollback_goes_to_a_parent_in_another_tier(session: PolicySession) -> None:
    run(session)
    session.snapshot("parent")
    digest = session.state_digest()
    for tier in (HOST, DISK):
        run(session, 4)
        session.move("parent", tier)
        assert session.rollback() == 4
        assert session.state_digest() == digest
        assert session.capsule_id == session.store.get("parent").id
    run(session, 1)
    assert session.state_digest() != digest, "control"


def test_housekeeping_reaches_every_tier(session: PolicySession, folder: CapsuleFolder) -> None:
    for name, tier in (("a", DEVICE), ("b", HOST), ("c", DISK)):
        run(session, 1)
        made = session.snapshot(name, tier=tier)
        assert session.store.get(name).segment.tier is tier
        expected = session.state_digest()
        session.store.pin(name)
        image = session.export(name)
        assert image.facts.id == made.id
        session.import_(image, f"{name}-again")
        session.restore(f"{name}-again")
        assert session.state_digest() == expected
        session.drop(f"{name}-again")
    (file,) = folder.files()
    assert re.fullmatch(r"c\.[0-9a-f]{12}\.capsule", file)
    assert session.path_of(session.store.get("c")) == folder.path / file
    assert folder.load(file).facts.name == "c"
    assert [session.store.unique_bytes(session.store.get(n)) for n in "ab"] == [WEIGHT, WEIGHT]
    assert session.drop("b", force=True) == WEIGHT
    size = (folder.path / file).stat().st_size
    assert session.drop("c", force=True) == size
    assert session.files_to_remove
    session.remove_files()
    assert not folder.files()
    assert session.store.host_bytes_used == 0


def test_a_file_stays_when_its_capsule_comes_back_and_takes_it_again_without_a_copy(
    session: PolicySession, folder: CapsuleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.snapshot("cut", tier=DISK)
    session.restore("cut")
    (file,) = folder.files()

    def never(*arguments: object) -> None:
        raise AssertionError("nothing is to be copied")

    with monkeypatch.context() as patch:
        patch.setattr(session.device, "carry", never)
        patch.setattr(CapsuleFolder, "save", never)
        session.move("cut", DISK)
    # Pressure on the device sends it back there, too, instead of evicting it.
    session.restore("cut")
    for number in range(8):
        run(session, 1)
        session.snapshot(f"s{number}")
        assert "cut" not in session.last_evicted
    assert session.store.get("cut").segment.tier is DISK
    assert "s0" not in session.store, "control: who has no file goes"
    assert folder.files() == [file]
    session.restore("cut")


def test_pressure_on_the_device_leaves_other_tiers_alone(session: PolicySession) -> None:
    session.snapshot("host", tier=HOST)
    session.snapshot("disk", tier=DISK)
    for number in range(20):
        run(session, 1)
        session.snapshot(f"s{number}")
    assert {"host", "disk"} <= {c.name for c in session.store.list()}
    assert "s0" not in session.store


# Refusals


def test_tiers_that_are_not_there_say_why(folder: CapsuleFolder) -> None:
    shared = PolicySession(ToyRecurrent(), host_store_bytes=1 << 20)
    assert shared.store.host is None
    assert not any(item.name == "host store" for item in shared.forecast.items)
    shared.snapshot("a")
    none = session_of(None, blocks=0)
    none.snapshot("a")
    cases = [
        (shared, HOST, "tier 'host': on cpu host and device are one memory, so a move would free"),
        (none, HOST, "parameter host_store_bytes: expected more than 0, found 0"),
        (none, DISK, "tier 'disk': expected a folder for capsule files, found none"),
    ]
    for session, tier, words in cases:
        before = standing(session)
        for call in (
            lambda s=session, t=tier: s.move("a", t),
            lambda s=session, t=tier: s.snapshot("b", tier=t),
        ):
            with pytest.raises(UnsupportedError, match=words):
                call()
        assert standing(session) == before


def test_a_full_tier_says_so_with_figures_and_changes_nothing(session: PolicySession) -> None:
    for name in ("a", "b", "c"):
        session.snapshot(name, tier=HOST)
    session.snapshot("d")
    before = standing(session)
    words = rf"tier 'host': no room for {WEIGHT} bytes: {3 * WEIGHT} of {3 * WEIGHT} bytes"
    for call in (lambda: session.move("d", HOST), lambda: session.snapshot("e", tier=HOST)):
        with pytest.raises(NoMemoryError, match=words):
            call()
    assert standing(session) == before
    session.drop("b")
    session.move("d", HOST)
    # Nor comes anything back where there is no room, however it is asked for.
    for number in range(6):
        session.snapshot(f"pinned{number}", pin=True)
    before = standing(session)
    for back in (lambda: session.move("a", DEVICE), lambda: session.restore("a")):
        with pytest.raises(NoMemoryError, match=r"no room for one more capsule .* 6 are pinned"):
            back()
    assert standing(session) == before
    session.drop("pinned0", force=True)
    session.restore("a")


def test_boundaries_of_the_ring_stay_where_they_are(session: PolicySession) -> None:
    run(session)
    boundary = next(c for c in session.store.list() if c.automatic)
    with pytest.raises(InvalidArgumentError, match="belongs to the rollback ring"):
        session.move(boundary, HOST)
    session.fork(boundary, names=("branch",))
    session.move("branch", HOST)  # and with it the bytes of the boundary
    digest = session.state_digest()
    run(session, 1)
    session.rollback(1)
    assert session.state_digest() == digest


def test_a_copy_that_fails_leaves_all_as_it_was(
    session: PolicySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.snapshot("here")
    session.snapshot("there", tier=HOST)

    def broken(pairs: object) -> None:
        raise RuntimeError("the bus is gone")

    before = standing(session)
    with monkeypatch.context() as patch:
        patch.setattr(session.device, "carry", broken)
        for name, tier in (("here", HOST), ("here", DISK), ("there", DEVICE), ("there", DISK)):
            with pytest.raises(RuntimeError, match="the bus is gone"):
                session.move(name, tier)
            assert standing(session) == before
        with pytest.raises(RuntimeError, match="the bus is gone"):
            session.restore("there")
        assert standing(session) == before
    session.restore("there")


def test_a_disk_that_fails_leaves_all_as_it_was(
    session: PolicySession, folder: CapsuleFolder
) -> None:
    session.snapshot("here")
    folder.path.mkdir()
    folder.path.chmod(0o500)
    folder.path.rename(folder.path.with_name("gone"))
    folder.path.write_text("no folder")
    before = session.state_digest(), session.store.bytes_used
    with pytest.raises(StorageError, match="expected a folder for capsule files"):
        session.move("here", DISK)
    assert (session.state_digest(), session.store.bytes_used) == before
    assert session.store.get("here").segment.tier is DEVICE
    folder.path.unlink()
    session.move("here", DISK)


def _flip(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


@pytest.mark.parametrize("damage", ["flipped", "short", "gone", "another"])
def test_a_file_that_was_changed_is_refused_and_changes_nothing(
    session: PolicySession, folder: CapsuleFolder, damage: str
) -> None:
    session.snapshot("cut", tier=DISK)
    (file,) = folder.files()
    path = folder.path / file
    raw = path.read_bytes()
    run(session, 1)
    session.snapshot("other")
    errors: dict[str, tuple[type[FlashRTError], str]] = {
        "flipped": (CorruptError, "bytes of buffer 'trace' were changed"),
        "short": (CorruptError, "truncated"),
        "gone": (NotFoundError, "expected a file or folder, found none"),
        "another": (CorruptError, "which was moved here, found"),
    }
    if damage == "gone":
        path.unlink()
    elif damage == "another":
        folder.save(session.export("other"), file, replace=True)
    else:
        path.write_bytes(_flip(raw) if damage == "flipped" else raw[:-9])
    # Nobody gives way to it before it is known to be whole, though the device is full.
    for number in range(4):
        run(session, 1)
        session.snapshot(f"s{number}")
    assert not session.store.pool.free
    before = standing(session)
    error, words = errors[damage]
    for call in (
        lambda: session.restore("cut"),
        lambda: session.move("cut", HOST),
        lambda: session.export("cut"),
    ):
        with pytest.raises(error, match=words):
            call()
        assert standing(session) == before
    path.write_bytes(raw)
    session.restore("cut")


def test_two_that_loaded_one_capsule_do_not_share_the_file_of_a_move(
    session: PolicySession, folder: CapsuleFolder
) -> None:
    """As after a fork across processes, with one folder for both."""
    other = session_of(folder)
    session.snapshot("cut")
    image = session.export("cut")
    assert other.import_(image).id == session.store.get("cut").id
    for one in (session, other):
        one.move("cut", DISK)
    assert len(folder.files()) == 2
    session.drop("cut")
    session.remove_files()
    other.restore("cut")
    other.close()
