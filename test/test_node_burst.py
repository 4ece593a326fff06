"""Pins that requests which arrive while the node is busy are answered, every one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from flashrt_ros.msg import PolicyStatus
from flashrt_ros.srv import ListCapsules
from lifecycle_msgs.srv import ChangeState
from node_rig import ACTIVATE, CLEANUP, CONFIGURE, DEACTIVATE, NodeRig
from rclpy.qos import QoSProfile

pytestmark = pytest.mark.ros
DOMAIN = 20 + os.getpid() % 20
CLIENTS = 40


def test_requests_during_configure_are_all_answered(tmp_path: Path) -> None:
    with NodeRig(tmp_path, DOMAIN, namespace="/burst") as rig:
        rig.until_mode(PolicyStatus.RUNNING)
        change = rig.node.create_client(ChangeState, "policy/change_state")
        # All clients of one service hear all of its answers: theirs must be deep as well.
        deep = QoSProfile(depth=200)
        clients = [
            rig.node.create_client(ListCapsules, "policy/list_capsules", qos_profile=deep)
            for _ in range(CLIENTS)
        ]
        for client in (change, *clients):
            rig.until(client.service_is_ready, "the service")
        rig.spin(1.0)
        assert rig.transition(DEACTIVATE)
        futures = []
        for number in (CLEANUP, CONFIGURE, ACTIVATE):
            request = ChangeState.Request()
            request.transition.id = number
            futures.append(change.call_async(request))
        futures += [client.call_async(ListCapsules.Request()) for client in clients]
        rig.until(lambda: all(future.done() for future in futures), "all answers")
        assert all(future.result().success for future in futures[:3])
