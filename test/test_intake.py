"""Pins what the intake says of messages that cannot be used, and what a clock that jumps does.

A looped bag or a restarted simulation turns the ROS clock back; what was received before it
belongs to another time, and a robot must not be moved by it.
"""

from __future__ import annotations

import dataclasses
import threading
import time

import numpy as np
import pytest
from contract_examples import cdr, contract_dict, joint_state
from control_rig import Lists
from hypothesis import given
from hypothesis import strategies as st
from image_messages import camera_contract, noise, rgb_image

from flashrt_ros.contract import Contract
from flashrt_ros.ros.intake import MARGIN_NS, Intake, due

LIMIT_S = 30.0
"""A generous limit: it only decides how long a failure takes."""


def intake_of(out: Lists) -> Intake:
    fields = contract_dict()
    fields["observations"] = fields["observations"][:1]
    fields["observations"][0]["max_age_ms"] = 1e6  # whatever a busy machine takes
    return Intake(Contract.from_dict(fields), out)


def receive(intake: Intake, *messages: bytes, topic: str = "joint_states") -> None:
    """Returns when all of them have been taken in."""
    figures = intake.figures[topic]
    wanted = figures.received + len(messages)
    for message in messages:
        intake.receive(topic, message)
    end_s = time.monotonic() + LIMIT_S
    while figures.received < wanted:
        assert time.monotonic() < end_s, f"{figures.received} of {wanted} were taken in"
        time.sleep(0.002)


GOOD = cdr(joint_state(["a", "b"], (0.1, 0.2), (0.0, 0.0)))


def test_alternating_faults_do_not_flood_the_log() -> None:
    out = Lists()
    intake = intake_of(out)
    other = cdr(joint_state(["c", "d"], (0.1, 0.2), (0.0, 0.0)))
    receive(intake, *[GOOD, other] * 50)
    assert intake.close(LIMIT_S)
    assert intake.figures["joint_states"].faulty == 50, "counted all the same"
    assert len([words for words in out.words if "not usable" in words]) == 1


def test_a_clock_that_goes_back_drops_everything_and_is_told_once() -> None:
    intake = intake_of(Lists())
    receive(intake, GOOD)
    assert not intake.sample(time.monotonic_ns(), 0).faults, "control: it would do"
    intake.clock_jumped("the ROS clock went back by 5.000 s")
    assert intake.sample(time.monotonic_ns(), 0).faults
    jump = intake.take_jump()
    assert jump is not None
    assert jump[1] == "the ROS clock went back by 5.000 s"
    assert intake.take_jump() is None
    assert "no message" in intake.sample(time.monotonic_ns(), 0).faults[0]
    receive(intake, GOOD)
    assert not intake.sample(time.monotonic_ns(), jump[0]).faults, "it goes on"
    assert intake.close(LIMIT_S)


def test_of_images_that_wait_only_the_newest_is_decoded() -> None:
    intake = Intake(camera_contract(max_age_ms=1e6, size=[4, 6], range="byte"), Lists())
    reached, go_on = threading.Event(), threading.Event()
    whole = intake.sampler.prepare

    def slowly(*arguments: object, **options: object) -> object:
        reached.set()
        assert go_on.wait(LIMIT_S)
        return whole(*arguments, **options)  # type: ignore[arg-type]

    intake.sampler.prepare = slowly  # type: ignore[method-assign, assignment]
    frames = [noise(4, 6, 3, seed=number) for number in range(6)]
    for number, frame in enumerate(frames):
        intake.receive("camera", cdr(rgb_image(frame, stamp_ns=1 + number)))
        assert reached.wait(LIMIT_S), "the first one is under way"
    go_on.set()
    assert intake.close(LIMIT_S)
    figures = intake.figures["camera"]
    arrivals = figures.arrivals
    assert (figures.received, arrivals.superseded, arrivals.received) == (2, 4, 6)
    assert arrivals.lost == 0, "superseded is not lost"
    sample = intake.sample(time.monotonic_ns(), 0)
    assert sample.stamps[0].stamp_ns == 6
    assert np.array_equal(sample.observations["observation.image"], np.moveaxis(frames[-1], 2, 0))


def test_nobody_looks_nothing_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    # However long it takes from the sample to the image after it.
    monkeypatch.setattr("flashrt_ros.ros.intake.IDLE_NS", time.monotonic_ns() // 2)
    intake = Intake(camera_contract(max_age_ms=1e6, size=[4, 6]), Lists())
    asked: list[bool] = []
    whole = intake.sampler.prepare

    def watched(*arguments: object, lazy: bool) -> object:
        asked.append(lazy)
        return whole(*arguments, lazy=lazy)  # type: ignore[arg-type]

    intake.sampler.prepare = watched  # type: ignore[method-assign, assignment]
    for number in range(2):
        receive(intake, cdr(rgb_image(noise(4, 6, 3), stamp_ns=1 + number)), topic="camera")
        assert not intake.sample(time.monotonic_ns(), 0).faults
    assert intake.close(LIMIT_S)
    assert asked == [True, False]


def test_a_camera_faster_than_the_control_loop_is_decoded_once_a_period() -> None:
    contract = camera_contract(max_age_ms=1e6, size=[4, 6], range="byte")
    intake = Intake(dataclasses.replace(contract, control_rate_hz=1.0), Lists())
    arrivals = intake.figures["camera"].arrivals
    for number in range(1, 101):
        intake.receive("camera", cdr(rgb_image(noise(4, 6, 3, seed=number), stamp_ns=number)))
        time.sleep(0.003)
        if number >= 50:
            # At each: where the machine stands still for a period, only one image more is due.
            intake.sample(time.monotonic_ns(), 0)
    end_s = time.monotonic() + LIMIT_S
    # The last one is decoded though none comes after it.
    while intake.sampler.sample(time.monotonic_ns(), 0).stamps[0].stamp_ns < 100:
        assert time.monotonic() < end_s
        time.sleep(0.02)
    assert intake.close(LIMIT_S)
    decoded = intake.figures["camera"].received
    assert arrivals.received == 100
    assert decoded + arrivals.superseded == 100
    assert decoded < 90, "most of those after the sample could wait, and were replaced"


@given(st.integers(0, 10**9), st.integers(0, 10**8), st.integers(1, 10**9), st.integers(0, 10**8))
def test_an_image_waits_only_where_a_newer_one_comes_in_time(
    next_ns: int, interval_ns: int, period_ns: int, decode_ns: int
) -> None:
    until_ns = due(next_ns, interval_ns, period_ns, decode_ns)
    assert until_ns <= next_ns - MARGIN_NS or until_ns == 0
    if interval_ns == 0 or 2 * interval_ns >= 2 * period_ns:
        assert until_ns == 0, "each image is used"
