"""``flashrt_ros capsule``: lists, shows, compares, verifies, removes; exit codes for scripts.

Damaged files must show up with a reason, and must not look like equal ones.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from capsule_images import content_of, image_of, image_of_every_dtype, image_with
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros import cli
from flashrt_ros.runtime.capsule_diff import difference
from flashrt_ros.runtime.capsule_folder import CapsuleFolder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = CapsuleFolder(tmp_path / "capsules")
    files.save(image_of(3), "one")
    files.save(image_of(3), "same")
    files.save(image_of(4), "later")
    raw = (files.path / "one.capsule").read_bytes()
    (files.path / "flipped.capsule").write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    (files.path / "short.capsule").write_bytes(raw[:99])
    (files.path / "notes.txt").write_text("not one of ours")
    return files.path


def call(folder: Path, *words: str) -> int:
    action, *rest = words
    return cli.main(["capsule", action, "--dir", str(folder), *rest])


def test_ls_shows_damaged_files_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "ls") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["FILE", "CREATED", "STEP", "EPISODE"]
    names = [line.split()[0] for line in lines[1:]]
    assert names == [f"{n}.capsule" for n in ("flipped", "later", "one", "same", "short")]
    assert re.search("refused +bytes of buffer 'trace' were changed", lines[1])
    assert lines[2].split()[2:4] == ["4", "1"]
    assert re.search("refused +truncated: expected a header", lines[5])
    assert r'pick "the\n cup" ä' in lines[2], "a task must not break the table"
    assert call(folder, "ls", "one", str(folder / "later.capsule")) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert call(folder / "nowhere", "ls") == 2
    assert "expected a file or folder, found none" in capsys.readouterr().err


def test_show_says_everything(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "show", "one") == 0
    text = capsys.readouterr().out
    for words in ("one.capsule: whole", "policy.weights", "cpu.threads", "float32 1x16, 64 bytes"):
        assert words in text
    assert call(folder, "show", "--json", str(folder / "one.capsule")) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["host"]["step"] == 3
    assert content["state"]["policy.family"] == "toy_recurrent"
    assert {b["name"] for b in content["buffers"]} >= {"rnn.h", "trace", "noise.key"}
    assert call(folder, "show", "flipped") == 1
    assert "flipped.capsule: bytes of buffer 'trace' were changed" in capsys.readouterr().err
    assert call(folder, "show", "gone") == 2
    assert "Traceback" not in capsys.readouterr().err
    assert call(folder, "show", "gone", "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


def test_diff_tells_the_same_from_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "diff", "one", "same") == 0
    assert capsys.readouterr().out == "the same execution state\n"
    assert call(folder, "diff", "one", "later") == 1
    lines = capsys.readouterr().out.splitlines()
    assert "host.step: 3 -> 4" in lines
    assert "count: 1 of 1 elements differ, largest difference 1 at [0]" in lines
    assert any(line.startswith("rnn.h: 16 of 16 elements differ, largest diff") for line in lines)
    assert not any(line.startswith(("noise.key", "policy.", "exec.")) for line in lines)
    for pair in (("one", "flipped"), ("gone", "one")):
        assert call(folder, "diff", *pair) == 2
        captured = capsys.readouterr()
        assert not captured.out
        assert captured.err.startswith(f"flashrt_ros: {folder}/")


def test_verify_fails_on_any_refusal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "verify", "one", "same", "later") == 0
    assert capsys.readouterr().out.count(": whole\n") == 3
    assert call(folder, "verify") == 1
    text = capsys.readouterr().out
    assert text.count(": whole\n") == 3
    assert f"{folder}/short.capsule: truncated" in text
    assert call(folder, "verify", "one", "gone") == 1
    assert "gone.capsule: expected a file or folder, found none" in capsys.readouterr().out


def test_rm_asks(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer, code in (("", 1), ("n\n", 1), ("y\n", 0)):
        assert (folder / "one.capsule").exists()
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert call(folder, "rm", "one") == code
        assert "Remove 1 capsule files? [y/N]" in capsys.readouterr().out
    assert not (folder / "one.capsule").exists()
    assert call(folder, "rm", "--yes", "short", "flipped") == 0
    assert call(folder, "rm", "--yes", "short") == 2
    assert call(folder, "rm", "--yes", str(folder / "notes.txt")) == 2
    assert call(folder, "rm", "--yes", str(folder)) == 2
    assert sorted(p.name for p in folder.iterdir()) == [
        "later.capsule",
        "notes.txt",
        "same.capsule",
    ]


# Differences, element by element


def test_what_a_restore_would_not_bring_back_is_no_difference() -> None:
    image = image_with(a=torch.zeros(3))
    renamed = replace(image.facts, id="ba9876543210", name="x", tick=99, created_ns=5)
    assert not difference(image, replace(image, facts=renamed))
    assert difference(image, replace(image, facts=replace(image.facts, noise_key=None)))


def test_buffers_of_another_shape_are_named() -> None:
    one, other = image_with(a=torch.zeros(3), b=torch.ones(1)), image_with(a=torch.zeros(1, 3))
    found = {line.field: (line.one, line.other) for line in difference(one, other).fields}
    assert found["buffer.a"] == ("float32[3]", "float32[1,3]")
    assert found["buffer.b"] == ("float32[1]", "(absent)")


def test_every_dtype_is_compared() -> None:
    image = image_of_every_dtype()
    for index, buffer in enumerate(image.buffers):
        raw = bytearray(buffer.data)
        raw[0] ^= 1
        changed = replace(buffer, data=memoryview(bytes(raw)))
        buffers = (*image.buffers[:index], changed, *image.buffers[index + 1 :])
        (found,) = difference(image, replace(image, buffers=buffers)).buffers
        assert (found.name, found.elements) == (buffer.name, 1)
        assert set(found.where) <= {0}
        assert found.largest > 0
        content_of(replace(image, buffers=buffers))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=6, max_size=6), st.data())
def test_largest_difference_of_integers_is_exact(values: list[int], data: st.DataObject) -> None:
    others = data.draw(st.permutations(values))
    one, other = (image_with(a=torch.tensor(v).view(2, 3)) for v in (values, others))
    away = [abs(a - b) for a, b in zip(values, others, strict=True)]
    found = difference(one, other).buffers
    if not any(away):
        assert not found
        return
    (line,) = found
    assert line.elements == sum(map(bool, away))
    assert line.largest == max(away)
    assert line.where == tuple(map(int, np.unravel_index(away.index(max(away)), (2, 3))))


def test_not_a_number_is_not_the_largest() -> None:
    nan, inf = float("nan"), float("inf")
    one = image_with(a=torch.tensor([0.0, 1.0, nan, 0.0]))
    (line,) = difference(one, image_with(a=torch.tensor([nan, 1.5, nan, -0.0]))).buffers
    assert (line.elements, line.of, line.largest, line.where) == (3, 4, 0.5, (1,))
    (line,) = difference(one, image_with(a=torch.tensor([-0.0, 1.0, nan, 0.0]))).buffers
    assert (line.elements, line.where) == (1, (0,))
    assert np.isnan(line.largest)
    (line,) = difference(one, image_with(a=torch.tensor([0.0, 1.0, nan, inf]))).buffers
    assert (line.largest, line.where) == (inf, (3,))
