"""From received bytes to observations: an intake thread decodes, the control thread samples.

Subscription callbacks only hand over bytes and the time of their reception, since they run in the
executor, which also has services to answer.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
import xxhash

from flashrt_ros.contract import Contract, Sample, Sampler, decode
from flashrt_ros.contract.cdr import peek_stamp
from flashrt_ros.contract.image.schema import IMAGE_TYPES
from flashrt_ros.contract.task import TaskText
from flashrt_ros.errors import ContractError
from flashrt_ros.ros.arrivals import Arrivals
from flashrt_ros.ros.records import Outlet
from flashrt_ros.ros.worker import Report, Worker, ignore
from flashrt_ros.runtime.picture import BytePicture

BACKLOG = 256
"""Messages that may wait for the intake thread; then new ones are dropped and counted."""
QUIET_NS = 5_000_000_000
"""How long after a fault was logged the log is silent about others of its topic."""
HEAD_BYTES = 16
"""Enough of a message for its header stamp."""
FASTER = 1.5
"""Images in a control period from which on waiting for a newer one pays."""
MARGIN_NS = 5_000_000
"""Before a control step, for a thread to be woken and to finish in time."""
IDLE_NS = 1_000_000_000
"""So long after the last sample nobody looks: images then wait undecoded until one does."""


@dataclass
class InputFigures:
    """What arrived on one topic since configure.

    Attributes:
        topic: As the contract writes it.
        type: Full type name.
        needed: False: only optional inputs read it, and its absence is no fault.
        arrivals: Rate, gaps and losses.
        received: Messages decoded or found faulty.
        faulty: Of these, not usable.
        fault: Why the last message could not be used; empty if it could.
        notices: Peculiarities that do not hinder, newest last.
        jumps: Jumps back in time.
        quiet_until_ns: Steady clock; until then no further fault is logged.
    """

    topic: str
    type: str
    needed: bool = True
    arrivals: Arrivals = field(default_factory=Arrivals)
    received: int = 0
    faulty: int = 0
    fault: str = ""
    notices: tuple[str, ...] = ()
    jumps: int = 0
    quiet_until_ns: int = 0


@dataclass(frozen=True)
class _Arrival:
    """One message on its way; an image's bytes wait elsewhere, where newer ones replace them."""

    topic: str
    cdr: bytes
    received_ns: int


def due(next_sample_ns: int, interval_ns: int, period_ns: int, decode_ns: int) -> int:
    """Until when an image may wait for a newer one; in the past: not at all.

    Where cameras are faster than the control loop, only the last image before each control step
    is used. It is decoded as early as it takes to be ready by then.

    Args:
        next_sample_ns: Steady clock, when the next control step is expected.
        interval_ns: Between images; 0: not known yet.
        period_ns: Of the control loop.
        decode_ns: What decoding of all images took at most.

    Returns:
        Steady clock; 0: it must not wait.
    """
    if not 0 < FASTER * interval_ns < period_ns:
        return 0
    return next_sample_ns - 2 * decode_ns - MARGIN_NS


