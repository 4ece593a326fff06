"""A thread of ours that does not end unnoticed, and what diagnostics say of those that failed.

Each thread guards the work that is expected to fail: a message, a plan, a verb, a file. What gets
past that is a fault of ours, or a ``SystemExit`` of a policy. Python would print it and let the
thread end, and the node would go on without.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from flashrt_ros.ros.motion import Motion
from flashrt_ros.ros.records import Outlet

Report = Callable[[str, BaseException], None]
"""Called in the thread that failed, with its name and what it raised."""
FIRST_REST_S = 0.05
LONGEST_REST_S = 5.0
"""Before a thread that fails over and over begins again: it must not take the machine's time."""
FRESH_NS = 60_000_000_000
"""So long a failure is an error in diagnostics, and a warning from then on."""


def ignore(name: str, error: BaseException) -> None:
    """Reports nothing."""


class Worker:
    """Runs ``work`` in a thread, and again whenever it raises, until ``close``."""

    def __init__(self, name: str, work: Callable[[], None], report: Report = ignore) -> None:
        """Starts the thread.

        Args:
            name: Of the thread.
            work: Returns when it was told to end.
            report: What is to be done about a failure, before the work begins again.
        """
        self._work = work
        self._report = report
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True until the thread has ended."""
        return self._thread.is_alive()

    def close(self, timeout_s: float) -> bool:
        """Waits for the end of a work that was told to end; False if it takes longer."""
        self._closing.set()
        self._thread.join(max(0.0, timeout_s))
        return not self.alive

    def _run(self) -> None:
        rest_s = FIRST_REST_S
        while True:
            begun_s = time.monotonic()
            try:
                self._work()
                return
            except BaseException as error:
                self._tell(error)
            if time.monotonic() - begun_s > LONGEST_REST_S:
                rest_s = FIRST_REST_S
            if self._closing.wait(rest_s):
                return
            rest_s = min(2 * rest_s, LONGEST_REST_S)

    def _tell(self, error: BaseException) -> None:
        try:
            self._report(self._thread.name, error)
        except BaseException:
            # The last resort: not even the report may end the thread.
            traceback.print_exc()


@dataclass
class Loss:
    """Failures of one thread.

    Attributes:
        count: How many since configure.
        at_ns: Steady clock, of the last one.
        words: What the last one raised.
    """

    count: int
    at_ns: int
    words: str


class Losses:
    """Which threads have failed since configure; noted in any thread, read in callbacks."""

    def __init__(
        self,
        outlet: Outlet,
        motion: Motion,
        halt: Callable[[], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Begins without any.

        Args:
            outlet: For the log, and to have diagnostics published.
            motion: Held where a lost thread makes input doubtful.
            halt: Sends the stop message; called under the lock of ``motion``.
            clock_ns: Steady clock.
        """
        self._outlet = outlet
        self._motion = motion
        self._halt = halt
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._by_thread: dict[str, Loss] = {}

    def failed(self, name: str, error: BaseException) -> None:
        """Takes down a failure and its consequences, see ``Report``.

        The control thread does not begin again, see ``Control.lost``. A lost plan raises where the
        control thread takes it. Storage and replies have nothing to do with motion.
        """
        then = "it runs again"
        if name == "control":
            then = "the stop message was sent; the node is cleaned up"
            self._stand_still(name, error, "configure the node again")
        elif name == "intake" and self._motion.active:
            # What it had in hand is lost, and how it came to that is not known.
            then += "; the robot holds until ~/resume"
            self._stand_still(name, error, "call ~/resume to go on")
        self._note(name, error, then)

    def _stand_still(self, name: str, error: BaseException, cure: str) -> None:
        with self._motion.lock:
            self._motion.hold(f"the {name} thread failed: {type(error).__name__}: {error}; {cure}")
            self._halt()

    def _note(self, name: str, error: BaseException, then: str) -> None:
        words = f"the {name} thread failed: {type(error).__name__}: {error}"
        with self._lock:
            known = self._by_thread.get(name)
            count = known.count + 1 if known is not None else 1
            self._by_thread[name] = Loss(count, self._clock_ns(), f"{words}; {then}")
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self._outlet.log("error", f"{words}; {then}\n{lines}")
        self._outlet.fault()

    def clear(self) -> None:
        """Forgets all, at configure."""
        with self._lock:
            self._by_thread.clear()

    def found(self) -> dict[str, tuple[bool, Loss]]:
        """By name of the thread: whether its last failure is fresh, and what is known of it."""
        now_ns = self._clock_ns()
        with self._lock:
            return {
                name: (now_ns - loss.at_ns < FRESH_NS, loss)
                for name, loss in self._by_thread.items()
            }
