"""The cell's physics: the magnet holds what it touches, lets go when pulled, and things collide.

Pinned because the examples of behaviour trees judge by where the block is: a magnet that held from
afar, or a wall that let the arm through, would make every tree succeed.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mujoco")

from flashrt_ros.demo.arm import joints_for
from flashrt_ros.demo.trees.cell import BLOCK_M, HALF_BLOCK_M, HIDDEN_M, LIMITS, REST, Cell
from flashrt_ros.errors import InvalidArgumentError

DOWN_M = -0.102


def go(cell: Cell, x_m: float, y_m: float, lift_m: float, steps: int = 80) -> None:
    """Moves the hand as the policy does: never far ahead of where it is."""
    aim = np.append(joints_for((x_m, y_m)), lift_m)
    for _ in range(steps):
        ahead = aim - cell.position
        ahead[:2] /= max(1.0, np.abs(ahead[:2]).max() / 0.15)
        cell.command(cell.position + np.append(ahead[:2], np.clip(ahead[2], -0.03, 0.03)))
        cell.step()


def over(cell: Cell, off_m: float = 0.0) -> None:
    """Brings the hand round the post and down on the block."""
    go(cell, 0.62, 0.0, 0.0, 40)
    go(cell, BLOCK_M[0] + off_m, BLOCK_M[1], 0.0)
    go(cell, BLOCK_M[0] + off_m, BLOCK_M[1], DOWN_M)


def test_what_is_magnetised_is_lifted_carried_and_put_down() -> None:
    cell = Cell()
    over(cell)
    cell.switch_magnet(True)
    go(cell, *BLOCK_M, DOWN_M, 5)
    assert cell.holds
    go(cell, *BLOCK_M, 0.0)
    go(cell, 0.6, 0.1, 0.0)
    assert cell.block_m[2] > 0.1
    cell.switch_magnet(False)
    go(cell, 0.6, 0.1, 0.0, 40)
    assert cell.block_m[2] < HALF_BLOCK_M + 0.003
    assert np.hypot(*(cell.block_m[:2] - (0.6, 0.1))) < 0.02


@pytest.mark.parametrize(("off_m", "lift_m"), [(0.024, DOWN_M), (0.0, -0.09)])
def test_control_beside_the_block_or_above_it_holds_nothing(off_m: float, lift_m: float) -> None:
    cell = Cell()
    over(cell, 0.0 if off_m == 0.0 else off_m)
    go(cell, BLOCK_M[0] + off_m, BLOCK_M[1], lift_m, 10)
    cell.switch_magnet(True)
    go(cell, BLOCK_M[0] + off_m, BLOCK_M[1], lift_m, 10)
    assert not cell.holds


def test_it_is_torn_off_by_a_force_that_the_magnet_does_not_carry() -> None:
    cell = Cell()
    over(cell)
    cell.switch_magnet(True)
    go(cell, *BLOCK_M, DOWN_M, 5)
    block = cell.model.body("block").id
    go(cell, *BLOCK_M, 0.0)
    cell.data.xfrc_applied[block, 2] = -8.0
    go(cell, *BLOCK_M, 0.0, 5)
    assert cell.holds
    cell.data.xfrc_applied[block, 2] = -30.0
    go(cell, *BLOCK_M, 0.0, 5)
    assert not cell.holds


def test_a_knock_waits_for_the_hand() -> None:
    cell = Cell()
    cell.knock((0.9, 0.3))
    go(cell, 0.62, 0.0, 0.0, 40)
    go(cell, *BLOCK_M, 0.0)
    assert np.abs(cell.block_m[:2] - BLOCK_M).max() < 0.001
    go(cell, *BLOCK_M, DOWN_M, 40)
    assert np.hypot(*(cell.block_m[:2] - BLOCK_M)) > 0.03


def test_the_hand_hides_the_block() -> None:
    cell = Cell()
    assert cell.seen_m is not None
    over(cell)
    assert np.hypot(*(cell.block_m[:2] - cell.hand_m[:2])) < HIDDEN_M
    assert cell.seen_m is None


@pytest.mark.parametrize("wall", [False, True])
def test_a_wall_stops_the_hand(wall: bool) -> None:
    cell = Cell(wall)
    go(cell, 0.30, 0.1, 0.0)
    assert (cell.hand_m[1] < 0.0) == wall


@pytest.mark.parametrize("wall", [False, True])
def test_home_is_reached_over_everything(wall: bool) -> None:
    cell = Cell(wall)
    over(cell)
    steps = 0
    while not cell.go_home():
        cell.step()
        steps += 1
        assert steps < 100
        assert not {"post", "wall"} & {
            cell.model.geom(int(geom)).name for pair in cell.data.contact.geom for geom in pair
        }
    assert np.abs(cell.position - REST).max() < 0.01
    assert LIMITS[2][1] > 0.06


def test_wrong_numbers_are_refused_and_change_nothing() -> None:
    cell = Cell()
    before = cell.target
    with pytest.raises(InvalidArgumentError, match="target: expected 3 finite numbers"):
        cell.command((0.0, float("nan"), 0.0))
    with pytest.raises(InvalidArgumentError, match=r"knock: expected at most 2\.0 m/s"):
        cell.knock((3.0, 0.0))
    with pytest.raises(InvalidArgumentError, match="block_m: expected two finite numbers"):
        cell.place((0.1, 0.2, 0.3))
    assert np.array_equal(before, cell.target)
