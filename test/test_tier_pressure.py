"""Who gives way between tiers, and which files go: nothing that is wanted, nothing late.

What the node does by itself, and what clients do at the same time, must not undo one another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_rig import Rig
from tier_rig import LIMIT_S, Gate, ask, finish, kinds, pump, rig_of, tiers

from flashrt_ros.errors import ErrorCode, NotConfiguredError
from flashrt_ros.ros.records import EventKind
from flashrt_ros.ros.storage import Where
from flashrt_ros.ros.verbs import Verb, done


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = rig_of(tmp_path)
    yield rig
    rig.storage.close()


def test_a_file_goes_when_the_last_who_holds_it_is_done(rig: Rig, tmp_path: Path) -> None:
    """Nobody asks again for one that is dropped while it is saved, or while a move brings it."""
    assert ask(rig, "snapshot", name="cut", tier="disk").code is ErrorCode.NONE
    for name in ("saved", "moved", "written"):
        assert ask(rig, "snapshot", name=name).code is ErrorCode.NONE
        if name != "written":
            assert ask(rig, "move_capsule", name=name, tier="disk").code is ErrorCode.NONE
    held = threading.Event()
    stuck = Verb("stuck", lambda handlers, verb: None, 0, 2**63 - 1)

    def wait() -> Any:
        yield Where.STORAGE
        assert held.wait(LIMIT_S)
        return done("")

    rig.storage.run(stuck, wait())
    calls = [
        rig.call("save_capsule", name="saved", file="kept"),
        rig.call("move_capsule", name="moved", tier="device"),
        rig.call("move_capsule", name="written", tier="disk"),
    ]
    for name in ("saved", "moved", "written"):
        rig.call("drop_capsule", name=name)
    held.set()
    answers = [finish(rig, verb) for verb, _ in calls]
    assert [a.code for a in answers] == [ErrorCode.NONE, *[ErrorCode.NOT_FOUND] * 2]
    pump(rig, lambda: not rig.storage._running)
    left = {path.name.partition(".")[0] for path in (tmp_path / "capsules").iterdir()}
    assert left == {"cut", "kept"}
    assert rig.storage.close(LIMIT_S)


def test_the_branches_of_a_preview_do_not_give_way_to_each_other(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, slots=66, blocks=0)
    assert ask(rig, "snapshot", name="away", tier="disk").code is ErrorCode.NONE
    rig.ask("snapshot", name="here")
    rig.ask("snapshot", name="newer")
    while rig.session.store.pool.free or len(rig.session._ring.ids()) > 1:
        rig.ask("snapshot", pin=True)
        rig.tick()
    verb, _ = rig.call("preview", names=["away", "here"])
    pump(rig, lambda: verb.result is not None or rig.stepper.previewer.waiting)
    assert verb.result is None, verb.result
    there = tiers(rig)
    assert (there["away"], there["here"], "newer" in there) == ("device", "device", False)
    rig.stepper.previewer.end(NotConfiguredError("the test is over"))
    assert all(c.segment.place.holders == 1 for c in rig.session.store.list())
    rig.storage.close()


def test_a_snapshot_for_another_tier_is_not_moved_elsewhere_meanwhile(tmp_path: Path) -> None:
    """Where slots are short the node moves capsules to the host: never the one in its hands."""
    rig = rig_of(tmp_path, slots=10)  # the ring has 8
    rig.tick(10)
    rig.ask("snapshot", name="pinned", pin=True)
    answer = ask(rig, "snapshot", name="cut", tier="disk")
    assert answer.code is ErrorCode.NONE, answer.message
    assert tiers(rig) == {"pinned": "device", "cut": "disk"}
    # The control: without a tier of its own it is the one to go to the host.
    rig.ask("snapshot", name="other")
    pump(rig, lambda: not rig.storage._running)
    assert tiers(rig)["other"] == "host"


def test_what_is_about_to_leave_is_not_said_to_be_there(rig: Rig) -> None:
    """Who is told that a capsule lies on the device relies on it."""
    rig.ask("snapshot", name="cut")
    gate = Gate(rig)
    verb, _ = rig.call("move_capsule", name="cut", tier="host")
    assert gate.reached.wait(LIMIT_S)
    busy = rig.ask("move_capsule", name="cut", tier="device")
    assert (busy.code, "is being moved already" in busy.message) == (ErrorCode.BUSY, True)
    gate.opened.set()
    assert finish(rig, verb).code is ErrorCode.NONE
    assert ask(rig, "move_capsule", name="cut", tier="device").code is ErrorCode.NONE
    there = rig.ask("move_capsule", name="cut", tier="device")
    assert "lies in tier 'device' already" in there.message


def test_a_file_that_is_gone_is_named_with_its_capsule(rig: Rig, tmp_path: Path) -> None:
    assert ask(rig, "snapshot", name="cut", tier="disk").code is ErrorCode.NONE
    (path,) = (tmp_path / "capsules").iterdir()
    path.rename(tmp_path / "elsewhere")
    for service, fields in (
        ("restore", {}),
        ("preview", {"names": ["cut"]}),
        ("save_capsule", {}),
    ):
        answer = ask(rig, service, **{"name": "cut", **fields})
        assert answer.code is ErrorCode.NOT_FOUND
        for words in (
            path.name,
            "capsule 'cut' lies in this file only: bring it back, or drop it",
        ):
            assert words in answer.message, service
    (tmp_path / "elsewhere").rename(path)
    assert ask(rig, "restore", name="cut").code is ErrorCode.NONE


def test_a_drop_of_what_the_node_moves_by_itself_is_no_fault(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, slots=11)
    rig.tick(10)
    gate = Gate(rig)
    for name in ("a", "b", "c"):
        rig.ask("snapshot", name=name)
    assert gate.reached.wait(LIMIT_S)
    assert tiers(rig) == dict.fromkeys("abc", "device")
    rig.ask("drop_capsule", name="a")
    gate.opened.set()
    pump(rig, lambda: not rig.storage._running)
    assert "a" not in tiers(rig)
    assert not [words for words in rig.out.words if "tier 'host'" in words]
    rig.storage.close()


def test_named_capsules_go_to_the_host_before_slots_run_out(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, slots=8 + 4, blocks=5)
    for number in range(8):
        rig.tick()
        answer = rig.ask("snapshot", name=f"s{number}")
        assert answer.fields["evicted"] == []
        pump(rig, lambda: not rig.handlers._parking)
    found = tiers(rig)
    assert len(found) == 8, "nothing was evicted"
    assert [n for n, tier in found.items() if tier == "host"] == [f"s{n}" for n in range(5)]
    moves = [(name, tier) for kind, name, tier in kinds(rig) if kind is EventKind.MOVE]
    assert moves == [(f"s{n}", "host") for n in range(5)]
    assert EventKind.EVICT not in [kind for kind, _, _ in kinds(rig)]
    # Where the host is full, what the store has put there gives way first.
    rig.tick()
    rig.ask("snapshot", name="s8")
    pump(rig, lambda: not rig.handlers._parking)
    assert (EventKind.EVICT, "s0", "") in kinds(rig)
    assert "s1" in tiers(rig)
    rig.storage.close()
