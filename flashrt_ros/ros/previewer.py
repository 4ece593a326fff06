"""``~/preview`` branch by branch between control periods, so that no control step waits for it."""

from __future__ import annotations

import collections
import statistics
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flashrt_ros.errors import BusyError, FlashRTError
from flashrt_ros.ros.motion import Motion
from flashrt_ros.ros.records import ChunkRecord, Outlet, PreviewRecord
from flashrt_ros.ros.verbs import Verb, done, refusal

REMEMBERED = 8
"""Branches whose times say how long the next one takes."""
MARGIN = 1.5
"""Times what they took as a rule: a branch must be done before the next control period."""
PATIENCE = 10
"""Control periods that may pass without room for a branch."""
PLANS = 4
"""Plans beside that may come before a branch."""
RETRY_S = 0.005
"""How often the thread looks whether a branch may run while it waits for something else."""


class Previewer:
    """The one preview that may be under way; used by the control thread alone."""

    def __init__(
        self,
        session: Any,
        motion: Motion,
        outlet: Outlet,
        period_s: float,
        names: Sequence[str],
        clock_ns: Callable[[], int],
        plan_ns: Callable[[], int],
        forget_plan: Callable[[], None],
    ) -> None:
        """Begins without one.

        Args:
            session: A ``PolicySession``.
            motion: Says whether the arm is to move.
            outlet: For the log and the ROS clock.
            period_s: Length of a control period.
            names: Elements of the action.
            clock_ns: Steady clock.
            plan_ns: How long a plan of the live state takes, as far as is known.
            forget_plan: Drops the plan that runs beside.
        """
        self._session = session
        self._motion = motion
        self._outlet = outlet
        self._period_ns = round(period_s * 1e9)
        self._names = names
        self._clock_ns = clock_ns
        self._plan_ns = plan_ns
        self._forget_plan = forget_plan
        self._took_ns: collections.deque[int] = collections.deque(maxlen=REMEMBERED)
        # Periods that had no room since the last branch, and the one that was looked at last.
        self._without_room = 0
        self._looked_at_ns = 0
        # Plans beside that came first since the last branch, and the number of the last.
        self._plans = self._plan = 0
        self._verb: Verb | None = None
        self._run: Any = None
        self._records: list[PreviewRecord] = []

    @property
    def waiting(self) -> bool:
        """True while branches are to be run."""
        return self._verb is not None

    def require_none(self) -> None:
        """Raises BusyError if one is under way."""
        if self._verb is not None and self._verb.result is None:
            raise BusyError(
                f"preview: another ~/preview is under way, {self._run.left} branches of it are to"
                " be run; expected none; wait for its answer"
            )

    def begin(self, verb: Verb, run: Any) -> None:
        """Takes charge of ``verb`` and of ``run``, a ``PreviewRun``; after ``require_none``."""
        self._give_up()
        self._verb, self._run, self._records = verb, run, []

    def turn(self, now_ns: int, deadline_ns: int | None) -> bool:
        """Runs one branch, if it may run now.

        Args:
            now_ns: Steady clock.
            deadline_ns: When the next control period begins; None: there is none.

        Returns:
            False if nothing was done, and it is to be tried again later.
        """
        verb = self._verb
        if verb is None:
            return False
        if verb.result is not None:
            self._give_up()
            return True
        try:
            if deadline_ns is not None:
                fits = self._fits(deadline_ns - now_ns)
                # The first look at a period is the best: right after its control step.
                if fits or deadline_ns != self._looked_at_ns:
                    self._without_room = 0 if fits else self._without_room + 1
                    self._looked_at_ns = deadline_ns
                if not fits:
                    return False
            chunk = self._run.run_next()
        except _TooLong as error:
            self.end(error)
            return True
        except BusyError:
            return self._come_second()
        except FlashRTError as error:
            self.end(error)
            return True
        except Exception as error:
            self._outlet.log("error", f"preview:\n{traceback.format_exc()}")
            self.end(error)
            return True
        self._took_ns.append(self._clock_ns() - now_ns)
        self._plans = 0
        self._keep(chunk)
        if not self._run.left:
            self._finish()
        return True

    def _come_second(self) -> bool:
        """A plan that runs beside comes first; False if the branch may still run later."""
        if not self._motion.wants_to_move:
            # Nobody will adopt it: what moves next is planned from what is seen then.
            self._forget_plan()
            return False
        number = self._session.plan_number
        self._plans += number != self._plan
        self._plan = number
        if self._plans <= PLANS:
            return False
        self.end(
            BusyError(
                f"preview: {PLANS} plans beside came before a branch, one right after the other;"
                " expected a control step without one; call ~/pause first, or let chunks last"
                " longer: a larger n_action_steps, or a smaller plan_ahead"
            )
        )
        return True

    def _give_up(self) -> None:
        """Ends what had its answer: its time was up. A retry with the same id begins anew."""
        self.end(BusyError("preview: given up, since its time was up; ask again"))

    def _fits(self, left_ns: int) -> bool:
        """Whether a branch is expected to be done before the next control period.

        Raises:
            BusyError: It never will be, and the arm is to move.
        """
        known_ns = self._plan_ns()
        if self._took_ns:
            known_ns = round(statistics.median(self._took_ns))
        needed_ns = round(MARGIN * known_ns)
        if not self._took_ns:
            # The first one may take longer than a plan of the live state does.
            needed_ns = max(needed_ns, self._period_ns // 2)
        if needed_ns <= left_ns:
            return True
        if needed_ns < self._period_ns and self._without_room < PATIENCE:
            return False  # in a later period, right after its control step
        if not self._motion.wants_to_move:
            return True
        if self._took_ns:
            self._took_ns.popleft()  # so that one slow branch does not count for good
        raise _TooLong(
            f"preview: a branch takes {known_ns / 1e6:.1f} ms, and control periods of"
            f" {self._period_ns / 1e6:.1f} ms leave no room for it while the arm moves; call"
            " ~/pause first"
        )

    def _keep(self, chunk: Any) -> None:
        rows_HA = chunk.actions_HA.numpy().astype(np.float64)
        record = ChunkRecord(
            self._session.generation,
            chunk.chunk,
            self._period_ns / 1e9,
            self._names,
            rows_HA,
            chunk.name,
        )
        self._records.append(PreviewRecord(record, self._outlet.stamp_ns()))

    def _finish(self) -> None:
        verb, records = self._verb, self._records
        self._drop()
        assert verb is not None
        names = ", ".join(repr(record.chunk.capsule) for record in records if record.chunk.capsule)
        what = f"{len(records)} branches: {names}" if names else "the live state"
        verb.answer(done(f"preview of {what}; the live state is as it was", chunks=records))

    def end(self, error: BaseException) -> None:
        """Answers with ``error``, if one is under way."""
        verb = self._verb
        self._drop()
        if verb is not None:
            verb.answer(refusal(error))

    def _drop(self) -> None:
        run, self._verb, self._run, self._records = self._run, None, None, []
        self._without_room = self._plans = 0
        if run is not None:
            run.close()


class _TooLong(BusyError):
    """A branch would keep the control thread for longer than a period."""
