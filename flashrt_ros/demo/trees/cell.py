"""The demonstration's arm over a table with a block on it: contact physics, no ROS.

The arm hangs above the table and carries a magnet on a vertical slide. While it is on and its face
lies on the block's top it holds the block, by a weld that gives way where it is pulled too hard. A
post stands between where the arm rests and where the block lies; a wall may close the way between
the post and the arm's foot. The block slides, and is knocked about.
"""

from __future__ import annotations

import mujoco
import numpy as np
import numpy.typing as npt

from flashrt_ros.demo.arm import (
    CONTROL_HZ,
    JOINTS,
    LIMITS_RAD,
    LINKS_M,
    MJCF,
    SUBSTEPS,
    joints_for,
    tip_of,
)
from flashrt_ros.errors import InvalidArgumentError

Array = npt.NDArray[np.float64]

LIFT = "lift"
NAMES = (*JOINTS, LIFT)
"""What the arm moves: two joints, radians, and the slide, metres."""
LIMITS = (*LIMITS_RAD, (-0.12, 0.1))
"""With the slide above 0.06 the hand clears the post."""

HAND_M = (0.45, -0.25)
"""x and y of the magnet while the arm rests."""
POST_M = (0.45, 0.0)
BLOCK_M = (0.45, 0.24)
"""Where the block lies at first."""
HALF_BLOCK_M = 0.025
REST: Array = np.append(joints_for(HAND_M), 0.0)
"""``(3,)`` where the arm rests: the hand up, before the post."""

FACE_M = 0.008
"""Radius of the magnet's face, which must lie on the block wholly."""
HOLD_N = 12.0
"""What the magnet carries; the block weighs 1 N."""
KNOCK_BELOW_M = 0.09
"""A knock that waits for the hand comes when the magnet is so low over the table."""
MAX_KNOCK_M_S = 2.0
HOMING = (2.5, 2.5, 1.0)
"""Speed of the way home, rad and m per second."""
AT_REST, STILL = 0.01, 0.05
"""Nearer than this to ``REST``, and slower, the arm rests."""
HIDDEN_M = 0.08
"""A hand so near to the block hides it from the camera."""

_TALL_M = 0.2
"""Height of post and wall: more than that of the magnet at its upper end."""
_FACE_UP_M = 0.15
_ARM_M = 0.30
_LIFT_GAIN, _LIFT_DAMPING = 1500.0, 60.0


