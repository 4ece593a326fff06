"""How late plans beside the control steps are, and so how early the next one has to begin."""

from __future__ import annotations

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.ros.timing import Ring
from flashrt_ros.runtime.planning import can_splice
from flashrt_ros.runtime.policy import Policy

AUTOMATIC = -1
"""``plan_ahead``: as many rows as plans have taken control periods lately, and a margin."""
WINDOW = 64
"""Plans that are remembered."""


class PlanTiming:
    """Delays of plans; written by the control thread, read by callbacks.

    Attributes:
        delay_periods: Control periods from the beginning of a plan to its adoption.
        took_ms: How long plans ran.
        rows_left: Rows of the old chunk with which plans began.
        adopted: Plans adopted.
        discarded: Plans that came to an end and were not adopted.
        late: Control periods without an action, since a plan was not done when its chunk was used
            up.
    """

    def __init__(self, policy: Policy, period_s: float, plan_ahead: int = 0) -> None:
        """Begins without figures.

        Args:
            policy: Whose plans they are.
            period_s: Length of a control period.
            plan_ahead: Rows left of a chunk with which the next plan begins, or ``AUTOMATIC``.

        Raises:
            InvalidArgumentError: Rows are asked for, and the policy cannot splice.
        """
        splices = can_splice(policy)
        if plan_ahead > 0 and not splices:
            raise InvalidArgumentError(
                f"plan_ahead: expected 0 or {AUTOMATIC}, found {plan_ahead}: plans of this policy"
                " do not run beside control steps, or cannot be adopted once one was taken"
            )
        self.delay_periods = Ring(WINDOW)
        self.took_ms = Ring(WINDOW)
        self.rows_left = Ring(WINDOW)
        self.adopted = self.discarded = self.late = 0
        self._period_ns = round(period_s * 1e9)
        self._plan_ahead = plan_ahead if splices else 0
        self._most = policy.chunk_size - 1
        self._begun_ns = 0
        self._cold = True
        # Of a cold plan: better than nothing until there is another one.
        self._guess = 0

    @property
    def inference_delay(self) -> int:
        """Control periods that a plan may take: the most of the last ones; 0 before the first."""
        if not len(self.delay_periods):
            return self._guess
        return round(self.delay_periods.percentiles(100)[0])

    @property
    def needed(self) -> int:
        """Rows that should be left when a plan begins, so that no control step waits for it.

        One and a quarter more than the slowest of the last plans needed: the next one may be
        slower still, and a plan that begins early costs nothing but its own time.
        """
        delay = self.inference_delay
        return min(delay + 1 + delay // 4, self._most) if delay else 0

    @property
    def plan_ahead(self) -> int:
        """Rows left of a chunk with which the next plan begins."""
        return self.needed if self._plan_ahead == AUTOMATIC else self._plan_ahead

    def begin(self, now_ns: int, rows_left: int, cold: bool) -> int:
        """A plan begins.

        Args:
            now_ns: Steady clock, begin of the control period.
            rows_left: Of the present chunk.
            cold: The arm stood still before: what the plan takes says little of those that follow,
                since clocks of a GPU have gone down and caches are lost.

        Returns:
            Control steps that will probably be taken before it is adopted.
        """
        self._begun_ns = now_ns
        self._cold = cold or not self.adopted
        if rows_left:
            self.rows_left.add(rows_left)
        return min(self.inference_delay, rows_left)

    def end(self, now_ns: int, took_ns: int, adopted: bool) -> None:
        """The plan begun last was done at this boundary.

        Args:
            now_ns: Steady clock, begin of the control period.
            took_ns: How long it ran.
            adopted: Whether it was adopted.
        """
        if not adopted:
            self.discarded += 1
            return
        self.adopted += 1
        delay = round((now_ns - self._begun_ns) / self._period_ns)
        if self._cold:
            self._guess = delay
        else:
            self.delay_periods.add(delay)
            self.took_ms.add(took_ns / 1e6)

    def budget(self) -> str:
        """What plans had and what they took, in words."""
        rows = self.rows_left.percentiles(50)[0] if len(self.rows_left) else 0.0
        period_ms = self._period_ns / 1e6
        p50, p99 = self.took_ms.percentiles(50, 99)
        return (
            f"{rows:.0f} chunk rows left x {period_ms:g} ms = {rows * period_ms:g} ms, against"
            f" plan latency p50 {p50:.1f} ms, p99 {p99:.1f} ms"
        )
