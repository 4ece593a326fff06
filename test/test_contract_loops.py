"""Pins which topics must differ: by name in the contract, and in the graph after remaps.

A first command that is compared with the node's own commands is always found near.
"""

from __future__ import annotations

from typing import Any

import pytest
from contract_examples import contract_dict

from flashrt_ros.contract import Contract
from flashrt_ros.contract.loops import refuse_loops
from flashrt_ros.errors import ContractError


def two(**second: Any) -> dict[str, Any]:
    """One output as it is, and another for the same elements' neighbours."""
    fields = contract_dict()
    first = fields["actions"][0]
    gripper = {**first, "topic": "/joint_command", "names": ["c"], "index": [2]}
    gripper = {key: value for key, value in gripper.items() if key not in ("limits", "max_step")}
    return {**fields, "actions": [first, {**gripper, **second}], "start": "unchecked"}


def in_root(topic: str) -> str:
    return topic if topic.startswith("/") else f"/{topic}"


def test_commands_are_no_measured_positions() -> None:
    fields = contract_dict()
    fields["actions"][0]["topic"] = "joint_states"
    words = r"start.measured.topic: .* found joint_states, which actions\[0\] commands"
    with pytest.raises(ContractError, match=words):
        Contract.from_dict(fields)
    fields["actions"][0]["topic"] = "/joint_states"
    contract = Contract.from_dict(fields)
    with pytest.raises(ContractError, match="found /joint_states, which"):
        refuse_loops(contract, in_root)


def test_outputs_share_a_topic_only_where_joints_are_told_apart_by_name() -> None:
    refuse_loops(Contract.from_dict(two()), in_root)
    for second in (
        {"names": ["a"]},
        {"type": "std_msgs/msg/Float64MultiArray"},
        {"type": "trajectory_msgs/msg/JointTrajectory"},
    ):
        contract = Contract.from_dict(two(**second))
        with pytest.raises(ContractError, match=r"actions\[1\].topic: .* /joint_command for both"):
            refuse_loops(contract, in_root)
