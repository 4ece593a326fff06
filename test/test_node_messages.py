"""Holds that every field of our records arrives in ROS messages, and what diagnostics say.

Needs the installed interfaces, but starts no node.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from contract_examples import MS, contract_dict, joint_state

pytest.importorskip("flashrt_ros.msg")

from flashrt_ros.msg import CapsuleEvent, CapsuleInfo, PolicyStatus, Provenance

from flashrt_ros import srv
from flashrt_ros.contract import ActionShaper, Contract, InputStamp, Sampler
from flashrt_ros.contract.observing import NONE_YET, TOO_EARLY
from flashrt_ros.errors import ContractError, ErrorCode, UnsupportedError
from flashrt_ros.ros import messages
from flashrt_ros.ros.diagnostics import Level, input_entry, motion_entry, timing_entry
from flashrt_ros.ros.intake import InputFigures
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.records import (
    CapsuleRecord,
    ChunkRecord,
    EventKind,
    EventRecord,
    PlanOrigin,
    ProvenanceRecord,
    StatusRecord,
    StepRecord,
)
from flashrt_ros.ros.services import respond
from flashrt_ros.ros.subscriptions import subscription
from flashrt_ros.ros.timing import Ring, Timing
from flashrt_ros.ros.verbs import Answer, done

CAPSULE = CapsuleRecord(
    id="0123456789ab",
    name="here",
    parent_id="ba9876543210",
    created_ns=1_500_000_002,
    tick=9,
    step=8,
    episode=7,
    generation=6,
    task="cups",
    tier="device",
    pinned=True,
    automatic=True,
    size_bytes=5,
    unique_bytes=4,
    state_id="s",
    exec_id="e",
)
STEP = StepRecord(
    tick=9,
    step=8,
    episode=7,
    generation=6,
    capsule="0123456789ab",
    task="cups",
    chunk_id=5,
    chunk_index=4,
    names=("a", "b"),
    action=np.array([0.5, -0.5]),
    published=True,
    hold_reason="",
    stamps=(InputStamp("observation.state", "joint_states", 2_000_000_003, 1.5, 2**64 - 1, 3),),
    latency_ms=0.5,
    period_ms=math.nan,
    state_digest="d",
)


def test_every_field_of_a_capsule_arrives() -> None:
    message = messages.capsule_info(CAPSULE)
    assert (message.created.sec, message.created.nanosec) == (1, 500_000_002)
    for name in CapsuleInfo.get_fields_and_field_types():
        if name != "created":
            assert getattr(message, name) == getattr(CAPSULE, name), name


def test_every_field_of_a_status_arrives() -> None:
    record = StatusRecord(
        *(Mode.HOLDING, "why", True, "p", "cpu", 9, 8, 7, 6, "t", "c", "s", "e", 5, 4, 3, 2)
    )
    message = messages.policy_status(record, 0)
    assert {field.name for field in fields(StatusRecord)} | {"header"} == set(
        PolicyStatus.get_fields_and_field_types()
    )
    for field in fields(StatusRecord):
        assert getattr(message, field.name) == getattr(record, field.name), field.name


def test_event_kinds_are_those_of_the_message() -> None:
    for kind in EventKind:
        assert getattr(CapsuleEvent, kind.name) == kind.value


def test_event_tells_a_seed_of_zero_from_none() -> None:
    event = EventRecord(EventKind.RESET, 1, 2, 3, 4, seed=0)
    assert messages.capsule_event(event, 0).seeded
    assert not messages.capsule_event(replace(event, seed=None), 0).seeded


def test_step_carries_resolved_topics_and_whole_digests() -> None:
    message = messages.policy_step(STEP, 0, {"joint_states": "/left/joint_states"})
    (stamp,) = message.observations
    assert stamp.topic == "/left/joint_states"
    assert stamp.digest == 2**64 - 1
    assert (stamp.stamp.sec, stamp.stamp.nanosec) == (2, 3)
    assert list(message.action) == [0.5, -0.5]
    assert message.period_ms == 0.0, "the first step has no period"


def test_a_step_tells_what_it_takes_to_do_it_again() -> None:
    plan = PlanOrigin(tick=7, task="cups", delay=3, consumed=2)
    record = replace(
        STEP,
        run="r",
        predicted=np.array([0.25, math.nan]),
        dry_run=True,
        ramp_share=0.5,
        ramp_from=np.array([1.0]),
        limited_from=np.array([2.0, 3.0]),
        plan=plan,
        act_stamps=STEP.stamps,
        observation_digest=2**64 - 2,
        noise_key=2**64 - 3,
    )
    message = messages.policy_step(record, 0, {"joint_states": "/joint_states"})
    assert message.adopted
    assert (message.plan_tick, message.plan_delay, message.plan_consumed) == (7, 3, 2)
    assert (message.plan_task, message.run, message.dry_run) == ("cups", "r", True)
    assert (message.ramp_share, list(message.ramp_from)) == (0.5, [1.0])
    assert list(message.limited_from) == [2.0, 3.0]
    assert message.predicted.tobytes() == record.predicted.tobytes()
    assert message.act_observations[0].topic == "/joint_states"
    assert (message.observation_digest, message.noise_key) == (2**64 - 2, 2**64 - 3)
    assert not messages.policy_step(STEP, 0, {}).adopted, "control"


def test_an_event_tells_which_state_was_taken() -> None:
    record = EventRecord(
        *(EventKind.ROLLBACK, 1, 2, 3, 4),
        **{"run": "r", "source_id": "s", "source_tick": 5, "source_automatic": True},
        **{"noise_key": 2**64 - 1, "file": "f"},
    )
    message = messages.capsule_event(record, 0, 6)
    assert message.sequence == 6
    for name in ("run", "source_id", "source_tick", "source_automatic", "noise_key", "file"):
        assert getattr(message, name) == getattr(record, name), name


def test_what_computes_travels_as_json() -> None:
    record = ProvenanceRecord(
        *(
            "r",
            "recurrent",
            "cpu",
            "s",
            "e",
            2**64 - 1,
            {"a": '1"'},
            {"b": "2"},
            "{}",
            "c.yaml",
            {"d": "3"},
        )
    )
    message = messages.provenance(record, 1_500_000_002)
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (1, 500_000_002)
    assert set(Provenance.get_fields_and_field_types()) == {
        "header",
        *(field.name for field in fields(ProvenanceRecord)),
    }
    assert json.loads(message.state_facts) == {"a": '1"'}
    assert json.loads(message.versions) == {"d": "3"}
    assert (message.contract_source, message.noise_key) == ("c.yaml", 2**64 - 1)


def test_chunk_is_row_major() -> None:
    rows_HA = np.arange(6.0).reshape(3, 2)
    message = messages.action_chunk(ChunkRecord(1, 2, 0.02, ("a", "b"), rows_HA), 1_000_000_001)
    assert message.horizon == 3
    assert list(message.data) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert message.header.stamp.nanosec == 1


OUTPUTS: dict[str, dict[str, Any]] = {
    "sensor_msgs/msg/JointState": {"field": "position", "names": ["a", "b"]},
    "trajectory_msgs/msg/JointTrajectory": {"field": "position", "names": ["a", "b"]},
    "std_msgs/msg/Float64MultiArray": {"field": "position", "names": ["a", "b"]},
    "geometry_msgs/msg/TwistStamped": {"field": "twist", "names": ["linear.x", "angular.z"]},
}


@pytest.mark.parametrize("type_name", OUTPUTS)
def test_every_command_type_is_filled(type_name: str) -> None:
    """The contract's plain fields and the installed messages fit, for commands and stops."""
    action = {"topic": "out", "type": type_name, "on_miss": "stop", **OUTPUTS[type_name]}
    contract = Contract.from_dict(contract_dict(actions=[action], start="unchecked"))
    shaper = ActionShaper(contract)
    shaped = shaper.shape([0.5, -0.25])
    commands = [*shaper.messages(shaped, 7), *shaper.stop_messages(shaped.commands, 7)]
    assert len(commands) == 2
    filled = [messages.fill(messages.interface(type_name)(), c.fields) for c in commands]
    assert "0.5" in str(filled[0])
    assert "-0.25" in str(filled[0])


