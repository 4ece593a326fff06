"""Tiers as services: the control thread never waits for a copy, and nothing moves by surprise.

The tests hold copies still while control steps go on, as ``test_storage.py`` does with a disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_rig import Rig
from tier_rig import LIMIT_S, Gate, ask, finish, kinds, pump, rig_of, tiers

from flashrt_ros.errors import ErrorCode, NotConfiguredError
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.records import EventKind
from flashrt_ros.ros.storage import PENDING


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = rig_of(tmp_path)
    yield rig
    rig.storage.close()


def test_a_snapshot_in_another_tier_is_answered_when_it_lies_there(rig: Rig) -> None:
    gate = Gate(rig)
    rig.tick(3)
    verb, answer = rig.call("snapshot", name="cut", tier="host")
    assert answer is None
    assert gate.reached.wait(LIMIT_S)
    rig.tick(5)
    assert rig.mode is Mode.RUNNING
    assert verb.result is None
    assert tiers(rig) == {"cut": "device"}
    gate.opened.set()
    done = finish(rig, verb)
    assert done.code is ErrorCode.NONE, done.message
    assert "before step 3" in done.message
    assert done.message.endswith("it lies in tier 'host'")
    assert (done.fields["capsule"].tier, done.fields["capsule"].step) == ("host", 3)
    assert tiers(rig) == {"cut": "host"}
    assert kinds(rig) == [(EventKind.SNAPSHOT, "cut", ""), (EventKind.MOVE, "cut", "host")]
    assert gate.thread is not threading.current_thread()
    listed = rig.ask("list_capsules")
    assert listed.fields["host_bytes_used"] == rig.session.layout.fixed_bytes
    assert listed.fields["host_bytes_budget"] == 3 * rig.session.layout.fixed_bytes


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_restore_from_another_tier_waits_for_it_while_steps_go_on(rig: Rig, tier: str) -> None:
    rig.tick(3)
    rig.ask("snapshot", name="cut")
    digest = rig.session.state_digest()
    rig.ask("fork", name="cut", names=["branch"])
    rig.tick(4)
    moved = ask(rig, "move_capsule", name="cut", tier=tier)
    assert moved.code is ErrorCode.NONE, moved.message
    path = moved.fields["path"]
    assert Path(path).exists() if tier == "disk" else path == ""
    assert tiers(rig) == {"cut": tier, "branch": tier}
    gate = Gate(rig)
    generation = rig.session.generation
    verb, answer = rig.call("restore", name="cut")
    assert answer is None
    pump(rig, gate.reached.is_set)
    rig.tick(2)
    assert rig.mode is Mode.RUNNING
    assert rig.session.generation == generation
    assert rig.session.state_digest() != digest
    gate.opened.set()
    restored = finish(rig, verb)
    assert restored.code is ErrorCode.NONE, restored.message
    assert rig.session.state_digest() == digest
    assert rig.session.host.step == 3
    assert rig.mode is Mode.HOLDING
    assert restored.fields["capsule"].tier == "device"
    assert tiers(rig) == {"cut": "device", "branch": "device"}


def test_a_rollback_to_a_parent_in_another_tier(rig: Rig) -> None:
    rig.tick(2)
    assert ask(rig, "snapshot", name="parent", tier="disk").code is ErrorCode.NONE
    digest = rig.session.state_digest()
    rig.tick(3)
    back = ask(rig, "rollback")
    assert (back.code, back.fields["steps_back"]) == (ErrorCode.NONE, 3)
    assert rig.session.state_digest() == digest


def test_a_restore_whose_time_is_up_is_not_carried_out_later(rig: Rig) -> None:
    """A robot must not jump back when nobody waits for it any more."""
    rig.tick(3)
    assert ask(rig, "snapshot", name="cut", tier="host").code is ErrorCode.NONE
    rig.tick(2)
    gate = Gate(rig)
    verb, _ = rig.call("restore", name="cut", publish=True)
    assert gate.reached.wait(LIMIT_S)
    assert verb.expire(verb.deadline_ns)
    generation, digest = rig.session.generation, rig.session.state_digest()
    gate.opened.set()
    pump(rig, lambda: tiers(rig)["cut"] == "device")
    assert (rig.session.generation, rig.session.state_digest()) == (generation, digest)
    assert verb.settle()
    assert verb.result is not None
    assert verb.result.code is ErrorCode.TIMEOUT, "so a retry with the same id tries anew"
    assert "lies on the device now, but its time was up" in verb.result.message
    assert rig.ask("restore", name="cut").code is ErrorCode.NONE


def test_a_drop_takes_the_file_of_a_move_but_not_a_saved_one(rig: Rig, tmp_path: Path) -> None:
    rig.ask("snapshot", name="cut")
    assert ask(rig, "save_capsule", name="cut").code is ErrorCode.NONE
    path = Path(ask(rig, "move_capsule", name="cut", tier="disk").fields["path"])
    assert path.exists()
    assert rig.ask("get_capsule", name="cut").fields["metadata"].count(str(path)) == 1
    size = path.stat().st_size
    dropped = ask(rig, "drop_capsule", name="cut")
    assert (dropped.code, dropped.fields["bytes_freed"]) == (ErrorCode.NONE, size)
    assert [p.name for p in (tmp_path / "capsules").iterdir()] == ["cut.capsule"]
    # So it goes when another takes its place; the file of the new one stays.
    old = Path(ask(rig, "snapshot", name="x", tier="disk") and rig.session.folder.path)
    (file,) = (p for p in old.iterdir() if p.name.startswith("x."))
    assert ask(rig, "snapshot", name="x", tier="disk", replace=True).code is ErrorCode.NONE
    pump(rig, lambda: not file.exists())
    assert len([p for p in old.iterdir() if p.name.startswith("x.")]) == 1


def test_refusals_leave_all_as_it_was(rig: Rig) -> None:
    rig.ask("snapshot", name="cut")
    for name in ("a", "b", "c"):
        assert ask(rig, "snapshot", name=name, tier="host").code is ErrorCode.NONE
    cases = [
        ("snapshot", {"tier": "moon"}, ErrorCode.INVALID_ARGUMENT, "'device', 'host', 'disk'"),
        ("move_capsule", {"name": "cut"}, ErrorCode.INVALID_ARGUMENT, "found ''"),
        ("move_capsule", {"name": "x", "tier": "host"}, ErrorCode.NOT_FOUND, "no capsule 'x'"),
        ("move_capsule", {"name": "cut", "tier": "host"}, ErrorCode.NO_MEMORY, "bytes are held"),
        ("snapshot", {"name": "n", "tier": "host"}, ErrorCode.NO_MEMORY, "bytes are held"),
    ]
    before = rig.session.state_digest(), tiers(rig), len(rig.out.events)
    for service, fields, code, words in cases:
        answer = ask(rig, service, **fields)
        assert (answer.code, words in answer.message) == (code, True), answer.message
    assert (rig.session.state_digest(), tiers(rig), len(rig.out.events)) == before
    there = ask(rig, "move_capsule", name="a", tier="host")
    assert (there.code, "already" in there.message) == (ErrorCode.NONE, True)
    assert ask(rig, "move_capsule", name="a", tier="device").code is ErrorCode.NONE


def test_a_snapshot_whose_move_fails_stays_and_says_so(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "capsules").write_text("no folder")
    answer = ask(rig, "snapshot", name="cut", tier="disk")
    assert answer.code is ErrorCode.IO_ERROR
    assert answer.message.startswith("capsule 'cut' was made and lies on the device: ")
    assert tiers(rig) == {"cut": "device"}


def test_a_capsule_that_is_dropped_while_it_is_moved(rig: Rig) -> None:
    rig.ask("snapshot", name="cut")
    gate = Gate(rig)
    verb, _ = rig.call("move_capsule", name="cut", tier="host")
    assert gate.reached.wait(LIMIT_S)
    assert rig.ask("drop_capsule", name="cut").fields["bytes_freed"] == 0
    used = rig.session.store.bytes_used
    gate.opened.set()
    answer = finish(rig, verb)
    assert answer.code is ErrorCode.NOT_FOUND
    assert "was dropped while it was moved" in answer.message
    assert rig.session.store.bytes_used == used - rig.session.layout.fixed_bytes
    assert rig.session.store.host_bytes_used == 0


def test_a_load_copies_beside_steps_and_is_given_back_if_its_name_is_taken(rig: Rig) -> None:
    rig.ask("snapshot", name="cut")
    ask(rig, "save_capsule", name="cut", file="kept")
    gate = Gate(rig)
    verb, _ = rig.call("load_capsule", file="kept", name="new")
    pump(rig, gate.reached.is_set)
    rig.tick(3)
    assert rig.mode is Mode.RUNNING
    rig.ask("snapshot", name="new")
    used = rig.session.store.bytes_used
    gate.opened.set()
    answer = finish(rig, verb)
    assert (answer.code, "'new' exists" in answer.message) == (ErrorCode.ALREADY_EXISTS, True)
    assert rig.session.store.bytes_used == used - rig.session.layout.fixed_bytes
    assert ask(rig, "load_capsule", file="kept", name="newer").code is ErrorCode.NONE


def test_a_move_after_the_control_thread_has_gone_is_given_back(rig: Rig) -> None:
    rig.ask("snapshot", name="cut")
    gate = Gate(rig)
    verb, _ = rig.call("move_capsule", name="cut", tier="host")
    assert gate.reached.wait(LIMIT_S)
    rig.queue.close(NotConfiguredError("the node is being cleaned up"))
    gate.opened.set()
    assert rig.storage.close(LIMIT_S)
    assert verb.result is not None
    assert verb.result.code is ErrorCode.NOT_CONFIGURED
    assert rig.session.store.host_bytes_used == 0
    assert tiers(rig) == {"cut": "device"}


def test_a_turn_that_never_comes_is_given_back(rig: Rig) -> None:
    """The queue is closed between the copy and its turn on the control thread."""
    rig.ask("snapshot", name="cut")
    verb, _ = rig.call("move_capsule", name="cut", tier="host")
    end_s = time.monotonic() + LIMIT_S
    while not rig.queue._waiting:
        assert time.monotonic() < end_s
        time.sleep(0.001)
    rig.queue.close(NotConfiguredError("the node is being cleaned up"))
    assert verb.result is not None
    assert verb.result.code is ErrorCode.NOT_CONFIGURED
    assert rig.session.store.host_bytes_used == 0
    assert rig.storage.close(LIMIT_S)


def test_a_queue_that_is_closed_in_the_middle_of_a_turn_does_not_disturb_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ask("snapshot", name="cut")
    commit = rig.session.commit_move

    def closing(move: Any) -> None:
        rig.queue.close(NotConfiguredError("the node is being cleaned up"))
        commit(move)

    monkeypatch.setattr(rig.session, "commit_move", closing)
    moved = ask(rig, "move_capsule", name="cut", tier="host")
    assert moved.code is ErrorCode.NONE, moved.message
    assert tiers(rig) == {"cut": "host"}
    assert rig.storage.close(LIMIT_S)


def test_moves_count_as_work_under_way(rig: Rig) -> None:
    gate = Gate(rig)
    rig.ask("snapshot", name="cut")
    for number in range(PENDING):
        rig.call("save_capsule", name="cut", file=f"f{number}")
    busy = rig.ask("move_capsule", name="cut", tier="host")
    assert busy.code is ErrorCode.BUSY
    assert rig.ask("snapshot", name="x", tier="host").code is ErrorCode.BUSY
    assert tiers(rig) == {"cut": "device"}
    gate.opened.set()