class Intake:
    """The inputs of one contract.

    Attributes:
        sampler: Holds what was received.
        figures: By topic as the contract writes it; written by the intake thread.
        overflow: Messages dropped because the intake thread was too far behind.
    """

    def __init__(
        self,
        contract: Contract,
        outlet: Outlet,
        torch_threads: int = 1,
        report: Report = ignore,
        as_bytes: bool = False,
    ) -> None:
        """Starts the thread.

        Args:
            contract: What to read.
            outlet: For the log.
            torch_threads: Of the operators that resize images.
            report: Told of a failure of the thread, which then begins again.
            as_bytes: See ``Sampler``.
        """
        self.sampler = Sampler(contract, as_bytes=as_bytes)
        self.figures = {
            topic: InputFigures(topic, type_name, topic in contract.needed_topics())
            for topic, type_name, _ in contract.topics()
        }
        self._period_ns = round(contract.period_s * 1e9)
        self._image_topics = {
            topic for topic, type_name, _ in contract.topics() if type_name in IMAGE_TYPES
        }
        self._images: dict[str, _Arrival] = {}
        # Images that wait for a newer one, and until when; and how long decoding takes.
        self._held: dict[str, tuple[_Arrival, int]] = {}
        self._decode_ns = 0
        self.overflow = 0
        self._outlet = outlet
        self._torch_threads = torch_threads
        self._sampled_ns = 0
        # Held around put and sample: no sample may see input from after a jump in time before the
        # control thread has been told of the jump.
        self._lock = threading.Lock()
        self._jump: tuple[int, str] | None = None
        self._waiting: queue.SimpleQueue[_Arrival | None] = queue.SimpleQueue()
        self._worker = Worker("intake", self._run, report)

    def receive(self, topic: str, cdr: bytes) -> None:
        """Takes one serialized message; called by subscriptions, one at a time.

        Args:
            topic: As the contract writes it.
            cdr: As received.
        """
        if self._waiting.qsize() >= BACKLOG:
            self.overflow += 1
            return
        arrival = _Arrival(topic, cdr, time.monotonic_ns())
        if topic in self._image_topics:
            # Whatever waits in the queue, one image a topic is held.
            self._images[topic] = arrival
            arrival = replace(arrival, cdr=cdr[:HEAD_BYTES])
        self._waiting.put(arrival)

    def sample(self, now_ns: int, not_before_ns: int) -> Sample:
        """See ``Sampler.sample``."""
        with self._lock:
            self._sampled_ns = time.monotonic_ns()
            if self._jump is not None:
                # Told first, see take_jump; as of now there is nothing to act on.
                return self.sampler.sample(0)
            return self.sampler.sample(now_ns, not_before_ns)

    def pictures(self, now_ns: int, not_before_ns: int) -> Mapping[str, BytePicture]:
        """See ``Source.pictures``."""
        return self.sampler.pictures_now(now_ns, not_before_ns)

    def task(self) -> TaskText | None:
        """See ``Sample.task``."""
        return self.sampler.task()

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
        return self._worker.close(timeout_s)

    def _run(self) -> None:
        torch.set_num_threads(self._torch_threads)
        while True:
            item: _Arrival | None
            try:
                item = self._waiting.get(timeout=self._patience_s())
                if item is None:
                    return
                self._guarded(self._take, item)
            except queue.Empty:
                pass
            now_ns = time.monotonic_ns()
            for topic, (arrival, due_ns) in list(self._held.items()):
                if now_ns >= due_ns:
                    del self._held[topic]
                    self._guarded(self._enter, arrival)

    def _patience_s(self) -> float | None:
        """Until the first image that is held is due."""
        if not self._held:
            return None
        due_ns = min(due_ns for _, due_ns in self._held.values())
        return max(due_ns - time.monotonic_ns(), 0) / 1e9

    def _guarded(self, work: Callable[[_Arrival], None], arrival: _Arrival) -> None:
        try:
            work(arrival)
        except Exception as error:
            words = f"intake of {arrival.topic}: {type(error).__name__}: {error}"
            self._outlet.log("error", words)

    def _take(self, arrival: _Arrival) -> None:
        """Enters a message, unless it is an image that a newer one replaces."""
        topic, received_ns = arrival.topic, arrival.received_ns
        if topic not in self._image_topics:
            self._enter(arrival)
            return
        arrivals = self.figures[topic].arrivals
        arrivals.note(received_ns, peek_stamp(arrival.cdr))
        arrivals.superseded += self._held.pop(topic, None) is not None
        newest = self._images[topic]
        if newest.received_ns != received_ns:
            arrivals.superseded += 1
            return
        now_ns = time.monotonic_ns()
        due_ns = due(
            self._sampled_ns + self._period_ns,
            round(arrivals.usual_ms * 1e6),
            self._period_ns,
            self._decode_ns * len(self._image_topics),
        )
        if due_ns - now_ns > 0:
            self._held[topic] = (newest, due_ns)
        else:
            self._enter(newest)

    def _enter(self, arrival: _Arrival) -> None:
        """Decodes a message and lets the sampler have it."""
        topic, cdr, received_ns = arrival.topic, arrival.cdr, arrival.received_ns
        figures = self.figures[topic]
        begun_ns = time.monotonic_ns()
        digest = xxhash.xxh3_64_intdigest(cdr)
        try:
            message: object = decode(figures.type, cdr)
        except ContractError:
            message = cdr  # put finds the same fault and keeps it for the sample
        idle = begun_ns - self._sampled_ns > IDLE_NS
        prepared = self.sampler.prepare(topic, message, received_ns, digest, lazy=idle)
        if topic not in self._image_topics:
            figures.arrivals.note(received_ns, prepared.message.stamp_ns)
        elif not idle:
            # The longest one, which is forgotten slowly.
            self._decode_ns = max(time.monotonic_ns() - begun_ns, self._decode_ns * 15 // 16)
        with self._lock:
            received = self.sampler.enter(prepared)
            if received.time_jump:
                self._jump = (received_ns, received.time_jump)
        figures.received += 1
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
