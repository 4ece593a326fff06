"""Watches the control thread from another one, by the steady clock.

A policy may hang in a library or on a device; the control thread then neither acts nor says so,
and the arm follows what was sent last. What the contract declares for a missing action must happen
all the same, and somebody must say why. What no thread of ours can help is a call that keeps
Python's interpreter for itself: DDS liveliness ``manual_by_topic`` tells a controller of that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from flashrt_ros.ros.commander import Commander
from flashrt_ros.ros.motion import Motion
from flashrt_ros.ros.records import Outlet
from flashrt_ros.ros.worker import Report, Worker, ignore

SHORTEST_S = 0.002
"""Between two looks, however fast the control loop is."""


class Watched(Protocol):
    """What is watched: ``Control``."""

    @property
    def last_tick_ns(self) -> int:
        """Steady clock, begin of the last control period; 0: none since the activation."""


class Settings(Protocol):
    """Parameters by name."""

    def __getitem__(self, name: str) -> Any:
        """Value of a parameter."""


class Watchdog:
    """Does in place of a control thread that is late what ``on_miss`` says, then stops the arm.

    Attributes:
        barks: How often the control thread was found late.
        late_ms: How late it was found at most.
    """

    def __init__(
        self,
        commander: Commander,
        motion: Motion,
        outlet: Outlet,
        watched: Watched,
        tell: Callable[[], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Prepares it; ``start`` begins a thread, ``check`` works without one.

        Args:
            commander: Told of the miss.
            motion: Told why nothing comes.
            outlet: For log and diagnostics.
            watched: The control thread.
            tell: Publishes the status.
            clock_ns: Steady clock.
        """
        self.barks = 0
        self.late_ms = 0.0
        self._commander = commander
        self._motion = motion
        self._outlet = outlet
        self._watched = watched
        self._tell = tell
        self._period_s = commander.contract.period_s
        self._periods, self._miss_limit_s = 5, 0.5
        self._clock_ns = clock_ns
        self._barked_ns = 0
        self._closing = threading.Event()
        self._worker: Worker | None = None

    def heed(self, settings: Settings) -> None:
        """Takes over the parameters ``watchdog_periods`` and ``miss_limit_s``."""
        self._periods = int(settings["watchdog_periods"])
        # Less than a period late is nobody: this thread looks at any moment of one.
        self._miss_limit_s = max(float(settings["miss_limit_s"]), self._period_s)

    def start(self, settings: Settings, report: Report = ignore) -> None:
        """Begins to watch.

        Args:
            settings: See ``heed``.
            report: See ``Worker``.
        """
        self.heed(settings)
        self._worker = Worker("watchdog", self._run, report)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Ends the thread; False if it hangs."""
        self._closing.set()
        return self._worker is None or self._worker.close(timeout_s)

    def _run(self) -> None:
        while not self._closing.wait(max(self._period_s, SHORTEST_S)):
            self.check(self._clock_ns())

    def check(self, now_ns: int) -> None:
        """Looks once.

        Args:
            now_ns: Steady clock.
        """
        tick_ns = self._watched.last_tick_ns
        if not tick_ns or not self._commander.moving:
            return
        late_s = (now_ns - tick_ns) / 1e9 - self._period_s
        if late_s <= min((self._periods - 1) * self._period_s, self._miss_limit_s):
            return
        with self._motion.lock:
            # Only now the answers are final: a command that was on its way has left.
            if self._watched.last_tick_ns != tick_ns or not self._commander.moving:
                return
            fresh = self._barked_ns != tick_ns
            self._barked_ns = tick_ns
            self.late_ms = max(self.late_ms, late_s * 1e3)
            # Ends with the next control step that finds its input good.
            self._motion.input_fault("the control step is late: policy or verb takes too long")
            if late_s > self._miss_limit_s:
                self._outlet.log(
                    "error",
                    f"no control step for {late_s:.2f} s while the robot moves: stop message; "
                    "the next command is checked as a first one",
                )
                self._commander.halt()
            else:
                self._commander.miss(now_ns)
        if fresh:
            self.barks += 1
            self._outlet.log(
                "error",
                f"the control step is late by {late_s * 1e3:.0f} ms: on_miss acts until it comes",
            )
            self._outlet.fault()
        if fresh or not self._commander.moving:
            self._tell()
