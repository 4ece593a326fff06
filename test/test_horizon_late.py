"""Chunks whose control steps come late: a controller goes on by its own clock all the same.

Where the arm has been led by then is what a stop must hold, what limits of a step count from, and
what the next control step differs from: an arm that is sent back to the last command first jumps
by as many rows as control steps were left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from contract_examples import contract_dict
from control_rig import PERIOD_NS, Rig, plan_ready
from hypothesis import given, settings
from hypothesis import strategies as st
from test_horizon import TRAJECTORY, points
from test_plans_ahead import H, Ramp
from trajectory_controller import Follower

from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.ros.messages import fill
from flashrt_ros.ros.motion import Mode

MAX_STEP = 0.012
FLOAT32 = 1.0 + 1e-5
"""What measured positions lose on their way."""


class Led:
    """A rig with chunks of 16 rows, 0.01 rad each, and an arm that follows what it sends."""

    def __init__(self, **changes: Any) -> None:
        action = {**contract_dict()["actions"][0], "type": TRAJECTORY, "horizon": "chunk"}
        action = {**action, "max_step": MAX_STEP, **changes}
        self.rig = Rig(
            ChunkedPolicy(Ramp(), H), actions=[action], on_miss=action.get("on_miss", "hold")
        )
        self.follower = Follower(("a", "b"), (0.1, 0.2))
        self.places: list[list[float]] = []
        self._sent = 0

    def wait(self, periods: float) -> None:
        """Time passes, and the arm goes on."""
        end_ns = self.rig.now_ns + round(periods * PERIOD_NS)
        while self.rig.now_ns < end_ns:
            self.rig.now_ns += PERIOD_NS // 4
            self.places.append(self.follower.at(self.rig.now_ns * 1e-9))

    def obey(self) -> None:
        """The arm's controller takes what was sent."""
        from trajectory_msgs.msg import JointTrajectory

        for command in self.rig.out.sent[self._sent :]:
            self.follower.take(fill(JointTrajectory(), command.fields), self.rig.now_ns * 1e-9)
        self._sent = len(self.rig.out.sent)

    def step(self, after: int = 1) -> None:
        """A control step, so many periods after what was before."""
        self.wait(after)
        self.rig.hear(*self.follower.at(self.rig.now_ns * 1e-9))
        self.rig.stepper.tick(self.rig.now_ns)
        plan_ready(self.rig)
        self.obey()

    def begin(self, rows: int) -> None:
        """So many rows of the first chunk are commanded."""
        for _ in range(1 + rows):
            self.step()

    @property
    def fastest(self) -> float:
        """Largest way of a joint in a control period, rad."""
        return float(np.abs(np.diff(self.places, axis=0)).max()) * 4


@pytest.mark.parametrize("how", ["stop", "miss", "deactivate", "drop"])
def test_what_ends_motion_late_holds_where_the_arm_was_led(how: str) -> None:
    led = Led()
    led.begin(2)
    led.wait(5)
    here = led.follower.at(led.rig.now_ns * 1e-9)
    assert np.allclose(here, [0.15, 0.25]), "five rows, of which two were commanded"
    if how == "miss":
        led.rig.commander.miss(led.rig.now_ns)
    else:
        led.rig.commander.halt(wait=how == "deactivate", all_outputs=how == "drop")
    assert np.allclose(points(led.rig.out.sent[-1]), [here])


def test_a_stop_after_the_end_of_a_chunk_holds_its_last_row() -> None:
    led = Led()
    led.begin(2)
    led.wait(30)
    led.rig.commander.halt()
    assert np.allclose(points(led.rig.out.sent[-1]), [[0.1 + 0.15, 0.2 + 0.15]])


def test_a_late_control_step_sends_the_rest_anew_and_one_in_time_does_not() -> None:
    led = Led()
    led.begin(3)
    assert len(led.rig.out.sent) == 1
    led.step(after=3)
    assert len(led.rig.out.sent) == 2, "the controller was two rows ahead"
    step = led.rig.out.steps[-1]
    assert step.chunk_index == 3
    assert len(points(led.rig.out.sent[-1])) == H - 3
    led.begin(3)
    assert len(led.rig.out.sent) == 2
    assert led.fastest <= MAX_STEP * FLOAT32


def test_a_late_step_that_would_lead_back_too_far_is_refused_where_the_contract_says_so() -> None:
    led = Led(on_limit="refuse")
    led.begin(2)
    led.step(after=6)
    assert led.rig.mode is Mode.HOLDING
    assert "max_step" in led.rig.reason
    led.wait(3)
    assert led.fastest <= MAX_STEP * FLOAT32


EVENTS = st.tuples(st.sampled_from(["step", "step", "step", "halt", "miss"]), st.integers(1, 7))


@settings(max_examples=25)
@given(st.lists(EVENTS, min_size=3, max_size=12))
def test_however_late_steps_come_no_joint_moves_faster_than_its_step(
    events: Sequence[tuple[str, int]],
) -> None:
    led = Led()
    led.begin(1)
    for what, periods in events:
        if what == "step":
            led.step(after=periods)
            continue
        led.wait(periods)
        if what == "halt":
            led.rig.commander.halt()
        else:
            led.rig.commander.miss(led.rig.now_ns)
        led.obey()
    led.wait(20)
    assert led.fastest <= MAX_STEP * FLOAT32
    led.rig.stepper.close()
