"""Saving and loading between the control thread and the storage thread, without ROS.

What the control thread may never do here is wait: the tests hold the disk still while control
steps go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from capsule_images import image_of, meaning
from control_rig import Rig

from flashrt_ros.errors import ErrorCode, NotConfiguredError
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.records import EventKind
from flashrt_ros.ros.storage import PENDING
from flashrt_ros.ros.verbs import Answer, Verb
from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.file_system import FileSystem

LIMIT_S = 20.0
"""A generous limit: it only decides how long a failure takes."""


class Gate(FileSystem):
    """A disk whose syncs and reads wait until the gate is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def fsync(self, file: int) -> None:
        self.reached.set()
        assert self.opened.wait(LIMIT_S)
        super().fsync(file)

    def read_into(self, file: int, into: memoryview) -> int:
        self.reached.set()
        assert self.opened.wait(LIMIT_S)
        return super().read_into(file, into)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    torch.set_num_threads(1)
    rig = Rig(capsule_dir=str(tmp_path))
    yield rig
    rig.storage.close()


def gated(rig: Rig, tmp_path: Path) -> Gate:
    gate = Gate()
    rig.storage.folder = CapsuleFolder(tmp_path, gate)
    return gate


def finish(rig: Rig, verb: Verb) -> Answer:
    """The answer of a save or load, with the turns that it needs on the control thread."""
    end_s = time.monotonic() + LIMIT_S
    while verb.result is None:
        assert time.monotonic() < end_s, f"{verb.name} is not answered"
        if (second := rig.queue.get(0.01)) is not None:
            rig.carry_out(second)
    return verb.result


def ask(rig: Rig, service: str, **fields: Any) -> Answer:
    return finish(rig, rig.call(service, **fields)[0])


def test_a_save_never_stalls_a_control_step(rig: Rig, tmp_path: Path) -> None:
    gate = gated(rig, tmp_path)
    rig.tick(3)
    rig.ask("snapshot", name="cut")
    expected = meaning(rig.session.export("cut"))
    verb, answer = rig.call("save_capsule", name="cut")
    assert answer is None
    assert gate.reached.wait(LIMIT_S)
    # The disk stands still; meanwhile the capsule changes its name's content, and goes.
    rig.tick(5)
    assert rig.mode is Mode.RUNNING
    rig.ask("snapshot", name="cut", replace=True)
    rig.ask("drop_capsule", name="cut")
    assert verb.result is None, "answered before the file is on the disk"
    assert not list(tmp_path.glob("*.capsule"))
    assert EventKind.SAVE not in [e.kind for e in rig.out.events]
    gate.opened.set()
    saved = finish(rig, verb)
    assert saved.code is ErrorCode.NONE
    path = tmp_path / "cut.capsule"
    assert saved.fields == {"path": str(path), "size_bytes": path.stat().st_size}
    assert meaning(CapsuleFolder(tmp_path).load("cut")) == expected
    event = rig.out.events[-1]
    assert (event.kind, event.tick, event.name) == (EventKind.SAVE, 3, "cut")
    assert event.size_bytes == rig.session.layout.fixed_bytes


def test_a_load_never_stalls_a_control_step(rig: Rig, tmp_path: Path) -> None:
    rig.tick(3)
    rig.ask("snapshot", name="cut")
    digest = rig.session.state_digest()
    assert ask(rig, "save_capsule", name="cut", file="kept").code is ErrorCode.NONE
    rig.ask("drop_capsule", name="cut")
    gate = gated(rig, tmp_path)
    verb, answer = rig.call("load_capsule", file="kept")
    assert answer is None
    assert gate.reached.wait(LIMIT_S)
    rig.tick(4)
    live = rig.session.state_digest()
    gate.opened.set()
    loaded = finish(rig, verb)
    assert loaded.code is ErrorCode.NONE, loaded.message
    assert loaded.fields["capsule"].name == "cut"
    assert "before step 3 of episode 0" in loaded.message
    assert rig.session.state_digest() == live, "a load is not a restore"
    assert rig.mode is Mode.RUNNING
    event = rig.out.events[-1]
    assert (event.kind, event.tick, event.name) == (EventKind.LOAD, 7, "cut")
    rig.ask("restore", name="cut")
    assert rig.session.state_digest() == digest != live


