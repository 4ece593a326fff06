"""What an evaluation says besides its figures: notes are no defects, one event is told once.

A reader stops reading where a recording that is as it should be has a dozen "defects", or where
words speak of numbers and show none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bag_files import JOINT_STATE, float_message, joint_state, write_mcap
from evaluate_bags import write_arm, write_contract, write_hold

from flashrt_ros.cli import main
from flashrt_ros.contract.contract import Contract
from flashrt_ros.evaluate import terminal
from flashrt_ros.evaluate.limits import Limiter


def test_of_words_that_differ_in_numbers_the_first_ones_are_shown(tmp_path: Path) -> None:
    limiter = Limiter(Contract.load(write_contract(tmp_path / "contract.yaml")))
    for metres in (3.5, 4.5):
        limiter._hold(f"{metres} m from the base, expected at most 2 m")
    limiter._hold("another reason")
    first = "3.5 m from the base, expected at most 2 m"
    assert limiter.held == {first: 2, "another reason": 1}
    limiter.forget_counts()  # what leads up to a moment gives no words either
    limiter._hold("4.5 m from the base, expected at most 2 m")
    assert list(limiter.held) == ["4.5 m from the base, expected at most 2 m"]


def run(reasons: dict[str, int], stale: int, gaps: int) -> dict[str, Any]:
    return {
        "policy": "hold",
        "stepped": 8,
        "steps": 10,
        "episodes": 1,
        "reasons": reasons,
        "latency_ms": {"p50": None},
        "horizon": [],
        "splice": None,
        "gripper": None,
        "inputs": [{"name": "state (/a)", "stale": stale, "gaps": gaps}],
        "remarks": [],
    }


@pytest.mark.parametrize(
    ("reasons", "stale", "gaps", "words"),
    [
        ({"state (/a): no message": 1}, 1, 1, ""),
        ({"state (/a): no message": 3}, 3, 2, "missing or stale in 3 steps, in 2 stretches"),
        ({"state (/a): no message": 1, "state (/a): stale": 1}, 2, 1, "in 2 steps, in 1 stretch"),
    ],
)
def test_an_input_that_hindered_is_told_once(
    reasons: dict[str, int], stale: int, gaps: int, words: str
) -> None:
    told = "\n".join(terminal._run(run(reasons, stale, gaps)))
    assert ("missing or stale" in told) == bool(words)
    assert words in told


def test_a_keyframe_that_was_entered_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_arm(Path("arm.mcap"), 60)
    write_contract(Path("contract.yaml"))
    write_hold(Path("hold"))
    words = ["evaluate", "arm.mcap", "--policy", "hold", "--contract", "contract.yaml"]
    assert main([*words, "--keyframes", "300ms"]) == 0
    assert "note: begun" not in capsys.readouterr().out
    assert main([*words, "--from", "800ms", "--json", "report.json"]) == 0
    (source,) = json.loads(Path("report.json").read_text())["sources"]
    assert any("s into the recording" in note for note in source["notes"])
    assert "note: begun at keyframe" in capsys.readouterr().out
    assert not any("keyframe" in words for words in source["defects"])


def test_what_a_contract_asks_for_is_no_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_hold(Path("hold"))
    contract = json.loads(write_contract(Path("contract.yaml")).read_text())
    part = contract["observations"][0]["parts"][0]
    for each in (part, contract["start"]["measured"]):
        each["positional"] = each["names"]
    Path("contract.yaml").write_text(json.dumps(contract))
    rows = [
        ("/joint_states", JOINT_STATE, 10**18 + i * 10**7, joint_state(i, ()))
        for i in range(1, 40)
    ]
    rows.append(("/load", "std_msgs/msg/Float64", 10**18, float_message(1.0)))
    write_mcap(Path("arm.mcap"), rows)
    words = ["evaluate", "arm.mcap", "--policy", "hold", "--contract", "contract.yaml"]
    main([*words, "--json", "report.json"])
    (source,) = json.loads(Path("report.json").read_text())["sources"]
    assert any("`positional` is used" in note for note in source["notes"])
    assert any("with empty names" in note for note in source["notes"])
    found = [e for e in source["defects"] if "positional" in e or "empty names" in e]
    assert found == []
