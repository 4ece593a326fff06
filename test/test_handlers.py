"""Holds what each verb does to state, motion and input, and what it answers.

Driven as the control thread does it, between control periods, without ROS.
"""

from __future__ import annotations

from typing import Any

import pytest
from control_rig import Rig
from node_policies import Follow

from flashrt_ros.errors import ErrorCode
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.records import (
    EventKind,
)


def test_resume_is_answered_with_the_first_command() -> None:
    rig = Rig(hold=True)
    rig.tick(2)
    verb, answer = rig.call("resume")
    assert answer is None
    rig.tick()
    assert verb.result is not None
    assert verb.result.code is ErrorCode.NONE
    assert rig.ask("resume").message == "running already"


def test_resume_refuses_an_unsafe_start() -> None:
    rig = Rig(Follow(offset=1.0), hold=True)
    rig.tick(2)
    verb, _ = rig.call("resume")
    rig.tick()
    assert verb.result is not None
    assert verb.result.code is ErrorCode.UNSAFE_START
    assert "a: command" in verb.result.message
    assert rig.mode is Mode.HOLDING


def test_resume_gives_up_without_input_and_holds() -> None:
    rig = Rig(hold=True)
    verb, _ = rig.call("resume")
    busy = rig.ask("resume")
    assert busy.code is ErrorCode.BUSY
    rig.tick(51, hear=False)
    assert verb.result is not None
    assert verb.result.code is ErrorCode.STALE_INPUT
    assert rig.mode is Mode.HOLDING
    rig.tick(3)
    assert rig.mode is Mode.HOLDING, "what was answered with a refusal must not move later"


def test_resume_that_timed_out_does_not_move_later() -> None:
    rig = Rig(hold=True)
    verb, _ = rig.call("resume")
    verb.expire(10**18)
    rig.tick(3)
    assert rig.mode is Mode.HOLDING
    assert "timed out" in rig.reason
    assert not rig.out.sent


def test_stop_overtakes_a_resume() -> None:
    rig = Rig(hold=True)
    verb, _ = rig.call("resume")
    rig.motion.stop()
    rig.tick()
    assert verb.result is not None
    assert verb.result.code is ErrorCode.STOPPED
    assert rig.ask("resume").code is ErrorCode.STOPPED
    assert rig.ask("restore", name="x", publish=True).code is ErrorCode.STOPPED


def test_stop_while_a_step_is_computed_withholds_its_command() -> None:
    rig = Rig()
    rig.tick(2)
    sent = len(rig.out.sent)
    step = rig.session.step

    def slow_step(observations: Any) -> Any:
        action = step(observations)
        with rig.motion.lock:
            rig.commander.halt(all_outputs=True)
            rig.motion.stop()
        return action

    rig.session.step = slow_step  # type: ignore[method-assign]
    rig.tick()
    assert [command.fields["velocity"] for command in rig.out.sent[sent:]] == [[0.0, 0.0]]
    assert not rig.out.steps[-1].published
    assert "~/stop" in rig.out.steps[-1].hold_reason


def test_halt_without_motion_sends_no_old_position() -> None:
    rig = Rig()
    rig.tick(2)
    rig.commander.halt()
    sent = len(rig.out.sent)
    rig.commander.halt(all_outputs=True)
    assert len(rig.out.sent) == sent, "the arm may have been moved by others since"


def test_restore_holds_and_continues_bit_equal() -> None:
    rig = Rig()
    rig.tick(3)
    made = rig.ask("snapshot", name="here")
    assert made.fields["capsule"].tick == 3
    rig.tick(2)
    after = rig.session.state_digest()
    answer = rig.ask("restore", name="here")
    assert answer.code is ErrorCode.NONE
    assert rig.mode is Mode.HOLDING
    assert rig.session.host.step == 3
    rig.tick(2)
    assert rig.session.host.step == 3
    rig.call("resume")
    rig.tick(2)
    assert rig.mode is Mode.RUNNING
    assert rig.session.state_digest() == after


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        ("restore", {"name": "here", "publish": True}),
        ("rollback", {"steps": 1, "publish": True}),
        ("reset_episode", {}),
        ("reset_episode", {"set_seed": True, "seed": 5}),
    ],
)
def test_what_changes_the_state_demands_newer_input(verb: str, fields: dict[str, Any]) -> None:
    rig = Rig()
    rig.tick(3)
    rig.ask("snapshot", name="here")
    rig.hear()
    answer = rig.ask(verb, **fields)
    assert "newer than this" in answer.message
    sent = len(rig.out.sent)
    rig.tick(hear=False)
    assert rig.mode is Mode.WAITING
    assert len(rig.out.sent) == sent
    rig.tick()
    assert rig.mode is Mode.RUNNING


def test_reset_drops_input_and_keeps_the_task() -> None:
    rig = Rig()
    rig.ask("reset_episode", set_task=True, task="cups")
    rig.tick(2)
    answer = rig.ask("reset_episode")
    assert answer.fields["episode"] == 2
    assert rig.session.host.task == "cups"
    rig.tick(hear=False)
    assert rig.mode is Mode.WAITING
    rig.tick()
    assert rig.out.steps[-1].step == 0
    assert rig.out.steps[-1].task == "cups"
    rig.ask("reset_episode", hold=True)
    rig.tick(2)
    assert rig.mode is Mode.HOLDING


def test_rollback_returns_to_the_boundary() -> None:
    rig = Rig()
    rig.tick(2)
    at_two = rig.session.state_digest()
    rig.tick(3)
    answer = rig.ask("rollback", steps=3)
    assert answer.fields["steps_back"] == 3
    assert answer.fields["step"] == 2
    assert rig.session.state_digest() == at_two
    assert rig.mode is Mode.HOLDING
    assert rig.ask("rollback", steps=99).code is ErrorCode.NOT_FOUND


def test_events_say_what_was_done_before_which_step() -> None:
    rig = Rig()
    rig.tick(2)
    rig.ask("snapshot", name="here")
    rig.ask("fork", name="here", seeds=[7, 8], names=["left", "right"])
    rig.ask("restore", name="left", set_seed=True, seed=9)
    rig.ask("drop_capsule", name="right")
    kinds = [event.kind for event in rig.out.events]
    assert kinds == [
        EventKind.SNAPSHOT,
        EventKind.FORK,
        EventKind.FORK,
        EventKind.RESTORE,
        EventKind.DROP,
    ]
    assert [event.seed for event in rig.out.events] == [None, 7, 8, 9, None]
    assert all(event.tick == 2 for event in rig.out.events)


def test_housekeeping_answers() -> None:
    rig = Rig(activate=False)
    rig.ask("snapshot", name="root", pin=True)
    rig.ask("snapshot", name="child")
    listed = rig.ask("list_capsules")
    assert [capsule.name for capsule in listed.fields["capsules"]] == ["root", "child"]
    found = rig.ask("get_capsule", name="child")
    assert found.fields["lineage"] == [listed.fields["capsules"][0].id]
    assert '"count"' in found.fields["metadata"]
    assert rig.ask("drop_capsule", name="root").code is ErrorCode.PINNED
    assert rig.ask("drop_capsule", name="gone").code is ErrorCode.NOT_FOUND
    assert rig.ask("snapshot", name="child").code is ErrorCode.ALREADY_EXISTS
    assert rig.ask("snapshot", name="no good").code is ErrorCode.INVALID_NAME
    assert rig.ask("snapshot", tier="disk").code is ErrorCode.UNSUPPORTED
