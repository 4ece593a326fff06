"""Capsule files on disk: a whole file or none, whatever fails and whoever dies meanwhile.

The order of system calls is pinned because a rename that reaches the disk before the bytes leaves
an empty file after a power cut, which no test on a running machine can show.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from capsule_images import content_of, image_of, image_with, meaning
from row_images import image_with_rows

from flashrt_ros.errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidNameError,
    NotFoundError,
    StateMismatchError,
    StorageError,
)
from flashrt_ros.runtime.capsule_file import encode
from flashrt_ros.runtime.capsule_folder import STALE_S, CapsuleFolder, file_name, load_file
from flashrt_ros.runtime.capsule_image import CapsuleImage
from flashrt_ros.runtime.file_system import FileSystem

KILLS = int(os.environ.get("FLASHRT_ROS_KILLS", "20"))
"""Writers that are killed at random moments; more by the environment."""
OLD, NEW = image_of(1), image_with_rows(19)


class Recorded(FileSystem):
    """The real file system, written down; fails where a test says so.

    Attributes:
        calls: Names of the calls, those on the folder's descriptor marked.
        faults: Call to the error that it raises, at its turn ``after``.
        after: Calls of a name that succeed before its fault.
        most: Bytes that one write takes at most; 0: none at all.
    """

    def __init__(self, after: int = 0, most: int = 1 << 30, **faults: int) -> None:
        self.calls: list[str] = []
        self.faults = faults
        self.after = after
        self.most = most
        self.folders: set[int] = set()
        self.open_files: set[int] = set()

    def _note(self, name: str, file: int | None = None) -> None:
        call = f"{name}_folder" if file in self.folders else name
        if call in self.faults and self.calls.count(call) >= self.after:
            self.calls.append(f"{call} fails")
            raise OSError(self.faults[call], os.strerror(self.faults[call]))
        self.calls.append(call)

    def open_folder(self, path: Path) -> int:
        folder = super().open_folder(path)
        self.folders.add(folder)
        self.open_files.add(folder)
        return folder

    def create(self, name: str, folder: int) -> int:
        self._note("create")
        file = super().create(name, folder)
        self.open_files.add(file)
        return file

    def open(self, name: str, folder: int) -> int:
        self._note("open")
        file = super().open(name, folder)
        self.open_files.add(file)
        return file

    def write(self, file: int, data: memoryview) -> int:
        self._note("write")
        return super().write(file, data[: self.most]) if self.most else 0

    def read_into(self, file: int, into: memoryview) -> int:
        self._note("read")
        return super().read_into(file, into[: self.most])

    def fsync(self, file: int) -> None:
        self._note("fsync", file)
        super().fsync(file)

    def link(self, old: str, new: str, folder: int) -> None:
        self._note("link")
        super().link(old, new, folder)

    def rename(self, old: str, new: str, folder: int) -> None:
        self._note("rename")
        super().rename(old, new, folder)

    def unlink(self, name: str, folder: int) -> None:
        self._note("unlink")
        super().unlink(name, folder)

    def close(self, file: int) -> None:
        self.open_files.remove(file)
        self.folders.discard(file)
        super().close(file)


def content(folder: Path) -> dict[str, bytes]:
    """Every file there, hidden ones included."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Saving and loading


def test_saved_is_loaded_in_a_folder_that_is_made(tmp_path: Path) -> None:
    folder = CapsuleFolder(tmp_path / "a" / "b")
    saved = folder.save(NEW)
    assert saved.path == tmp_path / "a" / "b" / "cut.capsule"
    assert saved.size_bytes == saved.path.stat().st_size == len(content_of(NEW))
    for name in ("cut", "cut.capsule"):
        assert meaning(folder.load(name)) == meaning(NEW)
    assert folder.save(OLD, "other").path.name == "other.capsule"
    assert list(folder.files()) == ["cut.capsule", "other.capsule"]
    assert meaning(folder.load("other")) == meaning(OLD) != meaning(NEW)
    folder.remove("cut")
    assert list(content(folder.path)) == ["other.capsule"]
    with pytest.raises(NotFoundError, match=r"cut.capsule: expected a file or folder, found none"):
        folder.remove("cut")


