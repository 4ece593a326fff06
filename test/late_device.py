"""A CPU that behaves as a GPU: memory of its own, and work that is done later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from flashrt_ros.runtime.device.cpu import CpuDevice


class OutOfLuckError(RuntimeError):
    """What was to be enqueued was not."""


class LateDevice(CpuDevice):
    """Does what is enqueued when somebody waits for it, or ``work`` is called.

    Attributes:
        fails_in: So many more things are enqueued before one is refused; None: none is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fails_in: int | None = None
        self._queue: list[Callable[[], object]] = []
        self._at_once = False

    def work(self, count: int | None = None) -> None:
        """Does the oldest ``count`` things, or all."""
        for _ in range(len(self._queue) if count is None else min(count, len(self._queue))):
            self._do(self._queue.pop(0))

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within, nothing waits: for calls that mix what is enqueued with torch's own."""
        self.work()
        before, self._at_once = self._at_once, True
        try:
            yield
        finally:
            self._at_once = before

    def _do(self, call: Callable[[], object]) -> None:
        before, self._at_once = self._at_once, True
        try:
            call()
        finally:
            self._at_once = before

    def _enqueue(self, call: Callable[[], object]) -> None:
        if self._at_once:
            call()
            return
        if self.fails_in is not None:
            self.fails_in -= 1
            if self.fails_in < 0:
                self.fails_in = None
                raise OutOfLuckError
        self._queue.append(call)

    def allocate_mirrored(self, size_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.allocate(size_bytes), self.allocate(size_bytes)

    def copy_(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._enqueue(lambda: target.copy_(source))

    def copy_pieces_(self, *arguments: Any) -> None:
        self.work()
        super().copy_pieces_(*arguments)

    def compile(self, fn: Callable[[], None], warm_up: int, before: Callable[[], None]) -> Any:
        self.work()
        self._do(lambda: [call() for _ in range(warm_up) for call in (before, fn)])
        return self.plain(fn)

    def plain(self, fn: Callable[[], None]) -> Any:
        call = torch.no_grad()(fn)
        return lambda: self._enqueue(call)

    def synchronize(self) -> None:
        self.work()

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        self.work()
        return tensor.detach().clone()
