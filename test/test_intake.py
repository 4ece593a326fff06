"""Pins what the intake says of messages that cannot be used."""

from __future__ import annotations

import time

from contract_examples import cdr, contract_dict, joint_state
from control_rig import Lists

from flashrt_ros.contract import Contract
from flashrt_ros.ros.intake import Intake


def test_alternating_faults_do_not_flood_the_log() -> None:
    fields = contract_dict()
    fields["observations"] = fields["observations"][:1]
    out = Lists()
    intake = Intake(Contract.from_dict(fields), out)
    good = cdr(joint_state(["a", "b"], (0.1, 0.2), (0.0, 0.0)))
    other = cdr(joint_state(["c", "d"], (0.1, 0.2), (0.0, 0.0)))
    for _ in range(50):
        intake.receive("joint_states", good)
        intake.receive("joint_states", other)
    end_s = time.monotonic() + 10.0
    while intake.figures["joint_states"].received < 100 and time.monotonic() < end_s:
        time.sleep(0.01)
    assert intake.close()
    assert intake.figures["joint_states"].faulty == 50, "counted all the same"
    assert len([words for words in out.words if "not usable" in words]) == 1
