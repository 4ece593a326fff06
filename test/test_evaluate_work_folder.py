"""A kept result is used again only where the same would come out, and never stands in the way.

A result of other options would be a wrong report that looks right; a wreck that cannot be replaced
would keep a recording from ever being evaluated again.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evaluate_bags import write_arm, write_contract, write_hold

from flashrt_ros.evaluate.binding import digest_of
from flashrt_ros.evaluate.desk import ELSEWHERE, Desk, Job, Unit
from flashrt_ros.evaluate.episodes import EpisodeRule
from flashrt_ros.evaluate.evaluator import Candidate, Evaluator, Options

Do = Callable[..., tuple[str, bool]]


@pytest.fixture
def do(tmp_path: Path) -> Do:
    """Evaluates a recording with these options: the key, and whether it was done anew."""
    bag = write_arm(tmp_path / "arm.mcap", 60)
    contract = write_contract(tmp_path / "contract.yaml")
    plain = Options((Candidate("p", str(write_hold(tmp_path / "hold"))),), str(contract))

    def evaluate(series: bool = True, **changes: Any) -> tuple[str, bool]:
        given = dataclasses.replace(plain, **changes)
        evaluator = Evaluator(given)
        ids = {facts.label: (facts.state_id, facts.exec_id) for facts in evaluator.policies()}
        evaluator.close()
        desk = Desk(Job(given, ids, str(tmp_path / "work"), series))
        try:
            outcome = desk(Unit(str(bag)))
        finally:
            desk.close()
        assert outcome.error == ""
        return outcome.key, outcome.made

    return evaluate


CHANGES: dict[str, Any] = {
    "steps": "recorded",
    "episodes": EpisodeRule(gap_s=1.0),
    "remap": {"joint_command": "/joint_states"},
    "unnamed_commands": True,
    "grippers": ("a",),
    "survey": True,
    "start_s": 0.1,
    "end_s": 0.5,
    "seed": 3,
    "task": "pick",
}


def test_other_options_make_another_result(do: Do) -> None:
    keys = {do()[0]}
    assert not do()[1]
    for name, value in CHANGES.items():
        key, made = do(**{name: value})
        assert made, name
        keys.add(key)
    assert len(keys) == 1 + len(CHANGES)
    # A new option must be here or there; plans beside need a policy that has some.
    names = {each.name for each in dataclasses.fields(Options)}
    assert names == ELSEWHERE | CHANGES.keys() | {"pace"}


@pytest.mark.parametrize("wreck", ["half removed", "a file", "empty", "no series"])
def test_a_wreck_is_replaced(wreck: str, do: Do, tmp_path: Path) -> None:
    key, _ = do()
    place = tmp_path / "work" / key
    if wreck == "half removed":
        (place / "result.json").unlink()
    elif wreck == "no series":
        (place / "00.npz").unlink()
    else:
        shutil.rmtree(place)
        place.mkdir() if wreck == "empty" else place.write_text("x")
    assert do() == (key, True)
    assert do() == (key, False)


def test_a_change_shows_though_size_and_time_are_set_back(tmp_path: Path) -> None:
    path, remembered = tmp_path / "bag.mcap", tmp_path / "files.json"
    path.write_bytes(b"one")
    before = path.stat()
    first = digest_of([path], remembered)
    assert digest_of([path], remembered) == first
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert digest_of([path], remembered) != first
