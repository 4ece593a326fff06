"""A scripted policy: sees where a block should go, goes to it, lifts it and puts it there.

No weights: a table of phases. It is a policy like any other all the same: what it remembers is in
named state buffers, and it draws from its noise key where it goes round the post and how far off
the middle it takes the block. So a capsule holds the phase that it believes to be in, the block's
place as it last saw it, and where the block should go; and another seed is another try.

It has no feeling in its hand. Whether the magnet holds the block it does not know.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from flashrt_ros.demo.arm import LINKS_M
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, Policy, Port, Ports

NEAR_M, FAR_M = (0.30, 0.0), (0.62, 0.0)
"""The two ways round the post: between it and the arm's foot, or outside."""
SPREAD_M = 0.007
"""Standard deviation, in x and in y, of where on the block it puts its hand."""
LEAD = (0.15, 0.15, 0.03)
"""How far ahead of the measured position it commands, rad and m: its limit of speed."""
ARRIVED_M, PASSED_M = 0.008, 0.06
REACH_M = -0.102
"""Slide, metres: the hand on the block, pressing by two millimetres."""


class Phase(enum.IntEnum):
    """What it believes to be doing; the value is in the buffer ``phase.index``."""

    LOOK = 0
    """Stands, until it has seen where the block should go, and where the block is."""
    ROUND = 1
    APPROACH = 2
    REACH = 3
    CLOSE = 4
    LIFT = 5
    CARRY = 6
    LOWER = 7
    OPEN = 8
    LEAVE = 9
    DONE = 10


@dataclass(frozen=True)
class Row:
    """One phase.

    Attributes:
        place: Where the hand goes: 0 where it is, 1 beside the post, 2 block, 3 goal.
        lift_m: The slide.
        magnet: 1 on, 0 off.
        steps: It lasts at least so long.
        near_m: It ends when the hand is so near to its place.
    """

    place: int
    lift_m: float
    magnet: float
    steps: int
    near_m: float = ARRIVED_M


_NEVER = 1 << 62
TABLE: dict[Phase, Row] = {
    Phase.LOOK: Row(0, 0.0, 0.0, _NEVER),
    Phase.ROUND: Row(1, 0.0, 0.0, 2, PASSED_M),
    Phase.APPROACH: Row(2, 0.0, 0.0, 2),
    Phase.REACH: Row(2, REACH_M, 0.0, 2),
    Phase.CLOSE: Row(2, REACH_M, 1.0, 5),
    Phase.LIFT: Row(2, 0.0, 1.0, 2),
    Phase.CARRY: Row(3, 0.0, 1.0, 2),
    Phase.LOWER: Row(3, REACH_M, 1.0, 2),
    Phase.OPEN: Row(3, REACH_M, 0.0, 5),
    Phase.LEAVE: Row(3, 0.0, 0.0, 2),
    Phase.DONE: Row(0, 0.0, 0.0, _NEVER),
}


class _Table(nn.Module):
    """``TABLE`` as constants on the policy's device."""

    place_P: Tensor
    lift_P: Tensor
    magnet_P: Tensor
    steps_P: Tensor
    near_P: Tensor
    ways_W2: Tensor
    lead_3: Tensor

    def __init__(self) -> None:
        super().__init__()
        rows = [TABLE[phase] for phase in Phase]
        self.register_buffer("place_P", torch.tensor([row.place for row in rows]))
        self.register_buffer("lift_P", torch.tensor([row.lift_m for row in rows]))
        self.register_buffer("magnet_P", torch.tensor([row.magnet for row in rows]))
        self.register_buffer("steps_P", torch.tensor([row.steps for row in rows]))
        self.register_buffer("near_P", torch.tensor([row.near_m for row in rows]))
        self.register_buffer("ways_W2", torch.tensor((NEAR_M, FAR_M)))
        self.register_buffer("lead_3", torch.tensor(LEAD))