def _model(wall: bool) -> mujoco.MjModel:
    spec = mujoco.MjSpec.from_string(MJCF)
    spec.option.gravity = [0.0, 0.0, -9.81]
    spec.body("upper").pos[2] = _ARM_M
    table = spec.geom("table")
    table.contype = table.conaffinity = 1

    hand = spec.body("fore").add_body(name="hand", pos=[LINKS_M[1], 0, 0], gravcomp=1.0)
    hand.add_joint(
        name=LIFT,
        type=mujoco.mjtJoint.mjJNT_SLIDE,
        axis=[0, 0, 1],
        range=list(LIMITS[2]),
        damping=2.0,
    )
    rod = _ARM_M - _FACE_UP_M - 0.012
    hand.add_geom(
        name="rod",
        type=mujoco.mjtGeom.mjGEOM_CAPSULE,
        fromto=[0, 0, 0, 0, 0, -rod],
        size=[0.011, 0, 0],
        mass=0.15,
        rgba=[0.5, 0.5, 0.5, 1],
    )
    hand.add_geom(
        name="face",
        type=mujoco.mjtGeom.mjGEOM_CYLINDER,
        fromto=[0, 0, -rod, 0, 0, -(_ARM_M - _FACE_UP_M)],
        size=[FACE_M, 0, 0],
        mass=0.05,
        rgba=[0.8, 0.2, 0.2, 1],
    )
    lift = spec.add_actuator(name="servo3", target=LIFT, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    # A position servo, as <position kp= kv=> makes it.
    lift.gainprm[0] = _LIFT_GAIN
    lift.biastype = mujoco.mjtBias.mjBIAS_AFFINE
    lift.biasprm[:3] = 0.0, -_LIFT_GAIN, -_LIFT_DAMPING
    lift.forcerange = [-30.0, 30.0]

    block = spec.worldbody.add_body(name="block")
    block.add_freejoint()
    block.add_geom(
        name="block",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=[HALF_BLOCK_M] * 3,
        mass=0.1,
        friction=[0.6, 0.005, 0.0001],
        rgba=[0.2, 0.6, 0.3, 1],
    )
    weld = spec.add_equality(name="grasp", type=mujoco.mjtEq.mjEQ_WELD)
    weld.objtype = mujoco.mjtObj.mjOBJ_BODY
    weld.name1, weld.name2, weld.active = "hand", "block", False

    spec.worldbody.add_geom(
        name="post",
        type=mujoco.mjtGeom.mjGEOM_CYLINDER,
        pos=[*POST_M, _TALL_M / 2],
        size=[0.03, _TALL_M / 2, 0],
        rgba=[0.4, 0.3, 0.2, 1],
    )
    if wall:
        spec.worldbody.add_geom(
            name="wall",
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=[POST_M[0] / 2, POST_M[1], _TALL_M / 2],
            size=[POST_M[0] / 2, 0.02, _TALL_M / 2],
            rgba=[0.6, 0.2, 0.2, 1],
        )
    return spec.compile()


class Cell:
    """Arm, block and table; not thread-safe."""

    def __init__(self, wall: bool = False) -> None:
        """Builds the model, the arm at rest and the block in its place.

        Args:
            wall: Whether a wall closes the way between the post and the arm's foot.
        """
        self.model = _model(wall)
        self.data = mujoco.MjData(self.model)
        self._hand, self._block = (self.model.body(name).id for name in ("hand", "block"))
        self._face, self._top = (self.model.geom(name).id for name in ("face", "block"))
        self._magnet = False
        self._knock_m_s: Array | None = None
        self.place(BLOCK_M)

    @property
    def position(self) -> Array:
        """``(3,)`` float64 of ``NAMES``, a copy."""
        return np.array(self.data.qpos[:3])

    @property
    def velocity(self) -> Array:
        """``(3,)`` float64 of ``NAMES``, per second, a copy."""
        return np.array(self.data.qvel[:3])

    @property
    def target(self) -> Array:
        """``(3,)`` float64 set points of ``NAMES``, a copy."""
        return np.array(self.data.ctrl[:3])

    @property
    def hand_m(self) -> Array:
        """``(3,)`` float64 x, y and height of the magnet's face."""
        return np.append(tip_of(self.position[:2]), _FACE_UP_M + self.data.qpos[2])

    @property
    def block_m(self) -> Array:
        """``(3,)`` float64 middle of the block."""
        return np.array(self.data.qpos[3:6])

    @property
    def seen_m(self) -> Array | None:
        """``(2,)`` float64 x and y of the block as a camera above sees it: not under the hand."""
        block, hand = self.block_m[:2], self.hand_m[:2]
        return block if np.hypot(*(block - hand)) > HIDDEN_M else None

    @property
    def holds(self) -> bool:
        """Whether the block hangs on the magnet."""
        return bool(self.data.eq_active[0])

    def place(self, block_m: npt.ArrayLike) -> None:
        """Sets the arm down at rest and the block on the table, ``(2,)`` metres."""
        x_y = _pair("block_m", block_m)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:3] = self.data.ctrl[:3] = REST
        self.data.qpos[3:] = (*x_y, HALF_BLOCK_M, 1.0, 0.0, 0.0, 0.0)
        self._magnet, self._knock_m_s = False, None
        mujoco.mj_forward(self.model, self.data)

    def command(self, target: npt.ArrayLike) -> None:
        """Sets the servos' set points, ``(3,)`` of ``NAMES``; they are clipped to the ranges.

        Raises:
            InvalidArgumentError: Not three finite numbers.
        """
        values = np.array(target, dtype=np.float64)
        if values.shape != (3,) or not np.isfinite(values).all():
            raise InvalidArgumentError(f"target: expected 3 finite numbers, found {target!r}")
        self.data.ctrl[:3] = np.clip(values, *np.transpose(LIMITS))

    def switch_magnet(self, on: bool) -> None:
        """Switches the magnet; off, it lets go at once."""
        self._magnet = on
        if not on:
            self.data.eq_active[0] = 0

    def knock(self, velocity_m_s: npt.ArrayLike) -> None:
        """Somebody waits until the hand comes down on the block, then knocks the block away.

        Args:
            velocity_m_s: ``(2,)`` that the block gets; once.

        Raises:
            InvalidArgumentError: Not two finite numbers, or more than ``MAX_KNOCK_M_S``.
        """
        velocity = _pair("velocity_m_s", velocity_m_s)
        if np.hypot(*velocity) > MAX_KNOCK_M_S:
            raise InvalidArgumentError(
                f"knock: expected at most {MAX_KNOCK_M_S} m/s, found {velocity.tolist()}"
            )
        self._knock_m_s = velocity

    def go_home(self) -> bool:
        """Lets go and goes a step of the way back to rest: up, over everything, down.

        Returns:
            Whether the arm is there, and at rest.
        """
        self.switch_magnet(False)
        here, aim, top = self.position, REST.copy(), LIMITS[2][1]
        if np.abs(here - REST)[:2].max() > AT_REST:
            aim[2] = top
            if here[2] < top - AT_REST:
                aim[:2] = self.target[:2]
        ahead = (aim - self.target) / (np.asarray(HOMING) / CONTROL_HZ)
        # Both joints at one pace, the slide at its own.
        ahead[:2] /= max(1.0, np.abs(ahead[:2]).max())
        ahead[2] = np.clip(ahead[2], -1.0, 1.0)
        self.command(self.target + ahead * np.asarray(HOMING) / CONTROL_HZ)
        still = np.abs(self.velocity).max() < STILL
        return bool(still and np.abs(here - REST).max() < AT_REST)

    def step(self) -> None:
        """Advances the physics by one control step of 20 ms."""
        for _ in range(SUBSTEPS):
            mujoco.mj_step(self.model, self.data)
            if self._knock_m_s is not None and self.hand_m[2] < KNOCK_BELOW_M:
                self.data.qvel[3:5] = self._knock_m_s
                self._knock_m_s = None
            if self.holds:
                self._tear()
            elif self._magnet and self._touches():
                self._close()

    def _touches(self) -> bool:
        pair = {self._face, self._top}
        contacts = self.data.contact
        if not any({int(a), int(b)} == pair for a, b in contacts.geom):
            return False
        turn = self.data.xmat[self._block].reshape(3, 3)
        face_m = turn.T @ (self.hand_m - self.block_m)
        return bool(face_m[2] > 0.0 and np.abs(face_m[:2]).max() < HALF_BLOCK_M - FACE_M)

    def _close(self) -> None:
        """Welds the block to the hand just as it lies."""
        turn = self.data.xmat[self._hand].reshape(3, 3)
        away = turn.T @ (self.data.xpos[self._block] - self.data.xpos[self._hand])
        back, relative = np.empty(4), np.empty(4)
        mujoco.mju_negQuat(back, self.data.xquat[self._hand])
        mujoco.mju_mulQuat(relative, back, self.data.xquat[self._block])
        self.model.eq_data[0, :3] = 0.0
        self.model.eq_data[0, 3:6], self.model.eq_data[0, 6:10] = away, relative
        self.data.eq_active[0] = 1

    def _tear(self) -> None:
        rows = self.data.efc_type == mujoco.mjtConstraint.mjCNSTR_EQUALITY
        # Three rows of force, then three of torque.
        if np.linalg.norm(self.data.efc_force[rows][:3]) > HOLD_N:
            self.data.eq_active[0] = 0


def _pair(name: str, value: npt.ArrayLike) -> Array:
    pair = np.array(value, dtype=np.float64)
    if pair.shape != (2,) or not np.isfinite(pair).all():
        raise InvalidArgumentError(f"{name}: expected two finite numbers, found {value!r}")
    return pair
