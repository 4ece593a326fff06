"""The observations of the last control steps, as state.

LeRobot keeps them in a deque that is filled with the first observation of an episode. Here they
are buffers, so that they are in every capsule, and whether one is the first is a counter.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers

COUNT = "history.count"


class History:
    """Holds so many observations of each kind; the present one is not among them.

    State: ``history.count`` ``(1,)`` int64, observations so far, and for each kind
    ``history.<name>`` ``(depth, *shape)``, the newest last. Nothing at all with a depth of 0.

    Args:
        depth: Control steps before the present one.
        kinds: Name to shape and dtype.
    """

    def __init__(
        self, depth: int, kinds: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    ) -> None:
        self.depth = depth
        self._kinds = dict(kinds) if depth else {}

    def specs(self) -> tuple[BufferSpec, ...]:
        """Its buffers."""
        if not self._kinds:
            return ()
        return (
            BufferSpec(COUNT, (1,), torch.int64, Role.STATE, "observations"),
            *(
                BufferSpec(f"history.{name}", (self.depth, *shape), dtype, Role.STATE)
                for name, (shape, dtype) in self._kinds.items()
            ),
        )

    def reset_(self, state: Buffers) -> None:
        """Forgets everything."""
        for spec in self.specs():
            state[spec.name].zero_()

    def with_present(self, state: Buffers, name: str, present: torch.Tensor) -> torch.Tensor:
        """Returns ``(depth + 1, *shape)``: the history, and the present observation last.

        At the first control step of an episode all are the present one.
        """
        present_1 = present.unsqueeze(0)
        if not self._kinds:
            return present_1
        known = torch.where(state[COUNT] == 0, present_1, state[f"history.{name}"])
        return torch.cat((known, present_1))

    def observe_(self, state: Buffers, present: Mapping[str, torch.Tensor]) -> None:
        """Takes in the present observation of every kind and forgets the oldest."""
        for name in self._kinds:
            # A history of one is overwritten, so nothing needs to be told apart.
            rows = present[name].unsqueeze(0)
            if self.depth > 1:
                rows = self.with_present(state, name, present[name])[1:]
            state[f"history.{name}"].copy_(rows)
        if self._kinds:
            state[COUNT].add_(1)
