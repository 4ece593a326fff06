"""QoS by parameter: what is read, what is refused, and that nothing of it outlives a clean-up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import rclpy
from node_process import Domain
from rclpy.parameter import Parameter

from flashrt_ros.contract.qos import Qos
from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.ros.qos_overrides import QosOverrides

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    domain = Domain()
    found = rclpy.Context()
    rclpy.init(context=found, domain_id=domain.id)
    yield found
    found.try_shutdown()
    domain.close()


@pytest.fixture
def make(context: Any) -> Iterator[Any]:
    nodes = []

    def node(**overrides: Any) -> Any:
        given = [
            Parameter(f"qos_overrides./arm/c.{name}", value=value)
            for name, value in overrides.items()
        ]
        made = rclpy.create_node(
            "overridden", namespace="arm", context=context, parameter_overrides=given
        )
        nodes.append(made)
        return made

    yield node
    for made in nodes:
        made.destroy_node()


def test_each_policy_and_nothing_else_is_replaced(make: Any) -> None:
    node = make(
        **{
            "publisher.reliability": "best_effort",
            "publisher.durability": "transient_local",
            "publisher.depth": 9,
            "publisher.deadline": 250_000_000,
            "publisher.liveliness": "manual_by_topic",
            "publisher.liveliness_lease_duration": 1_500_000_000,
        }
    )
    overrides = QosOverrides(node)
    plain = Qos("reliable", "volatile", 1)
    wanted = Qos("best_effort", "transient_local", 9, 250.0, "manual_by_topic", 1500.0)
    assert overrides.of("publisher", "c", plain) == wanted
    assert overrides.of("publisher", "other", plain) == plain
    assert overrides.of("subscription", "c", plain) == plain


def test_promises_are_those_of_publishers_alone(make: Any) -> None:
    overrides = QosOverrides(node := make(**{"subscription.deadline": 1}))
    assert overrides.of("subscription", "c", Qos()) == Qos()
    assert overrides.unheeded(node._parameter_overrides) == [
        "qos_overrides./arm/c.subscription.deadline"
    ]


def test_after_a_clean_up_the_next_contract_counts(make: Any) -> None:
    overrides = QosOverrides(node := make(**{"publisher.depth": 4}))
    assert overrides.of("publisher", "c", Qos("reliable")) == Qos("reliable", "volatile", 4)
    overrides.forget()
    assert not node.has_parameter("qos_overrides./arm/c.publisher.depth")
    assert overrides.of("publisher", "c", Qos("best_effort")) == Qos("best_effort", "volatile", 4)


@pytest.mark.parametrize(
    ("word", "value", "words"),
    [
        ("reliability", "quick", "expected one of best_effort, reliable, found 'quick'"),
        ("durability", 3, "found 3"),
        ("depth", 0, "expected a whole number 1 to 1000, found 0"),
        ("depth", True, "found True"),
        ("deadline", -1, "expected a whole number 0 to"),
    ],
)
def test_what_is_wrong_is_named(make: Any, word: str, value: Any, words: str) -> None:
    overrides = QosOverrides(make(**{f"publisher.{word}": value}))
    with pytest.raises(InvalidArgumentError, match=words) as refused:
        overrides.of("publisher", "c", Qos())
    assert f"qos_overrides./arm/c.publisher.{word}" in str(refused.value)