def test_a_file_is_replaced_only_if_asked(tmp_path: Path) -> None:
    folder = CapsuleFolder(tmp_path)
    folder.save(OLD)
    with pytest.raises(AlreadyExistsError, match=r"cut.capsule: the file exists already; ask for"):
        folder.save(NEW)
    assert content(tmp_path) == {"cut.capsule": content_of(OLD)}
    folder.save(NEW, replace=True)
    assert content(tmp_path) == {"cut.capsule": content_of(NEW)}


def test_home_folder_and_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = CapsuleFolder("~/capsules")
    assert folder.path == tmp_path / "capsules"
    for call in (folder.files, lambda: folder.load("x"), lambda: folder.remove("x")):
        with pytest.raises(NotFoundError, match="expected a file or folder, found none"):
            call()
    assert not folder.path.exists(), "reading makes nothing"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc/passwd", ".capsule", "a\0", "a b", "x" * 129, "ä"]
)
def test_names_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    folder = CapsuleFolder(tmp_path / "capsules")
    calls: list[Callable[[], object]] = [lambda: folder.load(name), lambda: folder.remove(name)]
    if name:
        calls.append(lambda: folder.save(NEW, name))
    for call in calls:
        with pytest.raises(InvalidNameError, match="expected 1 to 128 letters"):
            call()
    assert not list(tmp_path.iterdir())
    assert file_name("x" * 128) == "x" * 128 + ".capsule"


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    outside, folder = CapsuleFolder(tmp_path / "outside"), CapsuleFolder(tmp_path / "capsules")
    target = outside.save(OLD).path
    folder.save(OLD, "real")
    (folder.path / "cut.capsule").symlink_to(target)
    with pytest.raises(InvalidNameError, match=r"cut.capsule: expected a file, found a symbolic"):
        folder.load("cut")
    with pytest.raises(AlreadyExistsError):
        folder.save(NEW)
    folder.save(NEW, replace=True)  # takes the place of the link, not of what it leads to
    assert target.read_bytes() == content_of(OLD)
    assert not (folder.path / "cut.capsule").is_symlink()
    assert meaning(folder.load("cut")) == meaning(NEW)


def test_folders_and_pipes_under_a_name_are_refused(tmp_path: Path) -> None:
    folder = CapsuleFolder(tmp_path)
    os.mkfifo(tmp_path / "pipe.capsule")
    (tmp_path / "folder.capsule").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(InvalidNameError, match="expected a file, found a folder or device"):
            folder.load(name)
    with pytest.raises(StorageError, match=r"folder.capsule: cannot be written: .*\(EISDIR\)"):
        folder.save(NEW, "folder", replace=True)
    assert sorted(content(tmp_path / "folder.capsule")) == []


def test_damage_is_named_with_the_path(tmp_path: Path) -> None:
    path = CapsuleFolder(tmp_path).save(NEW).path
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptError, match=f"^{path}: bytes of buffer '__rows__' were changed"):
        CapsuleFolder(tmp_path).load("cut")
    path.write_bytes(raw[:50])
    with pytest.raises(CorruptError, match=f"^{path}: truncated"):
        load_file(path)


def test_a_file_too_large_for_memory_is_refused_by_its_header(tmp_path: Path) -> None:
    """What does not fit the session is refused before its bytes are read."""
    path = CapsuleFolder(tmp_path).save(image_with(a=torch.zeros(1000))).path
    system = Recorded()

    def check(facts: object) -> None:
        raise StateMismatchError("policy.family: expected 'mine', found 'theirs'")

    with pytest.raises(StateMismatchError, match=f"^{path}: policy.family: expected 'mine'"):
        CapsuleFolder(tmp_path, system).load("made", check)
    assert system.calls.count("read") == 2, "length and header, no more"


# The order of the calls


def test_order_of_the_calls_of_a_new_file(tmp_path: Path) -> None:
    system = Recorded()
    CapsuleFolder(tmp_path, system).save(NEW)
    writes = ["write"] * len(encode(NEW))
    assert system.calls == ["create", *writes, "fsync", "link", "unlink", "fsync_folder"]
    assert not system.open_files


