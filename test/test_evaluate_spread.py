"""Many recordings over many workers: one report, and the hash of the serial run, whoever dies.

A worker is killed, the driver is killed, a result is damaged, the call is made again: the hash
stays, and what was done is not done anew.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dataset_files import write_dataset
from evaluate_bags import write_arm, write_contract
from keyframe_cases import write_recurrent
from spread_cases import FOLDER, order, orders_left

from flashrt_ros.cli import main
from flashrt_ros.errors import ExecMismatchError
from flashrt_ros.evaluate.desk import Job
from flashrt_ros.evaluate.evaluator import Candidate, Evaluator, Options
from flashrt_ros.evaluate.fork import ForkPlan
from flashrt_ros.evaluate.spread import Engine, spread

HERE = Path(__file__).resolve().parent
PATIENCE_S = 300.0


@pytest.fixture
def bags(tmp_path: Path) -> list[Path]:
    """Of different lengths, one of which is none."""
    found = [write_arm(tmp_path / f"bag{n}.mcap", 60 + 7 * n) for n in range(4)]
    (tmp_path / "bag4.mcap").write_bytes(b"no recording")
    return [*found, tmp_path / "bag4.mcap"]


def words_of(tmp_path: Path, bags: list[Path], policy: str = "") -> list[str]:
    """The command, without its engine."""
    contract = write_contract(tmp_path / "arm.yaml", start="unchecked")
    fields = json.loads(contract.read_text())
    (part,) = fields["observations"][0]["parts"]
    fields["observations"][0]["parts"] = [part, {**part, "field": "position"}]
    contract.write_text(json.dumps(fields))
    policy = policy or str(write_recurrent(tmp_path / "gru"))
    words = ["evaluate", *map(str, bags), "--policy", policy, "--contract", str(contract)]
    return [*words, "--json", str(tmp_path / "report.json")]


def report(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Everything but what takes time."""

    def plain(found: dict[str, Any]) -> Any:
        runs = [{**run, "latency_ms": None} for run in found["runs"]]
        return {**found, "created": None, "runs": runs}

    return bool(plain(one) == plain(other))


