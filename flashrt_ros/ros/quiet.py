"""Keeps a log line that comes over and over from flooding the log, and counts what it kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

QUIET_S = 1.0
"""So long after a line the very same one is not logged again."""
KNOWN = 64
"""Different lines that are remembered; then all of them are forgotten."""


class Quiet:
    """Which lines to log; called from any thread."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begins with an empty log.

        Args:
            clock_s: Steady clock.
        """
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}

    def heed(self, words: str) -> str:
        """What to log of a line: nothing, or the line, with how often it was kept before."""
        now_s = self._clock_s()
        with self._lock:
            said_s, kept = self._last.get(words, (float("-inf"), 0))
            if now_s - said_s < QUIET_S:
                self._last[words] = (said_s, kept + 1)
                return ""
            if len(self._last) >= KNOWN:
                self._last.clear()
            self._last[words] = (now_s, 0)
        return f"{words} (and {kept} times more before)" if kept else words
