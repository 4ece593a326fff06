"""A contract against a policy's ports: everything that does not fit is listed, with numbers.

This is the last look before a robot moves; two vectors of the same length may still mean different
things, hence names and units.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from contract_examples import contract_dict

from flashrt_ros.contract import Contract
from flashrt_ros.errors import ContractError
from flashrt_ros.runtime.policy import Port, Ports

STATE = Port("observation.state", "state", (4,))
CUE = Port("observation.cue", "cue", (3,), required=False)
ACTION = Port("action", "action", (2,))


def refusal(ports: Ports, **changes: Any) -> str:
    contract = Contract.from_dict(contract_dict(**changes), "arm.yaml")
    with pytest.raises(ContractError) as caught:
        contract.check(ports)
    return str(caught.value)


def test_a_fitting_policy_passes() -> None:
    contract = Contract.from_dict(contract_dict())
    contract.check(Ports((STATE, CUE), ACTION))
    contract.check(Ports((Port("observation.state", "s", (1, 4)), CUE), ACTION))
    named = Port("observation.state", "s", (4,), ("a", "b", "a.velocity", "b.vel"))
    cue = Port("observation.cue", "cue", (3,), ("x", "y", "cue_present"))
    contract.check(Ports((named, cue), Port("action", "action", (2,), ("a.pos", "b"), "rad")))


def test_missing_and_foreign_ports_are_both_named() -> None:
    ports = Ports((Port("observation.stat", "s", (4,)), CUE), ACTION)
    words = refusal(ports)
    assert "observations[0].key: expected a port of the policy" in words
    assert "did you mean 'observation.stat'?" in words
    assert "expected an entry for the policy's port 'observation.stat', found none" in words


def test_an_optional_port_may_be_left_out() -> None:
    observations = contract_dict()["observations"][:1]
    contract = Contract.from_dict(contract_dict(observations=observations))
    contract.check(Ports((STATE, CUE), ACTION))


def test_sizes_are_compared_with_both_numbers() -> None:
    words = refusal(Ports((Port("observation.state", "s", (7,)), CUE), ACTION))
    assert "(observation.state): expected 7 elements for the policy, found 4" in words
    words = refusal(Ports((STATE, Port("observation.cue", "cue", (2,))), ACTION))
    assert "expected 2 elements for the policy, found 3, presence flag included" in words
    image = Port("observation.state", "s", (2, 2))
    assert "expected a vector port, found shape (2, 2)" in refusal(Ports((image, CUE), ACTION))


def test_names_in_another_order_are_refused() -> None:
    swapped = Port("observation.state", "s", (4,), ("b", "a", "a", "b"))
    words = refusal(Ports((swapped, CUE), ACTION))
    assert "observations[0].parts[0].names: expected ['b', 'a'] as the policy" in words
    assert "parts[1]" not in words
    wrong_field = Port("observation.state", "s", (4,), ("a.vel", "b.vel", "a.vel", "b.vel"))
    assert "parts[0].names" in refusal(Ports((wrong_field, CUE), ACTION))
    last = Port("observation.cue", "cue", (3,), ("x", "y", "z"))
    assert "name ends in 'present'" in refusal(Ports((STATE, last), ACTION))


def test_elements_bridge_differing_names_and_are_compared_exactly() -> None:
    actions = contract_dict()["actions"]
    actions[0]["elements"] = ["j1", "j2"]
    port = Port("action", "action", (2,), ("j1", "j2"))
    Contract.from_dict(contract_dict(actions=actions)).check(Ports((STATE, CUE), port))
    port = Port("action", "action", (2,), ("j2", "j1"))
    words = refusal(Ports((STATE, CUE), port), actions=actions)
    assert "actions[0].elements: expected ['j2', 'j1']" in words


def test_units_must_be_the_policy_s() -> None:
    words = refusal(Ports((STATE, CUE), Port("action", "action", (2,), unit="deg")))
    assert "actions[0].unit: expected 'deg' as the policy has it, found 'rad'" in words
    words = refusal(Ports((STATE, Port("observation.cue", "c", (3,), unit="m")), ACTION))
    assert "observations[1].parts[0].unit: expected 'm' as the policy has it, found none" in words


def test_every_action_element_goes_somewhere_or_nowhere_on_purpose() -> None:
    wide = Port("action", "action", (4,), ("a", "b", "grip", "spin"))
    words = refusal(Ports((STATE, CUE), wide))
    assert "expected an output for each of the action's 4 elements" in words
    assert "found none for ['grip', 'spin']" in words
    contract = Contract.from_dict(contract_dict(unused_actions=[2, 3]))
    contract.check(Ports((STATE, CUE), wide))
    words = refusal(Ports((STATE, CUE), wide), unused_actions=[1, 2, 3])
    assert "expected no element that an output commands, found 1" in words
    words = refusal(Ports((STATE, CUE), Port("action", "action", (1,))))
    assert (
        "actions[0].index: expected elements of the policy's action (0 to 0), found [1]" in words
    )


def test_all_faults_come_in_one_message() -> None:
    words = refusal(Ports((Port("observation.state", "s", (7,)),), Port("action", "a", (3,))))
    assert words.startswith("arm.yaml does not fit the policy:")
    assert len(words.splitlines()) == 4


def test_what_is_allowed_but_careless_is_said() -> None:
    assert Contract.from_dict(contract_dict()).cautions() == ()
    actions = contract_dict()["actions"]
    del actions[0]["max_step"], actions[0]["limits"]["b"]
    twist = {
        "topic": "cmd_vel",
        "type": "geometry_msgs/msg/TwistStamped",
        "field": "twist",
        "names": ["linear.x"],
        "index": [2],
        "limits": {"linear.x": [-1, 1]},
        "max_step": 0.1,
        "on_miss": "hold",
    }
    contract = Contract.from_dict(contract_dict(actions=[*actions, twist], start="unchecked"))
    assert contract.cautions() == (
        "actions[0].limits: none for b",
        "actions[0].max_step: none for a, b",
        "actions[1].on_miss: hold repeats a twist while no action is there",
        "start: the first command is not checked for action elements [0, 1]",
    )


def test_the_same_names_in_another_order_are_a_caution() -> None:
    swapped = contract_dict()
    swapped["actions"][0]["names"] = ["b", "a"]
    found = Contract.from_dict(swapped).cautions()
    assert len(found) == 2, "positions and velocities are read in one order, commanded in another"
    assert "actions[0].names: the same as observations[0].parts[0].names" in found[0]
    assert "(b, a; a, b)" in found[0]
    others = contract_dict()
    others["observations"][0]["parts"][0]["names"] = ["b", "c"]
    assert Contract.from_dict(others).cautions() == (), "control: other names are another matter"


def test_faults_name_their_line_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "arm.yaml"
    path.write_text(
        """\
version: 1
robot: arm
control_rate_hz: 50.0
observations:
  - key: observation.stat
    max_age_ms: 100
    parts:
      - {topic: j, type: sensor_msgs/msg/JointState, field: position, names: [a, b]}
actions:
  - topic: c
    type: std_msgs/msg/Float64MultiArray
    field: velocity
    names: [a, b]
    index: [0, 5]
start: unchecked
"""
    )
    contract = Contract.load(path)
    with pytest.raises(ContractError) as caught:
        contract.check(Ports((STATE,), ACTION))
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path} does not fit the policy:"
    found = [line.strip().partition(": expected")[0] for line in lines[1:]]
    assert found[0] == "line 5: observations[0].key"
    assert "line 14: actions[0].index" in found
    assert "line 4: observations" in found, "what is missing is missed where it should stand"
    assert contract == Contract.from_dict(yaml.safe_load(path.read_text()), str(path))
