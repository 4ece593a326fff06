"""Pins that two set-ups of one environment never work at once, and that one alone says so."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECOND = '. "$0/scripts/setup.sh"; alone; echo alone'
FIRST = f"""
. "$0/scripts/setup.sh"; alone; "$1" -m venv --clear --without-pip "$venv"
bash -c '{SECOND}' "$0" >"$2" 2>&1 &
until grep -q waiting "$2"; do
  kill -0 $! || exit 3
  sleep 0.05
done
sleep 0.5
kill $! && wait $!
"""


@pytest.mark.skipif(shutil.which("flock") is None, reason="needs flock")
def test_lock_outlives_the_environment_that_is_made_anew(tmp_path: Path) -> None:
    venv = tmp_path / "an environment"
    said = tmp_path / "said"
    venv.mkdir()
    done = subprocess.run(
        ["bash", "-c", FIRST, str(ROOT), sys.executable, str(said)],
        env={"PATH": "/usr/bin:/bin", "FLASHRT_ROS_VENV": str(venv)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "waiting for another set-up" in said.read_text(), done.stderr
    assert done.returncode == 128 + signal.SIGTERM, "the second one must wait, not go on"
    assert "\nalone" not in said.read_text()


def test_run_by_itself_it_says_what_it_is_for() -> None:
    command = ["bash", str(ROOT / "scripts" / "setup.sh")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "scripts/demo.sh and scripts/test.sh source it" in done.stderr
    assert "set_up" in done.stderr
