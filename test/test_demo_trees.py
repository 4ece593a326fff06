"""The three behaviour trees on the simulated arm: what came of them, by where the block is.

A tree that says SUCCESS proves nothing: the block must stand where it should, as the physics has
it. Each example plays its own control, whose block must not; and what counts as expected is pinned
here with outcomes that are not.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("mujoco")
pytest.importorskip("py_trees")

from py_trees.behaviours import Failure, Success

from flashrt_ros.demo.trees import command, play
from flashrt_ros.demo.trees.cell import BLOCK_M, HALF_BLOCK_M
from flashrt_ros.demo.trees.episode import GOAL_M, Episode

pytestmark = pytest.mark.ros
LIMIT_S = 400.0
"""A generous limit: it only decides how long a failure takes."""
WITH_XML = importlib.util.find_spec("behaviortreepy") is not None


# What counts as expected


def played(
    monkeypatch: pytest.MonkeyPatch, root: Any, placed: bool, succeeds: bool, tries: int
) -> play.Outcome:
    def tick_through(root: Any, node: Any, ticked: Any) -> Any:
        root.tick_once()
        ticked(root)
        return root.status

    monkeypatch.setattr(play, "tick_through", tick_through)
    onlooker: Any = SimpleNamespace(block_m=np.zeros(3), placed=lambda goal_m: placed)
    episode = Episode("one", root, succeeds, lambda: {"tries": tries}, {"tries": 2})
    return play.Theatre(onlooker, []).play(episode)


@pytest.mark.parametrize("succeeds", [True, False])
@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("status", [True, False])
@pytest.mark.parametrize("tries", [1, 2])
def test_tree_block_and_facts_must_all_be_as_said(
    monkeypatch: pytest.MonkeyPatch, status: bool, placed: bool, succeeds: bool, tries: int
) -> None:
    root = Success("tree") if status else Failure("tree")
    outcome = played(monkeypatch, root, placed, succeeds, tries)
    assert outcome.as_expected == (status == placed == succeeds and tries == 2)
    assert outcome.tree.startswith("--> tree [")


@pytest.mark.parametrize("all_well", [True, False])
def test_the_exit_status_says_whether_all_was_as_expected(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    all_well: bool,
) -> None:
    def outcome(as_expected: bool) -> play.Outcome:
        return play.Outcome("one", "SUCCESS", "", [0, 0, 0], True, as_expected, 1.0, {}, "tree\n")

    outcomes = iter([outcome(True), outcome(all_well), outcome(True)])
    theatre = SimpleNamespace(play=lambda episode: next(outcomes), onlooker=None, verbs="verbs")
    opened = contextlib.contextmanager(lambda *words: iter([theatre]))
    monkeypatch.setattr(play, "opened", opened)
    example = SimpleNamespace(
        WALL=False, episodes=lambda onlooker: 3 * [SimpleNamespace(name="e")]
    )
    monkeypatch.setattr(command.importlib, "import_module", lambda name: example)
    for name in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_LOG_DIR"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(command.signal, "signal", lambda number, handler: None)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args(["pick", "--json", str(tmp_path / "out.json")])
    assert command.run(arguments) == (0 if all_well else 1)
    assert capsys.readouterr().out.count("SUCCESS") == 3
    rows = json.loads((tmp_path / "out.json").read_text())["episodes"]
    assert [row["as_expected"] for row in rows] == [True, all_well, True]


# The examples themselves


class Played:
    """What an example printed and wrote."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self.out, _ = process.communicate(timeout=LIMIT_S)
        self.status = process.returncode
        assert (directory / "out.json").exists(), self.out
        self.rows = json.loads((directory / "out.json").read_text())["episodes"]
        self.drawing = (directory / "tree.dot").read_text()

    def check(self) -> None:
        assert self.status == 0, self.out
        for row in self.rows:
            # By the physics: on the table and at the goal, or not.
            x_y, height_m = np.array(row["block_m"][:2]), row["block_m"][2]
            there = np.hypot(*(x_y - GOAL_M)) < 0.03 and height_m < HALF_BLOCK_M + 0.005
            assert there == (row["status"] == "SUCCESS"), row
            assert there == (not row["name"].startswith("control")), row
            assert row["tree"] in self.out
        assert [row["name"] for row in self.rows].count("in XML") == WITH_XML
        assert "p99 ms" in self.out
        assert self.drawing.startswith("digraph")


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Played]]:
    """All three at the same time, each in a ROS domain of its own."""
    directories = {name: tmp_path_factory.mktemp(name) for name in command.EXAMPLES}
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, directory in directories.items():
            words = [name, "--json", "out.json", "--svg", "tree.dot", *WITH_XML * ["--xml"]]
            processes[name] = subprocess.Popen(
                [sys.executable, "-m", "flashrt_ros.cli", "trees", *words],
                cwd=directory,
                env={**environment, "TMPDIR": str(directory)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(processes[name].kill)
        yield {name: Played(processes[name], directories[name]) for name in processes}


@pytest.mark.slow
def test_a_knocked_block_is_picked_from_the_capsule_and_only_then(
    examples: dict[str, Played],
) -> None:
    pick = examples["pick"]
    pick.check()
    knocked, unlucky, control = pick.rows[:3]
    assert knocked["facts"] == unlucky["facts"] == {"attempts": 2}
    # It lies where it was knocked to: the arm went through the motions of putting it down.
    assert 0.03 < np.hypot(*(np.array(control["block_m"][:2]) - BLOCK_M)) < 0.1
    assert "block lifted: will not be any more" in control["words"]


@pytest.mark.slow
def test_the_second_branch_gets_round_the_wall_and_the_same_way_again_does_not(
    examples: dict[str, Played],
) -> None:
    branches = examples["branches"]
    branches.check()
    branched, control = branches.rows[:2]
    assert branched["facts"] == {"winner": 1}
    assert control["facts"] == {"attempts": 2}
    assert control["block_m"][:2] == pytest.approx(BLOCK_M, abs=0.002)


@pytest.mark.slow
def test_the_watchdog_pauses_and_goes_on_and_otherwise_says_which_sensor(
    examples: dict[str, Played],
) -> None:
    watchdog = examples["watchdog"]
    watchdog.check()
    silent, control = watchdog.rows[:2]
    assert silent["facts"] == control["facts"] == {"paused": True}
    assert "/joint_states: observation.state: stale" in control["words"]
    # It stands as it was, the block in its hand.
    assert control["block_m"][:2] == pytest.approx(BLOCK_M, abs=0.05)
    assert control["block_m"][2] > 0.05
