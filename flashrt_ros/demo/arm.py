"""A planar two-joint arm in MuJoCo: position-controlled, stepped at the control rate, no ROS."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import mujoco
import numpy as np
import numpy.typing as npt

from flashrt_ros.errors import InvalidArgumentError, UnsupportedError

Array = npt.NDArray[np.float64]

JOINTS = ("joint1", "joint2")
LINKS_M = (0.5, 0.4)
"""Lengths of the upper arm and the forearm."""
LIMITS_RAD = ((-3.0, 3.0), (-2.6, 2.6))
"""Joint ranges; a command beyond them is clipped."""
CONTROL_HZ = 50.0
SUBSTEPS = 10
"""Physics steps of 2 ms in one control step."""
MAX_BUMP_NM = 60.0
"""Largest torque per joint that ``bump`` takes: more would fling the arm through its stops."""

VIEW_DISTANCE_M = 2.8
"""From here MuJoCo's 45 degrees show 2.3 m: the whole circle that the arm can reach, and a rim."""

_GAIN = 100.0
_DAMPING = 8.0

MJCF = f"""
<mujoco model="demo_arm">
  <compiler angle="radian"/>
  <option timestep="{1.0 / CONTROL_HZ / SUBSTEPS}" gravity="0 0 0" integrator="implicitfast"/>
  <worldbody>
    <light pos="0.3 0 2.5" dir="0 0 -1" diffuse="0.5 0.5 0.5" specular="0 0 0"/>
    <geom name="table" type="plane" size="1.2 1.2 0.02" rgba="0.93 0.93 0.9 1"
          contype="0" conaffinity="0"/>
    <body name="cue" mocap="true" pos="0 0 -1">
      <geom type="cylinder" size="0.05 0.004" rgba="0.9 0.4 0.1 0.8" contype="0" conaffinity="0"/>
    </body>
    <body name="upper" pos="0 0 0.06">
      <joint name="{JOINTS[0]}" type="hinge" axis="0 0 1" range="-3.0 3.0" damping="0.2"
             armature="0.02"/>
      <geom type="capsule" fromto="0 0 0 {LINKS_M[0]} 0 0" size="0.03" mass="1.0"
            rgba="0.2 0.3 0.5 1" contype="0" conaffinity="0"/>
      <body name="fore" pos="{LINKS_M[0]} 0 0">
        <joint name="{JOINTS[1]}" type="hinge" axis="0 0 1" range="-2.6 2.6" damping="0.2"
               armature="0.02"/>
        <geom type="capsule" fromto="0 0 0 {LINKS_M[1]} 0 0" size="0.025" mass="0.6"
              rgba="0.3 0.5 0.7 1" contype="0" conaffinity="0"/>
        <site name="tip" pos="{LINKS_M[1]} 0 0" size="0.02" rgba="0.1 0.1 0.1 1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="servo1" joint="{JOINTS[0]}" kp="{_GAIN}" kv="{_DAMPING}"
              ctrlrange="-3.0 3.0" forcerange="-40 40"/>
    <position name="servo2" joint="{JOINTS[1]}" kp="{_GAIN * 0.4}" kv="{_DAMPING * 0.4}"
              ctrlrange="-2.6 2.6" forcerange="-25 25"/>
  </actuator>
</mujoco>
"""


@dataclass(frozen=True)
class ArmState:
    """Everything that the physics depends on.

    Attributes:
        time_s: Simulated time.
        position_rad: ``(2,)`` float64.
        velocity_rad_s: ``(2,)`` float64.
        target_rad: ``(2,)`` float64, the servos' set points.
        bump_nm: ``(2,)`` float64, torque of the bump under way.
        bump_left_s: How long it lasts yet.
    """

    time_s: float
    position_rad: Array
    velocity_rad_s: Array
    target_rad: Array
    bump_nm: Array
    bump_left_s: float


