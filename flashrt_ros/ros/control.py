"""The control thread: control periods at absolute deadlines of the steady clock, verbs between.

Verbs run as soon as the thread is free, before the next deadline and after it alike, so a service
is answered at once and not at the next control period only.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import traceback
from collections.abc import Callable

import torch

from flashrt_ros.errors import DeadlineError, FlashRTError, InternalError, NotConfiguredError
from flashrt_ros.ros.allocator import give_back
from flashrt_ros.ros.handlers import Handlers
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.previewer import RETRY_S
from flashrt_ros.ros.records import Outlet
from flashrt_ros.ros.scheduling import cpu_set, schedule
from flashrt_ros.ros.stepper import Stepper
from flashrt_ros.ros.verbs import QUEUE_LENGTH, Verb, VerbQueue, refusal
from flashrt_ros.ros.worker import Report, ignore
from flashrt_ros.runtime.device import Lane

IDLE_S = 1.0
"""How often the thread looks around while the node is inactive."""
EARLY_NS = 1_000_000
"""So long before a control period the thread looks at the inputs where pictures cross to a device:
those that the period will see are there then, unless others have come meanwhile. It looks until
the period begins, which so needs not wait for a thread to wake up."""
LOOK_PAUSE_S = 2e-5
"""Between two looks other threads get the interpreter: those that bring what is looked for, verbs,
and a stop."""
EARLY_SHARE = 10
"""Of so many parts of a control period this takes at most one."""


class Control:
    """Owns the thread in which session, arena and every CUDA call of the control side live.

    Attributes:
        queue: Verbs for the thread.
        stepper: What it drives; None until ``start`` has returned.
        lost: What the thread ended by, if not by ``close``: nothing moves or answers any more, and
            a new one must be made.
    """

    def __init__(
        self,
        make: Callable[[], Stepper],
        outlet: Outlet,
        period_s: float,
        torch_threads: int,
        realtime_priority: int = 0,
        cpu_affinity: str = "",
        clock_ns: Callable[[], int] = time.monotonic_ns,
        report: Report = ignore,
    ) -> None:
        """Prepares a control thread.

        Args:
            make: Makes the stepper and its session; called in the thread, since a CUDA context and
                a capture belong to the thread that made them.
            outlet: For the log.
            period_s: Length of a control period.
            torch_threads: Of this thread's torch operators.
            realtime_priority: For SCHED_FIFO; 0: ordinary scheduling.
            cpu_affinity: CPUs of this thread, such as ``4-7``; empty: any.
            clock_ns: Steady clock.
            report: Told, in the thread, if it ends by a fault; before the session is freed.
        """
        self.lost: BaseException | None = None
        self.queue = VerbQueue()
        self.stepper: Stepper | None = None
        self._make = make
        self._outlet = outlet
        self._period_ns = round(period_s * 1e9)
        self._torch_threads = torch_threads
        self._realtime_priority = realtime_priority
        self._cpus = cpu_set(cpu_affinity)
        self._clock_ns = clock_ns
        self._report = report
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self, timeout_s: float = 600.0) -> Stepper:
        """Starts the thread and waits until the session stands.

        Raises:
            DeadlineError: It takes too long.
            BaseException: What ``make`` raised.
        """
        self._thread.start()
        if not self._ready.wait(timeout_s):
            self._stopping = True
            raise DeadlineError(f"configure: expected a session within {timeout_s:g} s")
        if self._error is not None:
            self._thread.join()
            raise self._error
        assert self.stepper is not None
        return self.stepper

    def close(self, timeout_s: float = 5.0) -> bool:
        """Ends the thread after what it is doing, frees the session; False if it hangs."""
        self._stopping = True
        self.queue.close(NotConfiguredError("the node is being cleaned up; configure it again"))
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def last_tick_ns(self) -> int:
        """Steady clock, begin of the last control period; 0: none since the activation."""
        stepper = self.stepper
        return stepper.timing.last_tick_ns if stepper is not None else 0

    def wake(self) -> None:
        """Makes the thread look around: activated, deactivated."""
        self.queue.wake()

    # In the thread

    def _run(self) -> None:
        torch.set_num_threads(self._torch_threads)
        try:
            self.stepper = self._make()
            # Only now: threads that loading has started must not inherit it.
            schedule(self._realtime_priority, self._cpus, self._outlet)
            # What exists now stays: a full collection over all of torch's objects takes tens of
            # milliseconds, several control periods.
            gc.collect()
            gc.freeze()
            give_back()
        except BaseException as error:
            self._error = error
            return
        finally:
            self._ready.set()
        try:
            # Bound for good: changing lanes at each step takes longer than a small step does.
            with self.stepper.session.device.bind(Lane.CONTROL):
                self._loop(self.stepper, Handlers(self.stepper))
        except BaseException as error:
            self._give_up(self.stepper, error)
        finally:
            self._free(self.stepper)

    def _give_up(self, stepper: Stepper, error: BaseException) -> None:
        """Whatever got past the guards of steps and verbs: the arm stops, requests are refused."""
        self.lost = error
        words = f"the control thread failed: {type(error).__name__}: {error}"
        self.queue.close(InternalError(f"{words}; configure the node again"))
        try:
            stepper.commander.halt()
        except BaseException:  # the node tries again
            self._outlet.log("error", f"no stop message:\n{traceback.format_exc()}")
        self._report(threading.current_thread().name, error)

    def _free(self, stepper: Stepper) -> None:
        self.stepper = None
        try:
            stepper.close()
        except BaseException as error:
            self.lost = self.lost or error
            self._outlet.log("error", f"the session was not freed:\n{traceback.format_exc()}")
        gc.unfreeze()
        gc.collect()  # plans hold the session's buffers in cycles

    def _loop(self, stepper: Stepper, handlers: Handlers) -> None:
        deadline_ns: int | None = None
        while not self._stopping:
            active = stepper.motion.active
            now_ns = self._clock_ns()
            if not active:
                deadline_ns = None
                stepper.timing.last_tick_ns = 0
                stepper.resumption.overtaken()
                stepper.publish_status()
            elif deadline_ns is None:
                deadline_ns = now_ns
            if deadline_ns is not None and now_ns >= deadline_ns:
                stepper.timing.late_ms.add((now_ns - deadline_ns) / 1e6)
                self._tick(stepper, now_ns)
                deadline_ns = self._next(stepper, deadline_ns)
                # Steps that take longer than their period must not keep verbs from their turn.
                for _ in range(QUEUE_LENGTH):
                    if (verb := self.queue.get(0.0)) is None:
                        break
                    self._carry_out(stepper, handlers, verb)
                continue
            wait_s = min(IDLE_S, stepper.warmth.patience_s)
            near = False
            if deadline_ns is not None:
                wait_s = (deadline_ns - self._early_ns(stepper) - now_ns) / 1e9
                near = wait_s <= 0.0
                wait_s = LOOK_PAUSE_S if near else wait_s
            if not near and self._keep_warm(stepper, now_ns):
                continue
            waiting = stepper.previewer.waiting
            verb = self.queue.get(0.0 if waiting else wait_s)
            if verb is None and waiting:
                if stepper.previewer.turn(self._clock_ns(), deadline_ns):
                    continue
                verb = self.queue.get(min(wait_s, RETRY_S))
            if verb is not None:
                self._carry_out(stepper, handlers, verb)
            elif near:
                self._look_ahead(stepper)

    def _early_ns(self, stepper: Stepper) -> int:
        if stepper.session.foresees and stepper.motion.wants_to_move:
            return min(EARLY_NS, self._period_ns // EARLY_SHARE)
        return 0

    def _look_ahead(self, stepper: Stepper) -> None:
        # Whatever is wrong with the inputs is said in the control period, which outlives it.
        with contextlib.suppress(Exception):
            not_before_ns = stepper.motion.not_before_ns
            stepper.session.foresee(stepper.source.pictures(self._clock_ns(), not_before_ns))

    def _tick(self, stepper: Stepper, now_ns: int) -> None:
        try:
            stepper.tick(now_ns)
            self._outlet.alive()
        except BaseException as error:  # a policy may call sys.exit
            stepper.fail(error)

    def _keep_warm(self, stepper: Stepper, now_ns: int) -> bool:
        if stepper.motion.mode is Mode.RUNNING or stepper.occupied:
            return False
        try:
            return stepper.warmth.turn(now_ns)
        except BaseException as error:
            stepper.fail(error)
            return False

    def _next(self, stepper: Stepper, deadline_ns: int) -> int:
        """The next deadline; periods that have passed already are counted, not made up for."""
        deadline_ns += self._period_ns
        behind_ns = self._clock_ns() - deadline_ns
        if behind_ns > self._period_ns // 2:
            skipped = max(1, behind_ns // self._period_ns)
            stepper.timing.missed += skipped
            deadline_ns += skipped * self._period_ns
        return deadline_ns

    def _carry_out(self, stepper: Stepper, handlers: Handlers, verb: Verb) -> None:
        if not verb.begin():
            return
        begun_ns = self._clock_ns()
        try:
            answer = verb.carry_out(handlers)
        except FlashRTError as error:
            answer = refusal(error)
        except BaseException as error:
            self._outlet.log("error", f"{verb.name}:\n{traceback.format_exc()}")
            answer = refusal(error)
        stepper.timing.verb_ms.add((self._clock_ns() - begun_ns) / 1e6)
        if answer is not None:
            verb.answer(answer)
        stepper.publish_status()
