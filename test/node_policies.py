"""Policies for tests of the node, simple enough to foresee every action.

All read four elements of ``observation.state`` (two positions, two velocities) and command two
positions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import nn

from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, PlanKind, Policy, Port, Ports

STEP_RAD = 0.01


class TwoJoints(Policy):
    """What the policies for the tests' robot have in common: no weights, one input, one action."""

    def __init__(self) -> None:
        self._module = nn.Module()

    def config(self) -> Mapping[str, object]:
        return {}

    def module(self) -> nn.Module:
        return self._module

    def ports(self) -> Ports:
        return Ports(
            observations=(Port("observation.state", "state_in", (4,)),),
            action=Port("action", "action_out", (2,)),
        )


class Follow(TwoJoints):
    """Commands the measured positions plus ``offset`` plus 0.01 rad for each step so far.

    Attributes:
        offset: Added to both positions; far beyond the start distance for an unsafe start.
        slow_s: How long each step takes.
        bad_step: Step of the episode whose action is NaN; -1: none.
    """

    family = "follow"

    def __init__(self, offset: float = 0.0, slow_s: float = 0.0, bad_step: int = -1) -> None:
        super().__init__()
        self.offset = offset
        self.slow_s = slow_s
        self.bad_step = bad_step

    def config(self) -> Mapping[str, object]:
        return {"bad_step": self.bad_step}

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec("count", (1,), torch.float32, Role.STATE),
            BufferSpec("state_in", (4,), torch.float32, Role.INPUT),
            BufferSpec("action_out", (2,), torch.float32, Role.OUTPUT, "rad"),
        )

    def reset_(self, state: Buffers) -> None:
        state["count"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        if self.slow_s:
            time.sleep(self.slow_s)
        target = inputs["state_in"][:2] + self.offset + STEP_RAD * state["count"]
        outputs["action_out"].copy_(target)
        if self.bad_step >= 0:
            bad = state["count"] == self.bad_step
            outputs["action_out"].masked_fill_(bad, float("nan"))
        state["count"].add_(1.0)


class FollowChunks(TwoJoints):
    """Plans four rows beside: the measured positions, then 0.01 rad farther each row."""

    family = "follow_chunks"
    plan_kind = PlanKind.BESIDE
    chunk_size = 4
    n_action_steps = 4

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec("chunk.actions", (4, 2), torch.float32, Role.STATE, "rad"),
            BufferSpec("chunk.cursor", (1,), torch.int64, Role.STATE),
            BufferSpec("state_in", (4,), torch.float32, Role.INPUT),
            BufferSpec("planned", (4, 2), torch.float32, Role.OUTPUT, "rad"),
            BufferSpec("action_out", (2,), torch.float32, Role.OUTPUT, "rad"),
        )

    def reset_(self, state: Buffers) -> None:
        state["chunk.actions"].zero_()
        state["chunk.cursor"].zero_()

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        rows = STEP_RAD * torch.arange(4.0)[:, None]
        outputs["planned"].copy_(inputs["state_in"][:2] + rows)

    def adopt(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        state["chunk.actions"].copy_(outputs["planned"])
        state["chunk.cursor"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        row = state["chunk.actions"].index_select(0, state["chunk.cursor"].clamp(max=3))
        outputs["action_out"].copy_(row[0])
        state["chunk.cursor"].add_(1)
