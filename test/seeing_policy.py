"""A policy that commands what it sees: how red and how blue its camera's image is."""

from __future__ import annotations

import torch
from node_policies import TwoJoints

from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, Port, Ports

IMAGE_CHW = (3, 4, 6)


class Seeing(TwoJoints):
    """Commands a tenth of the mean of red and of blue, each from 0 to 1."""

    family = "seeing"

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec("count", (1,), torch.float32, Role.STATE),
            BufferSpec("state_in", (4,), torch.float32, Role.INPUT),
            BufferSpec("image", IMAGE_CHW, torch.float32, Role.INPUT),
            BufferSpec("action_out", (2,), torch.float32, Role.OUTPUT, "rad"),
        )

    def ports(self) -> Ports:
        ports = super().ports()
        image = Port("observation.image", "image", IMAGE_CHW)
        return Ports((*ports.observations, image), ports.action)

    def reset_(self, state: Buffers) -> None:
        state["count"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        state["count"].add_(1.0)
        outputs["action_out"].copy_(inputs["image"].mean((1, 2))[::2] * 0.1)
