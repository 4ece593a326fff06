"""Each benchmark runs in its quick mode and prints figures beside the floor of the same run.

No time is asserted: a test machine's clock says nothing. What is pinned is that every figure has
its samples and its floor, and that the arithmetic of the report is right. ``sameness`` is not a
time: its counts and its controls are asserted.
"""

import importlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros import cli
from flashrt_ros.bench import growing, sameness, sleep_loop, step, verbs
from flashrt_ros.bench.command import BENCHMARKS
from flashrt_ros.bench.harness import Case, Options, interleave
from flashrt_ros.bench.report import Count, Result, Row, make_row, percentile, table
from flashrt_ros.runtime.device import open_device

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.sampled_from([0.01, 0.5, 0.99, 1.0]))
def test_percentile_is_the_least_sample_that_covers_the_share(
    samples: list[float], share: float
) -> None:
    found = percentile(samples, share)
    covered = sum(sample <= found for sample in samples)
    below = sum(sample < found for sample in samples)
    assert found in samples
    assert covered >= share * len(samples) - 1e-9
    assert below < share * len(samples)


def test_a_row_is_held_against_its_floor() -> None:
    floor = make_row("floor", [1.0, 2.0, 3.0])
    row = make_row("work", [3.0, 4.0, 9.0], "us", 4000, floor, "<= 2")
    assert (row.p50, row.p99, row.largest, row.ratio, row.difference) == (4.0, 9.0, 9.0, 2.0, 6.0)
    assert row.gb_per_s == pytest.approx(2.0)  # 4000 bytes read, 4000 written in 4 us
    assert row.floor == "floor"
    text = table(Result("name", "title", [floor, row], notes=["read this"]))
    assert text.splitlines()[0] == "== name: title"
    assert text.splitlines()[3].split()[:6] == ["work", "3", "4", "9", "9", "us"]
    assert text.endswith("  read this")


def test_cases_take_turns_and_preparation_is_not_timed() -> None:
    calls: list[str] = []

    def note(word: str) -> Case:
        return Case(lambda: calls.append(word), lambda: calls.append(f"before {word}"))

    samples = interleave({"a": note("a"), "b": note("b")}, 3, open_device("cpu"), warm_up=1)
    assert {name: len(found.wall) for name, found in samples.items()} == {"a": 3, "b": 3}
    assert calls[::2] == [f"before {word}" for word in calls[1::2]]
    order = calls[1::2]
    assert order[2:] == ["a", "b", "b", "a", "a", "b"]  # who comes first alternates


def check_rows(rows: list[Row]) -> None:
    cases = {row.case for row in rows}
    assert len(cases) == len(rows)
    for row in rows:
        assert row.n >= 1
        assert 0 <= row.p50 <= row.p99 <= row.largest
        if row.floor:
            assert row.floor in cases
            assert row.ratio is not None
    assert any(row.floor for row in rows)


@pytest.mark.parametrize("device", DEVICES)
def test_step(device: str) -> None:
    result = step.run(Options(device, quick=True))
    check_rows(result.rows)
    assert any("session.step" in row.case for row in result.rows)


@pytest.mark.parametrize("device", DEVICES)
def test_verbs(device: str) -> None:
    result = verbs.run(Options(device, quick=True))
    check_rows(result.rows)
    for verb in ("snapshot", "restore", "rollback"):
        rows = [row for row in result.rows if f": {verb}, wall" in row.case]
        assert len(rows) == 2
        assert all(row.gb_per_s for row in rows)


@pytest.mark.parametrize("device", DEVICES)
def test_sameness_holds_and_its_controls_fail(device: str) -> None:
    counts = sameness.run(Options(device, quick=True)).counts
    held = [count for count in counts if count.case.endswith("equal after restore")]
    unrestored = [count for count in counts if "no restore" in count.case]
    assert len(held) == len(unrestored) == 4
    assert all(count.found == count.of for count in held + unrestored)
    inert = {count.case for count in counts if count.target == "inert"}
    # Noise of a policy that draws none is the only thing that may be inert.
    assert all("noise." in case and ("GRU:" in case or "LSTM:" in case) for case in inert)
    assert len(inert) == 4


