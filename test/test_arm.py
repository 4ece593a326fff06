"""The simulated arm: it follows, it can be thrown off course, and its state is complete.

Restore must continue bit-equally, or what the demonstration shows of the policy's state would be
blurred by the arm's; the control is a continuation from a state in which one part was left out.
"""

import dataclasses
import sys

import numpy as np
import pytest

from flashrt_ros.demo.arm import MAX_BUMP_NM, Arm, open_viewer, tip_of
from flashrt_ros.demo.task import HOME_RAD
from flashrt_ros.errors import InvalidArgumentError, UnsupportedError


def run(arm: Arm, steps: int) -> np.ndarray:
    positions = []
    for _ in range(steps):
        arm.step()
        positions.append(arm.position_rad)
    return np.array(positions)


def test_it_goes_where_it_is_told_and_stays() -> None:
    arm = Arm()
    arm.place(HOME_RAD)
    arm.command(HOME_RAD + np.array((0.2, -0.2)))
    run(arm, 80)
    np.testing.assert_allclose(arm.position_rad, HOME_RAD + np.array((0.2, -0.2)), atol=2e-3)
    assert np.abs(arm.velocity_rad_s).max() < 1e-2
    assert arm.time_s == pytest.approx(80 / 50)


def test_a_bump_throws_it_off_course_and_ends() -> None:
    arm = Arm()
    arm.place(HOME_RAD)
    arm.command(HOME_RAD)
    arm.bump((40.0, 0.0), 0.1)
    assert arm.bumped
    thrown = tip_of(run(arm, 5)) - tip_of(HOME_RAD)
    assert not arm.bumped
    assert np.linalg.norm(thrown, axis=-1).max() > 0.1
    run(arm, 60)
    np.testing.assert_allclose(arm.position_rad, HOME_RAD, atol=2e-3)


def test_a_bump_may_last_less_than_a_step() -> None:
    short, none = Arm(), Arm()
    for arm in (short, none):
        arm.place(HOME_RAD)
    short.bump((40.0, 0.0), 0.004)
    moved, still = run(short, 1)[0], run(none, 1)[0]
    assert not short.bumped
    assert 0 < np.abs(moved - still).max() < 0.05


@pytest.mark.parametrize("left_out", ["", "velocity_rad_s", "target_rad", "bump_nm"])
def test_state_is_complete(left_out: str) -> None:
    arm = Arm()
    arm.place(HOME_RAD)
    arm.command(HOME_RAD + np.array((0.3, 0.1)))
    run(arm, 4)
    arm.bump((-30.0, 10.0), 0.1)
    run(arm, 2)
    state = arm.state()
    first = run(arm, 30)
    if left_out:
        state = dataclasses.replace(state, **{left_out: np.zeros(2)})
    other = Arm()
    other.set_state(state)
    again = run(other, 30)
    assert np.array_equal(first, again) is (left_out == "")


def test_it_refuses_what_no_arm_can_do() -> None:
    arm = Arm()
    with pytest.raises(InvalidArgumentError, match="target_rad: expected two finite numbers"):
        arm.command((0.0, float("nan")))
    with pytest.raises(InvalidArgumentError, match="position_rad: expected two"):
        arm.place((0.0, 0.0, 0.0))
    with pytest.raises(InvalidArgumentError, match="at most 60"):
        arm.bump((MAX_BUMP_NM + 1, 0.0), 0.1)
    with pytest.raises(InvalidArgumentError, match=r"for 2[.]0 s"):
        arm.bump((1.0, 0.0), 2.0)


def test_a_command_beyond_the_stops_is_clipped() -> None:
    arm = Arm()
    arm.command((9.0, -9.0))
    np.testing.assert_array_equal(arm.target_rad, (3.0, -2.6))


def test_the_viewer_says_that_it_needs_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UnsupportedError, match="expected DISPLAY or WAYLAND_DISPLAY"):
        open_viewer(Arm())


def test_the_cue_is_seen_and_hidden() -> None:
    arm = Arm()
    arm.show_cue((0.5, 0.1))
    np.testing.assert_allclose(arm.data.mocap_pos[0, :2], (0.5, 0.1))
    arm.show_cue(None)
    assert arm.data.mocap_pos[0, 2] < 0
