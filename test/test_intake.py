"""Pins what the intake says of messages that cannot be used, and what a clock that jumps does.

A looped bag or a restarted simulation turns the ROS clock back; what was received before it
belongs to another time, and a robot must not be moved by it.
"""

from __future__ import annotations

import time

from contract_examples import cdr, contract_dict, joint_state
from control_rig import Lists

from flashrt_ros.contract import Contract
from flashrt_ros.ros.intake import Intake


def intake_of(out: Lists) -> Intake:
    fields = contract_dict()
    fields["observations"] = fields["observations"][:1]
    return Intake(Contract.from_dict(fields), out)


def receive(intake: Intake, *messages: bytes) -> None:
    """Returns when all of them have been taken in."""
    wanted = intake.figures["joint_states"].received + len(messages)
    for message in messages:
        intake.receive("joint_states", message)
    end_s = time.monotonic() + 10.0
    while intake.figures["joint_states"].received < wanted and time.monotonic() < end_s:
        time.sleep(0.01)


GOOD = cdr(joint_state(["a", "b"], (0.1, 0.2), (0.0, 0.0)))


def test_alternating_faults_do_not_flood_the_log() -> None:
    out = Lists()
    intake = intake_of(out)
    other = cdr(joint_state(["c", "d"], (0.1, 0.2), (0.0, 0.0)))
    receive(intake, *[GOOD, other] * 50)
    assert intake.close()
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
    assert intake.close()
