"""Pins that two set-ups of one environment never work at once, and that one alone says so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECOND = '. "$0/scripts/setup.sh"; alone; echo alone'
FIRST = (
    f'. "$0/scripts/setup.sh"; alone; "$1" -m venv --clear --without-pip "$venv"; '
    f"timeout 3 bash -c '{SECOND}' \"$0\""
)


@pytest.mark.skipif(shutil.which("flock") is None, reason="needs flock")
def test_lock_outlives_the_environment_that_is_made_anew(tmp_path: Path) -> None:
    venv = tmp_path / "an environment"
    venv.mkdir()
    done = subprocess.run(
        ["bash", "-c", FIRST, str(ROOT), sys.executable],
        env={"PATH": "/usr/bin:/bin", "FLASHRT_ROS_VENV": str(venv)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "waiting for another set-up" in done.stdout, done.stderr
    assert done.returncode == 124, "the second one must wait, not go on"


def test_run_by_itself_it_says_what_it_is_for() -> None:
    command = ["bash", str(ROOT / "scripts" / "setup.sh")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "scripts/demo.sh and scripts/test.sh source it" in done.stderr
    assert "set_up" in done.stderr
