"""The trained policy that the package carries: what it can, and that its memory is why.

Fixed seeds and counter-based noise make every number here repeatable. The control is the same
network with its hidden state zeroed before each step: it must fail, or the task would need no
memory and the demonstration would show nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flashrt_ros.contract import Contract
from flashrt_ros.demo import rollout
from flashrt_ros.demo.arm import tip_of
from flashrt_ros.demo.policy import WEIGHTS, make
from flashrt_ros.demo.rollout import Rollout
from flashrt_ros.demo.task import CUE_S, HOME_RAD, RING_CENTRE_M, observation
from flashrt_ros.demo.trial import BUMP_S, TIME_LIMIT_S, Judge, draw_trials
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.ros.share import shared
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy


@pytest.fixture
def drive() -> Rollout:
    return Rollout(PolicySession(make()))


def test_it_succeeds_and_without_hidden_state_it_fails() -> None:
    counts = rollout.measure(24, seed=100, experiment=True)
    assert counts["policy"] >= 23
    assert counts["hidden state zeroed"] == 0
    assert counts["restore"] >= 23
    assert counts["reset"] == 0
    assert counts["as it is"] == 0


def test_it_remembers_through_long_stillness(drive: Rollout) -> None:
    trial = draw_trials(7, 1)[0]
    drive.begin(trial)
    drive.run(CUE_S, trial.target_m)
    still = observation(HOME_RAD, np.zeros(2), None)
    for _ in range(1000):
        drive.session.step(still)
    assert drive.run(TIME_LIMIT_S, judge=Judge(trial.target_m))


def test_without_a_cue_it_goes_home_and_stays(drive: Rollout) -> None:
    drive.begin(draw_trials(7, 1)[0])
    drive.arm.place(HOME_RAD + np.array((0.5, -0.4)))
    drive.run(5.0)
    assert np.hypot(*(tip_of(drive.arm.position_rad) - RING_CENTRE_M)) < 0.03


def test_branches_with_different_seeds_differ_and_with_equal_seeds_do_not(drive: Rollout) -> None:
    trial = draw_trials(7, 1)[0]
    drive.begin(trial)
    drive.run(CUE_S, trial.target_m)
    branches = drive.session.fork(None, seeds=(1, 1, 2))
    seen = observation(HOME_RAD, np.zeros(2), None)
    actions = []
    for branch in branches:
        drive.session.restore(branch)
        actions.append(np.stack([drive.session.step(seen).values.numpy() for _ in range(20)]))
    np.testing.assert_array_equal(actions[0], actions[1])
    assert np.abs(actions[0] - actions[2]).max() > 0.01


def test_the_first_command_after_a_retreat_passes_the_start_check_in_every_way(
    drive: Rollout,
) -> None:
    contract = Contract.load(shared("config/demo_arm.contract.yaml"))
    assert contract.start is not None
    home = observation(HOME_RAD, np.zeros(2), None)
    for trial in draw_trials(9, 16):
        drive.begin(trial)
        drive.run(CUE_S, trial.target_m)
        capsule = drive.session.snapshot("seen", replace=True)
        drive.run(trial.bump_after_s)
        drive.arm.bump(trial.bump_nm, BUMP_S)
        drive.run(BUMP_S)
        drive.run(CUE_S, trial.false_target_m)
        # As it is: the state still belongs to the pose before the retreat.
        as_it_is = drive.session.step(home).values.numpy()
        drive.session.restore(capsule)
        restored = drive.session.step(home).values.numpy()
        for first in (as_it_is, restored):
            assert np.abs(first - HOME_RAD).max() < contract.start.max_distance["joint1"]


def test_every_command_from_rest_passes_the_start_check(drive: Rollout) -> None:
    contract = Contract.load(shared("config/demo_arm.contract.yaml"))
    assert contract.start is not None
    for trial in draw_trials(8, 8):
        drive.begin(trial)
        drive.run(CUE_S, trial.target_m)
        first = drive.session.step(observation(HOME_RAD, np.zeros(2), None)).values.numpy()
        assert np.abs(first - HOME_RAD).max() < contract.start.max_distance["joint1"]


def test_the_contract_fits_the_policy() -> None:
    Contract.load(shared("config/demo_arm.contract.yaml")).check(make().ports())


def test_it_is_registered_and_small() -> None:
    assert load_policy("cue_reach").config() == make().config()
    assert load_policy(str(WEIGHTS)).config() == make().config()
    assert sum(file.stat().st_size for file in Path(WEIGHTS).iterdir()) < 2**20


def test_it_conforms() -> None:
    report = check_policy(make())
    assert report.ok, str(report)


def test_rollout_prints_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    assert rollout.main(["--episodes", "2", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "policy                  2 of 2  100.0%  (95 %: 34.2% to 100.0%)" in out
    assert "hidden state zeroed     0 of 2    0.0%  (95 %: 0.0% to 65.8%)" in out
