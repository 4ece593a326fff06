"""Whole chunks under any order of verbs, faults and late steps: nothing goes on that must not.

A trajectory goes on in its controller, whatever becomes of the node. So after everything that ends
motion, the arm must have been told to stay before anybody looks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from control_rig import plan_ready
from hypothesis import given, settings
from hypothesis import strategies as st
from test_horizon_late import FLOAT32, MAX_STEP, Led

from flashrt_ros.ros.motion import Mode

S = 1_000_000_000


def here(led: Led) -> list[float]:
    return led.follower.at(led.rig.now_ns * 1e-9)


def tick(led: Led, position: Sequence[float] | None, stamp_ns: int = 0) -> None:
    led.wait(1)
    if position is not None:
        led.rig.hear(*position, stamp_ns=stamp_ns)
    led.rig.stepper.tick(led.rig.now_ns)
    plan_ready(led.rig)


def act(led: Led, what: str) -> None:
    rig = led.rig
    if what.startswith("step"):
        led.step(after=int(what[4:]))
    elif what == "nan":
        tick(led, (float("nan"), 0.2))
    elif what == "silence":
        tick(led, None)
    elif what == "jump":
        tick(led, here(led), stamp_ns=rig.now_ns - S)
    elif what == "pause":
        if rig.motion.active:
            rig.motion.pause()
            rig.commander.halt()
    elif what == "stop":
        rig.motion.stop()
        rig.commander.halt()
    elif what == "clear":
        rig.motion.clear_stop()
    elif what == "off":
        rig.commander.halt(wait=True, all_outputs=True)
        rig.motion.deactivate()
    elif what == "on":
        if not rig.motion.active:
            rig.motion.activate(rig.now_ns)
    elif what == "shadow":
        rig.commander.shadow(not rig.commander.dry_run)
    elif what in ("restore", "snapshot"):
        rig.call(what, name="cut", replace=True, publish=True)
    elif what == "reset":
        rig.call("reset_episode")
    elif what == "rollback":
        rig.call("rollback", steps=1, publish=True)
    else:
        rig.call("resume")
    led.obey()


WHAT = [
    *["step1"] * 6,
    *("step2", "step6", "nan", "silence", "jump", "pause", "stop", "clear", "off", "on", "shadow"),
    *("restore", "snapshot", "reset", "rollback", "resume", "resume"),
]


@pytest.mark.parametrize("on_miss", ["hold", "stop"])
@settings(max_examples=40)
@given(events=st.lists(st.sampled_from(WHAT), min_size=4, max_size=30))
def test_what_ends_motion_leaves_no_trajectory_behind(on_miss: str, events: list[str]) -> None:
    led = Led(on_miss=on_miss)
    led.begin(2)
    for what in events:
        act(led, what)
        now_s = led.rig.now_ns * 1e-9
        if led.rig.mode is not Mode.RUNNING or led.rig.commander.dry_run:
            soon, late = led.follower.at(now_s + 0.021), led.follower.at(now_s + 9.0)
            assert np.allclose(soon, late, atol=1e-9), (what, led.rig.mode, led.rig.reason)
    assert led.fastest <= MAX_STEP * FLOAT32
    led.rig.stepper.close()


def test_control_of_the_above_an_arm_that_runs_has_a_way_before_it() -> None:
    led = Led()
    led.begin(2)
    now_s = led.rig.now_ns * 1e-9
    assert led.rig.mode is Mode.RUNNING
    assert not np.allclose(led.follower.at(now_s + 0.021), led.follower.at(now_s + 9.0))
    act(led, "pause")
    assert np.allclose(led.follower.at(now_s + 0.021), led.follower.at(now_s + 9.0))
