"""The thread that runs plans beside the control thread, one at a time."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

import torch

from flashrt_ros.errors import InternalError
from flashrt_ros.ros.worker import Report, Worker, ignore


class PlanningSession(Protocol):
    """What the planner needs of a session."""

    def run_plan(self, ticket: Any) -> None:
        """Replays the plan into outputs only."""


class Planner:
    """Runs ``PlanKind.BESIDE`` plans; the control thread begins and adopts them.

    Attributes:
        took_ns: How long the last plan took; 0 before the first.
    """

    def __init__(
        self, session: PlanningSession, torch_threads: int = 1, report: Report = ignore
    ) -> None:
        """Starts the thread.

        Args:
            session: Whose plans are run.
            torch_threads: Of this thread's torch operators.
            report: Told of a failure of the thread, which then begins again.
        """
        self.took_ns = 0
        self._session = session
        self._torch_threads = torch_threads
        self._condition = threading.Condition()
        self._ticket: Any = None
        self._begun_ns = 0
        self._running = False
        self._error: BaseException | None = None
        self._closed = False
        self._report = report
        self._worker = Worker("planner", self._run, self._lost)

    @property
    def busy(self) -> bool:
        """True while a plan runs, wanted or not."""
        with self._condition:
            return self._running

    @property
    def occupied(self) -> bool:
        """True while a plan runs, or one was begun and not taken: another one has to wait."""
        with self._condition:
            return self._running or self._ticket is not None

    @property
    def ticket(self) -> Any:
        """The plan begun last and not yet taken; None if there is none."""
        return self._ticket

    @property
    def begun_ns(self) -> int:
        """Steady clock, when ``ticket`` was begun."""
        return self._begun_ns

    def begin(self, ticket: Any, now_ns: int) -> None:
        """Hands a plan to the thread; the one before must have been taken or dropped.

        A plan that was dropped may still run; the thread comes to this one after it.
        """
        with self._condition:
            self._ticket = ticket
            self._begun_ns = now_ns
            self._error = None
            self._running = True
            self._condition.notify()

    def take(self) -> Any:
        """The finished plan, once; None while there is none.

        Raises:
            InternalError: The thread was lost with the plan, or the plan wanted to end it.
            Exception: What the plan raised.
        """
        with self._condition:
            if self._ticket is None or self._running:
                return None
            ticket, self._ticket = self._ticket, None
            if self._error is not None:
                error, self._error = self._error, None
                if not isinstance(error, Exception):
                    # Such as SystemExit: whoever takes the plan must not end by it.
                    raise InternalError(f"the planner thread met {error!r}") from error
                raise error
            return ticket

    def drop(self) -> None:
        """Forgets the plan under way; its result will not be taken."""
        with self._condition:
            self._ticket = None
            self._error = None

    def close(self, timeout_s: float = 5.0) -> bool:
        """Ends the thread after the plan under way; False if that takes too long."""
        with self._condition:
            self._closed = True
            self._ticket = None
            self._condition.notify()
        return self._worker.close(timeout_s)

    def _lost(self, name: str, error: BaseException) -> None:
        """The plan under way is lost with the thread; whoever takes it is told."""
        with self._condition:
            self._running = False
            if self._ticket is not None:
                self._error = error
        self._report(name, error)

    def _run(self) -> None:
        torch.set_num_threads(self._torch_threads)
        while True:
            with self._condition:
                while self._ticket is None or not self._running:
                    if self._closed:
                        return
                    self._running = False
                    self._condition.wait()
                ticket = self._ticket
            error: BaseException | None = None
            begun_ns = time.monotonic_ns()
            try:
                self._session.run_plan(ticket)
            except BaseException as raised:
                error = raised
            self.took_ns = time.monotonic_ns() - begun_ns
            with self._condition:
                # Another one was begun meanwhile: this one was dropped, so is its error.
                if self._ticket is ticket or self._ticket is None:
                    self._running = False
                    self._error = error if self._ticket is ticket else None
