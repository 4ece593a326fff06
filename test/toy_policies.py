"""Small policies for tests: one that acts at every step, one that plans chunks beside.

Both draw noise at every turn and keep several state buffers that each matter, so that a buffer
left out of a capsule shows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, PlanKind, Policy, Port, Ports

OBSERVATION = 4
ACTION = 3


def _seeded(module: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return module


def _ports() -> Ports:
    return Ports(
        observations=(
            Port("observation.state", "state_in", (OBSERVATION,), ("a", "b", "c", "d")),
            Port("observation.cue", "cue_in", (2,), required=False),
        ),
        action=Port("action", "action_out", (ACTION,)),
    )


_COMMON = (
    BufferSpec("state_in", (OBSERVATION,), torch.float32, Role.INPUT),
    BufferSpec("cue_in", (2,), torch.float32, Role.INPUT),
    BufferSpec("action_out", (ACTION,), torch.float32, Role.OUTPUT),
)


class ToyRecurrent(Policy):
    """GRU cell with a leaky trace, a step counter that modulates the action, and action noise."""

    family = "toy_recurrent"

    def __init__(self, seed: int = 0, hidden: int = 16) -> None:
        self.hidden = hidden
        self.net = _seeded(
            nn.ModuleDict(
                {
                    "cell": nn.GRUCell(OBSERVATION + 2, hidden),
                    "head": nn.Linear(hidden + ACTION, ACTION),
                }
            ),
            seed,
        )

    def config(self) -> Mapping[str, object]:
        return {"hidden": self.hidden}

    def module(self) -> nn.Module:
        return self.net

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec("rnn.h", (1, self.hidden), torch.float32, Role.STATE),
            BufferSpec("trace", (1, ACTION), torch.float32, Role.STATE),
            BufferSpec("count", (1,), torch.int64, Role.STATE),
            *_COMMON,
            BufferSpec("draw", (1, ACTION), torch.float32, Role.SCRATCH),
        )

    def ports(self) -> Ports:
        return _ports()

    def reset_(self, state: Buffers) -> None:
        state["rnn.h"].zero_()
        state["trace"].fill_(0.5)
        state["count"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        seen_1S = torch.cat((inputs["state_in"], inputs["cue_in"])).unsqueeze(0)
        state["rnn.h"].copy_(self.net["cell"](seen_1S, state["rnn.h"]))
        noise.normal_(outputs["draw"], state)
        mean_1A = self.net["head"](torch.cat((state["rnn.h"], state["trace"]), dim=1))
        action_1A = mean_1A + 0.1 * outputs["draw"] + 0.05 * torch.sin(state["count"].float())
        state["trace"].mul_(0.9).add_(0.1 * action_1A)
        state["count"].add_(1)
        outputs["action_out"].copy_(action_1A[0])


class ToyChunk(Policy):
    """Predicts a chunk from observation, noise and the trace of past actions; plans beside."""

    family = "toy_chunk"
    plan_kind = PlanKind.BESIDE
    chunk_size = 6
    n_action_steps = 4

    def __init__(self, seed: int = 0, splices: bool = False) -> None:
        self.splices = splices
        self.net = _seeded(nn.Linear(OBSERVATION + 2 + ACTION, self.chunk_size * ACTION), seed)

    def config(self) -> Mapping[str, object]:
        return {"splices": self.splices}

    def module(self) -> nn.Module:
        return self.net

    def layout(self) -> tuple[BufferSpec, ...]:
        rows_HA = (self.chunk_size, ACTION)
        consumed = (BufferSpec("plan.consumed", (1,), torch.int64, Role.INPUT),)
        return (
            BufferSpec("chunk.actions", rows_HA, torch.float32, Role.STATE),
            BufferSpec("chunk.cursor", (1,), torch.int64, Role.STATE),
            BufferSpec("trace", (ACTION,), torch.float32, Role.STATE),
            *_COMMON,
            *(consumed if self.splices else ()),
            BufferSpec("planned", rows_HA, torch.float32, Role.OUTPUT),
        )

    def ports(self) -> Ports:
        return _ports()

    def reset_(self, state: Buffers) -> None:
        state["chunk.actions"].zero_()
        state["chunk.cursor"].zero_()
        state["trace"].zero_()

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        planned_HA = outputs["planned"]
        noise.normal_(planned_HA, state, advance=False)
        seen_N = torch.cat((inputs["state_in"], inputs["cue_in"], state["trace"]))
        planned_HA.mul_(0.1).add_(self.net(seen_N).view_as(planned_HA))

    def adopt(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        state["chunk.actions"].copy_(outputs["planned"])
        if self.splices:
            state["chunk.cursor"].copy_(inputs["plan.consumed"])
        else:
            state["chunk.cursor"].zero_()
        noise.advance_(state, noise.blocks_for(outputs["planned"].numel()))

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        row_1A = state["chunk.actions"].index_select(0, state["chunk.cursor"])
        state["trace"].mul_(0.5).add_(row_1A[0])
        state["chunk.cursor"].add_(1)
        outputs["action_out"].copy_(row_1A[0])


class ToyAdvancing(ToyChunk):
    """The same chunk, but its plan folds the observation into the trace: it advances state."""

    family = "toy_advancing"
    plan_kind = PlanKind.ADVANCES

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().plan(state, inputs, outputs)
        state["trace"].add_(inputs["state_in"][:ACTION])


def observations(step: int) -> dict[str, list[float]]:
    """Returns observations that depend on ``step`` alone, with a cue at every third."""
    seen = {"observation.state": [float((step * k) % 7) / 7.0 - 0.4 for k in (1, 2, 3, 5)]}
    if step % 3 == 0:
        seen["observation.cue"] = [1.0, -0.5]
    return seen
