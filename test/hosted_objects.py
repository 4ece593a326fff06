"""Objects to host: honest ones, and ones that keep something where no capsule looks."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from flashrt_ros.policies.hosted.description import HostedAction, HostedInput, HostedNoise
from flashrt_ros.policies.hosted.instruction import MASK, TOKENS, Instruction
from flashrt_ros.policies.hosted.policy import HostedPolicy

STATE = "observation.state"
S, A, H, LENGTH = 4, 3, 5, 8
Batch = Mapping[str, torch.Tensor]


class Words:
    """A tokenizer of letters."""

    def encode(self, text: str) -> list[int]:
        return [1, *(2 + ord(letter) % 30 for letter in text)]


class Flow(nn.Module):
    """Two steps from noise to actions, led by state and text; says ``reset`` like LeRobot's."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.see = nn.Linear(S, 16)
            self.read = nn.Embedding(40, 16)
            self.act = nn.Linear(16 + A, A)
        self.queue: deque[torch.Tensor] = deque(maxlen=2)

    def predict_action_chunk(
        self, batch: Batch, noise: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        state_BS = batch[STATE]
        if state_BS.ndim == 3:
            state_BS = state_BS.flatten(1)[:, -S:] + 0.5 * state_BS[:, 0]
        seen = self.see(state_BS)
        if "observation.language.tokens" in batch:
            mask = batch["observation.language.attention_mask"].unsqueeze(-1)
            words = self.read(batch["observation.language.tokens"])
            seen = seen + words.masked_fill(~mask, 0.0).sum(1)
        if noise is None:
            noise = torch.randn(1, H, A)
        x = noise
        for _ in range(2):
            x = x + 0.5 * self.act(torch.cat((seen.unsqueeze(1).expand(-1, H, -1), x), -1))
        return x


class Remembers(Flow):
    """Keeps observations in a deque."""

    def predict_action_chunk(self, batch: Batch, noise: Any = None, **kwargs: Any) -> torch.Tensor:
        self.queue.append(batch[STATE].clone())
        chunk = super().predict_action_chunk(batch, noise)
        return chunk + 0.1 * torch.stack(list(self.queue)).mean()


class WarmStarts(Flow):
    """Begins from its last answer."""

    last: torch.Tensor | None = None

    def predict_action_chunk(self, batch: Batch, noise: Any = None, **kwargs: Any) -> torch.Tensor:
        chunk = super().predict_action_chunk(batch, noise)
        if self.last is not None:
            chunk = chunk + 0.1 * self.last
        self.last = chunk
        return chunk


class CountsInBuffer(Flow):
    """Keeps a count among its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def predict_action_chunk(self, batch: Batch, noise: Any = None, **kwargs: Any) -> torch.Tensor:
        self.get_buffer("count").add_(1)
        return super().predict_action_chunk(batch, noise)


class Draws(Flow):
    """Draws its noise itself, whatever it is given."""

    def predict_action_chunk(self, batch: Batch, noise: Any = None, **kwargs: Any) -> torch.Tensor:
        return super().predict_action_chunk(batch, None)


class DrawsInPython(Flow):
    """Draws from Python's global generator."""

    def predict_action_chunk(self, batch: Batch, noise: Any = None, **kwargs: Any) -> torch.Tensor:
        return super().predict_action_chunk(batch, noise) + random.random()


class WritesInput(Flow):
    """Scales its input in place."""

    def predict_action_chunk(self, batch: Batch, noise: Any = None, **kwargs: Any) -> torch.Tensor:
        batch[STATE].mul_(0.5)
        return super().predict_action_chunk(batch, noise)


class Asks(Flow):
    """Reads a value back, which no captured graph can do; otherwise honest."""

    def predict_action_chunk(self, batch: Batch, noise: Any = None, **kwargs: Any) -> torch.Tensor:
        chunk = super().predict_action_chunk(batch, noise)
        return -chunk if batch[STATE].sum().item() > 0 else chunk


def instruction() -> Instruction:
    return Instruction(Words(), LENGTH)


def host(hosted: object | None = None, steps: int = 1, **options: Any) -> HostedPolicy:
    """A hosted ``Flow``, or another object of its interface."""
    options = {
        "noise": HostedNoise((1, H, A)),
        "instruction": instruction(),
        "n_action_steps": 3,
        "name": "flow",
        **options,
    }
    inputs = [HostedInput(STATE, (S,), steps=steps)]
    return HostedPolicy(hosted or Flow(), inputs, HostedAction(A, H), **options)


def make() -> HostedPolicy:
    """Factory, for ``package.module:factory``."""
    return host()


__all__ = ["MASK", "TOKENS", "host", "instruction", "make"]
