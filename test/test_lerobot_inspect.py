"""``flashrt_ros inspect`` and ``check`` on a checkpoint, and what a user gets wrong with one.

Each mistake must end in one clear sentence before anything moves: in the command, and in the
contract's check at configure, which is the same code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from act_files import CAMERA, write_act
from lerobot_files import ACTION, FRONT, STATE, edit_json, edit_tensors

from flashrt_ros import cli

JOINTS = ["shoulder.pos", "elbow.pos", "wrist.pos"]
INFO = {"fps": 30, "features": {STATE: {"names": JOINTS}, ACTION: {"names": JOINTS[:2]}}}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = write_act(tmp_path / "model", new_in_0_9=1, **CAMERA)
    (directory / "info.json").write_text(json.dumps(INFO))
    return directory


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def written(checkpoint: Path) -> Path:
    """A contract that fits, from ``inspect``."""
    path = checkpoint.parent / "robot.contract.yaml"
    assert run("inspect", checkpoint, "--contract", path) == 0
    path.write_text(path.read_text().replace("max_distance: ", "max_distance: 0.1"))
    return path


def test_what_is_shown(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", checkpoint) == 0
    shown = capsys.readouterr().out
    for words in (
        "LeRobot checkpoint of type act, statistics in its processors",
        "control rate of the recordings: 30 Hz",
        "keys of config.json that nothing reads: new_in_0_9",
        "plans: beside, chunks of 6, of which 4 are taken",
        "a capsule weighs",
        "shoulder.pos, elbow.pos, wrist.pos",
    ):
        assert words in shown
    assert any(
        line.split() == [FRONT, "VISUAL", "3x32x48", "mean_std"] for line in shown.splitlines()
    )
    assert any(line.startswith("chunk.actions") for line in shown.splitlines())


def test_the_same_as_json(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint / "info.json").unlink()
    assert run("inspect", checkpoint, "--json") == 0
    found = json.loads(capsys.readouterr().out)["checkpoint"]
    assert found["rate_hz"] is None
    assert found["element_names"] == ""
    assert found["unknown_keys"] == ["new_in_0_9"]
    assert found["features"][-1] == {
        "name": ACTION,
        "kind": "ACTION",
        "shape": [2],
        "normalisation": "mean_std",
    }


def test_a_contract_is_written_once_and_fits(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(checkpoint)
    assert run("check", checkpoint, "--contract", path, "--steps", 4) == 0
    assert f"contract {path} fits the policy" in capsys.readouterr().out
    before = path.read_text()
    assert run("inspect", checkpoint, "--contract", path) != 0
    assert "expected no such file, found one" in capsys.readouterr().err
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("size: [32, 48]", "size: [48, 32]", "height and width are interchanged"),
        ("observation.images.front", "observation.images.fornt", f"did you mean '{FRONT}'?"),
        ('"shoulder", "elbow"]', '"elbow", "shoulder"]', "expected ['shoulder.pos', 'elbow.pos']"),
    ],
)
def test_a_contract_that_does_not_fit(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str
) -> None:
    path = written(checkpoint)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert run("check", checkpoint, "--contract", path) != 0
    assert words in capsys.readouterr().err


def nan_statistics(directory: Path) -> None:
    name = "policy_preprocessor_step_3_normalizer_processor.safetensors"
    edit_tensors(directory / name, lambda t: t[f"{FRONT}.std"].fill_(float("nan")))


def truncated(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def pickled(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"\x80\x04N.")


def channels_last(directory: Path) -> None:
    def turn(values: dict[str, Any]) -> None:
        values["input_features"][FRONT]["shape"] = [32, 48, 3]

    edit_json(directory / "config.json", turn)


SPOILED = [
    (nan_statistics, f"'{FRONT}': statistic 'std' of normalisation 'mean_std': expected finite"),
    (truncated, "model.safetensors: expected a safetensors file, found a damaged one"),
    (pickled, "model.safetensors: expected a safetensors file, found a pickle"),
    (channels_last, "the image is transposed, its channels come last"),
]


@pytest.mark.parametrize(("spoil", "words"), SPOILED)
@pytest.mark.parametrize("command", ["inspect", "check"])
def test_a_spoiled_checkpoint_in_one_sentence(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], command: str, spoil: Any, words: str
) -> None:
    spoil(checkpoint)
    assert run(command, checkpoint) != 0
    out, err = capsys.readouterr()
    assert words in err
    assert out == ""
    assert len(err.strip().splitlines()) == 1
