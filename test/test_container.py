"""The container's recipe names what is there: steps, files, requirement groups.

No container engine builds it here, so what can be held without one is held: a recipe that copies
a file that was renamed fails on the robot's day.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "container" / "install.sh"
RECIPE = (ROOT / "container" / "Containerfile").read_text()


def steps() -> set[str]:
    """Steps that the script documents in its head."""
    head = SCRIPT.read_text().split("set -eo pipefail")[0]
    return set(re.findall(r"^# (\w+) {2,}\S", head, re.MULTILINE)) - {"PREFIX", "SOURCE", "TORCH"}


def test_both_scripts_are_shell() -> None:
    for name in ("install.sh", "entry.sh"):
        subprocess.run(["bash", "-n", str(ROOT / "container" / name)], check=True)


def test_the_recipe_runs_each_step_of_the_script_once_and_in_order() -> None:
    assert steps() == {"system", "ros", "python", "build", "check"}
    ran = [word for line in re.findall(r"install\.sh ([a-z ]+)", RECIPE) for word in line.split()]
    assert ran == ["system", "ros", "python", "build", "check"]
    functions = set(re.findall(r"^(\w+)\(\) \{", SCRIPT.read_text(), re.MULTILINE))
    assert steps() <= functions


def test_what_the_recipe_copies_is_there() -> None:
    sources = [line.split()[1] for line in RECIPE.splitlines() if line.startswith("COPY")]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source


def test_an_unknown_step_is_refused_before_any_is_done(tmp_path: Path) -> None:
    result = subprocess.run(
        ["bash", str(SCRIPT), "build", "bake"],
        capture_output=True,
        text=True,
        env={"PREFIX": str(tmp_path / "prefix"), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert result.returncode == 2
    assert "expected steps of system, ros, python, build, check; found bake" in result.stderr
    assert not (tmp_path / "prefix").exists()
