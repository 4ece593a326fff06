"""Shaping actions: no command leaves that is not finite, within limits and near the last one.

These are the last lines of code before a motor, so the bounds are properties over random input.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contract_examples import JOINT_STATE, contract_dict
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.contract import ActionShaper, Contract
from flashrt_ros.contract.messages import OUTPUT_TYPES
from flashrt_ros.errors import ContractError

TWIST = {
    "topic": "cmd_vel",
    "type": "geometry_msgs/msg/TwistStamped",
    "field": "twist",
    "names": ["linear.x", "angular.z"],
    "index": [3, 2],
    "limits": {"linear.x": [-1, 1]},
    "max_step": {"angular.z": 0.5},
    "frame_id": "base",
}


def shaper(*more: dict[str, Any], **changes: Any) -> ActionShaper:
    """Of the example contract, its one output changed and others added."""
    first = {**contract_dict()["actions"][0], **changes}
    return ActionShaper(Contract.from_dict(contract_dict(actions=[first, *more])))


def test_an_action_goes_to_its_outputs_by_index() -> None:
    shaped = shaper(TWIST).shape([0.5, -0.5, 0.25, 0.75])
    assert shaped.dropped == ""
    assert shaped.limited == ()
    assert shaped.commands["joint_command"].tolist() == [0.5, -0.5]
    assert shaped.commands["cmd_vel"].tolist() == [0.75, 0.25]
    assert shaped.action.tolist() == [0.5, -0.5, 0.25, 0.75]


def test_limits_and_steps_are_said_in_words() -> None:
    ours = shaper()
    shaped = ours.shape([9.0, 0.5], {"joint_command": np.array([2.9, 0.0])})
    assert shaped.action.tolist() == [3.0, 0.2]
    assert shaped.limited == (
        "a 9 to 3 by limits [-3.0, 3.0]",
        "b 0.5 to 0.2 by max_step 0.2 from 0",
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_drops_the_whole_frame(bad: float) -> None:
    shaped = shaper(TWIST).shape([0.0, bad, 0.0, 0.0])
    assert shaped.commands == {}
    assert shaped.dropped == "joint_command: non-finite action for b"
    shaped = shaper(TWIST).shape([0.0, 0.0, bad, 0.0])
    assert shaped.commands == {}, "the good joint command must not leave either"
    assert "angular.z" in shaped.dropped


def test_refuse_drops_the_frame_but_forgives_float32() -> None:
    ours = shaper(on_limit="refuse", limits={"a": [-0.1, 0.1]}, max_step={"b": 0.2})
    last = {"joint_command": np.array([0.0, 0.1])}
    assert ours.shape(np.float32([0.1, 0.3]), last).commands["joint_command"].max() <= 0.3 + 1e-12
    shaped = ours.shape([0.11, 0.1], last)
    assert shaped.dropped == "joint_command: refused, a 0.11 to 0.1 by limits [-0.1, 0.1]"
    assert shaped.commands == {}
    assert "max_step 0.2 from 0.1" in ours.shape([0.0, 0.4], last).dropped


def test_a_position_outside_its_limits_is_left_only_by_small_steps() -> None:
    ours = shaper()
    near = ours.shape([0.0, 0.0], {"joint_command": np.array([3.1, 0.0])})
    assert near.commands["joint_command"][0] == pytest.approx(2.9)
    far = ours.shape([0.0, 0.0], {"joint_command": np.array([3.3, 0.0])})
    assert far.commands == {}
    assert "a stands at 3.3, outside its limits [-3.0, 3.0] by more than max_step" in far.dropped


NUMBERS = st.floats(-10, 10) | st.sampled_from([math.nan, math.inf, -math.inf, 1e300])


@settings(max_examples=300, deadline=None)
@given(
    actions=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12),
    measured=st.tuples(st.floats(-4, 4), st.floats(-4, 4)),
    refuse=st.booleans(),
)
def test_no_command_leaves_limits_or_steps(
    actions: list[tuple[float, float]], measured: tuple[float, float], refuse: bool
) -> None:
    ours = shaper(on_limit="refuse" if refuse else "clamp")
    last = ours.at_rest(measured)
    for action in actions:
        shaped = ours.shape(action, last)
        assert bool(shaped.dropped) == (not shaped.commands)
        if shaped.dropped:
            continue
        command = shaped.commands["joint_command"]
        assert np.all(command >= [-3.0, -2.0])
        assert np.all(command <= [3.0, 2.0])
        assert np.all(np.abs(command - last["joint_command"]) <= 0.2 + 1e-12)
        last = shaped.commands


EDGES = st.sampled_from(
    [-3.0, -2.0, 2.0, 3.0, 0.2, 0.1 + 0.2, 0.0, -0.0, math.nextafter(0.2, 1.0)]
)


@settings(max_examples=300, deadline=None)
@given(
    action=st.tuples(NUMBERS | EDGES, NUMBERS | EDGES),
    last=st.tuples(NUMBERS | EDGES, NUMBERS | EDGES),
    refuse=st.booleans(),
)
def test_what_is_within_limits_at_first_sight_is_within_them(
    action: tuple[float, float], last: tuple[float, float], refuse: bool
) -> None:
    ours = shaper(on_limit="refuse" if refuse else "clamp")
    (output,) = ours.contract.actions
    wanted, before = np.array(action), np.array(last)
    if ours._is_within(output, wanted, before):
        given_, words, reason = ours._clip(output, wanted, before)
        assert given_.tolist() == wanted.tolist()
        assert not words
        assert not reason
    else:
        clipped = ours._clip(output, wanted, before)
        assert not np.isfinite(wanted).all() or clipped[0].tolist() != list(action) or clipped[2]


def test_without_a_last_command_there_is_no_step_limit() -> None:
    ours = shaper()
    for last in (None, {}, ours.at_rest(None)):
        assert ours.shape([2.5, 1.5], last).commands["joint_command"].tolist() == [2.5, 1.5]


def test_at_rest_means_measured_positions_and_zero_velocities() -> None:
    rest = shaper(TWIST).at_rest([1.0, 2.0])
    assert rest["joint_command"].tolist() == [1.0, 2.0]
    assert rest["cmd_vel"].tolist() == [0.0, 0.0]
    assert np.isnan(shaper().at_rest(None)["joint_command"]).all()
    with pytest.raises(ContractError, match=r"expected 2 \(\['a', 'b'\]\), found shape \(3,\)"):
        shaper().at_rest([1, 2, 3])


def test_another_number_of_elements_is_an_error() -> None:
    for action in ([1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]]):
        with pytest.raises(ContractError, match="expected a vector of 2 elements"):
            shaper().shape(action)


def test_joint_state_fields() -> None:
    ours = shaper(frame_id="base")
    (command,) = ours.messages(ours.shape([1.0, 0.5]), 2_000_000_003)
    assert command.fields == {
        "header": {"stamp": {"sec": 2, "nanosec": 3}, "frame_id": "base"},
        "name": ["a", "b"],
        "position": [1.0, 0.5],
        "velocity": [],
        "effort": [],
    }
    assert ours.messages(ours.shape([math.nan, 0.5]), 0) == []


def test_joint_trajectory_fields() -> None:
    ours = shaper(type="trajectory_msgs/msg/JointTrajectory")
    (command,) = ours.messages(ours.shape([1.0, 0.5]), 99)
    assert command.fields["header"]["stamp"] == {"sec": 0, "nanosec": 0}
    assert command.fields["joint_names"] == ["a", "b"]
    assert command.fields["points"] == [
        {
            "positions": [1.0, 0.5],
            "velocities": [],
            "accelerations": [],
            "effort": [],
            "time_from_start": {"sec": 0, "nanosec": 20_000_000},
        }
    ]


def test_array_and_twist_fields() -> None:
    ours = shaper(TWIST, type="std_msgs/msg/Float64MultiArray")
    joints, twist = ours.messages(ours.shape([1.0, 0.5, 0.25, 0.75]), 5)
    assert joints.fields["data"] == [1.0, 0.5]
    assert twist.fields == {
        "header": {"stamp": {"sec": 0, "nanosec": 5}, "frame_id": "base"},
        "twist": {
            "linear": {"x": 0.75, "y": 0.0, "z": 0.0},
            "angular": {"x": 0.0, "y": 0.0, "z": 0.25},
        },
    }


def _leaves(fields: Any, path: str = "") -> set[str]:
    """Paths of what is written; a list counts as one, whatever is in it."""
    if not isinstance(fields, dict):
        return {path}
    return {leaf for name, value in fields.items() for leaf in _leaves(value, f"{path}/{name}")}


@pytest.mark.parametrize("type_name", OUTPUT_TYPES)
def test_every_message_of_an_output_writes_the_same_fields(type_name: str) -> None:
    """So one message can be filled again and again, and nothing of the last one stays."""
    kind = OUTPUT_TYPES[type_name]
    names = kind.labels or tuple("abcdefg")[: kind.count or 2]
    (output,) = shaper().contract.actions
    output = replace(output, type=type_name, names=names, field=kind.fields[0])
    values = np.arange(1.0, 8.0 if "pose" in kind.fields else 1.0 + len(names))
    moving, resting = (kind.encode(output, values, 5, rests) for rests in (False, True))
    assert _leaves(moving) == _leaves(resting)
    assert len(_leaves(moving)) >= 1


def test_stop_messages_hold_positions_and_zero_the_rest() -> None:
    ours = shaper(TWIST)
    joints, twist = ours.stop_messages(ours.at_rest([1.0, 2.0]), 7)
    assert joints.fields["position"] == [1.0, 2.0]
    assert joints.fields["velocity"] == [0.0, 0.0]
    assert twist.fields["twist"]["linear"]["x"] == 0.0
    assert not joints.repeat
    (only,) = ours.stop_messages(None)
    assert only.output.topic == "cmd_vel", "a position that nobody knows is not commanded"
    trajectory = shaper(type="trajectory_msgs/msg/JointTrajectory")
    (stop,) = trajectory.stop_messages({"joint_command": np.array([1.0, 2.0])})
    assert stop.fields["points"][0]["positions"] == [1.0, 2.0]
    assert stop.fields["points"][0]["velocities"] == [0.0, 0.0]
    for type_name, key in [(JOINT_STATE, "velocity"), ("std_msgs/msg/Float64MultiArray", "data")]:
        velocity = {**contract_dict()["actions"][0], "field": "velocity", "type": type_name}
        contract = Contract.from_dict(contract_dict(actions=[velocity], start="unchecked"))
        (stop,) = ActionShaper(contract).stop_messages(None)
        assert stop.fields[key] == [0.0, 0.0]


def test_on_miss_is_data() -> None:
    last = {"joint_command": np.array([1.0, 2.0]), "cmd_vel": np.array([0.5, 0.5])}
    ours = shaper({**TWIST, "on_miss": "zeros"}, on_miss="hold")
    joints, twist = ours.miss_messages(last, 3)
    assert joints.repeat
    assert joints.fields["position"] == [1.0, 2.0]
    assert joints.fields["velocity"] == []
    assert twist.repeat
    assert twist.values.tolist() == [0.0, 0.0]
    joints, twist = shaper({**TWIST, "on_miss": "hold"}, on_miss="stop").miss_messages(last)
    assert not joints.repeat
    assert joints.fields["velocity"] == [0.0, 0.0]
    assert twist.values.tolist() == [0.5, 0.5]
    assert shaper(on_miss="hold").miss_messages(None) == []


def test_shaping_changes_nothing_that_it_was_given() -> None:
    ours = shaper()
    action, last = np.array([9.0, 9.0]), {"joint_command": np.array([0.0, 0.0])}
    first = ours.shape(action, last)
    assert action.tolist() == [9.0, 9.0]
    assert last["joint_command"].tolist() == [0.0, 0.0]
    assert ours.shape(action, last).commands["joint_command"].tolist() == (
        first.commands["joint_command"].tolist()
    )
