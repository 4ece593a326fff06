"""From received bytes to observations: an intake thread decodes, the control thread samples.

Subscription callbacks only hand over bytes and the time of their reception, since they run in the
executor, which also has services to answer.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass

import xxhash

from flashrt_ros.contract import Contract, Sample, Sampler, decode
from flashrt_ros.errors import ContractError
from flashrt_ros.ros.records import Outlet
from flashrt_ros.ros.timing import Ring

BACKLOG = 256
"""Messages that may wait for the intake thread; then new ones are dropped and counted."""
QUIET_NS = 5_000_000_000
"""How long after a fault was logged the log is silent about others of its topic."""
RATE_WINDOW = 64
"""Intervals between messages that rate and jitter are taken over."""


@dataclass
class InputFigures:
    """What arrived on one topic since configure.

    Attributes:
        topic: As the contract writes it.
        type: Full type name.
        received: Messages decoded or found faulty.
        faulty: Of these, not usable.
        fault: Why the last message could not be used; empty if it could.
        notices: Peculiarities that do not hinder, newest last.
        jumps: Jumps back in time.
        last_ns: Steady clock, reception of the last message; 0 before the first.
        quiet_until_ns: Steady clock; until then no further fault is logged.
        interval_ms: Between receptions.
    """

    topic: str
    type: str
    received: int = 0
    faulty: int = 0
    fault: str = ""
    notices: tuple[str, ...] = ()
    jumps: int = 0
    last_ns: int = 0
    quiet_until_ns: int = 0
    interval_ms: Ring | None = None


class Intake:
    """The inputs of one contract.

    Attributes:
        sampler: Holds what was received.
        figures: By topic as the contract writes it; written by the intake thread.
        overflow: Messages dropped because the intake thread was too far behind.
    """

    def __init__(self, contract: Contract, outlet: Outlet) -> None:
        """Starts the thread."""
        self.sampler = Sampler(contract)
        self.figures = {
            topic: InputFigures(topic, type_name, interval_ms=Ring(RATE_WINDOW))
            for topic, type_name, _ in contract.topics()
        }
        self.overflow = 0
        self._outlet = outlet
        # Held around put and sample: no sample may see input from after a jump in time before the
        # control thread has been told of the jump.
        self._lock = threading.Lock()
        self._jump: tuple[int, str] | None = None
        self._waiting: queue.SimpleQueue[tuple[str, bytes, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self._thread.start()

    def receive(self, topic: str, cdr: bytes) -> None:
        """Takes one serialized message; called by subscriptions.

        Args:
            topic: As the contract writes it.
            cdr: As received.
        """
        if self._waiting.qsize() >= BACKLOG:
            self.overflow += 1
            return
        self._waiting.put((topic, cdr, time.monotonic_ns()))

    def sample(self, now_ns: int, not_before_ns: int) -> Sample:
        """See ``Sampler.sample``."""
        with self._lock:
            if self._jump is not None:
                # Told first, see take_jump; as of now there is nothing to act on.
                return self.sampler.sample(0)
            return self.sampler.sample(now_ns, not_before_ns)

    def take_jump(self) -> tuple[int, str] | None:
        """The last jump back in time, once: steady receive time of its message, and words."""
        with self._lock:
            jump, self._jump = self._jump, None
            return jump

    def clear(self) -> None:
        """Drops all that was received, and a jump that has become meaningless with it."""
        with self._lock:
            self.sampler.clear()
            self._jump = None

    def clock_jumped(self, words: str) -> None:
        """The ROS clock itself went back, as when a bag with ``/clock`` is looped."""
        with self._lock:
            self.sampler.clear()
            self._jump = (time.monotonic_ns(), words)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Ends the thread; False if it hangs."""
        self._waiting.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                self._enter(*item)
            except Exception as error:
                self._outlet.log("error", f"intake of {item[0]}: {type(error).__name__}: {error}")

    def _enter(self, topic: str, cdr: bytes, received_ns: int) -> None:
        figures = self.figures[topic]
        digest = xxhash.xxh3_64_intdigest(cdr)
        try:
            message: object = decode(figures.type, cdr)
        except ContractError:
            message = cdr  # put finds the same fault and keeps it for the sample
        prepared = self.sampler.prepare(topic, message, received_ns, digest)
        with self._lock:
            received = self.sampler.enter(prepared)
            if received.time_jump:
                self._jump = (received_ns, received.time_jump)
        figures.received += 1
        if figures.last_ns and figures.interval_ms is not None:
            figures.interval_ms.add((received_ns - figures.last_ns) / 1e6)
        figures.last_ns = received_ns
        figures.jumps += bool(received.time_jump)
        figures.faulty += bool(received.fault)
        if received.fault and not figures.fault and received_ns >= figures.quiet_until_ns:
            # Good and bad messages may alternate: two publishers on one topic.
            figures.quiet_until_ns = received_ns + QUIET_NS
            self._outlet.log("error", f"input not usable: {received.fault}")
        figures.fault = received.fault
        for words in received.notices:
            self._outlet.log("warn", words)
            if words not in figures.notices:
                figures.notices = (*figures.notices[-7:], words)
