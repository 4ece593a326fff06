"""Many arms at once, with all that may happen to them: where the demo's policy learns.

Each arm lives through a script of its own: cues shown, switched, shortened and flickering, bumps,
being set down elsewhere between two steps (what a pause with a retreat looks like to the policy),
spells in which it does not follow commands, delayed measurements. The label at each step is what
the expert of ``task`` would command from the pose as observed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashrt_ros.demo.arm import LIMITS_RAD, Arm, joints_for
from flashrt_ros.demo.task import (
    HOME_RAD,
    RING_CENTRE_M,
    TARGET_COUNT,
    expert,
    targets,
)

Array = npt.NDArray[np.float64]

CUE_NOISE_M = 0.005
NOISE_RAD, NOISE_RAD_S = 0.001, 0.01
FLICKER = 0.03
"""Chance that a step of a cue is lost on the way."""


@dataclass
class Script:
    """What happens to each of N arms in T steps.

    Attributes:
        cue_m: ``(T, N, 2)`` visible cue, NaN where none is.
        shown: ``(T, N)`` a cue is there, although a flicker may hide it from the policy.
        place_rad: ``(T, N, 2)`` pose in which the arm is set down before the step, else NaN.
        bump_nm: ``(T, N, 2)`` torque of a bump of 0.1 s that begins with the step, else 0.
        frozen: ``(T, N)`` the arm does not follow commands.
        delay: ``(N,)`` age of what is measured, steps.
        side: ``(T, N)`` way round that the expert takes where it is open.
    """

    cue_m: Array
    shown: npt.NDArray[np.bool_]
    place_rad: Array
    bump_nm: Array
    frozen: npt.NDArray[np.bool_]
    delay: npt.NDArray[np.int64]
    side: Array
    memory: npt.NDArray[np.int64]
    """``(T, N)`` index of the target last shown, ``TARGET_COUNT`` where none was."""


def random_pose(rng: np.random.Generator) -> Array:
    """``(2,)`` joint angles: home, near home, or with the tip anywhere about the ring."""
    kind = rng.random()
    if kind < 0.35:
        return HOME_RAD + rng.normal(0.0, 0.01, 2)
    if kind < 0.5:
        return HOME_RAD + rng.normal(0.0, 0.1, 2)
    angle, radius = rng.uniform(0, 2 * np.pi), 0.31 * np.sqrt(rng.random())
    pose = joints_for(
        np.asarray(RING_CENTRE_M) + radius * np.array((np.cos(angle), np.sin(angle)))
    )
    return np.clip(pose, *np.transpose(LIMITS_RAD))


def write_script(rng: np.random.Generator, arms: int, steps: int) -> Script:
    """Draws a script for each arm.

    Args:
        rng: Source of all chance.
        arms: N.
        steps: T.
    """
    script = Script(
        cue_m=np.full((steps, arms, 2), np.nan),
        shown=np.zeros((steps, arms), dtype=bool),
        place_rad=np.full((steps, arms, 2), np.nan),
        bump_nm=np.zeros((steps, arms, 2)),
        frozen=np.zeros((steps, arms), dtype=bool),
        delay=rng.integers(0, 3, arms),
        side=np.ones((steps, arms)),
        memory=np.full((steps, arms), TARGET_COUNT),
    )
    for arm in range(arms):
        script.place_rad[0, arm] = random_pose(rng)
        _write_cues(rng, script, arm, steps)
        for _ in range(rng.poisson(0.8)):
            at = rng.integers(5, steps)
            script.bump_nm[at, arm] = rng.uniform(-1, 1, 2) * (45.0, 22.0)
        for _ in range(rng.poisson(2.0 * steps / 240)):
            script.place_rad[rng.integers(5, steps), arm] = random_pose(rng)
        if rng.random() < 0.3:
            begin = int(rng.integers(0, steps))
            script.frozen[begin : begin + int(rng.integers(10, steps // 2)), arm] = True
    return script


def _write_cues(rng: np.random.Generator, script: Script, arm: int, steps: int) -> None:
    ring = targets()
    at = 0 if rng.random() < 0.3 else int(rng.integers(0, 50))
    while at < steps and rng.random() < (0.88 if at < 50 else 0.6):
        length = 25 + int(rng.integers(-3, 4)) if rng.random() < 0.5 else int(rng.integers(8, 45))
        span = slice(at, min(steps, at + length))
        shown = span.stop - span.start
        target = int(rng.integers(TARGET_COUNT))
        point = ring[target] + rng.normal(0.0, CUE_NOISE_M, 2)
        visible = rng.random(shown) >= FLICKER
        script.cue_m[span, arm] = np.where(visible[:, None], point, np.nan)
        script.shown[span, arm] = True
        script.side[at:, arm] = rng.choice((-1.0, 1.0))
        script.memory[at:, arm] = target
        gap = 0 if rng.random() < 0.1 else int(rng.integers(8, 150))
        at = span.stop + gap


class Crowd:
    """N arms in lockstep.

    Attributes:
        memory: ``(T, N)`` what each arm should remember at each step; see ``Script``.
        placed: ``(T, N)`` the arm was set down elsewhere just before this step.
    """

    def __init__(self, arms: int) -> None:
        """Builds the arms.

        Args:
            arms: N.
        """
        self.arms = [Arm() for _ in range(arms)]

    def begin(self, rng: np.random.Generator, steps: int) -> None:
        """Draws new scripts, to be lived through in ``steps`` steps."""
        self._rng = rng
        self._script = write_script(rng, len(self.arms), steps)
        self.memory = self._script.memory
        self.placed = ~np.isnan(self._script.place_rad[..., 0])
        self._history: list[Array] = []
        self._goal_m = np.full((len(self.arms), 2), np.nan)
        self._now = 0

    def observe(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Lets happen what the script has for this step, and looks.

        Returns:
            Observations ``(N, 7)`` float32: positions, velocities, cue x, y, present; and the
            expert's commands ``(N, 2)`` float32, radians.
        """
        script, now = self._script, self._now
        placed = ~np.isnan(script.place_rad[now, :, 0])
        for index in np.flatnonzero(placed):
            self.arms[index].place(script.place_rad[now, index])
        for index in np.flatnonzero(np.abs(script.bump_nm[now]).sum(axis=-1)):
            self.arms[index].bump(script.bump_nm[now, index], 0.1)
        measured = np.array([np.concatenate((a.data.qpos, a.data.qvel)) for a in self.arms])
        if placed.any():
            self._history = [np.where(placed[:, None], measured, old) for old in self._history]
        self._history = [*self._history[-2:], measured]
        past = np.maximum(0, len(self._history) - 1 - script.delay)
        seen = np.stack(self._history)[past, np.arange(len(self.arms))]
        seen = seen + self._rng.standard_normal(seen.shape) * (
            NOISE_RAD,
            NOISE_RAD,
            NOISE_RAD_S,
            NOISE_RAD_S,
        )
        cue = script.cue_m[now]
        present = ~np.isnan(cue[:, :1])
        self._goal_m = np.where(present, cue, self._goal_m)
        # A step that flickers is no reason to start: the expert knows that the cue is still there.
        label = expert(seen[:, :2], self._goal_m, script.shown[now], script.side[now])
        observed = np.concatenate((seen, np.where(present, cue, 0.0), present), axis=1)
        return observed.astype(np.float32), label.astype(np.float32)

    def step(self, command_rad: Array) -> None:
        """Advances all arms by one control step.

        Args:
            command_rad: ``(N, 2)`` joint targets.
        """
        for arm, command, frozen in zip(
            self.arms, command_rad, self._script.frozen[self._now], strict=True
        ):
            if not frozen:
                arm.command(command)
            arm.step()
        self._now += 1