def test_answers_become_responses() -> None:
    response = respond(srv.Snapshot.Response(), done("made", capsule=CAPSULE, evicted=["old"]))
    assert response.success
    assert response.error_code == response.NONE
    assert response.capsule.name == "here"
    assert list(response.evicted) == ["old"]
    refused = respond(srv.Command.Response(), Answer(ErrorCode.STOPPED, "no"))
    assert not refused.success
    assert refused.error_code == refused.STOPPED


def test_error_codes_are_those_of_every_service() -> None:
    for name in ("Snapshot", "Command", "Restore", "ListCapsules"):
        for code in ErrorCode:
            assert getattr(getattr(srv, name).Response, code.name) == code.value


def entry(figures: InputFigures, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "topic": "/joint_states",
        "sample": None,
        "incompatible": "",
        "publishers": 1,
        "now_ns": 10_000 * MS,
        "active": True,
    }
    return input_entry(figures, **{**arguments, **changes})


def heard(last_ns: int = 9_990 * MS) -> InputFigures:
    figures = InputFigures("joint_states", "sensor_msgs/msg/JointState")
    for number in range(5):
        figures.arrivals.note(last_ns - (4 - number) * 20 * MS, 0)
    return figures


def test_input_in_order() -> None:
    found = entry(heard())
    assert found.level is Level.OK
    assert found.values["rate_hz"] == "50.0"
    assert found.values["age_ms"] == "10.0"
    assert found.values["lost"] == found.values["gaps"] == "0"


