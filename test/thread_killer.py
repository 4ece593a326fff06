"""Ends a thread of the node by an exception that none of its guards expects, wherever it stands.

``SystemExit`` is what Python itself lets a thread end by without a word.
"""

from __future__ import annotations

import ctypes
import sys
import threading

from flashrt_ros.ros import timing

THREADS = ("control", "intake", "storage", "replies", "planner")
_killed: set[str] = set()


class Killed(SystemExit):
    """Raised in the thread that is to end."""


def kill_once(name: str) -> None:
    """Kills the thread of this name at most once in a process."""
    if name not in _killed:
        _killed.add(name)
        kill(name)


def kill(name: str) -> None:
    """Has ``Killed`` raised in the thread of this name, as soon as it runs Python."""
    if name == "control":
        _kill_between_steps()
        return
    (thread,) = [thread for thread in threading.enumerate() if thread.name == name]
    raise_in(thread)


def raise_in(thread: threading.Thread, error: type[BaseException] = Killed) -> None:
    """Has ``error`` raised in a thread."""
    assert thread.ident is not None
    found = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(error)
    )
    assert found == 1


def _kill_between_steps() -> None:
    """Within a step an exception would be one of the policy, which does not end the thread."""
    add = timing.Ring.add

    def fatal(ring: timing.Ring, value: float) -> None:
        caller = sys._getframe(1).f_code.co_name
        if threading.current_thread().name == "control" and caller == "_loop":
            timing.Ring.add = add  # type: ignore[method-assign]
            raise Killed("between two steps")
        add(ring, value)

    timing.Ring.add = fatal  # type: ignore[method-assign]
