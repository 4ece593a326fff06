"""The stop input: within one control period of a message nothing leaves, and nothing by itself.

A switch that lets a robot go on alone when it is pressed again, or whose silence is taken for
consent, is worse than none.
"""

from __future__ import annotations

from typing import Any

import pytest
from contract_examples import MS, contract_dict
from control_rig import PERIOD_NS, Rig

from flashrt_ros.contract import Contract
from flashrt_ros.contract.stop import StopInput
from flashrt_ros.errors import ContractError, StoppedError
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.stop_guard import StopGuard

LATCH = StopInput("e_stop")
DEAD_MAN = StopInput("enable", "dead_man", 60.0)
HEARTBEAT = StopInput("e_stop", "latch", 60.0)


def guarded(stop: StopInput) -> tuple[Rig, StopGuard]:
    """A rig whose commands the stop input guards, activated after that."""
    rig = Rig(activate=False)

    def latch(reason: str) -> None:
        rig.commander.halt(all_outputs=True)
        rig.motion.stop(reason)

    guard = StopGuard(stop, rig.motion, rig.commander, rig.out, latch, lambda: rig.now_ns)
    rig.motion.activate(rig.now_ns)
    return rig, guard


def running(stop: StopInput) -> tuple[Rig, StopGuard]:
    """The same, commanding."""
    rig, guard = guarded(stop)
    guard.receive(stop.dead_man)
    rig.tick(3)
    assert rig.motion.mode is Mode.RUNNING
    assert len(rig.out.sent) == 3
    return rig, guard


def is_stop_message(fields: Any) -> bool:
    return bool(fields["velocity"] == [0.0, 0.0])


def test_true_latches_with_the_stop_message_before_it_returns() -> None:
    rig, guard = running(LATCH)
    guard.receive(False)
    assert rig.motion.mode is Mode.RUNNING, "false says nothing"
    guard.receive(True)
    assert rig.motion.mode is Mode.STOPPED
    assert "a message on e_stop" in rig.motion.standing.reason
    assert len(rig.out.sent) == 4
    assert is_stop_message(rig.out.sent[-1].fields)
    guard.receive(False)
    rig.tick(5)
    assert len(rig.out.sent) == 4, "only ~/clear_stop ends it"
    assert rig.motion.clear_stop()
    rig.tick(5)
    assert len(rig.out.sent) == 4, "and moving needs a second word"
    rig.motion.resume(rig.now_ns)
    rig.tick(2)
    assert len(rig.out.sent) == 6
    assert (guard.stops, guard.received) == (1, 4)


def test_a_stop_while_stopped_keeps_the_first_reason_and_latches_again_after_clearing() -> None:
    rig, guard = running(LATCH)
    rig.motion.stop("by ~/stop")
    guard.receive(True)
    assert rig.motion.standing.reason == "by ~/stop"
    rig.motion.clear_stop()
    guard.receive(True)
    assert rig.motion.mode is Mode.STOPPED


def test_released_dead_man_switch_stops_and_pressing_it_alone_moves_nothing() -> None:
    rig, guard = running(DEAD_MAN)
    guard.receive(False)
    assert is_stop_message(rig.out.sent[-1].fields)
    assert len(rig.out.sent) == 4
    assert rig.motion.mode is Mode.HOLDING
    assert rig.motion.standing.reason == "dead-man switch enable is released"
    with pytest.raises(StoppedError, match="expected a stop input that permits"):
        rig.motion.resume(rig.now_ns)
    guard.receive(True)
    rig.tick(3)
    assert len(rig.out.sent) == 4
    assert "call ~/resume to go on" in rig.motion.standing.reason
    rig.motion.resume(rig.now_ns)
    guard.receive(True)
    rig.tick(1)
    assert len(rig.out.sent) == 5


