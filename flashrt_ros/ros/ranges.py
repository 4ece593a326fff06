"""Ranges for a profiler such as Nsight Systems: what the node does, by name, on its timeline.

They are put around the methods of the objects that do the work, once and only when asked for, so
there is nothing on the hot path without them.
"""

from __future__ import annotations

import functools
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
