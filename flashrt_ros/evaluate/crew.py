"""Processes that work through tasks, and survive the death of any of them.

A task whose worker dies goes to another one; a task that has cost several workers their lives is
given up, and the others go on. When the driver dies, whatever kills it, its workers end at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from flashrt_ros.errors import FlashRTError, InternalError, InvalidArgumentError

MOST_DEATHS = 3
"""Workers that one task may cost."""
GRACE_S = 2.0
"""Between asking a worker to end and ending it."""

Work = Callable[[Any], Any]
Hire = Callable[[], Work]
"""Makes what does the tasks, in the worker; both must be such that they can be pickled."""


@dataclass(frozen=True)
class Lost:
    """In the place of a result: why there is none.

    Attributes:
        words: For people.
    """

    words: str


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: int | None = None


class Crew:
    """A number of processes that all do the same work.

    Args:
        hire: Called in each worker before its first task.
        workers: How many.

    Raises:
        InvalidArgumentError: Fewer than one.
    """

    def __init__(self, hire: Hire, workers: int) -> None:
        if workers < 1:
            raise InvalidArgumentError(f"--workers: expected a number from 1, found {workers}")
        # Not forked: a process with torch's threads, or with a GPU, does not survive that.
        self._context = multiprocessing.get_context("spawn")
        self._hire, self._count = hire, workers
        self._workers: list[_Worker] = []

    def run(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yields the number of each task with its result or ``Lost``, as they come.

        Raises:
            FlashRTError: What ``hire`` raised in a worker.
            InternalError: The same, of any other kind.
        """
        waiting = deque(range(len(tasks)))
        deaths = [0] * len(tasks)
        left = len(tasks)
        try:
            while left:
                while len(self._workers) < min(self._count, left):
                    self._workers.append(self._start())
                for worker in self._workers:
                    if worker.task is None and waiting:
                        self._give(worker, waiting.popleft(), tasks)
                for worker in self._heard():
                    number = worker.task
                    message = self._read(worker)
                    if message is None:
                        self._workers.remove(worker)
                        if number is None:
                            continue
                        deaths[number] += 1
                        if deaths[number] < MOST_DEATHS:
                            # At the end: a task that kills must not hold the others up.
                            waiting.append(number)
                            continue
                        message = Lost(
                            f"{MOST_DEATHS} workers died of it, the last with "
                            f"{_ending(worker.process.exitcode)}"
                        )
                    if number is not None:
                        worker.task = None
                        left -= 1
                        yield number, message
        finally:
            self._dismiss()

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(self._hire, theirs), daemon=True)
        process.start()
        theirs.close()  # so that the end of the worker is the end of the pipe
        return _Worker(process, ours)

    @staticmethod
    def _give(worker: _Worker, number: int, tasks: Sequence[Any]) -> None:
        worker.task = number
        with contextlib.suppress(OSError):  # it died: the next look says so
            worker.pipe.send(tasks[number])

    def _heard(self) -> list[_Worker]:
        ready = multiprocessing.connection.wait([worker.pipe for worker in self._workers])
        return [worker for worker in self._workers if worker.pipe in ready]

    @staticmethod
    def _read(worker: _Worker) -> Any:
        """A result; None where the worker has died."""
        try:
            kind, content = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            return None
        if kind == "unfit":
            raise content
        return content

    def _dismiss(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(GRACE_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()


def _serve(hire: Hire, pipe: Connection) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides, and ends us
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    try:
        work = hire()
    except FlashRTError as error:
        pipe.send(("unfit", error))
        return
    except Exception as error:
        pipe.send(("unfit", InternalError(f"{type(error).__name__}: {error}")))
        return
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            result = work(task)
        except Exception as error:
            result = Lost(f"unexpected {type(error).__name__}: {error}")
        pipe.send(("done", result))


def _end_with_the_driver() -> None:
    driver = multiprocessing.parent_process()
    assert driver is not None
    multiprocessing.connection.wait([driver.sentinel])
    os._exit(1)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
