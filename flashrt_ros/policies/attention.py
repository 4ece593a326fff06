"""A small causal transformer over the observations of an episode, one token a control step.

Its keys and values are rows: they grow with the episode, and branches of an episode share them.
The weights are random, and it is the vehicle on which rows are tested and measured, not a policy
for a robot.

Tensor suffixes: T rows, L heads, K size of a head, D model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.runtime.buffers import ROWS_LENGTH, BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, Policy, Port, Ports

OBSERVATION, ACTION = "observation.state", "action"


@dataclass(frozen=True)
class AttentionConfig:
    """Sizes.

    Attributes:
        observation_size: Elements of ``observation.state``.
        action_size: Elements of the action.
        n_layers: Attention layers.
        n_heads: Heads of each.
        head_size: Elements of a key; even.
        seed: Of the random weights.
    """

    observation_size: int = 6
    action_size: int = 3
    n_layers: int = 2
    n_heads: int = 2
    head_size: int = 8
    seed: int = 0

    @property
    def width(self) -> int:
        """Model width."""
        return self.n_heads * self.head_size


class AttentionBlock(nn.Module):
    """Attention and a feed-forward net, each behind a norm and beside a residual."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = (config.n_heads, config.head_size)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.forward_norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def project(self, hidden_D: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns query, key and value, each ``(L, K)``."""
        return tuple(self.qkv(self.norm(hidden_D)).view(3, *self.heads).unbind(0))

    def finish(self, hidden_D: torch.Tensor, mixed_D: torch.Tensor) -> torch.Tensor:
        """Returns the hidden values behind attention and feed-forward net."""
        hidden_D = hidden_D + self.out(mixed_D)
        wide = functional.gelu(self.wide(self.forward_norm(hidden_D)))
        return hidden_D + torch.as_tensor(self.narrow(wide))


class AttentionPolicy(Policy):
    """Attends to all observations of the episode so far.

    State: ``layers.N.k`` and ``layers.N.v``, rows of ``(L, K)`` float32 for each layer N. Each act
    appends one row, then attends over the whole capacity with the rows behind the committed ones
    masked, so that its shapes never change and it can be captured.

    Args:
        config: Sizes.
        capacity: Control steps that an episode may have; a longer one is refused before it moves.

    Raises:
        InvalidArgumentError: A size is out of range.
    """

    family: ClassVar[str] = "attention"
    rows_per_act = 1

    def __init__(self, config: AttentionConfig | None = None, capacity: int = 256) -> None:
        self._config = config or AttentionConfig()
        sizes = {k: v for k, v in vars(self._config).items() if k != "seed"}
        for name, size in {**sizes, "capacity": capacity}.items():
            if size < 1:
                raise InvalidArgumentError(f"{name}: expected at least 1, found {size}")
        if self._config.head_size % 2:
            raise InvalidArgumentError(
                f"head_size: expected an even number, found {self._config.head_size}"
            )
        self._capacity = capacity
        config = self._config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.embed = nn.Linear(config.observation_size, config.width)
            self.blocks = nn.ModuleList(AttentionBlock(config) for _ in range(config.n_layers))
            self.head = nn.Linear(config.width, config.action_size)
        self._module = nn.ModuleDict(
            {"embed": self.embed, "blocks": self.blocks, "head": self.head}
        )
        half = config.width // 2
        periods = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        self._module.register_buffer("periods", periods)

    def config(self) -> Mapping[str, object]:
        """Sizes; the capacity is none of them, since it changes no value but by rounding."""
        return {"type": self.family, **vars(self._config)}

    def module(self) -> nn.Module:
        """All layers."""
        return self._module

    def layout(self) -> tuple[BufferSpec, ...]:
        """See the class."""
        config, capacity = self._config, self._capacity
        shape = (config.n_heads, config.head_size)
        rows = [
            BufferSpec(f"layers.{n}.{kind}", shape, torch.float32, Role.STATE, "", capacity)
            for n in range(config.n_layers)
            for kind in ("k", "v")
        ]
        return (
            *rows,
            BufferSpec(OBSERVATION, (config.observation_size,), torch.float32, Role.INPUT),
            BufferSpec(ACTION, (config.action_size,), torch.float32, Role.OUTPUT),
        )

    def ports(self) -> Ports:
        """One vector in, one out."""
        seen = Port(OBSERVATION, OBSERVATION, (self._config.observation_size,))
        return Ports((seen,), Port(ACTION, ACTION, (self._config.action_size,)))

    def reset_(self, state: Buffers) -> None:
        """An episode begins without rows, so there is nothing to write."""

    def token(self, seen_S: torch.Tensor, position_1: torch.Tensor) -> torch.Tensor:
        """Returns the ``(D,)`` embedding of an observation at a control step, ``(1,)`` int64."""
        turns = position_1 * self._module.get_buffer("periods")
        return torch.as_tensor(self.embed(seen_S)) + torch.cat((turns.sin(), turns.cos()))

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Appends the observation's row in each layer and attends to all rows so far."""
        length_1 = state[ROWS_LENGTH]
        hidden_D = self.token(inputs[OBSERVATION], length_1)
        hidden_rows_T = torch.arange(self._capacity, device=hidden_D.device) > length_1
        for number, block in enumerate(self.blocks):
            assert isinstance(block, AttentionBlock)
            query_LK, key_LK, value_LK = block.project(hidden_D)
            keys_TLK, values_TLK = state[f"layers.{number}.k"], state[f"layers.{number}.v"]
            keys_TLK.index_copy_(0, length_1, key_LK.unsqueeze(0))
            values_TLK.index_copy_(0, length_1, value_LK.unsqueeze(0))
            scores_LT = torch.einsum("lk,tlk->lt", query_LK, keys_TLK)
            scores_LT = scores_LT * self._config.head_size**-0.5
            weights_LT = scores_LT.masked_fill(hidden_rows_T, float("-inf")).softmax(dim=1)
            # Behind the committed rows lies garbage, and zero times no number is no number.
            known_TLK = values_TLK.masked_fill(hidden_rows_T.view(-1, 1, 1), 0.0)
            mixed_LK = torch.einsum("lt,tlk->lk", weights_LT, known_TLK)
            hidden_D = block.finish(hidden_D, mixed_LK.reshape(-1))
        length_1.add_(1)
        outputs[ACTION].copy_(self.head(hidden_D))


def make() -> AttentionPolicy:
    """Factory: the default sizes."""
    return AttentionPolicy()
