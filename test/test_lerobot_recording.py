"""Names and rate come from the data set's ``info.json`` where it lies beside the checkpoint.

With them a contract whose joints are in another order is refused before anything moves; a wrong
file of that name must not pass for the right one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from act_files import write_act
from lerobot_files import ACTION, STATE

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.lerobot.checkpoint import read_checkpoint
from flashrt_ros.policies.registry import load_policy

JOINTS, MOVES = ["a.pos", "b.pos", "c.pos"], ["a.pos", "b.pos"]
INFO = {
    "fps": 30,
    "features": {
        STATE: {"dtype": "float32", "shape": [3], "names": JOINTS},
        ACTION: {"dtype": "float32", "shape": [2], "names": {"motors": MOVES}},
        "observation.images.front": {"shape": [8, 8, 3], "names": ["height", "width", "channels"]},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    },
}


@pytest.mark.parametrize("place", ["info.json", "meta/info.json"])
def test_names_and_rate(tmp_path: Path, place: str) -> None:
    path = write_act(tmp_path) / place
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(INFO))
    assert read_checkpoint(tmp_path).recording.rate_hz == 30.0
    ports = load_policy(tmp_path).ports()
    assert ports.observations[0].names == tuple(JOINTS)
    assert ports.action.names == tuple(MOVES)


def test_without_the_file_nothing_is_known(tmp_path: Path) -> None:
    recording = read_checkpoint(write_act(tmp_path)).recording
    assert (recording.path, recording.rate_hz, dict(recording.names)) == (None, None, {})
    assert load_policy(tmp_path).ports().action.names == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v["features"][STATE]["names"].append("d"), "expected 3 names .* found 4"),
        (
            lambda v: v["features"][STATE].update(names=["a", "b", "a"]),
            "names: expected each once",
        ),
        (
            lambda v: v["features"][STATE].update(names=[1, 2, 3]),
            "names: expected a list of names",
        ),
        (lambda v: v.update(fps=0), "fps: expected a number above 0, found 0"),
        (lambda v: v.update(fps="30"), "fps: expected a number above 0, found '30'"),
        (lambda v: v.update(features=[]), "features: expected an object"),
    ],
)
def test_a_wrong_file(tmp_path: Path, change: Any, words: str) -> None:
    value = json.loads(json.dumps(INFO))
    change(value)
    (write_act(tmp_path) / "info.json").write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match=rf"info\.json: .*{words}"):
        load_policy(tmp_path)
