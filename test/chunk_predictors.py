"""Small chunk predictors: without state, with noise drawn beside, advancing their state."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from flashrt_ros.policies.chunked import ChunkPredictor
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, PlanKind, Port


class Straight(ChunkPredictor):
    """Maps the observation to a chunk; no state of its own."""

    family = "straight"

    def __init__(self, chunk_size: int = 5) -> None:
        self.chunk_size = chunk_size
        self.net = nn.Linear(3, chunk_size * 2)
        generator = torch.Generator().manual_seed(5)
        for weight in self.net.parameters():
            nn.init.normal_(weight, generator=generator)

    def config(self) -> Mapping[str, object]:
        return {"chunk_size": self.chunk_size}

    def module(self) -> nn.Module:
        return self.net

    def layout(self) -> tuple[BufferSpec, ...]:
        return (BufferSpec("observation.state", (3,), torch.float32, Role.INPUT),)

    def observations(self) -> tuple[Port, ...]:
        return (Port("observation.state", "observation.state", (3,)),)

    def action(self) -> Port:
        return Port("action", "action", (2,), ("a", "b"), "rad")

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        chunk_HA.copy_(self.net(inputs["observation.state"]).view(chunk_HA.shape))


class Sampled(Straight):
    """Adds noise that it draws beside, and commits when its chunk is adopted."""

    family = "sampled"

    def layout(self) -> tuple[BufferSpec, ...]:
        shape = (self.chunk_size, 2)
        return (
            *super().layout(),
            *noise.NOISE_SPECS,
            BufferSpec("scratch.noise", shape, torch.float32, Role.SCRATCH),
        )

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        super().predict(state, inputs, chunk_HA, outputs)
        noise.normal_(outputs["scratch.noise"], state, advance=False)
        chunk_HA.add_(outputs["scratch.noise"])

    def adopt_(self, state: Buffers, outputs: Buffers) -> None:
        noise.advance_(state, noise.blocks_for(outputs["scratch.noise"].numel()))


class Remembering(Straight):
    """Blends each observation into a memory, and adds noise."""

    family = "remembering"
    plan_kind = PlanKind.ADVANCES

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            *super().layout(),
            *noise.NOISE_SPECS,
            BufferSpec("memory.x", (3,), torch.float32, Role.STATE),
            BufferSpec("scratch.noise", (self.chunk_size, 2), torch.float32, Role.SCRATCH),
        )

    def reset_(self, state: Buffers) -> None:
        state["memory.x"].fill_(0.5)

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        state["memory.x"].mul_(0.5).add_(inputs["observation.state"])
        noise.normal_(outputs["scratch.noise"], state)
        chunk_HA.copy_(self.net(state["memory.x"]).view(chunk_HA.shape))
        chunk_HA.add_(outputs["scratch.noise"], alpha=0.1)


class Looking(Sampled):
    """Predicts from the present observation and the one before, which it keeps."""

    family = "looking"
    observes = True

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            *super().layout(),
            BufferSpec("history.x", (3,), torch.float32, Role.STATE),
            BufferSpec("history.count", (1,), torch.int64, Role.STATE),
        )

    def reset_(self, state: Buffers) -> None:
        state["history.x"].zero_()
        state["history.count"].zero_()

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        super().predict(state, inputs, chunk_HA, outputs)
        seen = inputs["observation.state"]
        before = torch.where(state["history.count"] == 0, seen, state["history.x"])
        chunk_HA.add_(self.net(before).view(chunk_HA.shape))

    def observe_(self, state: Buffers, inputs: Buffers) -> None:
        state["history.x"].copy_(inputs["observation.state"])
        state["history.count"].add_(1)
