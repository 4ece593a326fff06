"""What the experiment knows of the policy: how far it has come, by its own control steps.

Pinned because nothing else tells how long the policy has seen a cue, or had for its way: a clock
goes on while the policy's process gets no processor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from default_context import default_context

rclpy = pytest.importorskip("rclpy")
pytestmark = pytest.mark.ros

CUE, STATE = "observation.cue", "observation.state"
LIMIT_S = 60.0


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    from flashrt_ros.demo.client import Client, Spinner

    with default_context(tmp_path):
        client = Client()
        with Spinner(client):
            yield client
        client.destroy_node()


def wait(found: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not found():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_it_counts_control_steps_and_those_in_a_row_that_saw_a_cue(client: Any) -> None:
    from flashrt_ros.msg import ObservationStamp, PolicyStep

    steps = client.create_publisher(PolicyStep, "policy/policy_step", 10)
    wait(steps.get_subscription_count)

    def publish(cue: bool, published: bool = True) -> None:
        parts = [ObservationStamp(observation=STATE, present=True)] * 2
        parts.append(ObservationStamp(observation=CUE, present=cue))
        steps.publish(PolicyStep(observations=parts, published=published))

    for cue in (False, True, True):
        publish(cue)
    wait(lambda: client.steps() == 3)
    assert (client.seen(CUE), client.seen(STATE), client.seen("other")) == (2, 3, 0)
    client.count_steps()
    assert client.steps() == 0
    publish(True, published=False)
    publish(True)
    wait(lambda: client.steps() == 1)
    assert client.seen(CUE) == 4
    publish(False)
    publish(True)
    wait(lambda: client.steps() == 3)
    assert client.seen(CUE) == 1, "a break begins the count anew"


def test_a_cue_stands_until_it_is_hidden(client: Any) -> None:
    from geometry_msgs.msg import PointStamped

    shown: list[tuple[float, ...]] = []

    def show(message: PointStamped) -> None:
        shown.append((message.point.x, message.point.y, message.point.z))

    client.create_subscription(PointStamped, "arm/show_cue", show, 10)
    wait(lambda: client.count_subscribers("/arm/show_cue"))
    wait(lambda: client._cue.get_subscription_count())
    client.hide_cue()  # there is none
    client.show_cue((0.5, 0.25))
    client.hide_cue()
    client.hide_cue()
    client.show_cue((0.25, 0.5))
    wait(lambda: len(shown) >= 3)
    assert shown == [(0.5, 0.25, 60.0), (0.5, 0.25, 0.02), (0.25, 0.5, 60.0)]
