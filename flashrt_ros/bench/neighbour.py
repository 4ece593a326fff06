"""Another policy of the same process, to see what it notices of work on this one's memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from flashrt_ros.runtime.policy import Action


class Neighbour:
    """Takes control steps in a thread of its own, without a pause.

    Attributes:
        actions: What each step gave, ``(A,)`` float32 on the host.
        step_us: How long each step took, on the steady clock.
    """

    def __init__(self, step: Callable[[int], Action]) -> None:
        """Starts.

        Args:
            step: Takes the control step of that number, on a session of its own.
        """
        self.actions: list[torch.Tensor] = []
        self.step_us: list[float] = []
        self._step = step
        self._ending = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="neighbour", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the thread.

        Raises:
            BaseException: What a step has raised.
        """
        self._ending = True
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._ending:
                begun_ns = time.perf_counter_ns()
                self.actions.append(self._step(len(self.actions)).values)
                self.step_us.append((time.perf_counter_ns() - begun_ns) / 1e3)
        except BaseException as error:
            self._error = error
