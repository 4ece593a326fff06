"""How far an evaluation is, on stderr: recorded time against time taken, and what is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from flashrt_ros.evaluate.source import Source

EVERY_S = 0.5
STRIDE = 16
"""Calls for one look at the clock."""


class ProgressLine:
    """One line that is written over; of a source that is being read."""

    def __init__(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        stream: TextIO | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins.

        Args:
            name: Of the source.
            start_ns: Recorded time of its beginning.
            end_ns: Of its end.
            stream: Where to write; None: stderr.
            clock_s: Steady clock.
        """
        self._name, self._start_ns, self._end_ns = name, start_ns, end_ns
        self._stream = stream or sys.stderr
        self._clock_s = clock_s
        self._begun_s = self._said_s = clock_s()
        self._width = self._calls = 0

    def __call__(self, time_ns: int) -> None:
        """The source has been read up to this recorded time."""
        self._calls += 1
        if self._calls % STRIDE:
            return
        now_s = self._clock_s()
        if now_s - self._said_s < EVERY_S:
            return
        self._said_s = now_s
        self._write(self.words(time_ns, now_s - self._begun_s))

    def words(self, time_ns: int, taken_s: float) -> str:
        """What is said after so much time."""
        done_s = (time_ns - self._start_ns) / 1e9
        whole_s = max((self._end_ns - self._start_ns) / 1e9, 1e-9)
        rate = done_s / taken_s if taken_s > 0 else 0.0
        left = f", {(whole_s - done_s) / rate:.0f} s left" if rate > 0 else ""
        share = 100.0 * min(1.0, done_s / whole_s)
        return (
            f"{self._name}: {done_s:.1f} of {whole_s:.1f} s ({share:.0f} %), "
            f"{rate:.0f} times real time{left}"
        )

    def _write(self, words: str) -> None:
        self._stream.write("\r" + words.ljust(self._width))
        self._stream.flush()
        self._width = len(words)


def progress_line(source: Source) -> ProgressLine:
    """One for a source, on stderr."""
    return ProgressLine(source.name, source.start_ns, source.end_ns)
