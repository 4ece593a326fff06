"""Capsules that leave a session and come back: into this one, and into a process of its own.

A file is of use only if a robot goes on from it exactly as it did; so it is read in another
process, and with its neighbour's file as the control that must differ.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import capsule_child
import pytest
import session_checks as checks
import torch
from capsule_child import POLICIES, continuation, seen
from capsule_images import content_of, image_of, image_with, meaning
from toy_policies import ToyChunk, ToyRecurrent, observations

from flashrt_ros.errors import (
    AlreadyExistsError,
    CorruptError,
    ExecMismatchError,
    FlashRTError,
    InvalidNameError,
    NoMemoryError,
    NotConfiguredError,
    NotFoundError,
    StateMismatchError,
)
from flashrt_ros.runtime.capsule_file import decode
from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.capsule_image import CapsuleImage, HostBuffer
from flashrt_ros.runtime.fingerprint import Fingerprint
from flashrt_ros.runtime.session import PolicySession


def session_of(seed: int = 5, **options: int) -> PolicySession:
    torch.set_num_threads(1)
    return PolicySession(ToyRecurrent(), seed=seed, **options)


# Other processes


def in_another_process(device: str, folder: Path, *names: str) -> dict[str, list[object]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, capsule_child.__file__, device, str(folder), *names],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def check_continues_in_another_process(device: str, folder: Path) -> None:
    """Every bit of state, every action and the host record, for each policy, and two branches."""
    torch.set_num_threads(1)
    expected = {}
    files = CapsuleFolder(folder)
    for kind, make in POLICIES.items():
        session = PolicySession(make(), device=device, seed=5)
        session.reset_(task="pick", seed=8)
        for step in range(11):
            session.step(seen(session, step))
        session.snapshot(f"{kind}-cut")
        session.fork(f"{kind}-cut", seeds=(21, 22), names=(f"{kind}-left", f"{kind}-right"))
        session.reset_(task="pick", seed=9)
        for step in range(11):
            session.step(seen(session, step))
        session.snapshot(f"{kind}-other")
        for capsule in [c for c in session.store.list() if not c.automatic]:
            files.save(session.export(capsule.name))
            session.restore(capsule.name)
            expected[capsule.name] = json.loads(json.dumps(continuation(session)))
        session.close()
    found = in_another_process(device, folder, *expected)
    assert found == expected
    for kind in POLICIES:
        # Controls: another episode's capsule, and the branches among each other.
        ways = [found[f"{kind}-{name}"] for name in ("cut", "left", "right", "other")]
        digests = [{digest for digest, _, _ in way} for way in ways]
        assert all(len(way) == capsule_child.STEPS for way in digests)
        for index, mine in enumerate(digests):
            assert not any(mine & theirs for theirs in digests[:index])


def test_continues_in_another_process(tmp_path: Path) -> None:
    check_continues_in_another_process("cpu", tmp_path)


# Export


def test_export_is_the_capsule_and_changes_nothing() -> None:
    session = session_of()
    session.step(observations(0))
    capsule = session.snapshot("a")
    before = checks.fingerprint_of(session)
    image = session.export("a")
    assert checks.fingerprint_of(session) == before
    for name, buffer in image.by_name().items():
        slot = next(s for s in session.layout.state if s.spec.name == name)
        assert torch.equal(buffer.tensor(), slot.view(capsule.segment.bytes))
    assert [b.name for b in image.buffers] == [s.spec.name for s in session.layout.state]
    whole = content_of(image)
    session.drop("a", force=True)
    for step in range(99):
        session.step(observations(step))
        session.snapshot("b", replace=True)
    assert content_of(image) == whole, "an image must not follow the slot that it came from"
    with pytest.raises(NotFoundError, match="no capsule 'a'"):
        session.export("a")
    with pytest.raises(NotFoundError, match="no capsule"):
        session.export(capsule)


@pytest.mark.parametrize("held", [True, False])
def test_a_capsule_that_is_held_is_not_overwritten(held: bool) -> None:
    """Dropped, its slot wanted by others; without the hold, which is the control, it is lost."""
    weight = session_of().layout.fixed_bytes
    session = session_of(store_bytes=3 * weight, rollback_depth=0)
    session.step(observations(0))
    session.snapshot("cut")
    expected = meaning(session.export("cut"))
    holding = session.hold("cut")
    if not held:
        holding.place.release()  # as if nobody had noticed
    session.drop("cut")
    assert session.store.bytes_used == (weight if held else 0)
    for step in range(6):
        session.step(observations(step))
        session.snapshot(f"s{step}")
    if not held:
        holding.place.holders = 1
    found = meaning(session.read(holding))
    assert (found == expected) == held
    if held:
        assert session.store.bytes_used == 2 * weight, "the slot is free again"
        session.snapshot("more")
        assert session.store.bytes_used == 3 * weight


def test_reading_beside_steps_and_snapshots_is_exact() -> None:
    weight = session_of().layout.fixed_bytes
    session = session_of(store_bytes=6 * weight, rollback_depth=2)
    expected, found, jobs = [], [], queue.SimpleQueue()

    def read() -> None:
        while (capsule := jobs.get()) is not None:
            found.append(meaning(session.read(capsule)))

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(150):
        session.step(observations(step))
        while session.store.bytes_used > 4 * weight:
            time.sleep(0)  # until the reader has let go of some
        session.snapshot("s", replace=True)
        expected.append(meaning(session.export("s")))
        jobs.put(session.hold("s"))
        session.drop("s")
    jobs.put(None)
    reader.join()
    assert found == expected
    assert len({str(one[2]) for one in found}) == 150


def test_a_boundary_of_the_ring_may_be_exported() -> None:
    session = session_of()
    for step in range(3):
        session.step(observations(step))
    boundary = next(c for c in session.store.list() if c.automatic and c.host.step == 1)
    image = session.export(boundary.id)
    session.reset_()
    capsule = session.import_(image, "kept")
    assert (capsule.automatic, capsule.pinned) == (False, False)
    assert session.restore("kept").host.step == 1


# Import


def test_import_brings_all_but_pins_and_changes_no_live_state() -> None:
    session, other = session_of(), session_of(seed=77)
    session.reset_(task="pick")
    session.step(observations(0))
    parent = session.snapshot("parent")
    session.step(observations(1))
    child = session.snapshot("child", pin=True)
    live = (other.state_bytes(), other.generation, other.tick, other.capsule_id, len(other.store))
    loaded = other.import_(decode(content_of(session.export("child")), "file"))
    other_parent = other.import_(session.export("parent"), "elder")
    assert live[:4] == (other.state_bytes(), other.generation, other.tick, other.capsule_id)
    assert len(other.store) == live[4] + 2
    prints = {
        "state_fingerprint": loaded.state_fingerprint,
        "exec_fingerprint": loaded.exec_fingerprint,
    }
    expected = replace(child, segment=loaded.segment, pinned=False, boundaries=(), **prints)
    assert loaded == expected
    assert (loaded.state_id, loaded.exec_id) == (child.state_id, child.exec_id)
    # Lineage holds across processes.
    assert loaded.parent_id == other_parent.id == parent.id
    other.restore("child")
    assert other.capsule_id == child.id
    assert (other.state_digest(), other.host) == (session.state_digest(), child.host)
    assert continuation(other, 20) == continuation(session, 20)
    assert other.rollback() > 0
    assert other.state_digest() != session.state_digest()


def test_the_same_file_twice_is_two_capsules() -> None:
    session = session_of()
    session.snapshot("a")
    image = session.export("a")
    second = session.import_(image, "b")
    third = session.import_(image, "c")
    ids = {session.store.get(name).id for name in "abc"}
    assert len(ids) == 3
    assert ids == {image.facts.id, second.id, third.id}
    session.drop("a")
    session.drop("b")
    assert session.restore("c").id == third.id


def test_a_branch_keeps_its_noise_key() -> None:
    session, other = session_of(), session_of()
    (branch,) = session.fork(seeds=(2**64 - 1,), names=("x",))
    loaded = other.import_(session.export("x"))
    assert loaded.noise_key == branch.noise_key == 2**64 - 1
    session.restore("x")
    other.restore("x")
    assert continuation(other, 10) == continuation(session, 10)
    (mine,), (theirs,) = session.fork("x"), other.fork("x")
    assert mine.key == theirs.key, "branches of branches derive the same keys"


def with_field(image: CapsuleImage, which: str, **fields: str) -> CapsuleImage:
    facts = image.facts
    changed = Fingerprint({**getattr(facts, which).fields, **fields})
    return replace(image, facts=replace(facts, **{which: changed}))


def without(image: CapsuleImage, name: str) -> CapsuleImage:
    return replace(image, buffers=tuple(b for b in image.buffers if b.name != name))


def test_refusals_name_the_field_and_change_nothing() -> None:
    session = session_of()
    session.step(observations(0))
    session.snapshot("taken")
    image = image_of()
    weights = {"policy.weights": "0" * 64}
    long = replace(image.facts.host, cursor=2, length=9)
    short = HostBuffer("rnn.h", torch.float32, (1, 1), memoryview(bytes(4)))
    hidden = PolicySession(ToyRecurrent(hidden=8))
    hidden.snapshot("other-hidden")
    cases: list[tuple[CapsuleImage, str, type[FlashRTError], str]] = [
        (
            with_field(image, "state_fingerprint", **weights),
            "",
            StateMismatchError,
            "policy.weights: expected [0-9a-f]{64}, found 0{64}",
        ),
        (
            hidden.export("other-hidden"),
            "",
            StateMismatchError,
            'policy.config: expected {"hidden": 16}, found {"hidden": 8}',
        ),
        (
            with_field(image, "exec_fingerprint", torch="9.9"),
            "",
            ExecMismatchError,
            f"torch: expected {torch.__version__.replace('+', '.')}, found 9.9; allow an inexact",
        ),
        (image_with(a=torch.zeros(2)), "", StateMismatchError, "policy.family: expected toy_"),
        (
            replace(image, facts=replace(image.facts, host=long)),
            "",
            CorruptError,
            "host.length: expected at most the chunk size 1, found 9",
        ),
        (without(image, "trace"), "", CorruptError, "'trace': expected 12 bytes, found none"),
        (
            replace(without(image, "rnn.h"), buffers=(*without(image, "rnn.h").buffers, short)),
            "",
            CorruptError,
            "buffer 'rnn.h': expected 64 bytes, found 4",
        ),
        (image, "taken", AlreadyExistsError, "capsule 'taken' exists already"),
        (image, "no good", InvalidNameError, "'no good': expected 1 to 128 letters"),
    ]
    before = checks.fingerprint_of(session)
    for bad, name, error, words in cases:
        with pytest.raises(error, match=words):
            session.import_(bad, name)
        assert checks.fingerprint_of(session) == before
    session.import_(image)  # control: it fits but for the change


def test_an_inexact_capsule_is_let_in_only_on_demand_each_time() -> None:
    session = session_of()
    image = with_field(image_of(), "exec_fingerprint", torch="9.9")
    session.import_(image, allow_inexact=True)
    with pytest.raises(ExecMismatchError, match=r"torch: expected .*, found 9.9"):
        session.restore("cut")
    assert session.restore("cut", allow_inexact=True).exec_fingerprint.fields["torch"] == "9.9"
    assert meaning(session.export("cut")) == meaning(image)


def test_import_evicts_as_a_snapshot_does_and_not_what_is_pinned() -> None:
    weight = session_of().layout.fixed_bytes
    session = session_of(store_bytes=2 * weight, rollback_depth=0)
    session.snapshot("old")
    session.snapshot("new")
    session.import_(image_of())
    assert session.last_evicted == ["old"]
    for name in ("new", "cut"):
        session.store.pin(name)
    before = checks.fingerprint_of(session)
    with pytest.raises(NoMemoryError, match="2 are pinned"):
        session.import_(image_of(name="more"))
    assert checks.fingerprint_of(session) == before


def test_a_copy_that_fails_leaves_no_capsule(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of()
    before = checks.fingerprint_of(session)
    staged = session.stage(image_of())

    def broken(pairs: object) -> None:
        raise RuntimeError("the bus is gone")

    with monkeypatch.context() as patch:
        patch.setattr(session.device, "carry", broken)
        with pytest.raises(RuntimeError, match="the bus is gone"):
            session.import_(staged)
    assert checks.fingerprint_of(session) == before
    session.import_(staged)


def test_staged_bytes_have_no_garbage_in_their_padding() -> None:
    session = session_of()
    image = image_of()
    session.import_(image)
    session.restore("cut")
    used = torch.zeros(session.layout.fixed_bytes, dtype=torch.bool)
    for slot in session.layout.state:
        used[slot.offset : slot.offset + slot.size_bytes] = True
    bytes_N = torch.frombuffer(bytearray(session.state_bytes()), dtype=torch.uint8)
    assert not bytes_N[~used].any()
    assert bytes_N[used].any()


def test_a_closed_session_neither_gives_nor_takes() -> None:
    session = PolicySession(ToyChunk())
    session.snapshot("a")
    image = session.export("a")
    held = session.hold("a")
    session.close()
    for call in (lambda: session.export("a"), lambda: session.import_(image)):
        with pytest.raises(NotConfiguredError, match="the session is closed"):
            call()
    with pytest.raises(NotConfiguredError, match="the session is closed"):
        session.read(held)