@pytest.mark.parametrize(
    ("fault", "age_ms", "level"),
    [
        (NONE_YET, 10, Level.OK),
        (TOO_EARLY, 10, Level.OK),
        (NONE_YET, 400, Level.ERROR),
        ("stale 10 ms > 5 ms", 10, Level.ERROR),
    ],
)
def test_after_a_verb_the_next_message_is_waited_for_before_it_is_missed(
    fault: str, age_ms: int, level: Level
) -> None:
    stamp = InputStamp("observation.state", "joint_states", present=False, fault=fault)
    sample = SimpleNamespace(stamps=(stamp,))
    found = entry(heard(last_ns=(10_000 - age_ms) * MS), sample=sample)
    assert found.level is level
    assert fault in found.message


def test_input_without_messages_names_type_and_publishers() -> None:
    silent = InputFigures("joint_states", "sensor_msgs/msg/JointState")
    found = entry(silent, publishers=0)
    assert found.level is Level.ERROR
    assert "no message (no publisher" in found.message
    assert entry(silent, active=False).level is Level.WARN


def test_an_optional_input_that_is_absent_is_said_and_no_fault() -> None:
    contract = contract_dict()
    assert Contract.from_dict(contract).needed_topics() == {"joint_states"}
    for key in ("optional", "fill", "present_flag"):
        del contract["observations"][1][key]
    assert Contract.from_dict(contract).needed_topics() == {"joint_states", "cue"}, "control"
    never = InputFigures("cue", "geometry_msgs/msg/Point", needed=False)
    assert entry(never, publishers=0).level is Level.OK
    assert "no message (no publisher" in entry(never, publishers=0).message
    gone = heard(last_ns=1_000 * MS)
    for sample in (None, SimpleNamespace(stamps=())):
        gone.needed = False
        assert entry(gone, sample=sample).level is Level.OK
        assert "silent for 9 s" in entry(gone, sample=sample).message
        gone.needed = True
        assert entry(gone, sample=sample).level is not Level.OK, "control"
    assert entry(never, incompatible="reliability").level is Level.ERROR


def test_incompatible_qos_names_topic_and_policy() -> None:
    found = entry(heard(), incompatible="reliability")
    assert found.level is Level.ERROR
    assert "/joint_states" in found.message
    assert "reliability" in found.message


