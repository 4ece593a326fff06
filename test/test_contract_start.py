"""The first command after a restore must be near the robot: restoring a policy moves no arm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract_examples import contract_dict
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.contract import Contract, StartGate
from flashrt_ros.contract.start import distance_fault
from flashrt_ros.errors import ContractError

PERIOD_NS = 20_000_000


def contract(**start: Any) -> Contract:
    value = contract_dict()
    value["start"].update(start)
    return Contract.from_dict(value)


def test_another_number_of_positions_is_an_error() -> None:
    with pytest.raises(ContractError, match=r"expected 2 .*found shape \(3,\)"):
        distance_fault(contract(), [0, 0], [0, 0, 0])


def test_near_passes_and_far_is_refused_with_numbers() -> None:
    gate = StartGate(contract())
    refused = gate.admit([0.5, 0.0], [0.0, 0.0], 0)
    assert refused.action is None
    assert refused.refused == (
        "a: command 0.5 is 0.5 rad from the measured 0, more than max_distance 0.3"
    )
    assert gate.armed
    admitted = gate.admit([0.3, -0.3], [0.0, 0.0], 0)
    assert admitted.action is not None
    assert admitted.action.tolist() == [0.3, -0.3]
    assert not gate.armed
    # Once open it does not look again, until armed again.
    assert gate.admit([2.0, 0.0], None, 0).refused == ""
    gate.arm_()
    assert gate.admit([2.0, 0.0], [0.0, 0.0], 0).action is None


@pytest.mark.parametrize("ramp_s", [0.0, 1.0])
def test_an_unknown_position_is_never_near(ramp_s: float) -> None:
    gate = StartGate(contract(ramp_s=ramp_s))
    assert "measured position unknown: expected ['a', 'b']" in gate.admit([0, 0], None, 0).refused
    assert gate.admit([0, 0], [np.nan, 0], 0).refused.startswith("a: ")
    assert gate.admit([np.nan, 0], [0, 0], 0).refused.startswith("a: ")
    assert gate.armed


def test_a_ramp_leads_from_measured_to_wanted() -> None:
    gate = StartGate(contract(ramp_s=0.1))
    seen = []
    for step in range(6):
        admitted = gate.admit([1.0, 0.0], [0.0, 0.0], step * PERIOD_NS)
        assert admitted.action is not None
        seen.append((round(float(admitted.action[0]), 6), admitted.blending))
    assert seen == [(0.2, True), (0.4, True), (0.6, True), (0.8, True), (1.0, False), (1.0, False)]
    # A new start during a ramp begins from where the robot is then.
    gate.arm_()
    gate.admit([1.0, 0.0], [0.0, 0.0], 0)
    gate.arm_()
    admitted = gate.admit([1.0, 0.0], [0.5, 0.0], PERIOD_NS)
    assert admitted.action is not None
    assert admitted.action[0] == pytest.approx(0.6)
    # And one that begins near needs no ramp, whatever was under way.
    gate.arm_()
    admitted = gate.admit([1.0, 0.0], [0.9, 0.0], 2 * PERIOD_NS)
    assert admitted.action is not None
    assert (admitted.action[0], admitted.blending) == (1.0, False)


def test_only_the_checked_elements_are_checked_and_blended() -> None:
    ours = contract_dict()
    ours["start"] = {**ours["start"], "index": [1], "ramp_s": 0.1}
    ours["start"]["measured"]["names"] = ["b"]
    checked = Contract.from_dict(ours)
    assert distance_fault(checked, [9.0, 0.1], [0.0]) == ""
    admitted = StartGate(checked).admit([9.0, 1.0], [0.0], 0)
    assert admitted.action is not None
    assert admitted.action == pytest.approx([9.0, 0.2])


def test_distances_may_differ_by_name() -> None:
    ours = contract(max_distance={"a": 1.0, "b": 0.1})
    assert distance_fault(ours, [0.9, 0.05], [0.0, 0.0]) == ""
    words = distance_fault(ours, [0.9, 0.2], [0.0, 0.0])
    assert words.startswith("b: command 0.2")


def test_unchecked_passes_everything() -> None:
    gate = StartGate(Contract.from_dict(contract_dict(start="unchecked")))
    admitted = gate.admit([9.0, 9.0], None, 0)
    assert admitted.action is not None
    assert not gate.armed


@settings(max_examples=200, deadline=None)
@given(
    action=st.tuples(st.floats(-3, 3), st.floats(-2, 2)),
    measured=st.tuples(st.floats(-3, 3), st.floats(-2, 2)),
    times=st.lists(st.integers(0, 2_000_000_000), min_size=1, max_size=10).map(sorted),
)
def test_a_ramp_stays_between_measured_and_wanted(
    action: tuple[float, float], measured: tuple[float, float], times: list[int]
) -> None:
    gate = StartGate(contract(ramp_s=1.0))
    before = np.array(measured)
    for now in times:
        admitted = gate.admit(action, measured, now)
        assert admitted.action is not None
        low, high = np.minimum(action, before) - 1e-9, np.maximum(action, before) + 1e-9
        assert np.all((low <= admitted.action) & (admitted.action <= high))
        before = admitted.action
