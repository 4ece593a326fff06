"""A policy of two cameras with random weights, which costs little and is handed much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from flashrt_ros.bench.policies import ACTION_SIZE, OBSERVATION, OBSERVATION_SIZE
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, Policy, Port, Ports

CAMERAS = ("front", "wrist")
IMAGE_CHW = (3, 224, 224)
GRID = 4
"""Each image is looked at as so many by so many means."""


class CameraPolicy(Policy):
    """Adds means of both images to a memory, and acts on that."""

    family: ClassVar[str] = "bench_cameras"

    def __init__(self) -> None:
        seen = OBSERVATION_SIZE + len(CAMERAS) * IMAGE_CHW[0] * GRID * GRID
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self._head = nn.Linear(seen, ACTION_SIZE)

    def config(self) -> Mapping[str, object]:
        """Sizes."""
        return {"image": list(IMAGE_CHW), "grid": GRID}

    def module(self) -> nn.Module:
        """One layer."""
        return self._head

    def layout(self) -> tuple[BufferSpec, ...]:
        """Memory, a vector and two images."""
        return (
            BufferSpec("memory", (ACTION_SIZE,), torch.float32, Role.STATE),
            BufferSpec(OBSERVATION, (OBSERVATION_SIZE,), torch.float32, Role.INPUT),
            *(BufferSpec(name, IMAGE_CHW, torch.float32, Role.INPUT) for name in CAMERAS),
            BufferSpec("action", (ACTION_SIZE,), torch.float32, Role.OUTPUT),
        )

    def ports(self) -> Ports:
        """A vector and two images in, an action out."""
        return Ports(
            (
                Port(OBSERVATION, OBSERVATION, (OBSERVATION_SIZE,)),
                *(Port(f"observation.images.{name}", name, IMAGE_CHW) for name in CAMERAS),
            ),
            Port("action", "action", (ACTION_SIZE,)),
        )

    def reset_(self, state: Buffers) -> None:
        """Forgets."""
        state["memory"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """See the class."""
        means = [F.adaptive_avg_pool2d(inputs[name], GRID).flatten() for name in CAMERAS]
        head = torch.tanh(self._head(torch.cat((inputs[OBSERVATION], *means))))
        state["memory"].mul_(0.9).add_(head, alpha=0.1)
        outputs["action"].copy_(state["memory"])


def make() -> Policy:
    """Factory."""
    return CameraPolicy()