@pytest.mark.parametrize("stop", [DEAD_MAN, HEARTBEAT])
def test_silence_is_no_consent(stop: StopInput) -> None:
    rig, guard = running(stop)
    assert 3 * PERIOD_NS == 60 * MS, "so long ago was the last message: just permitted"
    rig.tick()
    assert len(rig.out.sent) == 4
    assert is_stop_message(rig.out.sent[-1].fields)
    assert "no message for more than 60 ms" in rig.motion.standing.reason
    rig.tick(5)
    assert len(rig.out.sent) == 4
    assert guard.stops == 1


def test_silence_also_ends_a_command_that_is_repeated() -> None:
    rig, guard = running(DEAD_MAN)
    for _ in range(3):
        guard.receive(True)
        rig.now_ns += 50 * MS
        rig.stepper.tick(rig.now_ns)  # no input: on_miss repeats
    repeated = len(rig.out.sent)
    rig.now_ns += 61 * MS
    rig.stepper.tick(rig.now_ns)
    assert len(rig.out.sent) == repeated + 1
    assert is_stop_message(rig.out.sent[-1].fields)


def test_before_the_first_press_an_activated_node_waits_for_it() -> None:
    rig, guard = guarded(DEAD_MAN)
    rig.tick(3)
    assert rig.out.sent == []
    assert rig.motion.standing.reason == "dead-man switch enable: no message yet"
    guard.receive(True)
    rig.tick()
    assert len(rig.out.sent) == 1, "activation was the word, the press is the permission"


def test_a_state_change_that_asks_for_motion_holds_while_it_is_barred() -> None:
    rig, guard = running(DEAD_MAN)
    guard.receive(False)
    rig.motion.state_changed(rig.now_ns, "", end_pause=True)
    guard.receive(True)
    rig.tick(2)
    assert len(rig.out.sent) == 4
    assert "call ~/resume" in rig.motion.standing.reason


def test_a_publisher_that_cannot_be_heard_forbids_motion() -> None:
    rig, guard = running(LATCH)
    guard.misfit("incompatible QoS policy reliability; nothing is exchanged")
    assert rig.motion.mode is Mode.HOLDING
    assert "incompatible QoS policy reliability" in rig.motion.standing.reason
    guard.misfit("")
    rig.tick()
    assert "call ~/resume to go on" in rig.motion.standing.reason


def test_what_was_computed_before_does_not_leave_after() -> None:
    rig, guard = running(DEAD_MAN)
    epoch = rig.motion.epoch
    guard.receive(False)
    guard.receive(True)
    rig.motion.resume(rig.now_ns)
    outcome = rig.commander.command([0.1, 0.2], None, rig.now_ns, epoch)
    assert outcome.verdict.value == "overtaken"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topic": "9"}, "stop.topic: expected a ROS topic name"),
        ({"mode": "dead_man"}, "stop.max_age_ms: expected a finite number above 0"),
        ({"mode": "toggle"}, "stop.mode: expected one of latch, dead_man"),
        ({"type": "std_msgs/msg/String"}, "stop.type: expected one of std_msgs/msg/Bool"),
        ({"max_age_ms": 0}, "stop.max_age_ms"),
        ({"latched": True}, "stop.latched: unknown key"),
        ({"topic": "joint_states"}, "stop.topic: expected a topic of its own"),
        ({"topic": "joint_command"}, "stop.topic: expected a topic of its own"),
    ],
)
def test_wrong_entries_are_named(changes: dict[str, Any], words: str) -> None:
    fields = contract_dict(stop={"topic": "e_stop", **changes})
    with pytest.raises(ContractError, match=words):
        Contract.from_dict(fields)


def test_a_stop_is_reliable_unless_said_otherwise() -> None:
    stop = Contract.from_dict(contract_dict(stop={"topic": "e_stop"})).stop
    assert stop is not None
    assert (stop.qos.reliability, stop.qos.durability, stop.qos.depth) == (
        "reliable",
        "volatile",
        10,
    )
    assert not stop.dead_man
