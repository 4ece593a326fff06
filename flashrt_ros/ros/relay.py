"""The thread that publishes between control steps, at the rates of the controllers behind."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence

from flashrt_ros.contract.schema import Output
from flashrt_ros.ros.records import Outlet
from flashrt_ros.ros.timing import Ring

IDLE_S = 0.5
"""How often the thread looks around while nothing moves."""


class Relay:
    """Calls ``publish`` with the outputs that are due, at absolute deadlines of the steady clock.

    Attributes:
        late_ms: From the deadline of a sample to its publication.
        missed: Samples that were left out because their time had passed.
        samples: Published so far.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        publish: Callable[[Sequence[str], int], int],
        moving: Callable[[], bool],
        fail: Callable[[str], None],
        outlet: Outlet,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Prepares the thread.

        Args:
            outputs: Those with a ``publish_rate_hz``.
            publish: Publishes samples of these topics as of now; says how many there were.
            moving: Whether there may be something to publish.
            fail: Ends motion, for a reason in words.
            outlet: For the log.
            clock_ns: Steady clock.
        """
        self.late_ms = Ring()
        self.missed = self.samples = 0
        self._period_ns = {o.topic: round(1e9 / o.publish_rate_hz) for o in outputs}
        self._due_ns: dict[str, int] = {}
        self._publish = publish
        self._moving = moving
        self._fail = fail
        self._outlet = outlet
        self._clock_ns = clock_ns
        self._awake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self) -> None:
        """There is something to publish."""
        self._awake.set()

    def close(self, timeout_s: float = 2.0) -> bool:
        """Ends the thread; False if it hangs."""
        self._closing = True
        self._awake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def turn(self, now_ns: int) -> int:
        """Publishes what is due and returns the next deadline, steady clock."""
        due = []
        for topic, period_ns in self._period_ns.items():
            at_ns = self._due_ns.get(topic, now_ns)
            if now_ns >= at_ns:
                due.append(topic)
                self.late_ms.add((now_ns - at_ns) / 1e6)
                # Samples whose time has passed are counted, not made up for.
                skipped = (now_ns - at_ns) // period_ns
                self.missed += skipped
                at_ns += (1 + skipped) * period_ns
            self._due_ns[topic] = at_ns
        if due:
            self.samples += self._publish(due, now_ns)
        return min(self._due_ns.values())

    def _run(self) -> None:
        while not self._closing:
            try:
                if not self._moving():
                    self._due_ns.clear()
                    self._awake.clear()
                    if not self._moving():
                        self._awake.wait(IDLE_S)
                    continue
                wait_ns = self.turn(self._clock_ns()) - self._clock_ns()
                if wait_ns > 0:
                    time.sleep(wait_ns / 1e9)
            except BaseException as error:  # the thread must not end
                self._outlet.log("error", f"relay:\n{traceback.format_exc()}")
                self._fail(f"publishing between control steps failed: {error}")
                self._due_ns.clear()