def test_order_of_the_calls_of_a_replacement(tmp_path: Path) -> None:
    CapsuleFolder(tmp_path).save(OLD)
    system = Recorded()
    CapsuleFolder(tmp_path, system).save(NEW, replace=True)
    writes = ["write"] * len(encode(NEW))
    assert system.calls == ["create", *writes, "fsync", "rename", "fsync_folder"]
    assert not system.open_files


def test_a_new_folder_is_synced_into_its_parent(tmp_path: Path) -> None:
    system = Recorded()
    CapsuleFolder(tmp_path / "a" / "b", system).save(NEW)
    assert system.calls[:3] == ["fsync_folder", "fsync_folder", "create"]


# Faults


def test_writes_and_reads_in_small_pieces_are_put_together(tmp_path: Path) -> None:
    folder = CapsuleFolder(tmp_path, Recorded(most=7))
    assert folder.save(NEW).path.read_bytes() == content_of(NEW)
    assert meaning(folder.load("cut")) == meaning(NEW)


FAULTS: dict[str, tuple[Recorded, str]] = {
    "no space": (Recorded(write=errno.ENOSPC), r"No space left on device \(ENOSPC\)"),
    "no space later": (Recorded(after=3, write=errno.ENOSPC), r"\(ENOSPC\)"),
    "quota": (Recorded(after=1, most=9, write=errno.EDQUOT), r"\(EDQUOT\)"),
    "bad disk": (Recorded(after=2, write=errno.EIO), r"Input/output error \(EIO\)"),
    "bad disk at sync": (Recorded(fsync=errno.EIO), r"Input/output error \(EIO\)"),
    "nothing is written": (Recorded(most=0), r"short write: 0 of \d+ bytes \(EIO\)"),
    "no rights": (Recorded(create=errno.EACCES), r"Permission denied \(EACCES\)"),
    "read-only": (Recorded(create=errno.EROFS), r"Read-only file system \(EROFS\)"),
    "no rename": (Recorded(rename=errno.EIO, link=errno.EIO), r"Input/output error \(EIO\)"),
}


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_leaves_the_old_file_and_no_other(
    tmp_path: Path, case: str, replaces: bool
) -> None:
    system, words = FAULTS[case]
    system.calls.clear()
    CapsuleFolder(tmp_path).save(OLD, "cut" if replaces else "bystander")
    before = content(tmp_path)
    with pytest.raises(StorageError, match=f"cut.capsule: cannot be written: .*{words}"):
        CapsuleFolder(tmp_path, system).save(NEW, replace=replaces)
    assert content(tmp_path) == before
    assert not system.open_files
    CapsuleFolder(tmp_path).save(NEW, replace=replaces)
    assert meaning(CapsuleFolder(tmp_path).load("cut")) == meaning(NEW)


def test_a_fault_of_the_last_sync_says_that_the_file_is_there(tmp_path: Path) -> None:
    folder = CapsuleFolder(tmp_path, Recorded(fsync_folder=errno.EIO))
    with pytest.raises(
        StorageError, match=r"written whole, but may not outlive a power cut: .*EIO"
    ):
        folder.save(NEW)
    assert content(tmp_path) == {"cut.capsule": content_of(NEW)}


def test_a_file_system_without_links_can_still_replace(tmp_path: Path) -> None:
    """Memory sticks with FAT, for instance."""
    system = Recorded(link=errno.EPERM)
    with pytest.raises(StorageError, match="expected a file system with hard links"):
        CapsuleFolder(tmp_path, system).save(NEW)
    assert not content(tmp_path)
    CapsuleFolder(tmp_path, system).save(NEW, replace=True)
    assert meaning(CapsuleFolder(tmp_path).load("cut")) == meaning(NEW)


@pytest.mark.parametrize("call", ["open", "read"])
def test_a_fault_of_reading_is_named(tmp_path: Path, call: str) -> None:
    CapsuleFolder(tmp_path).save(NEW)
    with pytest.raises(StorageError, match=r"cut.capsule: cannot be read: .*\(EIO\)"):
        CapsuleFolder(tmp_path, Recorded(**{call: errno.EIO})).load("cut")


# Several writers


