"""The cell behind ROS topics, at 50 Hz; what befalls it comes in by topics too.

It knows nothing of policies or trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from geometry_msgs.msg import PointStamped, Vector3Stamped
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64
from std_srvs.srv import Trigger

from flashrt_ros.demo.arm import CONTROL_HZ, open_viewer
from flashrt_ros.demo.trees.cell import BLOCK_M, NAMES, Cell
from flashrt_ros.errors import InvalidArgumentError

FRAME = "base_link"
NOISE = (0.0005, 0.0005, 0.0002)
"""Standard deviations of what is measured: rad, rad, m."""
LONGEST_S = 60.0


class CellNode(Node):
    """Node ``cell``.

    Publishes ``joint_states``; ``block``, where a camera sees the block, while it does; ``cue``,
    while one is shown; and for judges ``~/truth``, where the block is. Takes ``joint_command``
    (positions by name), ``magnet`` (above 0.5: on), ``~/show_cue`` (x and y in metres, z =
    seconds), ``~/knock`` (x and y in metres a second: the block is knocked when the hand next
    comes down) and ``~/silence`` (no ``joint_states`` for so many seconds). ``~/home`` makes the
    arm let go and return to its place of rest, over everything; commands meanwhile are not
    followed. ``~/begin`` puts the block where it was at first, and the arm to rest, in no time.
    """

    def __init__(self, **node_arguments: Any) -> None:
        """Builds the cell and starts the clock.

        Args:
            **node_arguments: Passed on to ``rclpy.node.Node``.
        """
        super().__init__("cell", **node_arguments)
        self.cell = Cell(wall=self._flag("wall", "A wall closes the way between post and foot."))
        shows = self._flag("viewer", "Open MuJoCo's window.")
        self._redraw: Callable[[], bool] | None = open_viewer(self.cell) if shows else None
        self._rng = np.random.default_rng(0)
        self._cue_m = (0.0, 0.0)
        self._cue_left = self._silent_left = 0
        self._homing = False
        reliable = QoSProfile(depth=10)
        self._states = self.create_publisher(JointState, "joint_states", reliable)
        self._seen, self._cues, self._truth = (
            self.create_publisher(PointStamped, name, reliable)
            for name in ("block", "cue", "~/truth")
        )
        self.create_subscription(JointState, "joint_command", self._on_command, reliable)
        self.create_subscription(Float64, "magnet", self._on_magnet, reliable)
        self.create_subscription(PointStamped, "~/show_cue", self._on_show_cue, reliable)
        self.create_subscription(Vector3Stamped, "~/knock", self._on_knock, reliable)
        self.create_subscription(Float64, "~/silence", self._on_silence, reliable)
        self.create_service(Trigger, "~/home", self._on_home)
        self.create_service(Trigger, "~/begin", self._on_begin)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0 / CONTROL_HZ, self._tick, clock=steady)

    def _flag(self, name: str, description: str) -> bool:
        descriptor = ParameterDescriptor(description=description, read_only=True)
        return bool(self.declare_parameter(name, False, descriptor).value)

    def _tick(self) -> None:
        if self._homing:
            self._homing = not self.cell.go_home()
        self.cell.step()
        if self._redraw is not None and not self._redraw():
            self._redraw = None
        self._publish()
        self._cue_left = max(0, self._cue_left - 1)
        self._silent_left = max(0, self._silent_left - 1)

    def _publish(self) -> None:
        if not self._silent_left:
            measured = self.cell.position + NOISE * self._rng.standard_normal(3)
            state = JointState(name=list(NAMES), position=measured.tolist())
            state.header.stamp, state.header.frame_id = self._now(), FRAME
            self._states.publish(state)
        seen_m = self.cell.seen_m
        if seen_m is not None:
            self._seen.publish(self._point(seen_m))
        if self._cue_left:
            self._cues.publish(self._point(self._cue_m))
        self._truth.publish(self._point(self.cell.block_m))

    def _now(self) -> Any:
        return self.get_clock().now().to_msg()

    def _point(self, place_m: Sequence[float] | np.ndarray[Any, Any]) -> PointStamped:
        message = PointStamped()
        message.header.stamp, message.header.frame_id = self._now(), FRAME
        values = [float(value) for value in place_m]
        message.point.x, message.point.y, message.point.z = (*values, 0.0)[:3]
        return message

    def _on_command(self, message: JointState) -> None:
        found = dict(zip(message.name, message.position, strict=False))
        try:
            if not set(NAMES) <= set(found):
                raise InvalidArgumentError(
                    f"expected positions of {list(NAMES)}, found {list(message.name)} with "
                    f"{len(message.position)} positions"
                )
            if not self._homing:
                self.cell.command([found[name] for name in NAMES])
        except InvalidArgumentError as error:
            self.get_logger().error(
                f"joint_command not followed: {error}", throttle_duration_sec=2.0
            )

    def _on_magnet(self, message: Float64) -> None:
        if not self._homing:
            self.cell.switch_magnet(message.data > 0.5)

    def _on_show_cue(self, message: PointStamped) -> None:
        point = message.point
        if not np.isfinite((point.x, point.y)).all() or not 0.0 < point.z <= LONGEST_S:
            self.get_logger().error(
                "~/show_cue: expected finite x and y in metres and z from 0 to "
                f"{LONGEST_S:.0f} seconds, found {point.x}, {point.y}, {point.z}"
            )
            return
        self._cue_m, self._cue_left = (point.x, point.y), max(1, round(point.z * CONTROL_HZ))

    def _on_knock(self, message: Vector3Stamped) -> None:
        try:
            self.cell.knock((message.vector.x, message.vector.y))
        except InvalidArgumentError as error:
            self.get_logger().error(f"~/knock: {error}")

    def _on_silence(self, message: Float64) -> None:
        if not 0.0 <= message.data <= LONGEST_S:
            self.get_logger().error(
                f"~/silence: expected 0 to {LONGEST_S:.0f} seconds, found {message.data}"
            )
            return
        self._silent_left = round(message.data * CONTROL_HZ)

    def _on_home(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self._homing = True
        response.success = True
        response.message = "on the way home; commands are not followed until the arm is there"
        return response

    def _on_begin(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.cell.place(BLOCK_M)
        self._homing = False
        self._cue_left = self._silent_left = 0
        response.success = True
        response.message = f"the block lies at {BLOCK_M[0]}, {BLOCK_M[1]} m, the arm rests"
        return response


def main() -> int:
    """Runs the node until SIGINT or SIGTERM.

    Returns:
        Exit status.
    """
    from flashrt_ros.ros.runner import run

    return run(CellNode)
