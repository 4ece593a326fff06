"""Keyframes: what follows is, to the bit, what follows without them; those of another run are not.

A keyframe that lacks something, or that belongs to another bag, contract or policy, would give an
evaluation that looks right. So whatever is left out must show, and whatever is stale be named.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_files import write_dataset
from evaluate_bags import write_hold
from keyframe_cases import evaluate, options, write_bag, write_contract, write_recurrent

from flashrt_ros.cli import main
from flashrt_ros.contract.contract import Contract
from flashrt_ros.errors import StorageError
from flashrt_ros.evaluate.binding import digest_of
from flashrt_ros.evaluate.drive import Driver, DriverStanding, Pace
from flashrt_ros.evaluate.evaluator import Candidate, Options
from flashrt_ros.evaluate.keyframe import Keyframe, decode, encode
from flashrt_ros.evaluate.keyframes import CAPSULE, folder_of
from flashrt_ros.evaluate.limits import Limiter
from flashrt_ros.evaluate.timeline import Entry
from flashrt_ros.runtime.session import PolicySession

BEGIN_S = 2.1


def without(given: Options, **changes: Any) -> Options:
    return dataclasses.replace(given, start_s=BEGIN_S, enters_keyframes=False, **changes)


def within(given: Options, **changes: Any) -> Options:
    return dataclasses.replace(given, start_s=BEGIN_S, **changes)


@pytest.mark.parametrize("kind", ["recurrent", "diffusion", "two", "late"])
def test_what_follows_is_the_same_to_the_bit(kind: str, tmp_path: Path) -> None:
    pace = Pace(2, 3) if kind == "late" else None
    given = options(tmp_path, "diffusion" if kind == "late" else kind, pace)
    bag = write_bag(tmp_path / "bag.mcap")
    writing, whole, _ = evaluate(dataclasses.replace(given, keyframes_s=0.5), bag)
    plain, _, _ = evaluate(given, bag)
    assert [t.digest for t in writing] == [t.digest for t in plain], "writing changes nothing"
    wanted, all_of_them, _ = evaluate(without(given), bag)
    found, rest, words = evaluate(within(given), bag)
    assert all_of_them == whole
    assert rest < whole / 2
    assert [track.digest for track in found] == [track.digest for track in wanted]
    assert [track.remarks for track in found] == [track.remarks for track in wanted]
    assert all(np.isfinite(track.predicted_TA).any() for track in found)
    assert not any("keyframe" in word for word in words)


@pytest.mark.parametrize("left_out", ["state", "driver"])
def test_the_control_state_and_driver_both_count(
    left_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options(tmp_path, "recurrent")
    bag = write_bag(tmp_path / "bag.mcap", 3)
    evaluate(dataclasses.replace(given, keyframes_s=0.3), bag)
    begins = [dataclasses.replace(given, start_s=start_s) for start_s in (0.7, 1.3, 1.9, 2.5)]
    wanted = [evaluate(begin, bag)[0][0].digest for begin in begins]
    if left_out == "driver":
        monkeypatch.setattr(Driver, "go_on", lambda self, standing: None)
    else:
        restore = PolicySession.restore

        def forget(self: PolicySession, source: Any, *rest: Any, **named: Any) -> Any:
            return None if source == CAPSULE else restore(self, source, *rest, **named)

        monkeypatch.setattr(PolicySession, "restore", forget)
    assert [evaluate(begin, bag)[0][0].digest for begin in begins] != wanted


def test_a_data_set_has_keyframes_too(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "set", (30, 30, 30), video=False, image=False)
    policy = write_hold(tmp_path / "hold", 3)
    given = Options((Candidate("hold", str(policy)),))
    evaluate(dataclasses.replace(given, keyframes_s=0.5), root)
    (wanted,), whole, _ = evaluate(without(given), root)
    (found,), rest, _ = evaluate(within(given), root)
    assert found.digest == wanted.digest
    assert (whole, rest) == (90, 90 - 41)  # 2.0 s at 20 Hz, and the moment itself


CHANGES = {
    "recording": "of another recording",
    "contract": "of another contract",
    "seed": "of another seed",
    "policy": "of another policy (state id), machine (exec id)",
    "steps": "of another steps",
}


@pytest.mark.parametrize("what", CHANGES)
def test_stale_ones_are_named_and_not_used(what: str, tmp_path: Path) -> None:
    given = options(tmp_path, "recurrent")
    bag = write_bag(tmp_path / "bag.mcap")
    evaluate(dataclasses.replace(given, keyframes_s=0.5), bag)
    if what == "recording":
        write_bag(bag, 1)
    elif what == "contract":
        write_contract(Path(given.contract), False, on_time_jump="hold")
    elif what == "seed":
        given = dataclasses.replace(given, seed=5)
    elif what == "policy":
        write_recurrent(Path(given.candidates[0].path), 9)
    else:
        given = dataclasses.replace(given, steps="recorded")
    (wanted,), whole, _ = evaluate(without(given), bag)
    (found,), gone, words = evaluate(within(given), bag)
    assert gone == whole
    assert found.digest == wanted.digest
    (word,) = [word for word in words if "keyframe" in word]
    assert f"stale for policy 'gru0' and not used: {CHANGES[what]}" in word


def test_a_file_that_was_touched_is_read_again_and_is_the_same(tmp_path: Path) -> None:
    given = options(tmp_path, "recurrent")
    bag = write_bag(tmp_path / "bag.mcap")
    _, whole, _ = evaluate(dataclasses.replace(given, keyframes_s=0.5), bag)
    os.utime(bag, (1, 1))
    assert evaluate(within(given), bag)[1] < whole / 2
    # Content counts: the same size and another byte.
    content = bytearray(bag.read_bytes())
    content[len(content) // 2] ^= 1
    bag.write_bytes(content)
    os.utime(bag, (2, 2))
    assert any("of another recording" in word for word in evaluate(within(given), bag)[2])


@pytest.mark.parametrize("damage", ["cut", "text", "swapped"])
def test_of_damaged_ones_an_older_one_is_taken(damage: str, tmp_path: Path) -> None:
    given = options(tmp_path, "recurrent")
    bag = write_bag(tmp_path / "bag.mcap")
    _, whole, _ = evaluate(dataclasses.replace(given, keyframes_s=0.5), bag)
    (wanted,), best, _ = evaluate(within(given), bag)
    texts = sorted((tmp_path / "bag.mcap.keyframes").glob("*/0*.json"))
    last = texts[whole and max(i for i, t in enumerate(texts) if int(t.stem) <= whole - best)]
    capsule = last.with_suffix(".capsule")
    if damage == "cut":
        capsule.write_bytes(capsule.read_bytes()[:-3])
    elif damage == "text":
        last.write_text(last.read_text().replace('"at_cut":-1', '"at_cut":-2'))
    else:
        capsule.write_bytes(texts[0].with_suffix(".capsule").read_bytes())
    (found,), gone, words = evaluate(within(given), bag)
    assert found.digest == wanted.digest
    assert best < gone < whole
    (word,) = [word for word in words if "keyframe" in word]
    assert word.startswith(f"keyframe {last.stem} is not used: ")
    expected = {"cut": "truncated", "text": "was changed", "swapped": "expected capsule"}
    assert expected[damage] in word


def test_the_command_writes_and_enters_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options(tmp_path, "recurrent")
    bag = write_bag(tmp_path / "bag.mcap")
    words = ["evaluate", str(bag), "--policy", given.candidates[0].path]
    words += ["--contract", given.contract, "--keyframe-folder", str(tmp_path / "kept")]
    assert main([*words, "--keyframes", "500ms"]) == 0
    assert not folder_of(str(bag), "").exists()
    folder = folder_of(str(bag), str(tmp_path / "kept"))
    assert len(list(folder.glob("*/*.capsule"))) == 6
    digests = []
    for more in ([], ["--no-keyframes"]):
        report = tmp_path / "report.json"
        assert main([*words, "--from", "2.1s", "--json", str(report), *more]) == 0
        digests.append(json.loads(report.read_text())["digest"])
    assert digests[0] == digests[1]
    assert main([*words, "--keyframes", "0s"]) == 2
    assert "--keyframes: expected a time above 0" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    given = options(tmp_path, "recurrent")
    bag = write_bag(tmp_path / "bag.mcap")
    (tmp_path / "bag.mcap.keyframes").write_text("a file in its place")
    with pytest.raises(StorageError, match=r"bag\.mcap\.keyframes: expected a folder for keyf"):
        evaluate(dataclasses.replace(given, keyframes_s=0.5), bag)


def test_a_limiter_goes_on_as_another_stood(tmp_path: Path) -> None:
    """At any point of a random life, through the text of a keyframe."""
    fields = json.loads(write_contract(tmp_path / "contract.yaml", False).read_text())
    contract = Contract.from_dict(fields)
    generator = np.random.default_rng(4)
    one = Limiter(contract)
    now_ns, kinds = 10**9, set()
    for _ in range(400):
        text = encode(Keyframe("0" * 12, Entry(0), DriverStanding(0, None, one.standing)))
        other = Limiter(contract)
        standing = decode("here", text).driver.limiter
        assert standing is not None
        other.go_on(standing)
        assert other.standing == one.standing
        now_ns += int(generator.integers(1, 30)) * 10_000_000
        kind = str(generator.choice(["pass", "pass", "miss", "miss", "restart"]))
        action_A, measured = generator.normal(size=2), generator.normal(size=2)
        sent = []
        for limiter in (one, other):
            if kind == "restart":
                limiter.restart()
            elif kind == "miss":
                limiter.miss(now_ns)
            else:
                sent.append(limiter.pass_(action_A, measured.astype(np.float32), now_ns).tobytes())
        kinds.add((kind, one.starting, one.standing.missing_since_ns is None))
        assert len(set(sent)) <= 1
        assert other.standing == one.standing
    assert len(kinds) >= 7, "all of it happened"


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """As those of a data set's cameras; also from memory, and with times that say nothing."""
    files = [tmp_path / side / "file-000.mp4" for side in ("left", "right")]
    for file, content in zip(files, (b"one", b"two"), strict=True):
        file.parent.mkdir()
        file.write_bytes(content)
        os.utime(file, (5, 5))
    memory = tmp_path / "digests.json"
    first = digest_of(files, memory)
    assert digest_of(files, memory) == digest_of(files) == first
    assert digest_of(files[::-1], memory) == digest_of(files[::-1]) != first
