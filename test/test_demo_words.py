"""What the demonstration's scripts say to wrong words, as modules of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["rollout", "--episodes", "0"], 2, "expected a number from 1 on, found '0'"),
        (["rollout_hybrid", "--episodes", "x"], 2, "expected a number from 1 on, found 'x'"),
        (["rollout_hybrid", "--policy", "/nowhere"], 2, "/nowhere/config.json: cannot be read"),
        (["train_hybrid", "--out", "x", "--lives", "0"], 2, "--lives: expected at least 1"),
        (["train_hybrid", "--out", "x", "--device", "tpu"], 2, "device 'tpu'"),
    ],
)
def test_wrong_words_are_answered_in_a_sentence(words: list[str], code: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"flashrt_ros.demo.{words[0]}", *words[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == code
