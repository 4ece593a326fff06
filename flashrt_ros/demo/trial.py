"""Trials of the cue-reach task: what is drawn for an episode, and who judges it."""

from __future__ import annotations

import argparse
import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from flashrt_ros.demo.arm import CONTROL_HZ, tip_of
from flashrt_ros.demo.task import TARGET_COUNT, TOLERANCE_M, targets

Array = npt.NDArray[np.float64]

DWELL_S = 0.2
"""How long the tip must stay at a target without a break."""
TIME_LIMIT_S = 1.6
"""From the moment when the policy may move the arm; the expert needs 0.6 s. This and what follows
is the policy's time: so many seconds of its control steps."""
BUMP_S = 0.1


class Way(enum.Enum):
    """How an episode goes on after the retreat; the value is the word in tables."""

    RESTORE = "restore"
    """The capsule taken when the true cue had been seen becomes the live state."""
    RESET = "reset"
    """A plain reset: the memory is lost."""
    AS_IT_IS = "as it is"
    """Nothing: the memory is spoilt by the false cue."""


@dataclass(frozen=True)
class Trial:
    """What chance decides about one episode; the same for each way to go on.

    Attributes:
        target: Index of the true target.
        false_target: Index of another one, that of the false cue.
        bump_nm: Torques on the two joints for ``BUMP_S``.
        bump_after_s: From the snapshot to the bump, in the policy's time.
        seed: Noise key of the policy.
    """

    target: int
    false_target: int
    bump_nm: tuple[float, float]
    bump_after_s: float
    seed: int

    @property
    def target_m(self) -> Array:
        """``(2,)`` x and y, metres."""
        return np.asarray(targets()[self.target])

    @property
    def false_target_m(self) -> Array:
        """``(2,)`` x and y, metres."""
        return np.asarray(targets()[self.false_target])


def draw_trials(seed: int, count: int) -> list[Trial]:
    """Draws trials; the true target goes round, so that eight trials have all of them.

    Args:
        seed: The first ``n`` trials of a seed are the same for every count of at least ``n``.
        count: How many.
    """
    trials = []
    for index in range(count):
        rng = np.random.default_rng((seed, index))
        # Three steps a turn visit all eight, and the first four lie on all sides.
        target = (3 * index) % TARGET_COUNT
        false_target = (target + int(rng.integers(1, TARGET_COUNT))) % TARGET_COUNT
        bump = (rng.choice((-1, 1)) * rng.uniform(35, 50), rng.uniform(-15, 15))
        after = float(rng.uniform(0.1, 0.2))
        key = int(rng.integers(1, 2**31))
        trials.append(Trial(target, false_target, bump, after, key))
    return trials


@dataclass
class Judge:
    """Decides whether a target was reached, from measured joint positions.

    Attributes:
        target_m: ``(2,)`` the true target.
        dwell_s: How long the tip must stay within the tolerance.
        inside_s: How long it has been there without a break.
        nearest_m: Smallest distance seen.
    """

    target_m: Array
    dwell_s: float = DWELL_S
    inside_s: float = 0.0
    nearest_m: float = field(default=float("inf"))

    def see(self, position_rad: npt.ArrayLike, passed_s: float = 1.0 / CONTROL_HZ) -> bool:
        """Takes one measurement.

        Args:
            position_rad: ``(2,)`` measured joint angles.
            passed_s: Time since the measurement before.

        Returns:
            Whether the target has been reached and kept for the dwell time.
        """
        distance = float(np.hypot(*(tip_of(position_rad) - self.target_m)))
        self.nearest_m = min(self.nearest_m, distance)
        self.inside_s = self.inside_s + passed_s if distance <= TOLERANCE_M else 0.0
        return self.inside_s >= self.dwell_s - 1e-9


def episodes(text: str) -> int:
    """A number of episodes, as a command line says it.

    Raises:
        ArgumentTypeError: It is none, or below one.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, found {text!r}")
    return int(text)


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a proportion (E. B. Wilson, 1927).

    Args:
        successes: At most ``trials``.
        trials: Zero gives the whole interval from 0 to 1.
        z: Quantile of the normal distribution; 1.96 for 95 %.

    Returns:
        Lower and upper bound, from 0 to 1.
    """
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    spread = z * ((rate * (1 - rate) + z * z / (4 * trials)) / trials) ** 0.5
    centre, scale = rate + z * z / (2 * trials), 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
