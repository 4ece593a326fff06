"""Parameters of a wrong type or range at start: a sentence for each, and not rclpy's traceback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import rclpy
from node_process import Domain
from rclpy.parameter import Parameter

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.ros.parameters import Parameters

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    domain = Domain()
    found = rclpy.Context()
    rclpy.init(context=found, domain_id=domain.id)
    yield found
    found.try_shutdown()
    domain.close()


def parameters(context: Any, **values: Any) -> Parameters:
    given = [Parameter(name, value=value) for name, value in values.items()]
    node = rclpy.create_node("parametrised", context=context, parameter_overrides=given)
    try:
        return Parameters(node)
    finally:
        node.destroy_node()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("store_bytes", "much", "expected a whole number from 1 to 1099511627776, found 'much'"),
        ("store_bytes", 1.5, "expected a whole number from 1 to"),
        ("rollback_depth", -5, "expected a whole number from 0 to 100000, found -5"),
        ("miss_limit_s", 1, "expected a number with a point from 0 to 10, found 1; write 1.0"),
        ("miss_limit_s", 99.0, "expected a number with a point from 0 to 10, found 99.0"),
        ("hold", "yes", "expected true or false, found 'yes'"),
        ("hold", 1, "expected true or false, found 1"),
        ("device", 0, 'expected a text, found 0; write it in quotes: "0"'),
        ("task", ["a", "b"], "expected a text, found ['a', 'b']"),
    ],
)
def test_what_is_wrong_is_named_with_what_was_expected(
    context: Any, name: str, value: Any, words: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        parameters(context, **{name: value})
    assert str(refused.value).startswith(f"parameter {name!r}: {words}")


def test_all_that_is_wrong_is_said_at_once(context: Any) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        parameters(context, hold="yes", seed=1.5, task="good")
    lines = str(refused.value).splitlines()
    assert [line.split("'")[1] for line in lines] == ["seed", "hold"]


def test_control_good_values_are_taken(context: Any) -> None:
    node_parameters = parameters(context, miss_limit_s=1.0, hold=True, seed=3)
    assert node_parameters.options.miss_limit_s == 1.0
