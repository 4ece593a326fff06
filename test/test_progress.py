"""Progress is for terminals alone: in a file or a pipe it would be noise between the figures."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from diffusion_files import write
from toy_policies import ToyChunk

from flashrt_ros.bench import lerobot_peer, policy
from flashrt_ros.bench.harness import Options
from flashrt_ros.testing import check_policy
from flashrt_ros.testing.progress import on_terminal, silent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    terminal = Terminal()
    say = on_terminal(terminal)
    say("first")
    say("a line that is too long")
    say("")
    assert terminal.getvalue().split("\r\x1b[K") == ["", "first", "a line that", ""]


def test_a_file_has_none() -> None:
    file = io.StringIO()
    assert on_terminal(file) is silent
    silent("words")
    assert file.getvalue() == ""


def test_every_rule_is_announced_before_it_is_checked() -> None:
    said: list[str] = []
    report = check_policy(ToyChunk(), say=said.append)
    assert report.ok
    assert [words.partition(":")[0] for words in said[:-1]] == [f"{n} of 19" for n in range(1, 20)]
    assert said[-1] == ""


def test_a_benchmark_says_what_it_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lerobot_peer, "installed", lambda: False)
    said: list[str] = []
    policy.run(Options(quick=True, policy=str(write(tmp_path)), say=said.append))
    assert said[0] == "timing plan, adopt, act, 5 times each"
    assert said[-1] == ""
