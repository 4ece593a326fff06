"""A small flow-matching policy: from noise to a chunk in Euler steps, with real-time chunking."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from flashrt_ros.policies.chunked import ChunkedPolicy, ChunkPredictor
from flashrt_ros.policies.guidance import GuidanceConfig, guide
from flashrt_ros.policies.real_time import RealTimeChunking
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, PlanKind, Port

KEY = "observation.state"
H, A, STEPS = 16, 2, 5
SCALE = 0.5
"""Actions are this much smaller than what the network gives."""


class Flow(ChunkPredictor):
    """Random weights; a chunk depends on observation, noise and, if it is guided, a prefix."""

    family = "flow"
    chunk_size = H
    plan_kind = PlanKind.BESIDE

    def __init__(self, guidance: GuidanceConfig | None = None) -> None:
        self.net = nn.Sequential(nn.Linear(H * A + 4, 48), nn.Tanh(), nn.Linear(48, H * A))
        generator = torch.Generator().manual_seed(3)
        for weight in self.net.parameters():
            nn.init.normal_(weight, std=0.15, generator=generator)
        self.real_time = None if guidance is None else RealTimeChunking(guidance, H, A)

    def config(self) -> Mapping[str, object]:
        return {"rtc_config": self.real_time.config() if self.real_time else None}

    def module(self) -> nn.Module:
        return self.net

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec(KEY, (3,), torch.float32, Role.INPUT),
            *noise.NOISE_SPECS,
            BufferSpec("flow.noise", (H, A), torch.float32, Role.SCRATCH),
            *(self.real_time.specs() if self.real_time else ()),
        )

    def observations(self) -> tuple[Port, ...]:
        return (Port(KEY, KEY, (3,)),)

    def action(self) -> Port:
        return Port("action", "action", (A,))

    def reset_(self, state: Buffers) -> None:
        if self.real_time:
            self.real_time.reset_(state)

    def velocity(self, sample_HA: torch.Tensor, time: float, seen: torch.Tensor) -> torch.Tensor:
        now = torch.full((1,), time, device=seen.device)
        return torch.as_tensor(self.net(torch.cat((sample_HA.flatten(), seen, now))).view(H, A))

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        noise.normal_(outputs["flow.noise"], state, advance=False)
        sample_HA = outputs["flow.noise"]
        prefix = self.real_time.prefix(state, inputs) if self.real_time else None
        for step in range(STEPS):
            time = step / STEPS

            def velocity(sample_HA: torch.Tensor, time: float = time) -> torch.Tensor:
                return self.velocity(sample_HA, time, inputs[KEY])

            flow_HA = (
                velocity(sample_HA) if prefix is None else guide(sample_HA, time, velocity, prefix)
            )
            sample_HA = sample_HA + flow_HA / STEPS
        chunk_HA.copy_(sample_HA)
        if self.real_time:
            self.real_time.keep_(outputs, chunk_HA)

    def restore(self, actions: torch.Tensor) -> torch.Tensor:
        return actions * SCALE

    def adopt_(self, state: Buffers, outputs: Buffers) -> None:
        noise.advance_(state, noise.blocks_for(outputs["flow.noise"].numel()))
        if self.real_time:
            self.real_time.adopt_(state, outputs)


def flow(guidance: GuidanceConfig | None = None, n_action_steps: int = H) -> ChunkedPolicy:
    return ChunkedPolicy(Flow(guidance), n_action_steps)
