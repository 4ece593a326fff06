"""Pins the report: its schema, its thresholds and exit codes, and the words on the terminal."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from bag_files import write_mcap
from evaluate_bags import arm_rows, wave, write_arm, write_contract, write_hold

from flashrt_ros.cli import main
from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.evaluate import terminal
from flashrt_ros.evaluate.progress import ProgressLine
from flashrt_ros.evaluate.thresholds import Threshold

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = json.loads((ROOT / "config" / "evaluate.schema.json").read_text())
LEAD = 8


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command over a recording whose command leads the state by ``LEAD`` steps."""
    folder = tmp_path_factory.mktemp("report")
    bag = write_arm(folder / "arm.mcap", 300, lead=LEAD)
    policy, contract = write_hold(folder / "hold"), write_contract(folder / "arm.yaml")
    return ["evaluate", str(bag), "--policy", str(policy), "--contract", str(contract)]


@pytest.fixture(scope="module")
def report(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("out") / "report.json"
    assert main([*words, "--json", str(out)]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_a_report_keeps_to_its_schema(report: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.validate(report)
    for spoil in (
        lambda r: r["runs"][0].pop("digest"),
        lambda r: r["runs"][0]["joints"][0].update(mae="much"),
        lambda r: r["runs"][0]["joints"][0].update(surprise=1),
        lambda r: r.update(version=2),
    ):
        spoilt = copy.deepcopy(report)
        spoil(spoilt)
        assert not validator.is_valid(spoilt), "the control"


def test_the_delay_of_a_leader_and_its_follower(report: dict[str, Any]) -> None:
    for a, joint in enumerate(report["runs"][0]["joints"]):
        assert abs(joint["lag_steps"] - LEAD) <= 1
        assert abs(joint["state_lag_steps"] - LEAD) <= 1
        assert joint["lag_ms"] == pytest.approx(joint["lag_steps"] * 20.0)
        assert joint["mae"] > 0.05
        # The policy commands the state: at the delay nothing but rounding to float32 is left.
        assert joint["mae_at_lag"] < 1e-6
        commands = np.array([wave(step + LEAD)[a] for step in range(300)])
        reference = np.abs(np.diff(commands)).mean()
        assert joint["baseline_hold_mae"] == pytest.approx(reference, abs=1e-9)
        spread = np.abs(commands - commands.mean()).mean()
        assert joint["baseline_mean_mae"] == pytest.approx(spread, abs=1e-9)


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("mae>0.05", 1),
        ("mae > 10", 0),
        ("joint:b.max>=0.2", 1),
        ("policy:hold.joint:a.mae_at_lag>1e-4", 0),
        ("policy:hold.stepped<300", 0),
        ("gripper_agreement<0.5", 1),
    ],
)
def test_thresholds_give_the_exit_code(
    words: list[str], condition: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--fail-if", condition]) == code
    assert (f"FAILED {condition}" in capsys.readouterr().out) == bool(code)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("mae", "expected .policy:LABEL"),
        ("mae>1.2.3", "expected .policy:LABEL"),
        ("mood>3", "no metric 'mood'; there are "),
        ("joint:a.stale>3", "a joint has baseline_hold_mae"),
        ("joint:elbow.mae>3", "no joint 'elbow'; there are a, b"),
        ("policy:other.mae>3", "no run of policy 'other'; there are hold"),
    ],
)
def test_wrong_thresholds_are_wrong_usage(
    words: list[str], condition: str, message: str, report: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Threshold.parse(condition).judge(report["runs"])
    assert main([*words, "--fail-if", condition]) == 2


def test_names_with_dots_are_joints_too(report: dict[str, Any]) -> None:
    run = copy.deepcopy(report["runs"][0])
    run["joints"][0]["name"] = "/gripper.pos/a.b"
    (found,) = Threshold.parse("joint:/gripper.pos/a.b.mae<0").judge([run])
    assert found["value"] == run["joints"][0]["mae"]
    assert found["passed"]


def test_of_several_sources_a_bad_one_does_not_cost_the_others(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for row in arm_rows(5, wave, wave) if row[0] == "/joint_command"]
    lame = write_mcap(tmp_path / "lame.mcap", rows)
    missing = tmp_path / "none.mcap"
    out = tmp_path / "report.json"
    all_three = [words[0], str(lame), str(missing), *words[1:]]
    assert main([*all_three, "--json", str(out)]) == 1
    found = json.loads(out.read_text())
    jsonschema.validate(found, SCHEMA)
    errors = {Path(source["name"]).name: source["error"] for source in found["sources"]}
    assert errors["arm.mcap"] is None
    assert "expected messages on joint_states" in errors["lame.mcap"]
    assert "no such recording" in errors["none.mcap"]
    assert len(found["runs"]) == 1
    assert "not evaluated" in capsys.readouterr().out
    # Alone it is wrong usage.
    assert main(["evaluate", str(lame), *words[2:]]) == 2


def test_several_policies_stand_side_by_side(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    assert main([*words, "--policy", f"again={words[3]}", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [run["policy"] for run in found["runs"]] == ["hold", "again"]
    assert found["runs"][0]["digest"] == found["runs"][1]["digest"]
    assert [entry["policy"] for entry in found["summary"]] == ["hold", "again"]
    assert "again" in capsys.readouterr().out
    assert main([*words, "--policy", words[3]]) == 2, "two of one label"


def test_tables_without_rich(
    report: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    terminal.show(report)
    text = capsys.readouterr().out
    assert "element  policy" in text
    assert "a [rad]" in text
    assert report["digest"] in text


def test_progress_says_rate_and_what_is_left() -> None:
    line = ProgressLine("bag", 0, 100 * 10**9)
    assert line.words(25 * 10**9, 0.5) == (
        "bag: 25.0 of 100.0 s (25 %), 50 times real time, 2 s left"
    )