def test_refusals_leave_all_as_it_was(rig: Rig, tmp_path: Path) -> None:
    rig.ask("snapshot", name="cut")
    ask(rig, "save_capsule", name="cut")
    CapsuleFolder(tmp_path).save(image_of(name="foreign"))
    raw = (tmp_path / "cut.capsule").read_bytes()
    (tmp_path / "half.capsule").write_bytes(raw[: len(raw) // 2])
    cases = [
        ("save_capsule", {"name": "gone"}, ErrorCode.NOT_FOUND, "no capsule 'gone'"),
        ("save_capsule", {"name": "cut", "file": "../x"}, ErrorCode.INVALID_NAME, "no folder"),
        ("save_capsule", {"name": "cut"}, ErrorCode.ALREADY_EXISTS, "cut.capsule: the file"),
        ("load_capsule", {"file": "gone"}, ErrorCode.NOT_FOUND, "gone.capsule"),
        ("load_capsule", {"file": ""}, ErrorCode.INVALID_NAME, "expected 1 to 128 letters"),
        ("load_capsule", {"file": "a/b"}, ErrorCode.INVALID_NAME, "no folder"),
        ("load_capsule", {"file": "cut"}, ErrorCode.ALREADY_EXISTS, "capsule 'cut' exists"),
        ("load_capsule", {"file": "cut", "name": "cut"}, ErrorCode.ALREADY_EXISTS, "'cut'"),
        ("load_capsule", {"file": "cut", "name": "a b"}, ErrorCode.INVALID_NAME, "'a b'"),
        ("load_capsule", {"file": "half"}, ErrorCode.CORRUPT, "half.capsule: truncated"),
        ("load_capsule", {"file": "foreign"}, ErrorCode.STATE_MISMATCH, "policy.family: expected"),
    ]
    events, files = len(rig.out.events), sorted(tmp_path.iterdir())
    state = (rig.session.state_digest(), len(rig.session.store), rig.session.store.bytes_used)
    for service, fields, code, words in cases:
        answer = ask(rig, service, **fields)
        assert (answer.code, words in answer.message) == (code, True), answer.message
    assert len(rig.out.events) == events
    assert sorted(tmp_path.iterdir()) == files
    assert state == (
        rig.session.state_digest(),
        len(rig.session.store),
        rig.session.store.bytes_used,
    )
    # Control: the same requests put right.
    assert ask(rig, "save_capsule", name="cut", replace=True).code is ErrorCode.NONE
    assert ask(rig, "load_capsule", file="cut", name="again").code is ErrorCode.NONE


def test_a_node_without_a_folder_says_so() -> None:
    rig = Rig()
    rig.ask("snapshot", name="cut")
    for service in ("save_capsule", "load_capsule"):
        answer = rig.ask(service, name="cut", file="x")
        assert answer.code is ErrorCode.UNSUPPORTED
        assert "parameter 'capsule_dir': expected a folder, found none" in answer.message
    rig.storage.close()


def test_a_user_without_a_home_runs_without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers that run under a number; the default folder lies in the home."""

    def nowhere(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nowhere)
    rig = Rig(capsule_dir="~/capsules")
    assert any("no capsule files" in words and "set HOME" in words for words in rig.out.words)
    rig.ask("snapshot", name="cut")
    answer = rig.ask("save_capsule", name="cut")
    assert answer.code is ErrorCode.UNSUPPORTED
    assert "expected a home folder, found none; set HOME" in answer.message
    rig.tick(2)
    assert rig.mode is Mode.RUNNING
    rig.storage.close()


def test_too_many_at_once_are_refused_and_none_is_lost(rig: Rig, tmp_path: Path) -> None:
    gate = gated(rig, tmp_path)
    rig.ask("snapshot", name="cut")
    verbs = [rig.call("save_capsule", name="cut", file=f"f{n}")[0] for n in range(PENDING)]
    busy = rig.ask("save_capsule", name="cut", file="more")
    assert busy.code is ErrorCode.BUSY
    assert f"{PENDING} saves, loads and moves are under way already" in busy.message
    assert rig.ask("load_capsule", file="f0").code is ErrorCode.BUSY
    gate.opened.set()
    assert [finish(rig, verb).code for verb in verbs] == [ErrorCode.NONE] * PENDING
    assert len(list(tmp_path.glob("*.capsule"))) == PENDING
    assert ask(rig, "save_capsule", name="cut", file="more").code is ErrorCode.NONE


def test_a_slow_disk_is_a_timeout_whose_outcome_is_kept(rig: Rig, tmp_path: Path) -> None:
    gate = gated(rig, tmp_path)
    rig.ask("snapshot", name="cut")
    verb, _ = rig.call("save_capsule", name="cut")
    assert verb.expire(verb.deadline_ns)
    assert verb.result is not None
    assert verb.result.code is ErrorCode.TIMEOUT
    assert "may still be carried out" in verb.result.message
    gate.opened.set()
    assert rig.storage.close(LIMIT_S)
    assert verb.settle()
    assert verb.result.code is ErrorCode.NONE, "a retry with the same id gets what came of it"


def test_clean_up_ends_what_is_under_way(rig: Rig, tmp_path: Path) -> None:
    gate = gated(rig, tmp_path)
    rig.ask("snapshot", name="cut")
    saving, _ = rig.call("save_capsule", name="cut")
    assert gate.reached.wait(LIMIT_S)
    assert not rig.storage.close(timeout_s=0.05), "a disk that hangs does not hang the node"
    gate.opened.set()
    assert rig.storage.close(LIMIT_S)
    assert saving.result is not None
    assert saving.result.code is ErrorCode.NONE


def test_a_load_after_the_control_thread_has_gone_is_refused(rig: Rig, tmp_path: Path) -> None:
    rig.ask("snapshot", name="cut")
    ask(rig, "save_capsule", name="cut")
    gate = gated(rig, tmp_path)
    loading, _ = rig.call("load_capsule", file="cut", name="late")
    rig.queue.close(NotConfiguredError("the node is being cleaned up"))
    gate.opened.set()
    assert finish(rig, loading).code is ErrorCode.NOT_CONFIGURED


def test_a_fault_of_ours_is_answered_and_the_thread_goes_on(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ask("snapshot", name="cut")
    with monkeypatch.context() as patch:
        patch.setattr(CapsuleFolder, "save", lambda *arguments: 1 // 0)
        answer = ask(rig, "save_capsule", name="cut")
    assert answer.code is ErrorCode.INTERNAL
    assert "ZeroDivisionError" in answer.message
    assert any("Traceback" in words for words in rig.out.words)
    assert ask(rig, "save_capsule", name="cut").code is ErrorCode.NONE
