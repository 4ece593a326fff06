"""Actions that are predicted relative to the robot's state at the moment of the plan.

LeRobot keeps that state in an attribute of a processor, overwritten at every control step. Here it
is a buffer that changes when a chunk is adopted: a chunk stays relative to the state that its plan
saw, and a capsule brings both back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, Port

REFERENCE, PLANNED = "relative.reference", "relative.next"


class RelativeActions:
    """Adds the state of the plan to the elements of a chunk that are relative to it.

    Buffers: the state ``relative.reference`` ``(A,)`` float32, which the present chunk is relative
    to, and the output ``relative.next`` ``(A,)``, the same for the planned one.

    Args:
        state: Port of the robot's state, whose first A elements belong to those of the action.
        relative: For each element of the action whether it is relative.

    Raises:
        InvalidArgumentError: The state is no vector of at least A elements.
    """

    def __init__(self, state: Port, relative: Sequence[bool]) -> None:
        if len(state.shape) != 1 or state.shape[0] < len(relative):
            raise InvalidArgumentError(
                f"relative actions: expected a state {state.key!r} of at least the action's "
                f"{len(relative)} elements, found shape {state.shape}"
            )
        self._state = state
        self._relative = tuple(bool(one) for one in relative)
        self._module = nn.Module()
        self._module.register_buffer("mask", torch.tensor(self._relative, dtype=torch.float32))

    def config(self) -> Mapping[str, object]:
        """Which elements are relative, and to what."""
        return {"state": self._state.key, "relative": list(self._relative)}

    def module(self) -> nn.Module:
        """The mask."""
        return self._module

    def layout(self) -> tuple[BufferSpec, ...]:
        """See the class."""
        shape, unit = (len(self._relative),), self._state.unit
        return (
            BufferSpec(REFERENCE, shape, torch.float32, Role.STATE, unit),
            BufferSpec(PLANNED, shape, torch.float32, Role.OUTPUT, unit),
        )

    def reset_(self, state: Buffers) -> None:
        """Forgets the reference."""
        state[REFERENCE].zero_()

    def take_in_(self, inputs: Buffers, outputs: Buffers) -> None:
        """Keeps the state that a plan sees, before normalisation."""
        outputs[PLANNED].copy_(inputs[self._state.buffer][: len(self._relative)])

    def adopt_(self, state: Buffers, outputs: Buffers) -> None:
        """Commits the reference with its chunk."""
        state[REFERENCE].copy_(outputs[PLANNED])

    def drift(self, state: Buffers, inputs: Buffers) -> torch.Tensor:
        """What relative rows of the chunk under way gain when they are told from now on.

        Args:
            state: Read only.
            inputs: Read only; the present state of the robot is among them.

        Returns:
            ``(A,)`` in the units of the action; 0 where an element is not relative.
        """
        present_A = inputs[self._state.buffer][: len(self._relative)]
        return (state[REFERENCE] - present_A) * self._module.get_buffer("mask")

    def absolute(self, actions: torch.Tensor, reference_A: torch.Tensor) -> torch.Tensor:
        """Actions ``(..., A)`` in their units, no longer relative."""
        return actions + reference_A * self._module.get_buffer("mask")
