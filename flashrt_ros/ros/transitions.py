"""What rclpy's node leaves open: transitions out of turn, a lost control thread, timers."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from rclpy.lifecycle import LifecycleNode
from rclpy.node import Node

from flashrt_ros.ros.control import Control


class ControlLostError(Exception):
    """The control thread is gone: the transition ends in on_error, which cleans up."""


def require_control(control: Control | None) -> None:
    """Raises ControlLostError if the control thread has ended by a fault."""
    if control is not None and (error := control.lost) is not None:
        raise ControlLostError(
            f"the control thread failed: {type(error).__name__}: {error}; the node was cleaned "
            "up; configure it again"
        )


def guard_transitions(node: LifecycleNode) -> None:
    """Refuses a transition that is not possible now; in rclpy it would end the process."""
    change = node._service_change_state.callback

    def guarded(request: Any, response: Any) -> Any:
        try:
            return change(request, response)
        except Exception as error:
            node.get_logger().error(f"transition {request.transition.id} refused: {error}")
            response.success = False
            return response

    node._service_change_state.callback = guarded


def guarded(node: Node, callback: Callable[[], None]) -> Callable[[], None]:
    """What a timer raises is logged; it must not end the node that holds an arm."""

    def call() -> None:
        try:
            callback()
        except Exception:
            node.get_logger().error(traceback.format_exc())

    return call
