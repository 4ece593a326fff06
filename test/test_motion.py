"""Holds the rules about motion: what ends what, and that nothing starts a robot by accident.

The rules are few and combine freely, so besides the single ones a property test drives the machine
with random words and checks what must hold whatever came before.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.errors import InactiveError, NotConfiguredError, StoppedError
from flashrt_ros.ros.motion import Mode, Motion, Standing


def active(hold: bool = False) -> Motion:
    motion = Motion()
    motion.configure(hold)
    motion.activate(100)
    return motion


def running() -> Motion:
    motion = active()
    motion.input_good()
    motion.started()
    assert motion.mode is Mode.RUNNING
    return motion


def test_modes_are_those_of_the_message() -> None:
    status = pytest.importorskip("flashrt_ros.msg").PolicyStatus
    for mode in Mode:
        assert getattr(status, mode.name) == mode.value


def test_lifecycle_modes() -> None:
    motion = Motion()
    assert motion.mode is Mode.UNCONFIGURED
    motion.configure(hold=False)
    assert motion.mode is Mode.INACTIVE
    motion.activate(7)
    assert motion.mode is Mode.WAITING
    assert motion.not_before_ns == 7
    motion.deactivate()
    assert motion.mode is Mode.INACTIVE
    motion.clean_up()
    assert motion.mode is Mode.UNCONFIGURED


def test_hold_parameter_waits_for_resume() -> None:
    motion = active(hold=True)
    assert motion.mode is Mode.HOLDING
    assert "~/resume" in motion.standing.reason
    motion.resume(200)
    assert motion.mode is Mode.WAITING


def test_input_fault_ends_by_itself() -> None:
    motion = running()
    motion.input_fault("observation.state (joint_states): stale 153 ms > 100 ms")
    assert motion.mode is Mode.HOLDING
    assert "stale 153 ms" in motion.standing.reason
    motion.input_good()
    assert motion.mode is Mode.RUNNING


def test_interrupted_motion_starts_anew() -> None:
    motion = running()
    motion.input_fault("stale")
    motion.interrupt()
    assert motion.mode is Mode.WAITING
    motion.input_good()
    assert motion.mode is Mode.WAITING, "the first command has not been checked yet"
    motion.started()
    assert motion.mode is Mode.RUNNING


def test_stop_latches_through_lifecycle_and_leaves_a_hold() -> None:
    motion = running()
    motion.stop()
    assert motion.mode is Mode.STOPPED
    with pytest.raises(StoppedError, match="clear_stop"):
        motion.resume(200)
    motion.deactivate()
    motion.clean_up()
    motion.configure(hold=False)
    motion.activate(300)
    assert motion.mode is Mode.STOPPED
    assert motion.clear_stop()
    assert motion.mode is Mode.HOLDING, "clearing alone must not start the robot"
    motion.resume(400)
    assert motion.mode is Mode.WAITING
    assert not motion.clear_stop(), "there was no stop"


def test_stop_before_configure() -> None:
    motion = Motion()
    motion.stop()
    motion.configure(hold=False)
    motion.activate(1)
    assert motion.mode is Mode.STOPPED


def test_pause_is_ended_by_resume_or_by_asking_for_commands() -> None:
    motion = running()
    motion.pause()
    motion.state_changed(200, hold="")
    assert motion.mode is Mode.PAUSED, "a reset does not end a pause"
    motion.state_changed(300, hold="", end_pause=True)
    assert motion.mode is Mode.WAITING
    motion.pause()
    motion.state_changed(400, hold="held", end_pause=True)
    assert motion.mode is Mode.PAUSED, "a restore that holds does not end a pause"
    motion.resume(500)
    assert motion.mode is Mode.WAITING


def test_state_change_demands_newer_input_and_a_checked_start() -> None:
    motion = running()
    motion.state_changed(900, hold="")
    assert motion.not_before_ns == 900
    assert motion.starting


def test_refusals_name_the_lifecycle() -> None:
    motion = Motion()
    with pytest.raises(NotConfiguredError, match="unconfigured"):
        motion.resume(1)
    motion.configure(hold=False)
    with pytest.raises(InactiveError, match="activate"):
        motion.resume(1)
    with pytest.raises(InactiveError, match="activate"):
        motion.pause()


def test_holds_and_pauses_outlive_deactivation() -> None:
    motion = running()
    motion.hold("unsafe start")
    motion.deactivate()
    motion.activate(500)
    assert motion.mode is Mode.HOLDING


def test_what_was_computed_before_a_stop_is_recognised() -> None:
    for word in (Motion.stop, Motion.pause, Motion.deactivate):
        motion = running()
        epoch = motion.epoch
        word(motion)
        assert motion.epoch != epoch


WORDS: dict[str, Callable[[Motion], object]] = {
    "activate": lambda m: m.activate(1),
    "deactivate": Motion.deactivate,
    "stop": Motion.stop,
    "clear_stop": Motion.clear_stop,
    "pause": Motion.pause,
    "resume": lambda m: m.resume(1),
    "restore": lambda m: m.state_changed(1, "held"),
    "restore_publish": lambda m: m.state_changed(1, "", True),
    "reset": lambda m: m.state_changed(1, ""),
    "hold": lambda m: m.hold("unsafe"),
    "fault": lambda m: m.input_fault("stale"),
    "good": Motion.input_good,
    "jump": lambda m: m.time_jumped(1),
    "interrupt": Motion.interrupt,
    "bar": lambda m: m.bar("released"),
    "permit": lambda m: m.permit(1),
}


@given(st.lists(st.sampled_from(sorted(WORDS))))
def test_only_named_words_let_a_robot_move(words: list[str]) -> None:
    """From any state, motion is allowed only by the words that are meant to allow it."""
    motion = Motion()
    motion.configure(hold=True)
    for word in words:
        before = motion.wants_to_move
        stopped = motion.stopped
        try:
            WORDS[word](motion)
        except (StoppedError, InactiveError, NotConfiguredError):
            assert motion.wants_to_move == before
        if motion.wants_to_move and not before:
            assert word in ("activate", "resume", "restore_publish", "reset", "permit")
            assert motion.starting, "what begins to move is checked first"
        if stopped and word != "clear_stop":
            assert motion.stopped
        assert not (motion.stopped and motion.wants_to_move)
        if motion.mode is Mode.RUNNING:
            assert not motion.starting


def test_failed_transition_shows_until_the_next_one_begins() -> None:
    motion = Motion()
    motion.transition_failed("configure failed: no such policy")
    assert motion.standing == Standing(Mode.UNCONFIGURED, "configure failed: no such policy")
    motion.stop("by ~/stop")
    assert motion.standing.reason == "configure failed: no such policy; by ~/stop"
    motion.transition_begins()
    assert motion.standing.reason == "by ~/stop"
    motion.clear_stop()
    motion.configure(hold=False)
    motion.activate(1)
    motion.started()
    motion.transition_failed("deactivate failed: a publisher is gone")
    assert motion.standing == Standing(Mode.RUNNING, ""), "what moves has no reason to stand"
    motion.deactivate()
    assert motion.standing == Standing(Mode.INACTIVE, "deactivate failed: a publisher is gone")
