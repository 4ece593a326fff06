"""Pins the figures of a run against loops that anyone can check by reading them.

Figures decide which policy goes onto a robot; one that is off by a step, or that quietly leaves
steps out, decides wrongly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bag_files import START_NS, write_mcap
from evaluate_bags import command, state, wave, write_contract, write_hold

from flashrt_ros.evaluate import series
from flashrt_ros.evaluate.conduct import gripper_figures, input_figures, splice_figures
from flashrt_ros.evaluate.evaluator import Candidate, Evaluator, Options
from flashrt_ros.evaluate.figures import horizon_figures, joint_figures
from flashrt_ros.evaluate.series import lag_of, shifted, unbroken
from flashrt_ros.evaluate.track import Track

PERIOD_S = 0.02


def track_of(recorded_TA: Any, predicted_TA: Any, **changes: Any) -> Track:
    """A run without chunks over one episode, unless said otherwise."""
    recorded_TA = np.array(recorded_TA, np.float64)
    predicted_TA = np.array(predicted_TA, np.float64)
    steps, size = recorded_TA.shape
    fields: dict[str, Any] = {
        "policy": "p",
        "source": "s",
        "names": ("a", "b", "c")[:size],
        "units": ("rad",) * size,
        "gripper": (False,) * size,
        "period_s": PERIOD_S,
        "index_T": np.arange(steps),
        "time_ns_T": np.arange(steps) * 20_000_000,
        "episode_T": np.zeros(steps, np.int32),
        "stepped_T": np.isfinite(predicted_TA).all(axis=1),
        "recorded_TA": recorded_TA,
        "state_TA": np.full((steps, size), np.nan),
        "predicted_TA": predicted_TA,
        "sent_TA": predicted_TA,
        "latency_ms_T": np.zeros(steps),
        "ages_ms": {},
        "fault_T": [""] * steps,
        "chunk_start_C": np.zeros(0, np.int64),
        "chunk_adopted_C": np.zeros(0, np.int64),
        "chunks_CHA": np.zeros((0, 0, size), np.float32),
        "chunks": 0,
        "splice_index_S": np.zeros(0, np.int64),
        "splice_SA": np.zeros((0, size)),
    }
    return Track(**{**fields, **changes})


def broken_track() -> Track:
    """Steps that were not made, commands that are not there, a gap, and a second episode."""
    draw = np.random.default_rng(3)
    recorded_TA, predicted_TA = draw.normal(size=(40, 2)), draw.normal(size=(40, 2))
    recorded_TA[:5] = np.nan
    recorded_TA[12, 1] = np.nan
    predicted_TA[17:20] = np.nan
    index_T = np.arange(40)
    index_T[25:] += 7
    episode_T = (np.arange(40) >= 33).astype(np.int32)
    return track_of(recorded_TA, predicted_TA, index_T=index_T, episode_T=episode_T)


def test_errors_and_baselines_against_a_loop() -> None:
    track = broken_track()
    for a, found in enumerate(joint_figures(track)):
        errors, holds, recorded = [], [], []
        for t in range(track.steps):
            error = track.predicted_TA[t, a] - track.recorded_TA[t, a]
            if not np.isfinite(error):
                continue
            errors.append(error)
            recorded.append(track.recorded_TA[t, a])
            before = t - 1
            if (
                before >= 0
                and track.index_T[before] == track.index_T[t] - 1
                and track.episode_T[before] == track.episode_T[t]
                and np.isfinite(track.recorded_TA[before, a])
            ):
                holds.append(abs(track.recorded_TA[before, a] - track.recorded_TA[t, a]))
        assert found.compared == len(errors)
        assert found.mae == pytest.approx(np.mean(np.abs(errors)), abs=1e-12)
        assert found.rmse == pytest.approx(np.sqrt(np.mean(np.square(errors))), abs=1e-12)
        assert found.max == pytest.approx(np.max(np.abs(errors)), abs=1e-12)
        assert found.bias == pytest.approx(np.mean(errors), abs=1e-12)
        assert found.baseline_hold_mae == pytest.approx(np.mean(holds), abs=1e-12)
        spread = np.abs(np.array(recorded) - np.mean(recorded))
        assert found.baseline_mean_mae == pytest.approx(spread.mean(), abs=1e-12)
        # The control: pairs over the gap and the border of the episodes would count otherwise.
        naive = np.abs(np.diff(track.recorded_TA[:, a]))
        assert found.baseline_hold_mae != pytest.approx(np.nanmean(naive), abs=1e-6)


def test_jerk_is_the_third_difference() -> None:
    t = np.arange(60) * PERIOD_S
    cubic_TA = (2.0 * t**3 - t**2)[:, None]
    track = track_of(cubic_TA, cubic_TA * 3)
    (found,) = joint_figures(track)
    assert found.recorded_jerk == pytest.approx(12.0, rel=1e-6)
    assert found.jerk == pytest.approx(36.0, rel=1e-6)


@pytest.mark.parametrize("delay", [-13, -1, 0, 3, 8, 21])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_delay_is_found(delay: int, noise: float) -> None:
    draw = np.random.default_rng(1)
    recorded_T = np.array([wave(t)[0] for t in range(400)])
    later_T = np.array([wave(t - delay)[0] for t in range(400)]) + 0.3
    later_T += draw.normal(scale=noise or 1e-12, size=400)
    later_T[100:140] = np.nan
    found = lag_of([slice(0, 400)], later_T, recorded_T, PERIOD_S)
    assert found is not None
    assert abs(found.steps - delay) <= (1 if noise else 0)
    assert found.correlation > 0.9


@pytest.mark.parametrize("block", [7, 64, 1 << 16])
def test_a_delay_against_direct_sums(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "BLOCK", block)
    draw = np.random.default_rng(2)
    x_T, y_T = draw.normal(size=90), draw.normal(size=90)
    y_T[3:] = 0.8 * x_T[:-3] + 0.2 * y_T[3:]
    y_T[[10, 50]] = np.nan
    runs = [slice(0, 37), slice(37, 90)]
    best = (0.0, 0)
    for lag in range(-50, 51):
        before_T = shifted(runs, x_T, lag)
        both = np.isfinite(before_T) & np.isfinite(y_T)
        if both.sum() >= 44:
            best = max(best, (float(np.corrcoef(before_T[both], y_T[both])[0, 1]), lag))
    found = lag_of(runs, y_T, x_T, PERIOD_S)
    assert found is not None
    assert found.steps == best[1] == 3
    assert found.correlation == pytest.approx(best[0], abs=1e-9)


def test_what_does_not_move_or_does_not_fit_has_no_delay() -> None:
    draw = np.random.default_rng(4)
    run = [slice(0, 300)]
    noise_T = draw.normal(size=300)
    assert lag_of(run, np.full(300, 0.1), noise_T, PERIOD_S) is None
    assert lag_of(run, draw.normal(size=300), noise_T, PERIOD_S) is None
    assert lag_of(run, np.full(300, np.nan), noise_T, PERIOD_S) is None
    assert lag_of(run, noise_T, noise_T, PERIOD_S) is not None, "the control"


def test_rows_of_chunks_meet_the_commands_of_their_own_time() -> None:
    draw = np.random.default_rng(5)
    base = broken_track()
    start_C = np.array([0, 4, 8, 12, 20, 23, 32, 38, 44])
    chunks_CHA = draw.normal(size=(9, 6, 2)).astype(np.float32)
    track = track_of(
        base.recorded_TA,
        base.predicted_TA,
        index_T=base.index_T,
        episode_T=base.episode_T,
        chunk_start_C=start_C,
        chunk_adopted_C=start_C,
        chunks_CHA=chunks_CHA,
        chunks=9,
    )
    place = {int(index): t for t, index in enumerate(track.index_T)}

    def recorded(index: int, episode: int, a: int) -> float:
        t = place.get(index)
        if t is None or track.episode_T[t] != episode:
            return float("nan")
        return float(track.recorded_TA[t, a])

    for step in horizon_figures(track):
        for a in range(2):
            errors, holds = [], []
            for c, start in enumerate(start_C.tolist()):
                episode = int(track.episode_T[place[start]])
                now = recorded(start + step.step, episode, a)
                error = float(chunks_CHA[c, step.step, a]) - now
                if np.isfinite(error):
                    errors.append(abs(error))
                    holds.append(abs(recorded(start - 1, episode, a) - now))
            assert step.mae[a] == pytest.approx(np.mean(errors), abs=1e-9)
            assert step.max[a] == pytest.approx(np.max(errors), abs=1e-9)
            assert step.baseline_hold_mae[a] == pytest.approx(np.nanmean(holds), abs=1e-9)


def test_splices_and_steps_elsewhere() -> None:
    predicted_TA = np.array([[0.0], [0.1], [0.2], [1.2], [1.3], [1.4]])
    track = track_of(
        np.zeros((6, 1)),
        predicted_TA,
        chunk_start_C=np.array([0, 3]),
        chunk_adopted_C=np.array([0, 3]),
        chunks_CHA=np.zeros((2, 4, 1), np.float32),
        chunks=2,
        splice_index_S=np.array([3]),
        splice_SA=np.array([[0.9]]),
    )
    found = splice_figures(track)
    assert found is not None
    assert found.mean_difference == found.max_difference == [0.9]
    assert found.step_at == [pytest.approx(1.0)]
    assert found.step_elsewhere == [pytest.approx(0.1)]
    assert splice_figures(track_of(np.zeros((6, 1)), predicted_TA)) is None


def test_a_gripper_agrees_where_both_are_open_or_both_closed() -> None:
    recorded_TA = [[0.0], [0.0], [0.08], [0.08], [0.0]]
    predicted_TA = [[0.01], [0.05], [0.07], [0.09], [float("nan")]]
    (found,) = gripper_figures(track_of(recorded_TA, predicted_TA, gripper=(True,)))
    assert (found.threshold, found.agreement) == (0.04, 0.75)
    assert (found.recorded_changes, found.predicted_changes) == (2, 1)
    (never,) = gripper_figures(track_of(np.ones((5, 1)), predicted_TA, gripper=(True,)))
    assert never.agreement is None
    assert gripper_figures(track_of(recorded_TA, predicted_TA)) == []


def test_stale_steps_and_gaps_are_counted_by_input() -> None:
    nan = float("nan")
    track = track_of(
        np.zeros((6, 1)),
        np.zeros((6, 1)),
        ages_ms={"x (/x)": np.array([nan, 1, 2, 300, 400, 3]), "y (/y)": np.arange(6.0)},
        fault_T=["x (/x): no message", "", "", "x (/x): stale, older than 100 ms"] * 1
        + ["x (/x): stale, older than 100 ms; y (/y): broken", ""],
    )
    x, y = input_figures(track)
    assert (x.stale, x.gaps, y.stale, y.gaps) == (3, 2, 1, 1)
    assert x.age_max == 400
    assert x.age_p50 == 3


def test_runs_end_at_gaps_and_at_episodes() -> None:
    assert unbroken(broken_track()) == [slice(0, 25), slice(25, 33), slice(33, 40)]
    values_T = np.arange(40.0)
    assert shifted(unbroken(broken_track()), values_T, 2)[27:29].tolist() == [25.0, 26.0]
    assert np.isnan(shifted(unbroken(broken_track()), values_T, -2)[23:25]).all()


def test_delays_and_jerk_of_steps_at_another_pace_go_by_what_came(tmp_path: Path) -> None:
    """Commands at 10 Hz set the pace, the contract says 50 Hz; a pause tears no pairs together."""
    rows = []
    for step in range(200):
        now_ns = START_NS + step * 100_000_000 + (step >= 100) * 20_000_000_000
        rows += [state(now_ns, wave(5 * step)), command(now_ns, wave(5 * (step + 3)))]
    contract = write_contract(tmp_path / "contract.yaml")
    policy = write_hold(tmp_path / "hold")
    given = Options((Candidate("hold", str(policy)),), str(contract), steps="recorded")
    evaluator = Evaluator(given)
    try:
        (track,) = evaluator.run(write_mcap(tmp_path / "bag.mcap", rows)).tracks
    finally:
        evaluator.close()
    assert track.steps == 200
    assert (track.period_s, track.pace_s) == (0.02, pytest.approx(0.1))
    assert "control steps came every 100 ms" in track.remarks[0]
    first = joint_figures(track)[0]
    assert (first.lag_steps, first.lag_ms) == (3, pytest.approx(300.0))
    assert first.mae_at_lag is not None
    assert first.mae_at_lag < 1e-6  # with pairs over the pause it is a thousand times that
    thirds_T = np.diff(track.recorded_TA[:100, 0], n=3), np.diff(track.recorded_TA[100:, 0], n=3)
    jerk = np.sqrt(np.mean(np.square(np.concatenate(thirds_T)))) / 0.1**3
    assert first.recorded_jerk == pytest.approx(jerk, rel=1e-9)


def test_an_answer_shows_one_step_behind_on_a_grid_and_not_at_recorded_steps(
    tmp_path: Path,
) -> None:
    """What docs/evaluate.md says of commands that are sent shortly after the observation."""
    rows = []
    for step in range(200):
        now_ns = START_NS + step * 20_000_000
        rows += [state(now_ns, wave(step)), command(now_ns + 5_000_000, wave(step))]
    contract = write_contract(tmp_path / "contract.yaml")
    policy = write_hold(tmp_path / "hold")
    write_mcap(tmp_path / "bag.mcap", rows)
    found = {}
    for steps in ("rate", "recorded"):
        given = Options((Candidate("hold", str(policy)),), str(contract), steps=steps)
        evaluator = Evaluator(given)
        try:
            found[steps] = joint_figures(evaluator.run(tmp_path / "bag.mcap").tracks[0])[0]
        finally:
            evaluator.close()
    on_grid, answered = found["rate"], found["recorded"]
    assert (on_grid.lag_steps, on_grid.lag_ms) == (-1, -20.0)
    assert on_grid.mae == pytest.approx(on_grid.baseline_hold_mae, rel=0.01)
    assert on_grid.mae_at_lag is not None
    assert answered.mae is not None
    assert max(on_grid.mae_at_lag, answered.mae) < 1e-6
    assert answered.lag_steps == 0