def command(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which may be killed."""
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    environment = {**os.environ, "PYTHONPATH": path, FOLDER: str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "flashrt_ros.cli", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def times(work: Path) -> dict[str, int]:
    """When each result was made; a process that was killed may leave the half of one, hidden."""
    return {path.parent.name: path.stat().st_mtime_ns for path in work.glob("[!.]*/result.json")}


def key_of(work: Path, bag: Path) -> str:
    """Of the result of a recording."""
    (found,) = [p for p in work.glob("[!.]*/result.json") if f'"{bag}"' in p.read_text()]
    return found.parent.name


def test_a_work_folder_keeps_what_was_done(
    tmp_path: Path, bags: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = words_of(tmp_path, bags)
    assert main(words) == 1  # one recording is none
    plain = report(tmp_path)
    assert "bag4.mcap" in plain["sources"][4]["error"]
    work = tmp_path / "work"
    kept = [*words, "--work-folder", str(work)]
    assert main(kept) == 1
    assert same(report(tmp_path), plain)
    first = times(work)
    assert len(first) == 4
    # Again: nothing is made anew but what is missing, damaged or of another content.
    damaged = key_of(work, bags[0])
    (work / damaged / "result.json").write_bytes(b"")
    write_arm(bags[1], 70)
    assert main(kept) == 1
    again = times(work)
    assert len(again) == 5
    assert [key for key in first if again[key] != first[key]] == [damaged]
    assert report(tmp_path)["digest"] != plain["digest"], "the control: another recording"
    write_arm(bags[1], 67)
    assert main(kept) == 1
    assert report(tmp_path)["digest"] == plain["digest"]
    assert times(work) == again
    # Figures alone were kept; series are made when they are asked for.
    assert main([*kept, "--save-tracks", str(tmp_path / "tracks")]) == 1
    assert len(list((tmp_path / "tracks").glob("*.npz"))) == 4
    assert report(tmp_path)["digest"] == plain["digest"]
    assert main([*kept, "--seed", "3"]) == 1
    assert report(tmp_path)["digest"] != plain["digest"]
    capsys.readouterr()


def test_the_hash_stays_whoever_is_killed(tmp_path: Path, bags: list[Path]) -> None:
    # More than two workers can have ended with when the driver dies at the third.
    bags += [write_arm(tmp_path / f"more{n}.mcap", 50 + n) for n in range(3)]
    words = words_of(tmp_path, bags, "spread_cases:Mortal")
    folder = tmp_path / "orders"
    assert main(words) == 1
    plain = report(tmp_path)
    work = tmp_path / "work"
    spread = [*words, "--engine", "processes", "--workers", "2", "--work-folder", str(work)]
    # When the third recording comes to step 30 the driver is killed.
    order(folder, "driver", "later", "later", "now")
    assert command(spread, folder).returncode == -signal.SIGKILL
    before = times(work)
    assert 1 <= len(before) < 7
    order(folder, "self", "now")
    done = command(spread, folder)
    assert done.returncode == 1, done.stderr
    assert not orders_left(folder, "self"), "a worker was killed"
    assert same(report(tmp_path), plain)
    after = times(work)
    assert len(after) == 7
    assert {key: after[key] for key in before} == before, "what was done is not done anew"


def test_branches_are_spread_too(tmp_path: Path, bags: list[Path]) -> None:
    words = [*words_of(tmp_path, bags[:1]), "--fork-at", "400ms", "--branches", "5"]
    assert main(words) == 0
    (plain,) = report(tmp_path)["fans"]
    policy, contract = words[words.index("--policy") + 1], words[words.index("--contract") + 1]
    options = Options((Candidate(Path(policy).name, policy),), contract, threads=1)
    evaluator = Evaluator(options)
    ids = {facts.label: (facts.state_id, facts.exec_id) for facts in evaluator.policies()}
    evaluator.close()
    work = tmp_path / "work"
    plan = ForkPlan.of(0.4, list(ids), 5)
    # Parts for two workers, done one after the other.
    kept, fans = spread(Job(options, ids, str(work)), [str(bags[0])], Engine("serial", 2), plan)
    assert [fan.as_json() for fan in fans] == [plain]
    assert len(kept) == 1
    assert len(times(work)) == 3  # the recording, and the branches in two parts
    wrong = Job(options, {label: (ids[label][0], "0" * 64) for label in ids}, str(work))
    with pytest.raises(ExecMismatchError, match=r"expected exec id 0000.* as the driver has it"):
        spread(wrong, [str(bags[0])], Engine())


def test_lists_and_data_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots = [
        write_dataset(tmp_path / f"set{n}", (9 + n, 5), video=False, image=False) for n in range(2)
    ]
    listed = tmp_path / "sources.txt"
    listed.write_text("# two\n" + "\n".join(map(str, roots)) + "\n\n")
    policy = tmp_path / "hold"
    policy.mkdir()
    (policy / "config.json").write_text('{"type": "hold", "size": 3}')
    words = ["evaluate", f"@{listed}", "--policy", str(policy)]
    words += ["--json", str(tmp_path / "report.json"), "--work-folder", str(tmp_path / "work")]
    assert main(words) == 0
    assert [source["name"] for source in report(tmp_path)["sources"]] == list(map(str, roots))
    assert [run["steps"] for run in report(tmp_path)["runs"]] == [14, 15]
    assert main(["evaluate", "@nowhere", "--policy", str(policy)]) == 2
    assert "@nowhere: expected a readable list of paths" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--workers", "2"], "--workers 2: expected --engine processes or ray, found serial"),
        (["--engine", "processes", "--workers", "0"], "--workers: expected a number from 1"),
        (["--threads", "0"], "--threads: expected a number from 1, found 0"),
        (["--ray-address", "auto"], "--ray-address: expected --engine ray too"),
    ],
)
def test_options_that_do_not_fit(
    more: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "bag", "--policy", "hold", *more]) == 2
    assert expected in capsys.readouterr().err
