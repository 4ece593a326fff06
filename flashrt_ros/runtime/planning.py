"""Plans beside the control steps: when one may begin, when it is adopted, and where it is spliced.

``PolicySession.step`` and a caller with threads of its own (``begin_plan``, ``run_plan``,
``adopt``, ``act``) go by the same rules: a plan sees the boundary and the observation with which
it began and nothing later, and rows for the control steps taken since are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashrt_ros.errors import InternalError, InvalidArgumentError, NoMemoryError
from flashrt_ros.runtime.buffers import ROWS_LENGTH, StateLayout
from flashrt_ros.runtime.device import Lane
from flashrt_ros.runtime.engine import CONSUMED
from flashrt_ros.runtime.live import Tearing
from flashrt_ros.runtime.number import check_int
from flashrt_ros.runtime.policy import PlanKind, Policy
from flashrt_ros.runtime.preview import Preview
from flashrt_ros.runtime.ticket import PlanTicket


def can_splice(policy: Policy) -> bool:
    """Whether a plan may be adopted after control steps were taken beside it."""
    beside = policy.plan_kind is PlanKind.BESIDE
    return beside and any(spec.name == CONSUMED for spec in policy.layout())


@dataclass(frozen=True)
class Turn:
    """What ``step`` does with plans at one boundary, in this order.

    Attributes:
        joins: The plan under way, if its turn to be adopted has come.
        at_once: A plan is made and adopted before anything is taken.
        begins: A plan begins, to be adopted later.
        late: Control steps that will be taken before it is.
    """

    joins: PlanTicket | None = None
    at_once: bool = False
    begins: bool = False
    late: int = 0

    @property
    def commits(self) -> bool:
        """Whether a plan is adopted."""
        return self.joins is not None or self.at_once

    @property
    def plans(self) -> bool:
        """Whether a plan sees the observations."""
        return self.at_once or self.begins


class Planning(Preview):
    """Plans of one session."""

    layout: StateLayout
    # The plan that ``step`` began and has not adopted.
    _waiting: PlanTicket | None = None

    @property
    def rows_left(self) -> int:
        """Rows of the present chunk still to be taken; 0 without plans.

        Raises:
            NotConfiguredError: The session is closed.
        """
        self._check_open()
        if self.policy.plan_kind is PlanKind.NONE:
            return 0
        return max(0, self.host.length - self.host.cursor)

    @property
    def plan_due(self) -> bool:
        """True if ``act`` has no rows left to take, so that a plan must be adopted first.

        Raises:
            NotConfiguredError: The session is closed.
        """
        return self.rows_left == 0 and self.policy.plan_kind is not PlanKind.NONE

    def begin_plan(self, observations: Mapping[str, object], delay: int = 0) -> PlanTicket:
        """Begins a plan that runs beside the control thread; it overtakes an unfinished one.

        Args:
            observations: As in ``step``.
            delay: Control steps that will probably be taken before it is adopted, for policies
                that have a ``plan.delay`` buffer.

        Raises:
            NotConfiguredError: The session is closed.
            InvalidArgumentError: The policy's plans do not run beside, or the delay is negative.
            SpecError: As in ``step``.
            InternalError: An earlier step failed half-way.
        """
        self._check_whole("begin_plan")
        self._check_beside()
        delay = check_int("delay", delay, 0)
        checked = self._engine.check(observations)
        with self.device.bind(Lane.CONTROL):
            self._engine.write_inputs(checked)
            return self._begin(delay)

    def run_plan(self, ticket: PlanTicket) -> None:
        """Runs the plan into the outputs and waits for it; meant for the planner thread.

        A ticket that was overtaken is not run.

        Raises:
            NotConfiguredError: The session is closed.
        """
        self._check_open()
        if self._stands(ticket):
            self._engine.run_plan_beside()
            ticket.done = True

    def adopt(self, ticket: PlanTicket) -> bool:
        """Commits a planned chunk at this boundary.

        Returns:
            False, and nothing has changed, if the plan has not run, a newer one was begun, a
            restore, rollback or reset came between, or time has passed over the chunk: over all of
            it, or over any of it where the policy has no ``plan.consumed`` buffer.

        Raises:
            NotConfiguredError: The session is closed.
            InvalidArgumentError: The policy's plans do not run beside.
            NoMemoryError: As in ``step``.
            InternalError: An earlier step failed half-way.
        """
        self._check_whole("adopt")
        self._check_beside()
        consumed = self.host.step - ticket.step
        reach = self.policy.chunk_size if CONSUMED in self.arena.inputs else 1
        if not (self._stands(ticket) and ticket.done) or consumed >= reach:
            return False
        if self.layout.capacity:
            self._check_room("adopt", 0, True)
        with self.device.bind(Lane.CONTROL), Tearing(self, "the adoption of a plan failed"):
            self._offer_boundary()
            self._join(consumed)
            if self.policy.rows_per_plan:
                self._count_rows(self._engine.read_rows(), self.policy.rows_per_plan)
        self._tickets += 1
        return True

    def _begin(self, delay: int) -> PlanTicket:
        """Begins a plan on the inputs as they are; the control lane is bound."""
        self._engine.begin_plan(delay)
        self._tickets += 1
        self._begun = PlanTicket(self.generation, self.host.step, self._tickets)
        return self._begun

    def _join(self, consumed: int) -> None:
        """Adopts what was planned; ``_offer_boundary`` came before, the control lane is bound."""
        self._engine.adopt(consumed)
        self._book_boundary()
        host, policy = self.host, self.policy
        host.cursor = consumed
        host.length = min(consumed + policy.n_action_steps, policy.chunk_size)
        host.chunk += 1

    # What ``step`` does

    def _turn(self, delay: int, plan_ahead: int | None) -> Turn:
        """Decides; nothing changes.

        Raises:
            InvalidArgumentError: See ``step``.
        """
        if not delay and not plan_ahead and self._waiting is None:
            return Turn(at_once=self.plan_due)
        delay = check_int("delay", delay, 0)
        ahead = delay if plan_ahead is None else check_int("plan_ahead", plan_ahead, 0)
        if (delay or ahead) and not can_splice(self.policy):
            raise InvalidArgumentError(
                f"policy {self.policy.family!r}: with a delay or plan_ahead expected plans that"
                f" run beside, and a buffer {CONSUMED!r}, without which none can be spliced"
            )
        if delay >= self.policy.chunk_size:
            raise InvalidArgumentError(
                f"delay: expected less than chunk_size ({self.policy.chunk_size}), since nothing"
                f" would be left of a chunk, found {delay}"
            )
        left, waiting = self.rows_left, self._waiting
        if waiting is not None and not self._stands(waiting):
            waiting = self._waiting = None
        consumed = 0
        if waiting is not None:
            consumed = self.host.step - waiting.step
            if consumed < delay and left:
                return Turn()
        at_once = waiting is None and (left == 0 or (delay == 0 and left <= ahead))
        if waiting is not None or at_once:
            left = min(self.policy.n_action_steps, self.policy.chunk_size - consumed)
        # Without a delay the next plan would be adopted at once, too: one a boundary.
        return Turn(waiting, at_once, delay > 0 and left <= ahead, min(delay, left))

    def _take_turn(self, turn: Turn) -> None:
        """Carries it out: inputs are written, the boundary is offered, the lane is bound."""
        if turn.joins is not None:
            self._join(self.host.step - turn.joins.step)
            self._tickets += 1
            self._waiting = None
        if turn.at_once:
            if self._engine.beside:
                self._begin(0)
            self._engine.run_plan()
            self._join(0)
            self._tickets += self._engine.beside
        if turn.begins:
            # Its outputs stay as they are until it is adopted: acts write none of them.
            self._waiting = self._begin(turn.late)
            self._engine.run_plan()

    # Rows

    def _check_room(self, verb: str, acts: int, plans: bool) -> None:
        rows, capacity = self.host.rows, self.layout.capacity
        needed = acts + (self.policy.rows_per_plan if plans else 0)
        if rows + needed > capacity:
            raise NoMemoryError(
                f"{verb}: expected room for {needed} more rows, found {rows} of {capacity} in use;"
                f" nothing was run: reset, restore or roll back, or {self.policy.room_words}"
            )

    def _count_rows(self, rows: int, most: int) -> None:
        if not 0 <= rows - self.host.rows <= most:
            raise InternalError(
                f"policy {self.policy.family!r}: expected {ROWS_LENGTH!r} to rise by 0 to {most}"
                f" rows, found {self.host.rows} before and {rows} after"
            )
        self.host.rows = rows

    def _check_beside(self) -> None:
        if not self._engine.beside:
            raise InvalidArgumentError(
                f"policy {self.policy.family!r}: expected plans that run beside, found plan kind"
                f" {self.policy.plan_kind.value!r}; use step"
            )
