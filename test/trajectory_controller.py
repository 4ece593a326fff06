"""Stands in for controllers of ros2_control: applies the rules by which they take a message.

The rules are those that ros2_controllers documents and reports in its own words for its
joint_trajectory_controller (topic interface) and forward_command_controller. Nothing here moves
an arm; a message that would be dropped there is kept with the reason here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

EPSILON = 1.2e-7
"""Of a last velocity that still counts as zero."""


def _seconds(time: Any) -> float:
    return float(time.sec) + float(time.nanosec) * 1e-9


def trajectory_fault(
    message: Any, joints: Sequence[str], now_s: float, moving_end: bool = False
) -> str:
    """Why a JointTrajectory would be dropped; empty where it is taken.

    Args:
        message: As received.
        joints: Of the controller; goals for some of them only are not allowed.
        now_s: ROS clock.
        moving_end: ``allow_nonzero_velocity_at_trajectory_end``.
    """
    names, points = list(message.joint_names), list(message.points)
    if sorted(names) != sorted(joints):
        return f"joints {names} are not those of the controller"
    if not points:
        return "no points"
    last = points[-1]
    if not moving_end and any(abs(v) > EPSILON for v in last.velocities):
        return "the last velocity is not zero"
    start_s = _seconds(message.header.stamp)
    if start_s and start_s + _seconds(last.time_from_start) < now_s:
        return "it lies in the past"
    before_s = -1.0
    for point in points:
        if _seconds(point.time_from_start) <= before_s:
            return "times do not increase"
        before_s = _seconds(point.time_from_start)
        if len(point.positions) != len(names):
            return f"{len(point.positions)} positions for {len(names)} joints"
        for values in (point.velocities, point.accelerations):
            if len(values) not in (0, len(names)):
                return f"{len(values)} values for {len(names)} joints"
        if len(point.effort):
            return "effort is not supported"
    return ""


def forward_fault(message: Any, joints: Sequence[str]) -> str:
    """Why a Float64MultiArray would be dropped; empty where it is taken."""
    if len(message.data) != len(joints):
        return f"{len(message.data)} numbers for {len(joints)} joints"
    return ""


class Follower:
    """Where an arm is that follows trajectories: from where it is led, point to point, in lines.

    As ros2_control does it with ``interpolate_from_desired_state`` and positions alone.
    """

    def __init__(self, joints: Sequence[str], position: Sequence[float]) -> None:
        self._joints = tuple(joints)
        self._times_s = [0.0]
        self._positions = [list(position)]

    def take(self, message: Any, now_s: float) -> None:
        """Takes a message that comes at ``now_s``; what was followed before ends."""
        here = self.at(now_s)
        start_s = _seconds(message.header.stamp) or now_s
        self._times_s, self._positions = [now_s], [here]
        order = [list(message.joint_names).index(joint) for joint in self._joints]
        for point in message.points:
            at_s = start_s + _seconds(point.time_from_start)
            if at_s > now_s:
                self._times_s.append(at_s)
                self._positions.append([point.positions[i] for i in order])

    def at(self, time_s: float) -> list[float]:
        """Positions of the joints."""
        columns = zip(*self._positions, strict=True)
        return [float(np.interp(time_s, self._times_s, column)) for column in columns]
