"""Pins that requests which arrive while the node is busy are answered, every one."""

from __future__ import annotations

from pathlib import Path

import pytest
from flashrt_ros.srv import ListCapsules
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from node_peer import Pending
from rclpy.qos import QoSProfile
from stage import Stage

pytestmark = pytest.mark.ros
CLIENTS = 40


def test_requests_during_configure_are_all_answered(tmp_path: Path) -> None:
    with Stage(tmp_path, namespace="/burst") as stage:
        stage.run()
        # All clients of one service hear all of its answers: theirs must be deep as well.
        deep = QoSProfile(depth=200)
        name = stage.name("list_capsules")
        clients = [
            stage.peer.node.create_client(ListCapsules, name, qos_profile=deep)
            for _ in range(CLIENTS)
        ]
        stage.peer.wait(lambda: all(c.service_is_ready() for c in clients), "their service")
        stage.introduce()
        stage.transit(Transition.TRANSITION_DEACTIVATE)
        ways = (
            Transition.TRANSITION_CLEANUP,
            Transition.TRANSITION_CONFIGURE,
            Transition.TRANSITION_ACTIVATE,
        )
        changes = [
            stage.peer.send(ChangeState, stage.name("change_state"), transition=Transition(id=way))
            for way in ways
        ]
        asked = [Pending(client.call_async(ListCapsules.Request()), name) for client in clients]
        assert all(change.result(stage.peer.quote).success for change in changes)
        for pending in asked:
            pending.result(stage.peer.quote)
