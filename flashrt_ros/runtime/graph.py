"""One part of a policy, prepared once and then only replayed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from flashrt_ros.errors import CaptureError, NotConfiguredError
from flashrt_ros.runtime.device import Device, Lane, Replay
from flashrt_ros.runtime.host_read import first_obstacle


class GraphPlan:
    """A captured graph on CUDA, a plain call on CPU.

    Attributes:
        name: ``plan``, ``adopt`` or ``act``; used in messages.
        lane: Where it is warmed up and captured.
        plain: Why it is called rather than replayed, one line; empty if it is captured.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[[], None],
        device: Device,
        lane: Lane = Lane.CONTROL,
        may_run_plain: bool = False,
        module: nn.Module | None = None,
    ) -> None:
        """Prepares nothing yet.

        Args:
            name: See the class.
            fn: What is captured.
            device: Where.
            lane: See the class.
            may_run_plain: It is called, where it cannot be captured.
            module: Whose weights it takes for granted; see ``check``.
        """
        self.name = name
        self.lane = lane
        self._fn = fn
        self._device = device
        self._replay: Replay | None = None
        self._may_run_plain = may_run_plain
        self._module = module
        self._weights: dict[str, int] = {}
        self.plain = ""

    def prepare(self, warm_up: int = 3, before: Callable[[], None] | None = None) -> None:
        """Warms up and captures; the buffers hold garbage afterwards.

        Args:
            warm_up: Calls before the capture; on CUDA at least one is made.
            before: Called before each of these, to put back what the calls change.

        Raises:
            CaptureError: It cannot be captured, and may not run without.
        """
        before = before or _nothing
        with self._device.bind(self.lane), torch.no_grad():
            if self._may_run_plain and self._device.captures:
                # Looked for first: a capture that fails leaves torch's allocator in disorder.
                before()
                self.plain = first_obstacle(self._fn, self._device.torch_device)
            if not self.plain:
                try:
                    self._replay = self._device.compile(self._fn, warm_up, before)
                except CaptureError as error:
                    if not self._may_run_plain:
                        raise
                    self.plain = str(error)
            if self.plain:
                self._replay = self._device.plain(self._fn)
            self._device.synchronize()
        self._weights = self._addresses()

    def check(self) -> None:
        """Looks whether the weights lie where they lay when it was prepared.

        A graph goes on reading there, also when the memory has become that of something else.

        Raises:
            CaptureError: One does not.
        """
        now = self._addresses()
        moved = [name for name, address in self._weights.items() if now.get(name) != address]
        if moved:
            raise CaptureError(
                f"plan {self.name!r}: expected weights to stay where they were when it was"
                f" prepared, found {moved[0]!r} elsewhere, of {len(moved)} in all; let the policy"
                " lay them out in its first call"
            )

    def _addresses(self) -> dict[str, int]:
        if self._module is None:
            return {}
        return {name: weight.data_ptr() for name, weight in self._module.named_parameters()}

    def replay(self) -> None:
        """Runs once on the lane that is bound, without waiting for it.

        Raises:
            NotConfiguredError: ``prepare`` has not been called.
        """
        if self._replay is None:
            raise NotConfiguredError(f"plan {self.name!r} was never prepared; call prepare first")
        self._replay()


def _nothing() -> None:
    pass
