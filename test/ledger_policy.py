"""A policy whose rows are cheap and tell their history: for tests of how rows are stored."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from flashrt_ros.runtime.buffers import ROWS_LENGTH, BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, PlanKind, Policy, Port, Ports

MOST = 2
"""Rows that one act may append."""


class Ledger(Policy):
    """Writes ``stamp, index, sum`` of each act into rows, as many as the observation says.

    Two buffers of different type share a row: ``tape``, ``width`` int32 of which three are used,
    and ``mark``, 2 bytes, each padded to 16: 32 bytes by default.
    """

    family = "ledger"
    rows_per_act = MOST

    def __init__(self, capacity: int = 40, width: int = 3) -> None:
        self.capacity = capacity
        self.width = width

    def config(self) -> Mapping[str, object]:
        return {}

    def module(self) -> nn.Module:
        return nn.Identity()

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec("sum", (1,), torch.int64, Role.STATE),
            BufferSpec("tape", (self.width,), torch.int32, Role.STATE, capacity=self.capacity),
            BufferSpec("mark", (2,), torch.uint8, Role.STATE, capacity=self.capacity),
            BufferSpec("told", (2,), torch.int64, Role.INPUT),
            BufferSpec("out", (1,), torch.float32, Role.OUTPUT),
        )

    def ports(self) -> Ports:
        return Ports((Port("told", "told", (2,)),), Port("action", "out", (1,)))

    def reset_(self, state: Buffers) -> None:
        state["sum"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """``told``: rows to append, stamp. Both rows are always written; the count decides."""
        count_1, stamp_1 = inputs["told"][:1], inputs["told"][1:]
        at_2 = state[ROWS_LENGTH] + torch.arange(MOST, device=stamp_1.device)
        state["sum"].add_(stamp_1)
        head_23 = torch.stack((stamp_1.expand(MOST), at_2, state["sum"].expand(MOST)), dim=1)
        state["tape"][:, :3].index_copy_(0, at_2, head_23.to(torch.int32))
        state["mark"].index_copy_(0, at_2, (head_23[:, :2] % 251).to(torch.uint8))
        state[ROWS_LENGTH].add_(count_1)
        outputs["out"].copy_(state["sum"])


def row_bytes(stamp: int, index: int, total: int, width: int = 3) -> bytes:
    """What ``Ledger`` writes into one row, padding included."""
    head = b"".join(value.to_bytes(4, "little", signed=True) for value in (stamp, index, total))
    head += bytes(-(-4 * width // 16) * 16 - len(head))
    return head + bytes((stamp % 251, index % 251)) + bytes(14)


class Planned(Ledger):
    """The same two rows, appended by a plan that advances state, for chunks of two actions."""

    family = "ledger_planned"
    plan_kind = PlanKind.ADVANCES
    chunk_size = n_action_steps = 2
    rows_per_act = 0
    rows_per_plan = MOST

    def layout(self) -> tuple[BufferSpec, ...]:
        specs = (*super().layout(), BufferSpec("planned", (2,), torch.int64, Role.OUTPUT))
        return (*specs, BufferSpec("chunk", (2,), torch.int64, Role.STATE))

    def reset_(self, state: Buffers) -> None:
        super().reset_(state)
        state["chunk"].zero_()

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        outputs["planned"].copy_(inputs["told"])
        super().act(state, inputs, outputs)

    def adopt(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        state["chunk"].copy_(outputs["planned"])

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        outputs["out"].copy_(state["sum"] + state["chunk"][1:])


class Beside(Planned):
    """Plans beside, reading all rows so far; what is planned is appended when it is adopted."""

    family = "ledger_beside"
    plan_kind = PlanKind.BESIDE

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        behind_T = torch.arange(self.capacity, device=state["sum"].device) >= state[ROWS_LENGTH]
        stamps_T = state["tape"][:, 0].masked_fill(behind_T, 0).to(torch.int64)
        outputs["planned"][:1].copy_(inputs["told"][:1])
        outputs["planned"][1:].copy_(inputs["told"][1:] + stamps_T.sum())

    def adopt(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        state["chunk"].copy_(outputs["planned"])
        Ledger.act(self, state, {"told": outputs["planned"]}, outputs)