def tip_of(position_rad: npt.ArrayLike) -> Array:
    """Forward kinematics.

    Args:
        position_rad: ``(..., 2)`` joint angles.

    Returns:
        ``(..., 2)`` float64 x and y of the tip in the base frame, metres.
    """
    angles = np.asarray(position_rad, dtype=np.float64)
    first, both = angles[..., 0], angles[..., 0] + angles[..., 1]
    return np.stack(
        (
            LINKS_M[0] * np.cos(first) + LINKS_M[1] * np.cos(both),
            LINKS_M[0] * np.sin(first) + LINKS_M[1] * np.sin(both),
        ),
        axis=-1,
    )


def joints_for(tip_m: npt.ArrayLike) -> Array:
    """Inverse kinematics with the elbow bent to the positive side.

    Args:
        tip_m: ``(..., 2)`` x and y in the base frame, metres; points out of reach are drawn to
            the nearest distance that the arm reaches.

    Returns:
        ``(..., 2)`` float64 joint angles, radians.
    """
    point = np.asarray(tip_m, dtype=np.float64)
    upper, fore = LINKS_M
    low = math.sqrt(upper**2 + fore**2 + 2 * upper * fore * math.cos(LIMITS_RAD[1][1]))
    reach = np.clip(np.hypot(point[..., 0], point[..., 1]), low, upper + fore - 1e-6)
    cosine = (reach**2 - upper**2 - fore**2) / (2 * upper * fore)
    elbow = np.arccos(np.clip(cosine, -1.0, 1.0))
    shoulder = np.arctan2(point[..., 1], point[..., 0]) - np.arctan2(
        fore * np.sin(elbow), upper + fore * np.cos(elbow)
    )
    return np.stack((shoulder, elbow), axis=-1)


