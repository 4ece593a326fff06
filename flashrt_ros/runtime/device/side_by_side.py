"""Pieces of a calculation that do not depend on each other, side by side on a GPU.

In a captured plan they become branches of its graph. On a CPU, on the default stream, which is no
plan's, and while gradients are recorded, they run in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")

_SIDES: dict[tuple[int, int], list[torch.cuda.Stream]] = {}
"""Index of a GPU and handle of a stream to the streams that fork from it, kept for good.

Each stream has its own: cuBLAS then has a workspace for each, and memory that torch's allocator
took for one is handed out again only behind a fork, past the last use in the stream it forks from.
"""


def side_by_side(where: torch.device, *calls: Callable[[], T]) -> list[T]:
    """Makes the calls, none of which may write what another one reads; returns their results.

    What the calls read is kept until all of them are done: by the caller, who holds the calls.

    Args:
        where: The device that they work on.
        calls: The first one runs on the current stream: the longest had best be the first.
    """
    if where.type != "cuda" or torch.is_grad_enabled() or len(calls) < 2:
        return [call() for call in calls]
    current = torch.cuda.current_stream(where)
    if current == torch.cuda.default_stream(where):
        return [call() for call in calls]
    sides = _sides(current, len(calls) - 1)
    others = []
    for side, call in zip(sides, calls[1:], strict=True):
        side.wait_stream(current)
        with torch.cuda.stream(side):
            others.append(call())
    first = calls[0]()
    for side in sides:
        current.wait_stream(side)
    return [first, *others]


def _sides(current: torch.cuda.Stream, count: int) -> list[torch.cuda.Stream]:
    found = _SIDES.setdefault((current.device_index, current.cuda_stream), [])
    while len(found) < count:
        found.append(_stream(current.device))
    return found[:count]


def _stream(device: torch.device) -> torch.cuda.Stream:
    # Torch's own come from a pool and come again soon: as a lane of another session, say.
    try:
        from cuda.bindings import runtime
    except ImportError:
        return torch.cuda.Stream(device)
    with torch.cuda.device(device):
        status, handle = runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)
    if status != runtime.cudaError_t.cudaSuccess:
        return torch.cuda.Stream(device)
    return torch.cuda.ExternalStream(int(handle), device=device)
