"""QoS in the contract: profiles by name, and promises that only commands can make and keep.

An input that asks for a deadline would hear nothing from a driver that offers none.
"""

from __future__ import annotations

from typing import Any

import pytest
from contract_examples import contract_dict
from rclpy.qos import LivelinessPolicy, QoSCompatibility, QoSProfile, qos_check_compatible

from flashrt_ros.contract import Contract
from flashrt_ros.contract.qos import Qos
from flashrt_ros.errors import ContractError
from flashrt_ros.ros.outlet import qos_profile


def contract(place: str, qos: dict[str, Any]) -> Contract:
    fields = contract_dict()
    fields[place][-1]["qos"] = qos
    return Contract.from_dict(fields)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"profile": "sensor_data"}, Qos("best_effort", "volatile", 5)),
        ({"profile": "latched", "depth": 3}, Qos("reliable", "transient_local", 3)),
        ({"deadline_ms": 40}, Qos("reliable", "volatile", 1, 40.0)),
        ({"lease_ms": 100}, Qos("reliable", "volatile", 1, 0.0, "automatic", 100.0)),
        (
            {"liveliness": "manual_by_topic", "lease_ms": 100},
            Qos("reliable", "volatile", 1, 0.0, "manual_by_topic", 100.0),
        ),
    ],
)
def test_what_is_read(given: dict[str, Any], found: Qos) -> None:
    assert contract("actions", given).actions[-1].qos == found


@pytest.mark.parametrize(
    ("place", "given", "words"),
    [
        ("observations", {"deadline_ms": 100}, "deadline_ms: expected no such key for what comes"),
        ("observations", {"lease_ms": 100}, "lease_ms: expected no such key for what comes in"),
        ("actions", {"deadline_ms": 39}, "deadline_ms: expected a finite number of at least 40"),
        ("actions", {"lease_ms": 39}, "lease_ms: expected a finite number of at least 40"),
        ("actions", {"liveliness": "manual_by_topic"}, "lease_ms: .* found no such key"),
        ("actions", {"liveliness": "manual"}, "liveliness: expected one of automatic, manual_by"),
        ("actions", {"profile": "sensor"}, "profile: expected one of default, sensor_data"),
    ],
)
def test_what_is_refused(place: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        contract(place, given)


def test_a_promise_is_judged_by_the_control_rate_whatever_is_published_between() -> None:
    fields = contract_dict()
    fields["actions"][0].update({"publish_rate_hz": 500.0, "qos": {"deadline_ms": 39}})
    with pytest.raises(ContractError, match="at least 40"):
        Contract.from_dict(fields)


def test_a_promise_reaches_the_middleware_and_nothing_is_promised_by_default() -> None:
    plain = qos_profile(Qos("reliable"))
    assert plain.deadline.nanoseconds == QoSProfile(depth=1).deadline.nanoseconds
    promised = qos_profile(Qos("reliable", "volatile", 1, 40.0, "manual_by_topic", 100.0))
    assert promised.deadline.nanoseconds == 40_000_000
    assert promised.liveliness is LivelinessPolicy.MANUAL_BY_TOPIC
    assert promised.liveliness_lease_duration.nanoseconds == 100_000_000
    asks = promised
    assert qos_check_compatible(promised, plain)[0] != QoSCompatibility.ERROR
    assert qos_check_compatible(promised, asks)[0] != QoSCompatibility.ERROR
    assert qos_check_compatible(plain, asks)[0] == QoSCompatibility.ERROR, "control"
