"""The thread that copies capsules and reads and writes files, so that no control step waits.

Work that needs both threads is one generator: it yields where it goes on. What must not be torn
apart is between two yields on the control thread; what takes long is on the storage thread.
"""

from __future__ import annotations

import enum
import queue
import threading
import time
import traceback
from collections.abc import Callable, Generator

from flashrt_ros.errors import (
    BusyError,
    FlashRTError,
    InvalidArgumentError,
    NotConfiguredError,
    UnsupportedError,
)
from flashrt_ros.ros.records import Outlet
from flashrt_ros.ros.verbs import Answer, Verb, VerbQueue, done, refusal
from flashrt_ros.ros.worker import Report, Worker, ignore
from flashrt_ros.runtime.capsule_folder import CapsuleFolder

PENDING = 8
"""Saves, loads and moves that may be under way: each holds the bytes of its capsule."""
CLOSE_S = 5.0
"""How long a clean-up waits for them."""
_NEVER_NS = 2**63 - 1


class Where(enum.Enum):
    """Where a task goes on."""

    CONTROL = "control"
    STORAGE = "storage"


Task = Generator[Where, None, "Answer | None"]
"""Begins on the control thread, returns the answer to its verb, or None if that comes later."""


class Storage:
    """Files of one configured node, and the thread for all that takes long.

    Attributes:
        folder: Where files are; None: the node has none.
        queue: Of the control thread.
        afterwards: Called in any thread at the end of each task, before it is answered.
    """

    def __init__(
        self, capsule_dir: str, queue_: VerbQueue, outlet: Outlet, report: Report = ignore
    ) -> None:
        """Starts the thread.

        Args:
            capsule_dir: Empty where the node shall have no files.
            queue_: Of the control thread.
            outlet: For the log.
            report: Told of a failure of the thread, which then begins again.
        """
        self.folder: CapsuleFolder | None = None
        self._reason = "expected a folder, found none; set it and configure the node again"
        if capsule_dir:
            try:
                self.folder = CapsuleFolder(capsule_dir)
            except InvalidArgumentError as error:
                # The policy runs without files as well.
                self._reason = str(error)
                outlet.log("warn", f"no capsule files: parameter 'capsule_dir': {error}")
        self.queue = queue_
        self.afterwards: Callable[[], None] = lambda: None
        self._outlet = outlet
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._pending = 0
        self._running = 0
        self._worker = Worker("storage", self._run, report)

    def require_folder(self) -> CapsuleFolder:
        """Returns the folder.

        Raises:
            UnsupportedError: The node has none.
        """
        if self.folder is None:
            raise UnsupportedError(f"parameter 'capsule_dir': {self._reason}")
        return self.folder

    def require_room(self) -> None:
        """Raises if no more work may begin.

        Raises:
            BusyError: Too much is under way.
        """
        if self._pending >= PENDING:
            raise BusyError(
                f"{PENDING} saves, loads and moves are under way already; expected fewer; repeat"
                " it later"
            )

    def run(self, verb: Verb, task: Task, background: bool = False) -> None:
        """Begins a task; on the control thread, which carries out its first part at once.

        From other threads one that yields ``Where.STORAGE`` before anything else.

        Args:
            verb: Answered with what the task returns or raises.
            task: See ``Task``.
            background: Not of a client, so it is not counted by ``require_room``.
        """
        with self._changed:
            self._running += 1
            self._pending += not background
        self._advance(verb, task, Where.CONTROL, background)

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Ends the thread after what is under way; False if a disk keeps it."""
        end_s = time.monotonic() + timeout_s
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout_s)
        self._jobs.put(None)
        return self._worker.close(end_s - time.monotonic())

    def _advance(
        self,
        verb: Verb,
        task: Task,
        here: Where,
        background: bool,
        error: FlashRTError | None = None,
    ) -> None:
        """Carries a task on in this thread as far as it may; ``error`` is raised in it."""
        answer: Answer | None
        fatal: BaseException | None = None
        while True:
            try:
                there = task.send(None) if error is None else task.throw(error)
            except StopIteration as end:
                answer = end.value
                break
            except FlashRTError as failure:
                answer = refusal(failure)
                break
            except BaseException as failure:
                self._outlet.log("error", f"{verb.name}:\n{traceback.format_exc()}")
                answer = refusal(failure)
                # The verb is answered and no longer counted, whatever becomes of this thread.
                fatal = None if isinstance(failure, Exception) else failure
                break
            if there is here:
                continue
            if there is Where.STORAGE:
                self._jobs.put(lambda: self._advance(verb, task, Where.STORAGE, background))
                return
            try:
                self._to_control(verb, task, background)
                return
            except FlashRTError as refused:
                error = refused
        self.afterwards()
        with self._changed:
            self._running -= 1
            self._pending -= not background
            self._changed.notify_all()
        if answer is not None:
            verb.answer(answer)
        if fatal is not None:
            raise fatal

    def _to_control(self, verb: Verb, task: Task, background: bool) -> None:
        # A queue that is closed refuses its turn, even while the control thread has it.
        claim = threading.Lock()

        def go_on(handlers: object, _: Verb) -> Answer:
            if claim.acquire(blocking=False):
                self._advance(verb, task, Where.CONTROL, background)
            return done("")

        def refused(answer: Answer) -> None:
            if answer.code and claim.acquire(blocking=False):
                error = NotConfiguredError(answer.message)
                self._advance(verb, task, Where.STORAGE, background, error)

        # Its time is that of the request, which is answered in its place.
        turn = Verb(verb.name, go_on, 0, _NEVER_NS)
        turn.listen(refused)
        self.queue.put(turn)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # with it the copy of a capsule
