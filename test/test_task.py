"""The cue-reach task: geometry, expert and judge.

The demonstration's claim rests on the task needing memory, so this file pins that the expert
reaches every target both ways round, that it stays home when it knows of none, that its commands
pass the contract's limits, and that the judge is not content with passing through.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.contract import Contract
from flashrt_ros.demo import task
from flashrt_ros.demo.arm import LIMITS_RAD, Arm, joints_for, tip_of
from flashrt_ros.demo.trial import Judge, draw_trials, wilson
from flashrt_ros.ros.share import shared

NONE = np.full(2, np.nan)


@given(st.floats(-np.pi, np.pi), st.floats(0.0, 0.28))
def test_inverse_kinematics_is_an_inverse_about_the_ring(angle: float, radius: float) -> None:
    point = np.asarray(task.RING_CENTRE_M) + radius * np.array((np.cos(angle), np.sin(angle)))
    joints = joints_for(point)
    np.testing.assert_allclose(tip_of(joints), point, atol=1e-5)
    low, high = np.transpose(LIMITS_RAD)
    assert (joints > low).all()
    assert (joints <= high).all()


def test_a_point_out_of_reach_is_drawn_to_the_arms_reach() -> None:
    assert np.hypot(*tip_of(joints_for((2.0, 0.0)))) == pytest.approx(0.9, abs=1e-3)
    assert np.isfinite(joints_for((0.0, 0.0))).all()


def test_targets_are_eight_and_farther_apart_than_the_tolerance() -> None:
    ring = task.targets()
    assert ring.shape == (8, 2)
    apart = np.linalg.norm(ring[:, None] - ring[None], axis=-1) + 9 * np.eye(8)
    assert apart.min() > 3 * task.TOLERANCE_M
    home = tip_of(task.HOME_RAD)
    assert np.linalg.norm(ring - home, axis=-1).min() > 4 * task.TOLERANCE_M


@pytest.mark.parametrize("index", range(task.TARGET_COUNT))
def test_expert_reaches_each_target_on_the_side_that_it_chose(index: int) -> None:
    goal, arm = task.targets()[index], Arm()
    line = goal - np.asarray(task.RING_CENTRE_M)
    widest = {}
    for side in (1.0, -1.0):
        arm.place(task.HOME_RAD)
        judge, offsets = Judge(goal), []
        for _ in range(60):
            arm.command(task.expert(arm.position_rad, goal, False, side))
            arm.step()
            away = tip_of(arm.position_rad) - np.asarray(task.RING_CENTRE_M)
            offsets.append((line[0] * away[1] - line[1] * away[0]) / task.RING_RADIUS_M)
            if judge.see(arm.position_rad):
                break
        assert judge.inside_s > 0.19
        widest[side] = max(offsets, key=abs)
    assert widest[1.0] > 0.02
    assert widest[-1.0] < -0.02


def test_expert_waits_while_a_cue_is_there_and_goes_home_without_memory() -> None:
    away = task.HOME_RAD + np.array((0.4, -0.3))
    np.testing.assert_array_equal(task.expert(away, task.targets()[0], True, 1.0), away)
    arm = Arm()
    arm.place(away)
    for _ in range(80):
        arm.command(task.expert(arm.position_rad, NONE, False, 1.0))
        arm.step()
    np.testing.assert_allclose(arm.position_rad, task.HOME_RAD, atol=1e-3)


def test_expert_takes_a_crowd_at_once() -> None:
    rng = np.random.default_rng(0)
    poses = task.HOME_RAD + rng.normal(0, 0.2, (5, 2))
    goals = np.concatenate((task.targets()[:4], NONE[None]))
    waits, sides = np.array([0, 1, 0, 0, 0], bool), np.array([1.0, 1, -1, 1, -1])
    together = task.expert(poses, goals, waits, sides)
    alone = [task.expert(*each) for each in zip(poses, goals, waits, sides, strict=True)]
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-12)


@given(st.floats(-0.8, 0.8), st.floats(-0.8, 0.8), st.integers(0, 7), st.sampled_from((-1.0, 1.0)))
def test_experts_commands_stay_near_the_arm(a: float, b: float, index: int, side: float) -> None:
    pose = task.HOME_RAD + np.array((a, b))
    command = task.expert(pose, task.targets()[index], False, side)
    assert np.abs(command - pose).max() <= task.LEAD_RAD + 1e-9


def test_the_contract_admits_what_the_expert_commands() -> None:
    contract = Contract.load(shared("config/demo_arm.contract.yaml"))
    assert contract.start is not None
    assert contract.start.max_distance["joint1"] > 1.5 * task.LEAD_RAD


def test_observation_has_a_presence_flag() -> None:
    seen = task.observation(np.zeros(2), np.ones(2), np.array((0.5, 0.1)))
    np.testing.assert_allclose(seen["observation.cue"], (0.5, 0.1, 1.0))
    unseen = task.observation(np.zeros(2), np.ones(2), None)
    np.testing.assert_array_equal(unseen["observation.cue"], np.zeros(3, np.float32))
    assert {v.dtype for v in unseen.values()} == {np.dtype(np.float32)}


def test_judge_wants_the_tip_to_stay() -> None:
    goal = task.targets()[0]
    judge = Judge(goal)
    there, home = joints_for(goal), task.HOME_RAD
    assert not any(judge.see(there) for _ in range(9))
    assert not judge.see(home)
    assert not any(judge.see(there) for _ in range(9))
    assert judge.see(there)
    assert judge.nearest_m < 1e-6


def test_trials_are_fixed_by_their_seed_and_visit_all_targets() -> None:
    assert draw_trials(3, 4) == draw_trials(3, 9)[:4]
    assert draw_trials(3, 4) != draw_trials(4, 4)
    trials = draw_trials(0, 8)
    assert {trial.target for trial in trials} == set(range(8))
    assert all(trial.target != trial.false_target for trial in draw_trials(1, 100))


def test_wilson_interval() -> None:
    # R: prop.test(95, 100, correct = FALSE)
    assert wilson(95, 100) == pytest.approx((0.8882, 0.9785), abs=5e-4)
    assert wilson(0, 4) == pytest.approx((0.0, 0.4899), abs=5e-4)
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(0, 200), st.integers(0, 200))
def test_wilson_interval_holds_the_rate(a: int, b: int) -> None:
    successes, trials = min(a, b), max(a, b, 1)
    low, high = wilson(successes, trials)
    assert 0.0 <= low <= successes / trials + 1e-9
    assert successes / trials - 1e-9 <= high <= 1.0
