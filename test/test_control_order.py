"""Pins what becomes of words and plans that reach the control thread later than they were meant.

Each case once moved an arm, or told of it wrongly.
"""

from __future__ import annotations

import pytest
from contract_examples import MS, contract_dict
from control_rig import PERIOD_NS, Rig, close, plan_ready
from node_policies import Follow, FollowChunks

from flashrt_ros.contract import Contract
from flashrt_ros.contract.start import StartGate
from flashrt_ros.errors import ErrorCode
from flashrt_ros.ros.motion import Mode, Motion


def still(rig: Rig) -> None:
    sent = len(rig.out.sent)
    rig.tick(3)
    assert len(rig.out.sent) == sent, "the robot moves although it was told to stand still"


@pytest.mark.parametrize(
    ("service", "fields"),
    [
        ("resume", {}),
        ("restore", {"name": "here", "publish": True}),
        ("rollback", {"steps": 1, "publish": True}),
    ],
)
def test_request_to_move_does_not_undo_a_later_pause(service: str, fields: dict) -> None:
    """It may wait for an inference while the pause is answered at once."""
    rig = Rig()
    rig.tick(3)
    rig.ask("snapshot", name="here")
    rig.motion.pause()
    late = rig.verb(service, **fields)
    rig.motion.pause()
    before = rig.session.state_digest()
    answer = rig.carry_out(late)
    assert answer is not None
    assert answer.code is ErrorCode.SUPERSEDED
    assert "after this request" in answer.message
    assert rig.session.state_digest() == before, "nothing was done"
    still(rig)
    rig.call(service, **fields)
    rig.tick()
    assert rig.mode is Mode.RUNNING, "control: a later request does move"


@pytest.mark.parametrize(
    ("service", "fields"), [("resume", {}), ("reset_episode", {}), ("rollback", {"steps": 1})]
)
def test_request_from_before_a_stop_does_not_move_after_it_was_cleared(
    service: str, fields: dict
) -> None:
    rig = Rig()
    rig.tick(3)
    late = rig.verb(service, **fields)
    rig.motion.stop()
    rig.motion.clear_stop()
    rig.carry_out(late)
    assert rig.mode is Mode.HOLDING
    still(rig)


def test_pause_while_a_restore_is_carried_out_stands() -> None:
    rig = Rig()
    rig.tick(3)
    rig.ask("snapshot", name="here")
    restore = rig.session.restore

    def slow_restore(*args: object) -> object:
        rig.motion.pause()
        return restore(*args)

    rig.session.restore = slow_restore  # type: ignore[method-assign, assignment]
    answer = rig.ask("restore", name="here", publish=True)
    assert answer.code is ErrorCode.NONE
    assert "resume" in answer.message
    assert rig.mode is Mode.PAUSED
    still(rig)


def test_jump_that_is_found_late_does_not_let_older_input_count() -> None:
    motion = Motion()
    motion.configure(hold=False)
    motion.activate(100)
    motion.state_changed(300, hold="")
    motion.time_jumped(200)
    assert motion.not_before_ns == 300


def test_plan_from_before_an_input_fault_is_not_adopted() -> None:
    rig = Rig(FollowChunks())
    rig.tick(position=(0.3, 0.3))
    plan_ready(rig)
    rig.now_ns += 3600 * 10**9
    rig.tick(hear=False)
    assert rig.mode is Mode.WAITING
    rig.tick(position=(0.1, 0.1))
    assert not rig.out.sent, "an hour old"
    plan_ready(rig)
    rig.tick(position=(0.1, 0.1))
    assert close(rig.positions[0], 0.1, 0.1)
    rig.stepper.close()


def test_rows_of_a_restored_chunk_are_not_told_of_other_messages() -> None:
    rig = Rig(FollowChunks())
    rig.tick()
    plan_ready(rig)
    rig.tick(2)
    rig.ask("snapshot", name="half")
    seen = rig.out.steps[-1].stamps
    rig.tick(3)
    plan_ready(rig)
    rig.tick()
    assert rig.out.steps[-1].stamps != seen, "control: another plan"
    rig.ask("restore", name="half", publish=True)
    rig.tick()
    last = rig.out.steps[-1]
    assert (last.chunk_id, last.chunk_index, last.stamps) == (1, 2, ())
    rig.stepper.close()


def test_steps_taken_back_do_not_wear_the_rollback_ring_out() -> None:
    rig = Rig(Follow())
    rig.tick(5)
    rig.ask("rollback", steps=1)
    for _ in range(20):
        rig.call("resume")
        rig.now_ns += PERIOD_NS
        rig.hear(0.1, 0.2)
        rig.session.policy.offset = 1.0  # type: ignore[attr-defined]
        rig.stepper.tick(rig.now_ns)
        assert "taken back" in rig.reason
    assert rig.ask("rollback", steps=3).fields["steps_back"] == 3


def test_stop_message_after_a_refused_first_command_repeats_what_was_sent() -> None:
    """The arm may be elsewhere by then, or out of its limits."""
    rig = Rig()
    rig.tick(3)
    rig.tick(6, hear=False)
    sent = rig.positions[-1]
    assert rig.out.sent[-1].repeat, "control: commands still leave"
    rig.call("resume")
    rig.session.policy.offset = 1.0  # type: ignore[attr-defined]
    rig.tick(position=(3.01, 0.2))
    assert "unsafe start" in rig.reason
    assert rig.out.sent[-1].fields["velocity"] == [0.0, 0.0]
    assert rig.positions[-1] == sent


def test_ramp_stands_still_while_no_command_leaves() -> None:
    """After a gap the arm is where the last command led it, not where time went on to."""
    fields = contract_dict(start={**contract_dict()["start"], "ramp_s": 1.0})
    gate = StartGate(Contract.from_dict(fields))
    first = gate.admit([2.0, 0.0], [0.0, 0.0], 0).action
    late = gate.admit([2.0, 0.0], None, 900 * MS).action
    assert first is not None
    assert late is not None
    assert late[0] - first[0] <= 2 * 2.0 / 50 + 1e-9
    on_time = gate.admit([2.0, 0.0], None, 920 * MS).action
    assert on_time is not None
    assert on_time[0] - late[0] == pytest.approx(2.0 / 50)


def test_capsule_of_a_step_taken_back_brings_its_boundary_once() -> None:
    rig = Rig(Follow(offset=1.0))
    rig.tick()
    assert "taken back" in rig.reason
    rig.ask("snapshot", name="here")
    for _ in range(5):
        rig.ask("restore", name="here", publish=True)
        rig.tick()
        rig.ask("snapshot", name="here", replace=True)
    assert [c.host.step for c in rig.session.store.list() if c.automatic] == [0]
