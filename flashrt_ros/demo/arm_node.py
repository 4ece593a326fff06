"""The simulated arm behind ROS topics: joint states out, position commands in, at 50 Hz.

It knows nothing of policies. What the passer-by of the experiment does to it comes in by topics of
its own: a cue that is shown for a while, a bump.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from geometry_msgs.msg import PointStamped, Vector3Stamped
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger

from flashrt_ros.demo.arm import CONTROL_HZ, JOINTS, Arm, open_viewer
from flashrt_ros.demo.task import HOME_RAD
from flashrt_ros.errors import InvalidArgumentError

HOMING_RAD_S = 1.8
"""Speed of the way home, which the arm goes by itself."""
AT_HOME_RAD, AT_REST_RAD_S = 0.01, 0.05
"""Nearer and slower than this in every joint, the arm is at home."""
FRAME = "base_link"
KEPT = 250
"""Messages that are kept for who is behind: a recorder whose process was not scheduled for some
seconds must get them all, or what the policy saw is not in its bag."""


class ArmNode(Node):
    """Node ``arm``.

    Publishes ``joint_states``, and ``cue`` while one is visible. Takes ``joint_command``
    (positions by joint name; the last one is held when commands stop), ``~/show_cue`` (x and y in
    metres, z = seconds) and ``~/bump`` (x and y in newton metres on the two joints, z = seconds).
    ``~/home`` makes the arm go home by itself and answers at once; commands that arrive before it
    is there are not followed.
    """

    def __init__(self, **node_arguments: Any) -> None:
        """Declares parameters, places the arm at home and starts the clock.

        Args:
            **node_arguments: Passed on to ``rclpy.node.Node``.
        """
        super().__init__("arm", **node_arguments)
        self.arm = Arm()
        self.arm.place(HOME_RAD)
        self._noise_rad = float(
            self.declare_parameter("noise_rad", 0.0005, _noise_descriptor()).value
        )
        self._rng = np.random.default_rng(
            int(self.declare_parameter("seed", 0, _seed_descriptor()).value)
        )
        viewer = self.declare_parameter(
            "viewer",
            False,
            ParameterDescriptor(description="Open MuJoCo's window.", read_only=True),
        )
        self._redraw: Callable[[], bool] | None = open_viewer(self.arm) if viewer.value else None
        self._cue_m: tuple[float, float] | None = None
        self._cue_left = 0
        self._homing = False
        self._unfollowed = 0
        reliable = QoSProfile(depth=10)
        self._states = self.create_publisher(JointState, "joint_states", KEPT)
        self._cues = self.create_publisher(PointStamped, "cue", KEPT)
        self.create_subscription(JointState, "joint_command", self._on_command, reliable)
        self.create_subscription(PointStamped, "~/show_cue", self._on_show_cue, reliable)
        self.create_subscription(Vector3Stamped, "~/bump", self._on_bump, reliable)
        self.create_service(Trigger, "~/home", self._on_home)
        self.create_timer(
            1.0 / CONTROL_HZ, self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def _tick(self) -> None:
        if self._homing:
            self._move_home()
        self.arm.step()
        if self._cue_left > 0:
            self._cue_left -= 1
        else:
            self._cue_m = None
        self.arm.show_cue(self._cue_m)
        if self._redraw is not None and not self._redraw():
            self._redraw = None
        self._publish()

    def _publish(self) -> None:
        stamp = self.get_clock().now().to_msg()
        noise = self._noise_rad * self._rng.standard_normal(4) * (1.0, 1.0, 10.0, 10.0)
        state = JointState(name=list(JOINTS))
        state.header.stamp = stamp
        state.header.frame_id = FRAME
        state.position = (self.arm.position_rad + noise[:2]).tolist()
        state.velocity = (self.arm.velocity_rad_s + noise[2:]).tolist()
        self._states.publish(state)
        if self._cue_m is not None:
            cue = PointStamped()
            cue.header = state.header
            cue.point.x, cue.point.y = self._cue_m
            self._cues.publish(cue)

    def _on_command(self, message: JointState) -> None:
        if self._homing:
            self._unfollowed += 1
            return
        try:
            self.arm.command(_by_name(message.name, message.position))
        except InvalidArgumentError as error:
            self.get_logger().error(
                f"joint_command not followed: {error}", throttle_duration_sec=2.0
            )

    def _on_show_cue(self, message: PointStamped) -> None:
        point = message.point
        if not np.isfinite((point.x, point.y, point.z)).all() or not 0.0 < point.z <= 60.0:
            self.get_logger().error(
                "~/show_cue: expected finite x and y in metres and z from 0 to 60 seconds, found "
                f"{point.x}, {point.y}, {point.z}"
            )
            return
        self._cue_m = (point.x, point.y)
        self._cue_left = max(1, round(point.z * CONTROL_HZ))

    def _on_bump(self, message: Vector3Stamped) -> None:
        push = message.vector
        try:
            self.arm.bump((push.x, push.y), push.z)
        except InvalidArgumentError as error:
            self.get_logger().error(f"~/bump: {error}")

    def _on_home(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        if not self._homing:
            self.arm.command(self.arm.position_rad)
            self._homing, self._unfollowed = True, 0
        response.success = True
        response.message = "on the way home; commands are not followed until the arm is there"
        return response

    def _move_home(self) -> None:
        ahead = HOME_RAD - self.arm.target_rad
        pace = HOMING_RAD_S / CONTROL_HZ
        self.arm.command(self.arm.target_rad + ahead / max(1.0, np.abs(ahead).max() / pace))
        away = np.abs(self.arm.position_rad - HOME_RAD).max()
        if away < AT_HOME_RAD and np.abs(self.arm.velocity_rad_s).max() < AT_REST_RAD_S:
            self._homing = False
            if self._unfollowed:
                self.get_logger().info(
                    f"at home; {self._unfollowed} commands meanwhile were not followed"
                )


def _by_name(names: Sequence[str], positions: Sequence[float]) -> list[float]:
    """Picks the arm's joints out of a message, in the arm's order.

    Raises:
        InvalidArgumentError: A joint is missing, or names and positions differ in number.
    """
    if len(names) != len(positions) or not set(JOINTS) <= set(names):
        raise InvalidArgumentError(
            f"expected a position for each of {list(JOINTS)}, found names {list(names)} with "
            f"{len(positions)} positions"
        )
    found = dict(zip(names, positions, strict=True))
    return [found[joint] for joint in JOINTS]


def _noise_descriptor() -> ParameterDescriptor:
    return ParameterDescriptor(
        description="Standard deviation of the noise on measured positions, radians; velocities "
        "get ten times as much in radians per second.",
        floating_point_range=[FloatingPointRange(from_value=0.0, to_value=0.1)],
        read_only=True,
    )


def _seed_descriptor() -> ParameterDescriptor:
    return ParameterDescriptor(
        description="Seed of that noise.",
        integer_range=[IntegerRange(from_value=0, to_value=2**31 - 1)],
        read_only=True,
    )


def main() -> int:
    """Runs the node until SIGINT or SIGTERM.

    Returns:
        Exit status.
    """
    from flashrt_ros.ros.runner import run

    return run(ArmNode)


if __name__ == "__main__":
    raise SystemExit(main())
