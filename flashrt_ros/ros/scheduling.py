"""Where and how the control thread is scheduled: CPUs and SCHED_FIFO, as far as this user may."""

from __future__ import annotations

import os
import re
import threading

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.ros.records import Outlet

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def cpu_set(text: str) -> frozenset[int]:
    """CPUs of a list such as ``4-7,10``; empty for an empty one.

    Raises:
        InvalidArgumentError: It is none.
    """
    cpus: set[int] = set()
    for part in filter(None, text.replace(" ", "").split(",")):
        found = _RANGE.fullmatch(part)
        first = int(found[1]) if found else 0
        last = int(found[2] or found[1]) if found else -1
        if last < first or last > 4095:
            raise InvalidArgumentError(
                f"parameter 'cpu_affinity': expected CPUs such as 4-7,10, found {text!r}"
            )
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def schedule(priority: int, cpus: frozenset[int], outlet: Outlet) -> None:
    """Schedules the calling thread; what is not permitted is said in the log, and not done.

    Args:
        priority: For SCHED_FIFO; 0: ordinary scheduling.
        cpus: On which it may run; empty: as before.
        outlet: For the log.
    """
    thread = threading.get_native_id()
    if cpus:
        try:
            os.sched_setaffinity(thread, cpus)
        except OSError as error:
            allowed = _words(os.sched_getaffinity(0))
            outlet.log(
                "warn",
                f"cpu_affinity {_words(cpus)}: {error}; the control thread runs on any CPU; this "
                f"process may use {allowed}",
            )
        else:
            outlet.log("info", f"the control thread runs on CPUs {_words(cpus)}")
    if priority:
        try:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(priority))
        except OSError as error:
            outlet.log(
                "warn",
                f"realtime_priority {priority}: {error}; ordinary scheduling; raise rtprio for "
                "this user in /etc/security/limits.conf",
            )
        else:
            outlet.log("info", f"the control thread has SCHED_FIFO priority {priority}")


def _words(cpus: set[int] | frozenset[int]) -> str:
    """The list of ``cpu_set``, as short as it can be."""
    words: list[str] = []
    left = sorted(cpus)
    while left:
        first = last = left.pop(0)
        while left and left[0] == last + 1:
            last = left.pop(0)
        words.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(words)
