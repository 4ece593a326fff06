"""The scripted policy over contact physics: what it remembers, and that a restore gives it back.

The examples of behaviour trees stand on this: without its capsule the policy believes it is in a
later phase, or does not know where the block should go, and the block stays where it is. Pinned in
lockstep, since the examples themselves depend on a clock.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mujoco")

from pick_rig import CUE_STEPS, GOAL_M, KNOCK_M_S, TRY_STEPS, Rig

from flashrt_ros.demo.trees.cell import BLOCK_M, REST
from flashrt_ros.demo.trees.picker import Phase, PickPolicy
from flashrt_ros.testing.check import check_policy

UNLUCKY = 12
"""With this noise key the hand comes down 25 mm off the middle."""
NEAR, FAR = 2, 0
"""Noise keys with which it goes round the post on one side or the other."""


def knocked(seed: int = 0) -> Rig:
    """A policy whose block was knocked away under its hand; ``start`` is from before."""
    rig = Rig(seed)
    rig.run(CUE_STEPS, GOAL_M)
    rig.session.snapshot("start")
    rig.cell.knock(KNOCK_M_S)
    rig.run(60)
    rig.home()
    return rig


@pytest.mark.parametrize("seed", range(4))
def test_it_puts_the_block_where_the_cue_was(seed: int) -> None:
    rig = Rig(seed)
    rig.run(CUE_STEPS, GOAL_M)
    rig.run(TRY_STEPS)
    assert rig.placed, rig.cell.block_m
    assert rig.phase is Phase.DONE


def test_without_a_cue_it_waits() -> None:
    rig = Rig()
    rig.run(TRY_STEPS)
    assert rig.phase is Phase.LOOK
    assert np.abs(rig.cell.position - REST).max() < 0.01


@pytest.mark.parametrize("seed", range(3))
def test_restored_it_picks_the_block_that_was_knocked_away(seed: int) -> None:
    rig = knocked(seed)
    assert np.hypot(*(rig.cell.block_m[:2] - BLOCK_M)) > 0.03
    assert rig.phase > Phase.CLOSE
    rig.session.restore("start", seed=100 + seed)
    rig.run(TRY_STEPS)
    assert rig.placed, rig.cell.block_m


def test_control_as_it_is_it_carries_nothing() -> None:
    rig = knocked()
    left_m = rig.cell.block_m
    rig.run(TRY_STEPS)
    assert rig.phase is Phase.DONE
    assert np.abs(rig.cell.block_m - left_m).max() < 0.001


def test_control_reset_it_does_not_know_where_the_block_should_go() -> None:
    rig = knocked()
    rig.session.reset_()
    rig.run(TRY_STEPS)
    assert rig.phase is Phase.LOOK
    assert not rig.placed


def test_a_capsule_from_before_the_grasp_opens_the_hand() -> None:
    rig = Rig()
    rig.run(CUE_STEPS, GOAL_M)
    rig.session.snapshot("start")
    while rig.phase < Phase.LOWER:
        rig.run(1)
    rig.session.snapshot("carries")
    rig.session.restore("carries")
    rig.run(1)
    assert rig.cell.holds
    rig.session.restore("start")
    rig.run(1)
    assert not rig.cell.holds


def test_the_same_seed_misses_in_the_same_way_and_another_does_not() -> None:
    rig = Rig(UNLUCKY)
    rig.run(CUE_STEPS, GOAL_M)
    rig.session.snapshot("start")
    down = []
    for waited, seed in ((0, None), (7, None), (0, 5)):
        rig.session.restore("start", seed=seed)
        rig.run(waited, GOAL_M)  # longer in LOOK: what it draws does not depend on that
        rig.run(TRY_STEPS)
        down.append(rig.session.arena.state["memory.block"].numpy() - np.asarray(BLOCK_M))
        assert rig.placed == (seed is not None)
        rig.home()
    assert np.abs(down[0] - down[1]).max() < 0.0005
    assert np.abs(down[0] - down[2]).max() > 0.01


@pytest.mark.parametrize(
    ("seed", "wall", "passes"), [(FAR, True, True), (NEAR, True, False), (NEAR, False, True)]
)
def test_a_wall_closes_one_way_round_the_post(seed: int, wall: bool, passes: bool) -> None:
    rig = Rig(seed, wall)
    rig.run(CUE_STEPS, GOAL_M)
    rig.run(TRY_STEPS)
    assert rig.number("memory.way") == (seed == FAR)
    assert rig.placed == passes
    if not passes:
        assert rig.cell.hand_m[1] < 0.0  # it stands at the wall
        rig.home()


def test_its_state_is_where_it_says() -> None:
    rig = Rig()
    rig.run(CUE_STEPS, GOAL_M)
    rig.run(25)
    report = check_policy(PickPolicy(), steps=30, observations=rig.observations)
    assert report.passed, str(report)
