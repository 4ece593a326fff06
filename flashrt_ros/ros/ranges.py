"""Ranges for profilers: what the node does, by name, for Nsight Systems and for ros2_tracing.

They are put around the methods of the objects that do the work, once and only when asked for, so
there is nothing on the hot path without them.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

from flashrt_ros.errors import UnsupportedError

VERBS = ("snapshot", "restore", "rollback", "fork", "reset_")
PREFIX = "flashrt_ros."


def nvtx() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """Torch's functions that begin and end a range.

    Raises:
        UnsupportedError: This torch has none.
    """
    from torch.cuda import nvtx as found

    try:
        found.range_push("flashrt_ros")
        found.range_pop()
    except (RuntimeError, AttributeError) as error:
        raise UnsupportedError(
            f"nvtx: expected a torch with NVTX, such as one built for CUDA, found none: {error}"
        ) from error
    return found.range_push, found.range_pop


class TracePoints:
    """Ranges as ``ros2:callback_start`` and ``ros2:callback_end``, for ros2_tracing's analyses.

    ros2_tracing has no points for ranges of one's own and no Python interface; callbacks have a
    name and a duration, which is what a range is.
    """

    def __init__(self, library: Any) -> None:
        """Takes the loaded ``libtracetools.so``.

        Raises:
            UnsupportedError: It was built without LTTng, so its points do nothing.
        """
        if not library.ros_trace_compile_status():
            raise UnsupportedError(
                "tracing: expected a tracetools with LTTng, found one that was built without it"
            )
        self._register = library.ros_trace_rclcpp_callback_register
        self._start, self._end = library.ros_trace_callback_start, library.ros_trace_callback_end
        self._register.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._start.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        self._end.argtypes = [ctypes.c_void_p]
        for function in (self._register, self._start, self._end):
            function.restype = None
        # Their addresses are what analyses know ranges by.
        self._handles: dict[str, Any] = {}
        self._open = threading.local()

    def begin(self, name: str) -> None:
        """Begins a range in the calling thread."""
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles.setdefault(name, ctypes.create_string_buffer(1))
            self._register(ctypes.addressof(handle), name.encode())
        if not hasattr(self._open, "handles"):
            self._open.handles = []
        address = ctypes.addressof(handle)
        self._open.handles.append(address)
        self._start(address, False)

    def end(self) -> None:
        """Ends the last one of the calling thread."""
        self._end(self._open.handles.pop())


def trace_points() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """Functions that begin and end a range in a trace of ros2_tracing.

    Raises:
        UnsupportedError: There is no tracetools here, or one without LTTng.
    """
    try:
        # Holds the interpreter: half a microsecond is not worth letting others in.
        points = TracePoints(ctypes.PyDLL("libtracetools.so"))
    except OSError as error:
        raise UnsupportedError(
            f"tracing: expected tracetools, which comes with ROS 2, found none: {error}"
        ) from error
    return points.begin, points.end


def mark(
    stepper: Any, intake: Any, begin: Callable[[str], Any], end: Callable[[], Any]
) -> tuple[str, ...]:
    """Puts ranges around control steps, plans, verbs and decoding.

    Args:
        stepper: Its ``tick``, and the plans and verbs of its session.
        intake: Its sampler's ``prepare``, which decodes.
        begin: Begins a range of a name in the calling thread.
        end: Ends the last one.

    Returns:
        The names of the ranges.
    """
    session = stepper.session
    marked = {
        "step": (stepper, "tick"),
        "plan": (session, "run_plan"),
        "adopt": (session, "adopt"),
        "decode": (intake.sampler, "prepare"),
        **{verb.rstrip("_"): (session, verb) for verb in VERBS},
    }
    for name, (owner, method) in marked.items():
        setattr(owner, method, _ranged(PREFIX + name, getattr(owner, method), begin, end))
    return tuple(PREFIX + name for name in marked)


def _ranged(
    name: str, work: Callable[..., Any], begin: Callable[[str], Any], end: Callable[[], Any]
) -> Callable[..., Any]:
    @functools.wraps(work)
    def ranged(*arguments: Any, **more: Any) -> Any:
        begin(name)
        try:
            return work(*arguments, **more)
        finally:
            end()

    return ranged
