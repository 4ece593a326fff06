"""Watches the calls of a policy for what lies outside of it: clocks, entropy, files.

Found by the functions themselves, whatever name the policy knows them by.
"""

from __future__ import annotations

import builtins
import datetime
import os
import sys
import time
from typing import Any

_CLOCKS = (
    "clock_gettime",
    "clock_gettime_ns",
    "gmtime",
    "localtime",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "thread_time",
    "thread_time_ns",
    "time",
    "time_ns",
)
_READS = {
    **{getattr(time, name): "reads a clock" for name in _CLOCKS if hasattr(time, name)},
    os.urandom: "reads the system's entropy",
    os.open: "opens a file",
    os.read: "reads a file",
    builtins.open: "opens a file",
}
_DATES = ("now", "today", "utcnow")


class OutsideReads:
    """Records what ``plan``, ``adopt`` and ``act`` read of the world besides their inputs.

    Attributes:
        found: Pairs of call and words, each once.
        enabled: Whether it looks; false for first calls, which may import.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], None] = {}
        self.enabled = False
        self._call = ""
        self._before: Any = None

    def watch(self, call: str, done: bool) -> None:
        """For ``Rig.watch``."""
        if not self.enabled or call == "reset_":
            return
        if done:
            sys.setprofile(self._before)
        else:
            self._call, self._before = call, sys.getprofile()
            sys.setprofile(self._profile)

    def _profile(self, frame: Any, event: str, function: Any) -> None:
        if event != "c_call":
            return
        owner = getattr(function, "__self__", None)
        if isinstance(owner, type) and issubclass(owner, datetime.date):
            if function.__name__ in _DATES:
                self.found[self._call, f"reads a clock ({function.__qualname__})"] = None
            return
        try:
            words = _READS.get(function)
        except TypeError:  # a method of something that has no hash
            return
        if words:
            self.found[self._call, f"{words} ({function.__name__})"] = None
