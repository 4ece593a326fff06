"""Python's garbage collector, off for as long as a capture takes."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_within = 0
_was_on = False


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Within, no thread collects anything; afterwards it is as it was before.

    What another session has left, memory and graphs, may be given back in any allocation of
    this thread, and CUDA calls that do so make a capture under way invalid.
    """
    global _within, _was_on
    with _lock:
        _within += 1
        if _within == 1:
            _was_on = gc.isenabled()
            gc.disable()
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if not _within and _was_on:
                gc.enable()
