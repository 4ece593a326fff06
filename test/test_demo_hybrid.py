"""The trained hybrid that the package carries: what it can, and what each kind of state is for.

Fixed seeds make every number here repeatable. The controls are the same weights with one kind of
state taken away: they must fail, or the task would need no memory of that kind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flashrt_ros import cli
from flashrt_ros.contract import Contract
from flashrt_ros.demo import rollout_hybrid
from flashrt_ros.demo.hybrid_policy import WEIGHTS, make
from flashrt_ros.demo.recall import draw_recalls
from flashrt_ros.demo.rollout_hybrid import (
    NO_DRAFTS,
    NO_RECURRENT,
    NO_ROWS,
    RESTORES,
    WHOLE,
    Rollout,
    recorded,
    session_of,
    undrafted,
)
from flashrt_ros.policies.hybrid.decode import ACCEPTED
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.ros.share import shared
from flashrt_ros.testing import check_policy
from flashrt_ros.testing.ablation import ROWS_ALONE, ablate

ROOT = Path(__file__).parents[1]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.mark.slow
def test_it_succeeds_and_with_either_memory_taken_away_it_fails() -> None:
    counts, accepted = rollout_hybrid.measure(12, seed=100, experiment=False)
    assert counts[WHOLE] >= 10
    # Without its count it may still happen upon the place: one of three.
    assert counts[NO_RECURRENT] <= 6
    assert counts[NO_ROWS] <= 3
    assert abs(counts[NO_DRAFTS] - counts[WHOLE]) <= 1
    assert 0.3 < accepted < 0.95


@pytest.mark.slow
def test_an_interrupted_episode_needs_the_whole_restore() -> None:
    rollout = Rollout(session_of(make()))
    pairs = list(zip(draw_recalls(200, 8), draw_recalls(201, 8), strict=True))
    counts = [sum(rollout.interrupted(*pair, way) for pair in pairs) for way in RESTORES]
    assert counts[0] >= 7
    # By luck one of three, and those shown after the cut.
    assert counts[1] <= counts[0] - 3
    assert counts[2] < counts[0]
    assert counts[3] <= 2


def test_drafts_change_no_action_and_some_are_accepted() -> None:
    drafting, plain = session_of(make()), session_of(undrafted(make()))
    # Drafts are wrong where a question comes.
    for seen in recorded(0, 60):
        assert torch.equal(drafting.step(seen).values, plain.step(seen).values)
    rounds = drafting.arena.state[ACCEPTED].tolist()
    accepted = sum(n * count for n, count in enumerate(rounds))
    assert accepted > 10
    assert sum(rounds[:-1]) > 0


@pytest.mark.parametrize("device", DEVICES)
def test_each_kind_of_state_left_out_of_a_restore_shows(device: str) -> None:
    report = ablate(make(), device, cuts=2, steps=40, episode=recorded, latest=30)
    assert report.ok
    assert report.has_force
    for name in (ROWS_ALONE, "layers.*.recurrent", "all rows"):
        assert report.find(name).verdict == "diverges", name
    assert report.find("layers.*.conv").differs
    head = report.find("mtp.*")
    assert head.actions == 0
    assert head.accepted or head.state


def test_the_command_takes_the_recorded_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ablate", "hybrid_reach", "--cuts", "1", "--steps", "4", "--latest", "12"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "token" in out
    assert "full restore" in out


def test_the_contract_fits_the_policy() -> None:
    policy = make()
    Contract.load(shared("config/demo_recall.contract.yaml")).check(policy.ports())


def test_it_is_registered_and_small() -> None:
    assert load_policy("hybrid_reach").config() == make().config()
    assert sum(file.stat().st_size for file in WEIGHTS.iterdir()) < 2**21


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_it_conforms(device: str) -> None:
    report = check_policy(make(), device=device, steps=8, observations=recorded(0, 30))
    assert report.ok, str(report)


@pytest.mark.ros
@pytest.mark.slow
def test_it_drives_the_arm_through_its_node(tmp_path: Path) -> None:
    pytest.importorskip("rclpy")
    done = subprocess.run(
        [sys.executable, "-m", "flashrt_ros.demo.run_hybrid", "--episodes", "3"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": reached") >= 2
