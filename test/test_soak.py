"""The soak: what it calls a growth or an error, and that a short one at a real node finds none.

A soak that overlooks a leak is worse than none, so each kind of finding is provoked in figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros import cli
from flashrt_ros.exit_code import OK, USAGE
from flashrt_ros.hardware.process_usage import Usage, usage_of
from flashrt_ros.soak_command import judge

MIB = 1 << 20


def samples(count: int = 25) -> list[dict[str, Any]]:
    """A run without findings."""
    spread = {"took_ms p50 p99 max": (2.0, 3.0, 4.0), "latency_ms p50 p99 max": (1.0, 1.0, 1.0)}
    usage = {"resident_bytes": 400 * MIB, "threads": 20, "descriptors": 25, "device_bytes": None}
    return [
        {"calls": {"snapshot": 10}, "steps": 50, "records_lost": 0, "errors": {}}
        | {"usage": dict(usage), "waited_share": 0.01, "wall_s": 1000.0 + 10 * number}
        | spread
        for number in range(count)
    ]


def test_control_a_run_that_stays_as_it_was() -> None:
    report = judge(samples(), [], "")
    assert report["findings"] == []
    assert (report["calls"], report["steps"]) == (250, 1250)
    assert report["growth"] == {"resident_bytes": 0.0}


def _leak(found: list[dict[str, Any]]) -> None:
    for number, sample in enumerate(found):
        sample["usage"]["resident_bytes"] += number * MIB


def _gpu_leak(found: list[dict[str, Any]]) -> None:
    for number, sample in enumerate(found):
        sample["usage"]["device_bytes"] = (100 + number) * MIB


def _descriptors(found: list[dict[str, Any]]) -> None:
    found[-1]["usage"]["descriptors"] = found[-2]["usage"]["descriptors"] = 40
    found[-3]["usage"]["descriptors"] = 40


def _refusal(found: list[dict[str, Any]]) -> None:
    found[3]["errors"] = {"restore: code 10: no room": 2}
    found[9]["errors"] = {"restore: code 10: no room": 1}


def _records(found: list[dict[str, Any]]) -> None:
    found[7]["records_lost"] = 4


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_leak, "resident_bytes: "),
        (_gpu_leak, "device_bytes: "),
        (_descriptors, "descriptors: 25 to 40"),
        (_refusal, "3 x restore: code 10: no room"),
        (_records, "4 x control steps without a record"),
    ],
)
def test_what_is_not_as_it_should_be_is_found(
    spoil: Callable[[list[dict[str, Any]]], None], words: str
) -> None:
    found = samples()
    spoil(found)
    (finding,) = judge(found, [], "")["findings"]
    assert words in finding


def test_what_fills_up_at_first_is_no_growth() -> None:
    found = samples()
    for sample in found[:5]:
        sample["usage"]["resident_bytes"] = 100 * MIB
    assert judge(found, [], "")["findings"] == []


def test_words_of_the_log_and_an_early_end_are_findings() -> None:
    report = judge(samples(), ["[ERROR] it broke"], "TimeoutError")
    assert report["findings"] == [
        "log: [ERROR] it broke",
        "the client ended early: TimeoutError",
    ]
    assert "expected five samples" in judge(samples(3), [], "")["findings"][0]


LATE = "diagnostics: /policy: motion: holding: the control step is late: policy or verb"
LATE_LINE = "[ERROR] [1034.5] [policy]: the control step is late by 95 ms: on_miss acts"


def test_what_came_late_while_the_machine_was_busy_is_told_and_no_finding() -> None:
    found = samples()
    found[4]["waited_share"] = 0.2  # from 1030 s to 1040 s
    found[4]["errors"] = {LATE: 2, "input x: stale 1200 ms > 1000 ms": 1}
    found[4]["errors"]["input x: stale 1300 ms > 1000 ms"] = 1
    found[4]["records_lost"] = 3
    report = judge(found, [LATE_LINE], "")
    assert report["findings"] == []
    assert report["excused"] == {
        "lines of the log": 1,
        LATE: 2,
        "input x: stale N ms > N ms": 2,
        "control steps without a record in ~/policy_step": 3,
    }


def test_control_of_the_above_the_same_on_a_quiet_machine_and_other_errors_are_findings() -> None:
    found = samples()
    found[4]["errors"] = {LATE: 2}
    report = judge(found, [LATE_LINE], "")
    assert report["findings"] == [f"log: {LATE_LINE}", f"2 x {LATE}"]
    for sample in found:
        sample["waited_share"] = 0.9
    found[4]["errors"] = {"restore: code 10: no room": 1}
    (finding,) = judge(found, [], "")["findings"]
    assert finding == "1 x restore: code 10: no room", "a busy machine excuses nothing else"
    (line,) = judge(samples(), [LATE_LINE.replace("1034.5", "9999.0")], "")["findings"]
    assert "9999.0" in line


GROWS = """
import os, sys, threading
print("begun", flush=True)
sys.stdin.readline()
ballast, gate = bytearray(os.urandom(64 << 20)), threading.Event()
threading.Thread(target=gate.wait, daemon=True).start()
file = open(os.devnull)
print("grown", flush=True)
sys.stdin.readline()
"""


def test_usage_of_a_process_is_that_of_the_system() -> None:
    # Not of this one: other tests' threads and files may end at any time.
    with subprocess.Popen(
        [sys.executable, "-c", GROWS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        before = usage_of(process.pid)
        process.stdin.write(b"grow\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"grown\n"
        after = usage_of(process.pid)
    assert before.resident_bytes > MIB
    assert after.resident_bytes - before.resident_bytes > 48 * MIB
    assert after.threads == before.threads + 1
    assert after.descriptors == before.descriptors + 1
    assert after.waited_s >= before.waited_s >= 0.0
    assert usage_of(2**22 + 1) == Usage()


@pytest.mark.parametrize(
    "words", [["--minutes", "0"], ["--minutes", "0.1", "--interval", "2"], ["--rate", "0"]]
)
def test_wrong_options_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["soak", *words]) == USAGE
    assert "at least five intervals" in capsys.readouterr().err


@pytest.mark.ros
@pytest.mark.slow
def test_a_short_soak_of_a_real_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "soak.json"
    words = ["soak", "--minutes", "0.2", "--interval", "2", "--json", str(path)]
    assert cli.main(words) == OK, capsys.readouterr().out
    report = json.loads(path.read_text())
    called = {name for sample in report["samples"] for name in sample["calls"]}
    assert {"snapshot", "restore", "rollback", "preview", "save_capsule", "pause"} <= called
    assert report["steps"] > 100
    assert report["findings"] == []
