"""Forks at a moment of a recording: the branch that changes nothing is the run itself, to the bit.

Only so is what the other branches do the doing of their seed, task or policy alone.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from evaluate_bags import write_arm
from keyframe_cases import evaluate, options, write_bag, write_contract

from flashrt_ros.cli import main
from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.evaluate.drive import Pace
from flashrt_ros.evaluate.evaluator import Candidate, Evaluator, Options
from flashrt_ros.evaluate.fan import Fan
from flashrt_ros.evaluate.fork import ForkPlan, fork, join

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = json.loads((ROOT / "config/evaluate.schema.json").read_text())
AT_S = 1.2


def fork_of(given: Options, bag: Path, plan: ForkPlan) -> Fan:
    evaluator = Evaluator(given)
    try:
        return fork(evaluator, str(bag), plan)
    finally:
        evaluator.close()


def plan_of(given: Options, *args: Any, **named: Any) -> ForkPlan:
    return ForkPlan.of(AT_S, [c.label for c in given.candidates], *args, for_s=1.0, **named)


@pytest.mark.parametrize("kind", ["recurrent", "diffusion", "two"])
def test_the_branch_that_goes_on_as_it_was_is_the_run(kind: str, tmp_path: Path) -> None:
    given = options(tmp_path, kind)
    bag = write_bag(tmp_path / "bag.mcap")
    tracks, _, _ = evaluate(given, bag)
    fan = fork_of(given, bag, plan_of(given, 3))
    assert len(fan.branches) == 3 * len(tracks)
    for number, track in enumerate(tracks):
        (begin,) = np.flatnonzero(track.index_T == fan.index)
        rows = slice(begin, begin + len(fan.recorded_HA))
        assert track.time_ns_T[begin] == fan.time_ns
        kept, *others = fan.actions_BHA[3 * number : 3 * number + 3]
        assert kept.tobytes() == track.sent_TA[rows].tobytes()
        assert fan.recorded_HA.tobytes() == track.recorded_TA[rows].tobytes()
        assert all(other.tobytes() != kept.tobytes() for other in others)
        assert others[0].tobytes() != others[1].tobytes()
    names = [branch.label for branch in fan.branches]
    labels = ["gru0, ", "gru1, "] if kind == "two" else [""]
    assert names == [f"{p}{w}" for p in labels for w in ("as it was", "branch 1", "branch 2")]
    assert None not in fan.diverges_at()


def test_a_fork_waits_for_a_boundary_without_a_plan_under_way(tmp_path: Path) -> None:
    given = options(tmp_path, "diffusion", Pace(2))
    bag = write_bag(tmp_path / "bag.mcap", 5)
    ((track,), _, _) = evaluate(given, bag)
    waited = []
    for at_s in np.arange(1.0, 1.1, 0.02).tolist():
        plan = ForkPlan.of(at_s, ["diffusion"], 2, for_s=0.5)
        fan = fork_of(given, bag, plan)
        (begin,) = np.flatnonzero(track.index_T == fan.index)
        rows = slice(begin, begin + len(fan.recorded_HA))
        assert fan.actions_BHA[0].tobytes() == track.sent_TA[rows].tobytes()
        waited.append(fan.index - round(at_s * 50))
        # Who plans anew gives the plan up in any case.
        at_once = fork_of(given, bag, dataclasses.replace(plan, replan=True))
        assert at_once.index == round(at_s * 50)
    assert set(waited) == {0, 1, 2}


def test_keyframes_lead_to_the_same_fan_and_so_does_each_part_of_it(tmp_path: Path) -> None:
    given = options(tmp_path, "recurrent")
    bag = write_bag(tmp_path / "bag.mcap")
    plan = plan_of(given, 4)
    whole = fork_of(given, bag, plan)
    evaluate(dataclasses.replace(given, keyframes_s=0.5), bag)
    parts = [
        fork_of(given, bag, dataclasses.replace(plan, branches=branches))
        for branches in (plan.branches[:1], plan.branches[1:])
    ]
    joined = join(parts)
    assert joined.actions_BHA.tobytes() == whole.actions_BHA.tobytes()
    assert joined.branches == whole.branches
    assert joined.as_json() == whole.as_json()


def test_seeds_of_ones_own(tmp_path: Path) -> None:
    given = options(tmp_path, "recurrent")
    bag = write_bag(tmp_path / "bag.mcap")
    fan = fork_of(given, bag, plan_of(given, seeds=[7, 8, 7]))
    one, other, again = fan.actions_BHA
    assert one.tobytes() == again.tobytes()
    assert one.tobytes() != other.tobytes()
    assert [(b.label, b.seed) for b in fan.branches] == [(f"seed {n}", n) for n in (7, 8, 7)]


def test_rows_left_of_a_chunk_are_followed_unless_it_is_planned_anew(tmp_path: Path) -> None:
    given = options(tmp_path, "diffusion")
    bag = write_bag(tmp_path / "bag.mcap", 5)
    plan = plan_of(given, 2)
    apart = [
        min(row for row in fork_of(given, bag, each).diverges_at() if row is not None)
        for each in (plan, dataclasses.replace(plan, replan=True))
    ]
    assert apart[1] < apart[0] <= 5


def test_tasks_change_what_is_done_and_nothing_else(tmp_path: Path) -> None:
    contract = write_contract(tmp_path / "contract.yaml", False, start="unchecked")
    fields = json.loads(contract.read_text())
    for key in ("limits", "max_step"):
        del fields["actions"][0][key]
    contract.write_text(json.dumps(fields))
    given = Options((Candidate("told", "keyframe_cases:Told"),), str(contract), task="be")
    bag = write_bag(tmp_path / "bag.mcap")
    fan = fork_of(given, bag, plan_of(given, tasks=["be", "be quick"]))
    assert [(b.label, b.task) for b in fan.branches] == [
        ("task 'be'", "be"),
        ("task 'be quick'", "be quick"),
    ]
    stepped = np.isfinite(fan.actions_BHA).all((0, 2))
    assert stepped.any()
    assert np.allclose(np.diff(fan.actions_BHA[:, stepped], axis=0), 0.06, atol=1e-6)
    with pytest.raises(InvalidArgumentError, match="expected at most 12 letters"):
        fork_of(given, bag, plan_of(given, tasks=["a story that is too long"]))


def test_the_command_says_it_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = options(tmp_path, "recurrent")
    bag = write_bag(tmp_path / "bag.mcap")
    report = tmp_path / "report.json"
    words = ["evaluate", str(bag), "--policy", given.candidates[0].path]
    words += ["--contract", given.contract, "--json", str(report)]
    assert main([*words, "--fork-at", "1200ms", "--branches", "3", "--fork-for", "1s"]) == 0
    jsonschema.validate(json.loads(report.read_text()), SCHEMA)
    (fan,) = json.loads(report.read_text())["fans"]
    assert fan == fork_of(given, bag, plan_of(given, 3)).as_json()
    out = capsys.readouterr().out
    assert "3 branches from control step 60" in out
    assert "a [rad]: apart after" in out
    assert "as it was: " in out
    for more, expected in (
        (["--branches", "3"], "--branches: expected --fork-at TIME too"),
        (["--fork-at", "soon"], "--fork-at: expected a time such as 12.5s"),
        (["--fork-at", "9s"], "expected a time within its 3.0"),
        (["--fork-at", "1s", "--branches", "300"], "expected at most 256 in all, found 300"),
        (["--fork-at", "1s", "--fork-for", "0s"], "--fork-for: expected a time above 0"),
        (["--fork-at", "1s", "--branches", "2", "--branch-seeds", "3"], "expected 1, one for eac"),
    ):
        assert main([*words, *more]) == 2
        assert expected in capsys.readouterr().err


def test_a_policy_without_noise_is_told_by_branches_that_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = write_contract(tmp_path / "contract.yaml", False)
    bag = write_arm(tmp_path / "arm.mcap", 80)
    words = ["evaluate", str(bag), "--policy", "keyframe_cases:Told", "--contract", str(contract)]
    fields = json.loads(contract.read_text())
    fields["observations"][0]["parts"][1]["field"] = "position"
    contract.write_text(json.dumps(fields))
    assert main([*words, "--fork-at", "1s", "--branches", "2", "--fork-for", "200ms"]) == 0
    assert "a [rad]: all branches are the same, to the bit" in capsys.readouterr().out


def test_branches_that_make_no_step_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = write_contract(tmp_path / "contract.yaml", False)
    bag = write_bag(tmp_path / "bag.mcap")
    words = ["evaluate", str(bag), "--policy", "keyframe_cases:Told", "--contract", str(contract)]
    fields = json.loads(contract.read_text())
    fields["observations"][0]["parts"][0]["names"] = ["a", "nowhere"]
    contract.write_text(json.dumps(fields))
    assert main([*words, "--fork-at", "1010ms", "--branches", "2", "--fork-for", "200ms"]) == 1
    assert "a [rad]: no branch made a step" in capsys.readouterr().out
