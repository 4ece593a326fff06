"""The recall task: scripts ask for what was shown, and training data hold what memory needs.

A script whose question names another place than the one that the arm goes to would teach nothing,
and no figure of the training would say so.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flashrt_ros.demo import recall_data, train_hybrid
from flashrt_ros.demo.recall import HOME, PLACES, RATE_HZ, draw_recalls, goals, observation
from flashrt_ros.demo.recall_data import (
    STEPS,
    WINDOW,
    WINDOW_BEFORE,
    WINDOW_WAIT,
    Batch,
    Lives,
    simulate,
    tell,
)
from flashrt_ros.demo.rollout_hybrid import timetable
from flashrt_ros.policies.hybrid.policy import HybridPolicy


@pytest.fixture(scope="module")
def lives() -> Lives:
    return simulate(seed=3, count=12)


def told(lives: Lives, seed: int = 0, wait: int = STEPS) -> Batch:
    every = torch.arange(len(lives.seen))
    return tell(lives, every, torch.Generator().manual_seed(seed), wait)


def check_script(batch: Batch, life: int) -> int:
    """Follows a script as somebody with a pencil would; the number of questions."""
    shown: list[int] = []
    present, asked, goal, questions = False, False, HOME, 0
    for step in range(batch.cue.shape[1]):
        x, y, there = batch.cue[life, step].tolist()
        if there and not present:
            shown.append(int(np.hypot(*(goals() - (x, y)).T).argmin()))
        number, stands = batch.question[life, step].tolist()
        if stands and not asked:
            goal, questions = shown[round(number) - 1], questions + 1
            assert len(shown) == PLACES
        assert not (there and stands)
        assert int(batch.goal[life, step]) == goal
        assert int(batch.count[life, step]) == len(shown)
        assert bool(batch.asked[life, step]) == bool(stands) == (number > 0)
        if batch.forgets[life, step]:
            assert len(shown) == PLACES
            assert not there
        present, asked = bool(there), bool(stands)
    assert len(set(shown)) == PLACES
    return questions


def test_each_script_asks_for_the_place_that_the_arm_goes_to(lives: Lives) -> None:
    questions, numbers = [], set()
    for seed in range(4):
        batch = told(lives, seed)
        questions += [check_script(batch, life) for life in range(len(lives.seen))]
        numbers |= {round(number) for number in batch.question[..., 0].unique().tolist()}
        assert bool(batch.forgets.any())
    assert {1, 2} <= set(questions) <= {0, 1, 2}
    assert numbers == {0, 1, 2, 3}
    # The same life is told otherwise each time.
    assert not torch.equal(told(lives, 0).cue, told(lives, 1).cue)
    assert torch.equal(told(lives, 0).action, told(lives, 1).action)


def test_a_short_batch_holds_all_that_must_be_remembered(lives: Lives) -> None:
    batch = told(lives, wait=WINDOW_WAIT)
    first = (lives.asked[:, 0] - WINDOW_BEFORE).clamp(0, STEPS - WINDOW)
    short = batch.about(first, WINDOW)
    assert short.cue.shape == (len(first), WINDOW, 3)
    for life in range(len(first)):
        assert check_script(short, life) >= 1


def test_the_expert_goes_where_it_should(lives: Lives) -> None:
    from flashrt_ros.demo.arm import tip_of

    tip = tip_of(lives.seen[..., :2].numpy())
    away = np.hypot(*(np.moveaxis(tip - goals()[lives.goal.numpy()], -1, 0)))
    assert np.median(away[:, -1]) < 0.05
    assert np.median(away[:, 30]) < 0.05


def test_timetables_show_and_ask_in_turn() -> None:
    for recall in draw_recalls(5, 6):
        steps = list(timetable(recall))
        assert len(steps) == sum(recall.shown_steps + recall.gap_steps) + recall.asked_steps
        assert [number for _, number in steps[-recall.asked_steps :]] == (
            [recall.number] * recall.asked_steps
        )
        assert recall.goal == recall.places[recall.number - 1]
        assert all(number == 0 for _, number in steps[: -recall.asked_steps])
    assert [r.number for r in draw_recalls(5, 6)] == [1, 2, 3, 1, 2, 3]
    assert draw_recalls(5, 2) == draw_recalls(5, 6)[:2]
    assert RATE_HZ * recall_data.SUBSTEPS == 50.0


def test_observations_are_what_the_contract_assembles() -> None:
    seen = observation(np.array((1.0, 2.0)), np.array((3.0, 4.0)), np.array((0.5, 0.1)), 2)
    assert [value.tolist() for value in seen.values()] == [
        [1.0, 2.0, 3.0, 4.0],
        pytest.approx([0.5, 0.1, 1.0]),
        [2.0, 1.0],
    ]
    assert observation(np.zeros(2), np.zeros(2), None, 0)["observation.cue"].tolist() == [0.0] * 3


def test_training_learns_and_writes_a_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    words = ["--out", str(tmp_path / "p"), "--device", "cpu", "--lives", "4", "--threads", "1",
             "--updates", "3", "--distil", "2", "--batch", "2"]  # fmt: skip
    try:
        assert train_hybrid.main([*words, "--data", str(tmp_path / "lives")]) == 0
        first = HybridPolicy.load(tmp_path / "p")
        assert "seed 0, 4 lives" in capsys.readouterr().out
        again = [*words, "--data", str(tmp_path / "lives")]
        assert train_hybrid.main(again) == 0
        assert "simulated" not in capsys.readouterr().out
        second = HybridPolicy.load(tmp_path / "p")
        assert train_hybrid.main([*again, "--seed", "1"]) == 0
        third = HybridPolicy.load(tmp_path / "p")
    finally:
        torch.set_num_threads(threads)
    weights = [policy.module().state_dict() for policy in (first, second, third)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert any(not torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