def test_command_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "figures.json"
    assert cli.main(["bench", "step", "--quick", "--json", str(target)]) == 0
    assert "== step:" in capsys.readouterr().out
    content = json.loads(target.read_text())
    assert content["format"] == 1
    assert content["facts"]["device"] == "cpu"
    assert content["results"][0]["rows"][0]["p50"] >= 0


def test_a_broken_promise_of_sameness_is_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = [Count("equal after restore", 9, 10, "all"), Count("control", 0, 10, "inert")]
    broken = Result("sameness", "title", counts=counts)
    monkeypatch.setattr(sameness, "run", lambda options: broken)
    assert cli.main(["bench", "sameness"]) == 1
    assert "9 of 10" in capsys.readouterr().out
    broken.counts[0] = Count("equal after restore", 10, 10, "all")
    assert cli.main(["bench", "sameness"]) == 0
    capsys.readouterr()


def test_command_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [*BENCHMARKS, "policy", "predict"]
    assert cli.main(["bench", "speed"]) == 2
    assert "no benchmark speed; there are copies, step, verbs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict"], "predict: expected --bandwidth-gbs above 0, found None"),
        (["predict", "--bandwidth-gbs", "-3"], "found -3.0"),
        (["predict", "step", "--bandwidth-gbs", "273"], "expected to be alone"),
        (["step", "--bandwidth-gbs", "273"], "--bandwidth-gbs belongs to predict"),
        (["step", "--from", "figures.json"], "--from: expected no names, found step"),
        (["--from", "no/such.json"], "no/such.json: no such file"),
        (["policy"], "policy and --policy belong together"),
        (["step", "--policy", "hold"], "policy and --policy belong together"),
        (["step", "--json", "no/such/folder.json"], "expected a file to write, found no folder"),
        (["step", "--html", "."], "expected a file to write, found a folder"),
        (["path", "--seconds", "0.5"], "--seconds: expected 1 to 86400, found 0.5"),
        (["step", "--warm-up", "-1"], "--warm-up: expected 0 or more, found -1"),
    ],
)
def test_options_that_contradict_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


def test_warm_ups_are_counted_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    device = open_device("cpu")
    samples = interleave({"a": Case(lambda: calls.append("a"))}, 2, device, Options().warm(4))
    assert (len(samples["a"].wall), len(calls)) == (2, 6)
    assert Options(warm_up=300).warm(4) == 300
    assert Options(warm_up=0).warm(4) == 0


@pytest.mark.parametrize("name", ["copies", "step", "verbs", "rows", "segments", "branches"])
def test_every_timed_benchmark_warms_up_as_often_as_asked(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    module = importlib.import_module(f"flashrt_ros.bench.{name}")
    found = module if hasattr(module, "interleave") else growing

    def counted(
        cases: object, rounds: int, device: object, warm_up: int = 3, **_: object
    ) -> object:
        asked.append(warm_up)
        return interleave(cases, 1, device, 0)  # type: ignore[arg-type]

    monkeypatch.setattr(found, "interleave", counted)
    module.run(Options(quick=True, warm_up=7))
    assert asked
    assert set(asked) == {7}


@pytest.mark.ros
@pytest.mark.slow
@pytest.mark.parametrize("name", ["jitter", "path", "services", "startup", "trees"])
def test_benchmarks_of_real_processes(name: str) -> None:
    pytest.importorskip("rclpy")
    pytest.importorskip("flashrt_ros.srv")
    result = importlib.import_module(f"flashrt_ros.bench.{name}").run(Options(quick=True))
    cases = {row.case for row in result.rows}
    assert all(row.n >= 1 and row.p50 <= row.p99 <= row.largest for row in result.rows)
    assert all(not row.floor or row.floor in cases for row in result.rows)
    assert any(row.target for row in result.rows)
    assert not [note for note in result.notes if "refused" in note or "held" in note]


def test_the_sleep_loop_counts_its_periods() -> None:
    found = sleep_loop.run(0.002, 0.05)
    assert len(found["period_ms"]) == len(found["late_ms"]) >= 10
    assert all(late >= 0 for late in found["late_ms"])