def test_of_many_writers_of_one_name_one_wins(tmp_path: Path) -> None:
    images = [image_with(a=torch.full((50,), float(n))) for n in range(8)]
    outcomes: list[str] = []
    barrier = threading.Barrier(len(images))

    class Late(FileSystem):
        """Every writer has looked, and written, before one of them publishes."""

        def link(self, old: str, new: str, folder: int) -> None:
            barrier.wait(60)
            super().link(old, new, folder)

    def write(image: CapsuleImage) -> None:
        try:
            CapsuleFolder(tmp_path, Late()).save(image, "one")
            outcomes.append("saved")
        except AlreadyExistsError:
            outcomes.append("refused")

    threads = [threading.Thread(target=write, args=(image,)) for image in images]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 7 + ["saved"]
    assert list(content(tmp_path)) == ["one.capsule"]
    assert meaning(load_file(tmp_path / "one.capsule")) in [meaning(image) for image in images]


def test_leftovers_go_when_they_are_stale_and_ours(tmp_path: Path) -> None:
    folder = CapsuleFolder(tmp_path)
    hour_ago = time.time() - STALE_S - 3600
    living = folder.path / f".flashrt_ros-{'a' * 32}.part"
    left, fresh = (folder.path / f".flashrt_ros-{c * 32}.part" for c in "bc")
    strange = [folder.path / name for name in (".flashrt_ros-.part", "x.part", ".hidden", "y")]
    link = folder.path / f".flashrt_ros-{'d' * 32}.part"
    for path in (living, left, fresh, *strange):
        path.write_bytes(b"half")
        os.utime(path, (hour_ago, hour_ago))
    link.symlink_to(strange[2])
    os.utime(fresh)
    system = FileSystem()
    writer = os.open(living, os.O_RDWR)
    assert system.lock(writer)
    folder.save(NEW)
    assert not left.exists()
    for path in (living, fresh, *strange, link):
        assert path.exists(), f"{path.name} was taken away"
    os.close(writer)  # the writer dies
    folder.save(NEW, replace=True)
    assert not living.exists()


# Death


def _write_for_ever(folder: Path, replaces: bool) -> None:
    files = CapsuleFolder(folder)
    number = 0
    while True:
        number += 1
        name = "cut" if replaces else f"n{number % 40}"
        try:
            files.save((OLD, NEW)[number % 2], name, replaces)
        except AlreadyExistsError:
            files.remove(name)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.parametrize("replaces", [True, False])
def test_a_killed_writer_leaves_whole_files(tmp_path: Path, replaces: bool) -> None:
    chance = random.Random(7)
    folder = CapsuleFolder(tmp_path)
    wholes = [meaning(OLD), meaning(NEW)]
    folder.save(OLD)
    parts = 0
    for _ in range(KILLS // 2):
        child = os.fork()
        if not child:
            try:
                _write_for_ever(tmp_path, replaces)
            finally:
                os._exit(1)
        time.sleep(chance.uniform(0.002, 0.03))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert "cut.capsule" in folder.files()
        for name in folder.files():
            assert meaning(folder.load(name)) in wholes, f"{name} is neither the old nor the new"
        parts = max(parts, sum(n.endswith(".part") for n in content(tmp_path)))
    # What they left behind is hidden, and goes with the first save after a while.
    for path in tmp_path.glob(".*"):
        os.utime(path, (1, 1))
    folder.save(replace(NEW, facts=replace(NEW.facts, name="last")))
    assert all(name.endswith(".capsule") for name in content(tmp_path))
    if KILLS >= 200:
        assert parts, "control: no writer was killed in the middle of its work"


def test_control_of_the_above_a_broken_file_is_seen(tmp_path: Path) -> None:
    raw = content_of(NEW)
    for cut in range(0, len(raw), 97):
        (tmp_path / "cut.capsule").write_bytes(raw[:cut])
        with pytest.raises(CorruptError, match="truncated"):
            CapsuleFolder(tmp_path).load("cut")


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted(FileSystem):
        def write(self, file: int, data: memoryview) -> int:
            super().write(file, data[:9])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CapsuleFolder(tmp_path, Interrupted()).save(NEW)
    assert not content(tmp_path)


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "capsules").write_text("no folder")
    with pytest.raises(StorageError, match="capsules: expected a folder for capsule files, found"):
        CapsuleFolder(tmp_path / "capsules").save(OLD, "cut")
    assert (tmp_path / "capsules").read_text() == "no folder"