class Arm:
    """One simulated arm; not thread-safe."""

    def __init__(self) -> None:
        """Builds the model; the arm rests with all joints at zero."""
        self.model = mujoco.MjModel.from_xml_string(MJCF)
        self.data = mujoco.MjData(self.model)
        self._bump_nm = np.zeros(2)
        self._bump_left_s = 0.0
        mujoco.mj_forward(self.model, self.data)

    @property
    def position_rad(self) -> Array:
        """``(2,)`` float64, a copy."""
        return np.array(self.data.qpos[:2])

    @property
    def velocity_rad_s(self) -> Array:
        """``(2,)`` float64, a copy."""
        return np.array(self.data.qvel[:2])

    @property
    def target_rad(self) -> Array:
        """``(2,)`` float64 set points of the servos, a copy."""
        return np.array(self.data.ctrl[:2])

    @property
    def time_s(self) -> float:
        """Simulated time."""
        return float(self.data.time)

    @property
    def bumped(self) -> bool:
        """Whether a bump is under way."""
        return self._bump_left_s > 0.0

    def state(self) -> ArmState:
        """Everything that the physics depends on, as copies."""
        return ArmState(
            self.time_s,
            self.position_rad,
            self.velocity_rad_s,
            self.target_rad,
            self._bump_nm.copy(),
            self._bump_left_s,
        )

    def set_state(self, state: ArmState) -> None:
        """Puts the arm into a state taken by ``state``; the continuation is bit-equal."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.time = state.time_s
        self.data.qpos[:2] = state.position_rad
        self.data.qvel[:2] = state.velocity_rad_s
        self.data.ctrl[:2] = state.target_rad
        self._bump_nm = np.array(state.bump_nm)
        self._bump_left_s = state.bump_left_s
        mujoco.mj_forward(self.model, self.data)

    def place(self, position_rad: npt.ArrayLike) -> None:
        """Sets the arm down at rest, servos holding, no bump."""
        angles = _pair("position_rad", position_rad)
        self.set_state(ArmState(self.time_s, angles, np.zeros(2), angles.copy(), np.zeros(2), 0.0))

    def command(self, target_rad: npt.ArrayLike) -> None:
        """Sets the servos' set points, held until the next command.

        Args:
            target_rad: ``(2,)`` radians, clipped to the joint ranges.

        Raises:
            InvalidArgumentError: Not two finite numbers.
        """
        low, high = np.transpose(LIMITS_RAD)
        self.data.ctrl[:2] = np.clip(_pair("target_rad", target_rad), low, high)

    def bump(self, torque_nm: npt.ArrayLike, duration_s: float) -> None:
        """Pushes the joints for a while, in place of any push under way.

        Args:
            torque_nm: ``(2,)`` newton metres, at most ``MAX_BUMP_NM`` each.
            duration_s: At most one second.

        Raises:
            InvalidArgumentError: Not finite, or beyond these limits.
        """
        torque = _pair("torque_nm", torque_nm)
        if np.abs(torque).max() > MAX_BUMP_NM or not 0.0 <= duration_s <= 1.0:
            raise InvalidArgumentError(
                f"bump: expected at most {MAX_BUMP_NM} N m per joint for 0 to 1 s, found "
                f"{torque.tolist()} for {duration_s} s"
            )
        self._bump_nm, self._bump_left_s = torque, float(duration_s)

    def show_cue(self, point_m: npt.ArrayLike | None) -> None:
        """Lays the orange disc on the table at a point, or puts it out of sight."""
        place = (0.0, 0.0, -1.0) if point_m is None else (*_pair("point_m", point_m), 0.005)
        self.data.mocap_pos[0] = place

    def step(self) -> None:
        """Advances the physics by one control step of 20 ms."""
        pushed = 0
        if self._bump_left_s > 0.0:
            pushed = min(SUBSTEPS, round(self._bump_left_s * CONTROL_HZ * SUBSTEPS))
            self.data.qfrc_applied[:2] = self._bump_nm
            mujoco.mj_step(self.model, self.data, nstep=pushed)
            self._bump_left_s -= 1.0 / CONTROL_HZ
            if self._bump_left_s < 1e-9:
                self._bump_left_s = 0.0
            self.data.qfrc_applied[:2] = 0.0
        if pushed < SUBSTEPS:
            mujoco.mj_step(self.model, self.data, nstep=SUBSTEPS - pushed)


class Scene(Protocol):
    """What can be looked at: MuJoCo's model, and its data."""

    model: Any
    data: Any


def open_viewer(arm: Scene) -> Callable[[], bool]:
    """Opens MuJoCo's own window on an arm, seen from above, without its panels.

    Returns:
        To be called after each step: redraws, and is False once the window has been closed.

    Raises:
        UnsupportedError: This machine has no display or no OpenGL.
    """
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ):
        # Asked for without a display, the window's library ends the process.
        raise UnsupportedError(
            "the viewer needs a display: expected DISPLAY or WAYLAND_DISPLAY to be set, found "
            "neither; run without the viewer option, the demonstration does not need it"
        )
    try:
        from mujoco import viewer

        window = viewer.launch_passive(
            arm.model, arm.data, show_left_ui=False, show_right_ui=False
        )
    except Exception as error:
        raise UnsupportedError(
            f"the viewer did not open ({error}): expected a display with OpenGL; run without the "
            "viewer option, the demonstration does not need it"
        ) from error

    with window.lock():
        # Free rather than fixed, so that the mouse still turns it.
        window.cam.type = mujoco.mjtCamera.mjCAMERA_FREE
        window.cam.lookat[:] = 0.0
        window.cam.azimuth, window.cam.elevation = 90.0, -90.0
        window.cam.distance = VIEW_DISTANCE_M

    def redraw() -> bool:
        if not window.is_running():
            return False
        window.sync()
        return True

    return redraw


def _pair(name: str, value: npt.ArrayLike) -> Array:
    pair = np.array(value, dtype=np.float64)
    if pair.shape != (2,) or not np.isfinite(pair).all():
        raise InvalidArgumentError(f"{name}: expected two finite numbers, found {value!r}")
    return pair
