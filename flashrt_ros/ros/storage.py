"""The thread that reads and writes capsule files, so that no control step waits for a disk.

A save: the control thread holds the capsule, this thread copies it, writes the file and answers.
A load: this thread reads and verifies the file, the control thread copies it into the store.
"""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flashrt_ros.errors import BusyError, FlashRTError, InvalidArgumentError, UnsupportedError
from flashrt_ros.ros.records import EventRecord, Outlet
from flashrt_ros.ros.verbs import Answer, Verb, VerbQueue, done, refusal
from flashrt_ros.runtime.capsule import Capsule
from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.transfer import StagedCapsule

PENDING = 8
"""Saves and loads that may be under way: each save holds the bytes of its capsule."""
CLOSE_S = 5.0
"""How long a clean-up waits for them."""
Finish = Callable[[StagedCapsule], Answer]
_NEVER_NS = 2**63 - 1


@dataclass(frozen=True)
class Save:
    """One file to be written.

    Attributes:
        capsule: Held by the control thread.
        file: Name of the file; empty: the capsule's.
        replace: Whether it may take the place of another.
    """

    capsule: Capsule
    file: str
    replace: bool


class Storage:
    """Files of one configured node.

    Attributes:
        folder: Where they are; None: the node has none.
        queue: Of the control thread.
    """

    def __init__(self, capsule_dir: str, queue_: VerbQueue, outlet: Outlet) -> None:
        """Starts the thread; ``capsule_dir`` is empty where the node shall have no files."""
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
        self._outlet = outlet
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._thread = threading.Thread(target=self._run, name="storage", daemon=True)
        self._thread.start()

    def require(self) -> CapsuleFolder:
        """Returns the folder if one more save or load may begin.

        Raises:
            UnsupportedError: The node has no folder.
            BusyError: Too many are under way.
        """
        if self.folder is None:
            raise UnsupportedError(f"parameter 'capsule_dir': {self._reason}")
        if self._pending >= PENDING:
            raise BusyError(
                f"{PENDING} saves and loads are under way already; expected fewer; repeat it later"
            )
        return self.folder

    def save(self, verb: Verb, session: Any, save: Save, event: EventRecord) -> None:
        """Writes a file, then answers ``verb`` and reports ``event``; after ``require``.

        Args:
            verb: Of the request.
            session: Reads the capsule, from this thread.
            save: What to write.
            event: Of the boundary at which the capsule was held.
        """
        folder = self.require()

        def work() -> None:
            image = session.read(save.capsule)
            saved = folder.save(image, save.file, save.replace)
            self._outlet.event(event)
            verb.answer(
                done(
                    f"capsule {image.facts.name!r} is in {saved.path}",
                    path=str(saved.path),
                    size_bytes=saved.size_bytes,
                )
            )

        self._submit(verb, work)

    def load(
        self, verb: Verb, file: str, session: Any, allow_inexact: bool, finish: Finish
    ) -> None:
        """Reads a file; after ``require``.

        Args:
            verb: Answered with what ``finish`` returns, or with the refusal.
            file: Name of the file.
            session: Asked, from this thread, whether the capsule fits.
            allow_inexact: Accept another exec id than the session's.
            finish: Called on the control thread with what the session has staged.
        """
        folder = self.require()

        def check(facts: Any) -> None:
            session.check_facts(facts, allow_inexact)

        def work() -> None:
            staged = session.stage(folder.load(file, check), allow_inexact)
            # Its time is that of the request, which is answered in its place.
            second = Verb(verb.name, lambda handlers, _: finish(staged), 0, _NEVER_NS)
            second.listen(lambda answer: _hand_on(verb, answer))
            self.queue.put(second)

        self._submit(verb, work)

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Ends the thread after what is under way; False if a disk keeps it."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _submit(self, verb: Verb, work: Callable[[], None]) -> None:
        def job() -> None:
            try:
                work()
            except FlashRTError as error:
                verb.answer(refusal(error))
            except Exception as error:
                self._outlet.log("error", f"{verb.name}:\n{traceback.format_exc()}")
                verb.answer(refusal(error))
            finally:
                with self._lock:
                    self._pending -= 1

        with self._lock:
            self._pending += 1
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # with it the copy of a capsule


def _hand_on(verb: Verb, answer: Answer) -> None:
    verb.answer(answer)