class PickPolicy(Policy):
    """See the module.

    State: ``phase.index`` and ``phase.steps`` ``(1,)`` int64; ``memory.goal`` ``(3,)`` float32: x
    and y, and 1 once it is known; ``memory.block`` ``(2,)`` float32 where the hand will come down;
    ``memory.way`` ``(1,)`` int64, 0 near and 1 far; ``noise.*``.
    """

    family: ClassVar[str] = "pick"

    def __init__(self, directory: Path | None = None) -> None:
        self._table = _Table()

    def config(self) -> Mapping[str, object]:
        """What shapes its actions."""
        rows = {phase.name.lower(): list(vars(row).values()) for phase, row in TABLE.items()}
        return {"phases": rows, "ways": [NEAR_M, FAR_M], "spread": SPREAD_M, "lead": LEAD}

    def module(self) -> nn.Module:
        """The table."""
        return self._table

    def layout(self) -> tuple[BufferSpec, ...]:
        """See the class."""
        return (
            BufferSpec("phase.index", (1,), torch.int64, Role.STATE),
            BufferSpec("phase.steps", (1,), torch.int64, Role.STATE, "control steps"),
            BufferSpec("memory.goal", (3,), torch.float32, Role.STATE),
            BufferSpec("memory.block", (2,), torch.float32, Role.STATE, "m"),
            BufferSpec("memory.way", (1,), torch.int64, Role.STATE),
            *noise.NOISE_SPECS,
            BufferSpec("draw.offset", (2,), torch.float32, Role.SCRATCH),
            BufferSpec("draw.way", (1,), torch.float32, Role.SCRATCH),
            BufferSpec("observation.state", (3,), torch.float32, Role.INPUT),
            BufferSpec("observation.block", (3,), torch.float32, Role.INPUT),
            BufferSpec("observation.cue", (3,), torch.float32, Role.INPUT),
            BufferSpec("action", (4,), torch.float32, Role.OUTPUT),
        )

    def ports(self) -> Ports:
        """Joints, block and cue in; set points of the joints, the slide and the magnet out."""
        observations = tuple(
            Port(f"observation.{key}", f"observation.{key}", (3,))
            for key in ("state", "block", "cue")
        )
        return Ports(observations, Port("action", "action", (4,)))

    def reset_(self, state: Buffers) -> None:
        """Forgets everything."""
        for name, tensor in state.items():
            if not name.startswith("noise."):
                tensor.zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """One control step; see ``Policy.act``."""
        here_3, block_3 = inputs["observation.state"], inputs["observation.block"]
        cue_3, phase_1 = inputs["observation.cue"], state["phase.index"]
        goal_3 = state["memory.goal"]
        shown_1 = cue_3[2:] > 0.5
        goal_3.copy_(torch.where(shown_1, cue_3, goal_3))

        starts_1 = (phase_1 == Phase.LOOK) & ~shown_1 & (goal_3[2:] > 0.5) & (block_3[2:] > 0.5)
        self._begin_try_(state, outputs, starts_1, block_3)
        phase_1.add_(starts_1.to(torch.int64))
        state["phase.steps"].masked_fill_(starts_1, 0)

        tip_2 = _tip(here_3)
        aim_2, lift_1 = self._aim(state, tip_2)
        away_1 = torch.linalg.vector_norm(aim_2 - tip_2, dim=0, keepdim=True)
        there_1 = (
            (away_1 < self._table.near_P[phase_1])
            & ((here_3[2:] - lift_1).abs() < ARRIVED_M)
            & (state["phase.steps"] >= self._table.steps_P[phase_1])
        )
        phase_1.add_(there_1.to(torch.int64))
        state["phase.steps"].add_(1).masked_fill_(there_1, 0)

        # Those of the phase that has just begun.
        aim_2, lift_1 = self._aim(state, tip_2)
        ahead_3 = torch.cat((_joints(aim_2) - here_3[:2], lift_1 - here_3[2:]))
        # Both joints are slowed alike, so that the way keeps its direction.
        rate_3 = ahead_3.abs() / self._table.lead_3
        slow_2 = rate_3[:2].amax(0, keepdim=True).clamp(min=1.0).expand(2)
        stride_3 = ahead_3 / torch.cat((slow_2, rate_3[2:].clamp(min=1.0)))
        outputs["action"].copy_(torch.cat((here_3 + stride_3, self._table.magnet_P[phase_1])))

    def _begin_try_(
        self, state: Buffers, outputs: Buffers, starts_1: Tensor, block_3: Tensor
    ) -> None:
        """Where a try starts: draws its way and where on the block the hand comes down."""
        offset_2, way_1 = outputs["draw.offset"], outputs["draw.way"]
        noise.normal_(offset_2, state, advance=False)
        noise.uniform_(way_1, state, offset=1, advance=False)
        down_2 = block_3[:2] + SPREAD_M * offset_2
        state["memory.block"].copy_(torch.where(starts_1, down_2, state["memory.block"]))
        drawn_1 = (way_1 >= 0.5).to(torch.int64)
        state["memory.way"].copy_(torch.where(starts_1, drawn_1, state["memory.way"]))
        # Only tries move the counter: how long it stood and looked does not change what it draws.
        state[noise.COUNTER].add_(2 * starts_1.to(torch.int64))

    def _aim(self, state: Buffers, tip_2: Tensor) -> tuple[Tensor, Tensor]:
        table, phase_1 = self._table, state["phase.index"]
        places_42 = torch.stack(
            (
                tip_2,
                table.ways_W2[state["memory.way"]][0],
                state["memory.block"],
                state["memory.goal"][:2],
            )
        )
        return places_42[table.place_P[phase_1]][0], table.lift_P[phase_1]


def _tip(position_3: Tensor) -> Tensor:
    """As ``demo.arm.tip_of``."""
    first_1, both_1 = position_3[:1], position_3[:1] + position_3[1:2]
    upper, fore = LINKS_M
    return torch.cat(
        (
            upper * torch.cos(first_1) + fore * torch.cos(both_1),
            upper * torch.sin(first_1) + fore * torch.sin(both_1),
        )
    )


def _joints(tip_2: Tensor) -> Tensor:
    """As ``demo.arm.joints_for``, of a place that the arm reaches."""
    upper, fore = LINKS_M
    reach_1 = torch.linalg.vector_norm(tip_2, dim=0, keepdim=True)
    cosine_1 = (reach_1**2 - upper**2 - fore**2) / (2 * upper * fore)
    elbow_1 = torch.acos(cosine_1.clamp(-1.0, 1.0))
    shoulder_1 = torch.atan2(tip_2[1:], tip_2[:1]) - torch.atan2(
        fore * torch.sin(elbow_1), upper + fore * torch.cos(elbow_1)
    )
    return torch.cat((shoulder_1, elbow_1))
