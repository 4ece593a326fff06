"""What is published between two commands: from the control rate up to that of a controller.

Nothing is extrapolated. A sample lies between commands that have been given, within their limits,
and moves from the sample before it by no more than its share of ``max_step``. That costs time: a
command is reached one control period after it was given (``linear``) or two (``cubic``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.pose import POSITION, ROTATION, angle, between, turn
from flashrt_ros.contract.schema import Output

Values = npt.NDArray[np.float64]

LATENCY_PERIODS = {"hold": 0, "linear": 1, "cubic": 2}
"""Control periods from a command to the sample that equals it."""
SPARE_PERIODS = 1
"""For how long samples go on after the last command was reached: the jitter of a control thread.
Then there is silence, as without interpolation: who hangs must not look alive."""


class Interpolator:
    """Samples of one output; the caller holds the lock.

    ``cubic`` is the monotone spline of Fritsch and Butland (1984): its slopes are harmonic means
    of those of the chords, and zero where these change sign, so that no sample lies beyond the
    commands around it.
    """

    def __init__(self, output: Output, period_s: float) -> None:
        """Begins at rest.

        Args:
            output: With a ``publish_rate_hz``.
            period_s: Of the control loop.
        """
        self.output = output
        self._period_ns = round(period_s * 1e9)
        names = POSITION if output.is_pose else output.names
        self._step = np.array([output.max_step.get(name, np.inf) for name in names])
        self._turn = output.max_step.get(ROTATION, np.inf)
        self._out: Values | None = None
        self._out_ns = self._begun_ns = 0
        # From where to where, with slopes per period, and what comes after that.
        self._a = self._b = self._slope_a = self._slope_b = np.empty(0)
        self._next: Values | None = None
        self._given = np.empty(0)

    @property
    def latency_s(self) -> float:
        """From a command to the sample that equals it."""
        return LATENCY_PERIODS[self.output.interpolation] * self._period_ns / 1e9

    @property
    def place(self) -> Values | None:
        """The last sample; before the first one, where the way begins; None at rest."""
        return self._out

    def aim(self, values: Values, now_ns: int, rest: Values | None = None) -> None:
        """Takes a command.

        Args:
            values: See ``output.Commands``.
            now_ns: Steady clock.
            rest: Where the way begins if there is none yet; NaN or None: at ``values``.
        """
        if self._out is None:
            known = np.full(len(values), np.nan) if rest is None else rest
            whole = bool(np.isfinite(known).all())
            if self.output.is_pose:
                self._out = known.copy() if whole else values.copy()
            else:
                self._out = np.where(np.isfinite(known), known, values)
            self._out_ns = now_ns
            self._given = self._a = self._b = self._out
            self._begun_ns, self._next = now_ns, None
            self._slope_a = self._slope_b = np.zeros(len(values))
        # Where the way has come to by now, not where the last sample was: no stutter at each step.
        self._a, _ = self._now(self._out, now_ns)
        self._begun_ns = now_ns
        if self.output.interpolation == "cubic":
            chord = self._given - self._a
            self._slope_a = _monotone(self._slope_b, chord)
            self._slope_b = _mean_slope(chord, values - self._given)
            self._b, self._next = self._given, values.copy()
        else:
            self._b, self._next = values.copy(), None
        self._given = values.copy()

    def jump(self, values: Values, now_ns: int) -> None:
        """Is at ``values`` at once."""
        self._out = None
        self.aim(values, now_ns, values)

    def cut(self) -> Values | None:
        """Comes to rest; returns ``place``."""
        place, self._out = self._out, None
        return place

    def sample(self, now_ns: int) -> Values | None:
        """What to publish now, steady clock; None at rest and when commands have ceased."""
        if self._out is None:
            return None
        values, share = self._now(self._out, now_ns)
        if share > 1.0 + SPARE_PERIODS:
            return None
        self._out, self._out_ns = values, now_ns
        return values

    def _now(self, last: Values, now_ns: int) -> tuple[Values, float]:
        """Where the way leads now, ``last`` being the last sample, and the share of it so far."""
        share = (now_ns - self._begun_ns) / self._period_ns
        if share > 1.0 and self._next is not None:
            # No new command in time: on to the last one, and rest there.
            self._a, self._b, self._next = self._b, self._next, None
            self._slope_a = _monotone(self._slope_b, self._b - self._a)
            self._slope_b = np.zeros(len(self._b))
            self._begun_ns += self._period_ns
            share -= 1.0
        wanted = self._at(min(max(share, 0.0), 1.0))
        if self.output.interpolation != "hold":
            part = min((now_ns - self._out_ns) / self._period_ns, 1.0)
            wanted = self._near(last, wanted, max(part, 0.0))
        return wanted, share

    def _at(self, share: float) -> Values:
        a, b, s = self._a, self._b, share
        if self.output.interpolation == "hold" or s == 1.0:
            return b
        if self.output.is_pose:
            return between(a, b, s)
        if self.output.interpolation == "linear":
            return np.asarray(a + s * (b - a))
        rise = s * s * (3.0 - 2.0 * s)
        bend = s * (1.0 - s) * ((1.0 - s) * self._slope_a - s * self._slope_b)
        # Rounding may leave the way by a bit in the last place.
        return np.clip(a + rise * (b - a) + bend, np.minimum(a, b), np.maximum(a, b))

    def _near(self, last: Values, wanted: Values, part: float) -> Values:
        """``wanted``, but no farther from ``last`` than ``part`` of a control period allows."""
        step = self._step * part
        if not self.output.is_pose:
            return np.clip(wanted, last - step, last + step)
        position = np.clip(wanted[:3], last[:3] - step, last[:3] + step)
        far = angle(last[3:], wanted[3:])
        most = self._turn * part
        rotation = wanted[3:] if far <= most else turn(last[3:], wanted[3:], most / far)
        return np.concatenate([position, rotation])


def _mean_slope(before: Values, after: Values) -> Values:
    """Slope at a command, between the chords before and after it."""
    product = before * after
    total = before + after
    same = product > 0.0
    return np.where(same, 2.0 * product / np.where(same, total, 1.0), 0.0)


def _monotone(slope: Values, chord: Values) -> Values:
    """A slope with which the curve along ``chord`` does not turn back (Fritsch and Carlson)."""
    same = slope * chord > 0.0
    return np.where(same, np.sign(chord) * np.minimum(np.abs(slope), 3.0 * np.abs(chord)), 0.0)