def test_stale_and_unstamped_inputs_are_said() -> None:
    contract = Contract.from_dict(contract_dict())
    sampler = Sampler(contract)
    message = joint_state(["a", "b"], (0.0, 0.0), (0.0, 0.0), stamp_ns=0)
    received = sampler.put("joint_states", message, 0)
    figures = heard()
    figures.notices = received.notices
    found = entry(figures, sample=sampler.sample(153 * MS))
    assert found.level is Level.ERROR
    assert "stale 153 ms > 100 ms" in found.message
    assert "unstamped" in found.message


def test_motion_and_timing() -> None:
    failed = motion_entry(StatusRecord(Mode.UNCONFIGURED, "configure failed: no such policy"))
    assert (failed.level, failed.message) == (
        Level.WARN,
        "unconfigured: configure failed: no such policy",
    )
    assert motion_entry(StatusRecord()).level is Level.OK, "control"
    holding = motion_entry(StatusRecord(Mode.HOLDING, "unsafe start", dry_run=True))
    assert holding.level is Level.ERROR
    assert "unsafe start" in holding.message
    assert "dry run" in holding.message
    timing = Timing()
    timing.missed = 3
    assert timing_entry(timing, 20.0, 3).level is Level.OK, "told before"
    assert "2 control periods missed" in timing_entry(timing, 20.0, 1).message


def test_ring_keeps_the_newest() -> None:
    ring = Ring(3)
    assert math.isnan(ring.percentiles(50)[0])
    for value in (1.0, 2.0, 3.0, 4.0):
        ring.add(value)
    assert ring.percentiles(0, 100) == (2.0, 4.0)


def test_a_message_type_that_is_not_installed_is_named() -> None:
    for name, words in (
        ("hand_msgs/msg/Hand", r"package 'hand_msgs' .*install ros-\$ROS_DISTRO-hand-msgs"),
        ("sensor_msgs/msg/Hand", "sensor_msgs"),
    ):
        with pytest.raises(ContractError, match=words):
            messages.interface(name)


GRIPPER = {
    "topic": "gripper",
    "type": "control_msgs/msg/GripperCommand",
    "field": "position",
    "names": ["finger"],
    "index": [1],
    "max_effort": 5.0,
    "limits": {"finger": [0.0, 0.08]},
}


def with_gripper() -> Contract:
    arm = {**OUTPUTS["sensor_msgs/msg/JointState"], "topic": "arm", "names": ["a"], "index": [0]}
    actions = [{"type": "sensor_msgs/msg/JointState", **arm}, GRIPPER]
    return Contract.from_dict(contract_dict(actions=actions, start="unchecked"))


def test_a_gripper_command_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the message of control_msgs where that is installed, else with one of its fields."""

    class StandIn:
        __slots__ = ("max_effort", "position")

    try:
        cls = messages.interface(GRIPPER["type"])
    except ContractError:
        cls = StandIn
    contract = with_gripper()
    shaper = ActionShaper(contract)
    shaped = shaper.shape([0.3, 0.5])
    _, command = shaper.messages(shaped, 7)
    message = messages.fill(cls(), command.fields)
    assert (message.position, message.max_effort) == (0.08, 5.0)
    _, stop = shaper.stop_messages(shaped.commands, 7)
    assert messages.fill(cls(), stop.fields).position == 0.08, "the last position"


def test_what_is_not_installed_is_named_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "control_msgs", None)
    monkeypatch.setitem(sys.modules, "control_msgs.msg", None)
    messages.interface.cache_clear()
    with pytest.raises(ContractError, match=r"needs what is not installed") as refused:
        messages.require_interfaces(with_gripper())
    assert "actions[1].type: message type control_msgs/msg/GripperCommand" in str(refused.value)
    assert "ros-$ROS_DISTRO-control-msgs" in str(refused.value)
    messages.interface.cache_clear()
    # Control: what is installed.
    messages.require_interfaces(Contract.from_dict(contract_dict()))


def test_a_subscription_that_is_refused_names_its_topic() -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to create subscription: invalid allocator")

    node: Any = SimpleNamespace(create_subscription=refuse)
    with pytest.raises(UnsupportedError, match=r"input '/arm/joints': expected a .* ROS_SECURITY"):
        subscription(node, "input", object, "/arm/joints", print, 10)
