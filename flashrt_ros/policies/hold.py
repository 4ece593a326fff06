"""A policy without weights: the arm stays where it is. For wiring tests on a robot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.checkpoint import CONFIG, read_config
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, Policy, Port, Ports

OBSERVATION, ACTION = "observation.state", "action"
DEFAULT_SIZE = 6
LARGEST_SIZE = 4096


class HoldPolicy(Policy):
    """Commands the joint positions that it reads.

    State: ``hold.position`` ``(N,)`` float32 and ``hold.latched`` ``(1,)`` int64. With ``latch``
    the action is the first position of the episode, so that an arm does not creep away under its
    own weight; without, it is the present one.

    Args:
        size: N, joints.
        latch: Keep the first position of an episode.
    """

    family: ClassVar[str] = "hold"

    def __init__(self, size: int = DEFAULT_SIZE, latch: bool = False) -> None:
        self._size = size
        self._latch = latch
        self._module = nn.Module()

    def config(self) -> Mapping[str, object]:
        """Size and latch."""
        return {"type": self.family, "size": self._size, "latch": self._latch}

    def module(self) -> nn.Module:
        """Empty."""
        return self._module

    def layout(self) -> tuple[BufferSpec, ...]:
        """See the class."""
        shape = (self._size,)
        state = (
            BufferSpec("hold.position", shape, torch.float32, Role.STATE),
            BufferSpec("hold.latched", (1,), torch.int64, Role.STATE),
        )
        return (
            *state,
            BufferSpec(OBSERVATION, shape, torch.float32, Role.INPUT),
            BufferSpec(ACTION, shape, torch.float32, Role.OUTPUT),
        )

    def ports(self) -> Ports:
        """Joint positions in and out, in the contract's units."""
        shape = (self._size,)
        return Ports((Port(OBSERVATION, OBSERVATION, shape),), Port(ACTION, ACTION, shape))

    def reset_(self, state: Buffers) -> None:
        """Forgets the position."""
        state["hold.position"].zero_()
        state["hold.latched"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """See the class."""
        position_N, latched_1 = state["hold.position"], state["hold.latched"]
        if self._latch:
            position_N.copy_(torch.where(latched_1 > 0, position_N, inputs[OBSERVATION]))
        else:
            position_N.copy_(inputs[OBSERVATION])
        latched_1.fill_(1)
        outputs[ACTION].copy_(position_N)


def make(directory: Path | None) -> HoldPolicy:
    """Factory: ``{"type": "hold", "size": N, "latch": false}`` in config.json; 6 joints without.

    Raises:
        CheckpointError: A key is unknown or holds a wrong value.
    """
    if directory is None:
        return HoldPolicy()
    values = {"size": DEFAULT_SIZE, "latch": False, **read_config(directory)}
    source = directory / CONFIG
    unknown = sorted(set(values) - {"type", "size", "latch"})
    if unknown:
        raise CheckpointError(f"{source}: unknown keys {unknown}; expected type, size, latch")
    size, latch = values["size"], values["latch"]
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST_SIZE:
        raise CheckpointError(f"{source}: size: expected 1 to {LARGEST_SIZE}, found {size!r}")
    if not isinstance(latch, bool):
        raise CheckpointError(f"{source}: latch: expected true or false, found {latch!r}")
    return HoldPolicy(size, latch)
