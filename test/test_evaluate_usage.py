"""Wrong usage of ``evaluate`` is one sentence and exit code 2, before anything was done.

And of many recordings one that cannot be evaluated, forked or written costs the others nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from evaluate_bags import write_arm, write_contract, write_hold

from flashrt_ros.cli import main
from flashrt_ros.evaluate.evaluator import Candidate, Evaluator, Options

SCHEMA = json.loads(
    (Path(__file__).resolve().parent.parent / "config/evaluate.schema.json").read_text()
)
WITH_REPRODUCE = "expected a run without --reproduce"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A call that is right; what it names lies in the folder where it runs."""
    monkeypatch.chdir(tmp_path)
    write_arm(Path("arm.mcap"), 60, lead=8)
    write_contract(Path("contract.yaml"))
    write_hold(Path("hold"))
    return ["evaluate", "arm.mcap", "--policy", "hold", "--contract", "contract.yaml"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--from 2s --to 1s", "--to 1 s: expected a time after --from 2 s"),
        ("--from 1s --to 1s", "--to 1 s: expected a time after --from 1 s"),
        ("--from 100s", "arm.mcap: --from: expected a time within its 1.180 s, found 100 s"),
        (f"--from {'9' * 400}", "--from: expected a time of at most 1e+09 s"),
        ("--from=", "--from: expected a time such as 12.5s"),
        ("--to=", "--to: expected a time such as 12.5s"),
        ("--episodes=", "--episodes: expected gaps:SECONDS"),
        ("--policy=", "--policy: expected [LABEL=]DIRECTORY"),
        ("--delay -1", "delay: expected an integer of at least 0, found -1"),
        ("--plan-ahead -1", "plan_ahead: expected an integer of at least 0, found -1"),
        ("--remap /other:=/x", "--remap /other: expected a topic of the contract, it has joint_"),
        ("--remap /joint_states:=/x", "--remap joint_states:=/x: no topic /x; it has"),
        ("--remap /joint_command:=/x", "--remap joint_command:=/x: no topic /x; it has"),
        ("--fork-for 1s", "--fork-for: expected --fork-at TIME too"),
        ("--json none/x.json", "--json none/x.json: there is no such folder"),
        ("--json hold", "--json hold: expected the name of a file, found a folder"),
        ("--html hold", "--html hold: expected the name of a file, found a folder"),
        ("--save-tracks arm.mcap", "--save-tracks arm.mcap: expected a folder, found the file"),
        ("--mcap arm.mcap/x.mcap", "expected a folder, found the file"),
        ("--work-folder arm.mcap/x", "expected a folder, found the file"),
        ("--keyframes 1s --keyframe-folder arm.mcap", "expected a folder, found the file"),
        ("--fail-if policy:other.mae>1", "no run of policy 'other'; there are hold"),
        ("--fail-if joint:other.mae>1", "no joint 'other'; there are a, b"),
        ("--fail-if joint:a.mea>1", "no metric 'mea'; a joint has"),
        ("--branches 0 --fork-at 1s", "--branches: expected a number from 1, found 0"),
        ("--branches 0", "--branches: expected --fork-at TIME too"),
        ("--workers 0", "--workers 0: expected --engine processes or ray"),
        ("--engine processes --workers 0", "--workers: expected a number from 1, found 0"),
        ("--json contract.yaml", "--json contract.yaml: exists, and no evaluation wrote it"),
        ("--html contract.yaml", "--html contract.yaml: exists, and no evaluation wrote it"),
        ("--json x --html ./x", "--html x: expected another file than --json"),
        ("--reproduce --to 1s", f"--to: {WITH_REPRODUCE}"),
        ("--reproduce --save-tracks x", f"--save-tracks: {WITH_REPRODUCE}"),
    ],
)
def test_wrong_usage(
    more: str, expected: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if "--json" not in more:
        more += " --json report.json"
    before = {str(path) for path in Path().rglob("*")}
    assert main([*words, *more.split()]) == 2
    told = capsys.readouterr()
    assert expected in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert {str(path) for path in Path().rglob("*")} == before


@pytest.mark.parametrize("engine", [[], ["--work-folder", "work"]])
def test_one_of_many_costs_the_others_nothing(engine: list[str], words: list[str]) -> None:
    write_arm(Path("short.mcap"), 10)
    words[1:2] = ["arm.mcap", "none.mcap", "short.mcap"]
    more = ["--mcap", "out", "--fork-at", "1s", "--fork-for", "100ms", "--json", "report.json"]
    assert main([*words, *more, *engine]) == 1
    found = json.loads(Path("report.json").read_text())
    jsonschema.validate(found, SCHEMA)
    arm, none, short = (source["error"] for source in found["sources"])
    assert arm is None
    assert "no such recording" in none
    assert "--fork-at: expected a time within its 0.180 s" in short
    assert [run["source"] for run in found["runs"]] == ["arm.mcap", "short.mcap"]
    assert [fan["source"] for fan in found["fans"]] == ["arm.mcap"]
    assert sorted(path.name for path in Path("out").glob("*.mcap")) == ["arm.mcap", "short.mcap"]


def test_a_threshold_fails_where_no_source_could_be_evaluated(words: list[str]) -> None:
    words[1:2] = ["none.mcap", "nothing.mcap"]
    assert main([*words, "--fail-if", "mae>1", "--json", "report.json"]) == 1
    found = json.loads(Path("report.json").read_text())
    jsonschema.validate(found, SCHEMA)
    assert [(each["value"], each["passed"]) for each in found["thresholds"]] == [(None, False)]


def test_a_topic_is_remapped_with_a_slash_and_without(words: list[str]) -> None:
    for name in ("joint_command", "/joint_command"):
        candidates = (Candidate("hold", "hold"),)
        given = Options(candidates, "contract.yaml", remap={name: "/joint_states"})
        evaluator = Evaluator(given)
        try:
            (track,) = evaluator.run("arm.mcap").tracks
        finally:
            evaluator.close()
        # The measured state as the command: not what was recorded as one.
        assert abs(track.predicted_TA - track.recorded_TA).max() < 1e-6


def test_what_an_evaluation_wrote_is_replaced_by_the_next(words: list[str]) -> None:
    more = ["--json", "out.json", "--html", "out.html", "--mcap", "out.mcap"]
    outputs = [Path(each) for each in more[1::2]]
    for path in outputs:
        path.touch()  # as mktemp leaves it
    assert main([*words, *more]) == 0
    first = [path.read_bytes() for path in outputs]
    assert all(first)
    assert main([*words, *more, "--to", "600ms"]) == 0
    assert all(path.read_bytes() != old for path, old in zip(outputs, first, strict=True))
    assert not list(Path().glob("*unfinished*"))
    # As a source it is not replaced.
    assert main(["evaluate", "out.mcap", *words[2:], "--mcap", "out.mcap"]) == 2


def test_a_folder_that_cannot_be_written_is_told_before_the_run(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The super user may write everywhere.
    monkeypatch.setattr("flashrt_ros.evaluate.output.os.access", lambda path, mode: False)
    for option in ("--json", "--html", "--mcap", "--save-tracks"):
        assert main([*words, option, "x"]) == 2
        told = capsys.readouterr()
        assert f"{option} x: " in told.err
        assert "cannot be written to" in told.err
        assert told.out == ""


def test_no_control_step_at_all_is_a_failure(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("none.csv").write_text("start_s,end_s\n100,200\n")
    assert main([*words, "--episodes", "table:none.csv"]) == 1
    assert "FAILED: not one control step was made (hold, arm.mcap)" in capsys.readouterr().out


def test_a_missing_topic_is_told_with_the_one_that_may_be_meant(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    contract = Path("contract.yaml")
    whole = contract.read_text()
    contract.write_text(whole.replace("joint_states", "joint_state"))
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "did you mean /joint_states (--remap joint_state:=/joint_states)? It has" in told
    contract.write_text(whole.replace("joint_command", "joint_commands"))
    assert main([*words, "--json", "report.json"]) == 0
    (source,) = json.loads(Path("report.json").read_text())["sources"]
    assert "(--remap joint_commands:=/joint_command)?" in "".join(source["defects"])
