"""The cue-reach task: a target is shown for half a second, then the tip must reach it.

While a cue is there the arm waits where it is; once it is gone the arm goes to the point that was
shown last. Who has forgotten it, or never saw it, goes home. So an action depends on the present
pose and on the remembered point, never on the time that has passed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flashrt_ros.demo.arm import joints_for, tip_of

Array = npt.NDArray[np.float64]

RING_CENTRE_M = (0.55, 0.0)
"""Where the tip is when the arm is at home: as far from every target as from the next."""
RING_RADIUS_M = 0.22
TARGET_COUNT = 8
CUE_S = 0.5
"""How long a target is shown."""
TOLERANCE_M = 0.05
"""The tip counts as being at a target within this distance; neighbours are 0.168 m apart."""
LEAD_RAD = 0.15
"""How far ahead of the measured position the expert commands: its velocity limit."""
STRIDE_M = 0.1
"""How far ahead the expert aims."""
SWING_RAD = 0.7
"""The expert does not go straight: it sets out this far to one side of the line."""
SWING_FROM_M = 0.15
"""Nearer than this to the target the swing fades out."""
UNDECIDED_M = 0.01
"""So near to the line between home and the target either side is as good."""

HOME_RAD: Array = joints_for(RING_CENTRE_M)
"""``(2,)`` joint angles at home."""


def targets() -> Array:
    """``(8, 2)`` float64 targets on the ring, metres in the base frame."""
    angle = 2 * np.pi * (np.arange(TARGET_COUNT) + 0.5) / TARGET_COUNT
    ring = np.stack((np.cos(angle), np.sin(angle)), axis=-1)
    return np.asarray(RING_CENTRE_M) + RING_RADIUS_M * ring


def observation(
    position_rad: Array, velocity_rad_s: Array, cue_m: Array | None
) -> dict[str, npt.NDArray[np.float32]]:
    """What the policy sees, as the contract assembles it from the topics.

    Args:
        position_rad: ``(2,)``.
        velocity_rad_s: ``(2,)``.
        cue_m: ``(2,)`` x and y in the base frame, or None where no cue is visible.

    Returns:
        ``observation.state`` ``(4,)`` and ``observation.cue`` ``(3,)``: x, y, present.
    """
    cue = (0.0, 0.0, 0.0) if cue_m is None else (cue_m[0], cue_m[1], 1.0)
    return {
        "observation.state": np.concatenate((position_rad, velocity_rad_s)).astype(np.float32),
        "observation.cue": np.asarray(cue, dtype=np.float32),
    }


def expert(position_rad: Array, goal_m: Array, waits: npt.ArrayLike, side: npt.ArrayLike) -> Array:
    """The command of one who remembers; all arguments may carry leading dimensions.

    Args:
        position_rad: ``(..., 2)`` measured joint angles.
        goal_m: ``(..., 2)`` the point remembered; NaN where there is none: home is the goal.
        waits: ``(...)`` whether a cue is visible: stay.
        side: ``(...)`` +1 or -1, the way round where the pose leaves it open (tip on the line
            from home to the target); elsewhere the tip stays on the side where it is.

    Returns:
        ``(..., 2)`` joint targets, radians, at most ``LEAD_RAD`` from the measured position.
    """
    forgot = np.isnan(goal_m[..., :1])
    tip = tip_of(position_rad)
    goal = np.where(forgot, RING_CENTRE_M, goal_m)
    ahead = goal - tip
    distance = np.hypot(ahead[..., 0], ahead[..., 1])
    line = goal - np.asarray(RING_CENTRE_M)
    length = np.hypot(line[..., 0], line[..., 1]) + 1e-9
    offset = (line[..., 1] * ahead[..., 0] - line[..., 0] * ahead[..., 1]) / length
    way = np.where(np.abs(offset) < UNDECIDED_M, side, np.sign(offset))
    fade = np.clip(distance / SWING_FROM_M - 0.4, 0.0, 1.0)
    angle = np.where(forgot[..., 0], 0.0, way * SWING_RAD * fade)
    stride = np.minimum(1.0, STRIDE_M / (distance + 1e-9))
    cosine, sine = stride * np.cos(angle), stride * np.sin(angle)
    aim = tip + np.stack(
        (
            cosine * ahead[..., 0] - sine * ahead[..., 1],
            sine * ahead[..., 0] + cosine * ahead[..., 1],
        ),
        axis=-1,
    )
    move = joints_for(aim) - position_rad
    # Both joints are slowed alike, so that the way keeps its direction.
    move = move / np.maximum(1.0, np.abs(move).max(axis=-1, keepdims=True) / LEAD_RAD)
    return np.where(np.asarray(waits)[..., None], position_rad, position_rad + move)
