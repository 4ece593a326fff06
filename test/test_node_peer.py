"""The tests' peer goes on when a test destroys what its thread is about to wait for.

rclpy passes over subscriptions and clients that are gone, but raises for the events of publishers:
the thread ended, and whatever was waited for next never came.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from node_peer import BEST_EFFORT, RELIABLE, Peer
from node_process import Domain
from std_msgs.msg import Bool

pytestmark = pytest.mark.ros


@pytest.fixture
def peer() -> Iterator[Peer]:
    domain = Domain()
    peer = Peer(domain.id)
    yield peer
    peer.close()
    domain.close()


def test_a_publisher_that_is_destroyed_while_a_round_begins(peer: Peer) -> None:
    publisher = peer.node.create_publisher(Bool, "/gone", BEST_EFFORT)
    event = publisher.event_handlers[0]
    add, reached = event.add_to_wait_set, threading.Event()

    def destroyed_first(wait_set: Any) -> None:
        publisher.destroy()
        try:
            add(wait_set)
        finally:
            reached.set()

    event.add_to_wait_set = destroyed_first
    assert reached.wait(60.0)
    peer.node.destroy_publisher(publisher)
    log = peer.record(Bool, "/there", RELIABLE)
    said = peer.node.create_publisher(Bool, "/there", RELIABLE)
    peer.wait(said.get_subscription_count, "the peer's own subscription")
    said.publish(Bool(data=True))
    peer.wait(lambda: log, "a message after that")
