"""Policies with random weights that the benchmarks run; none of them means anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from flashrt_ros.policies.chunked import ACTION, ChunkedPolicy, ChunkPredictor
from flashrt_ros.policies.recurrent import RecurrentPolicy
from flashrt_ros.policies.recurrent_config import RecurrentConfig, VectorConfig
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import ROWS_LENGTH, BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, PlanKind, Policy, Port, Ports

OBSERVATION = "observation.state"
OBSERVATION_SIZE, ACTION_SIZE = 14, 7
ONE_IN_ONE_OUT = Ports((Port(OBSERVATION, OBSERVATION, (1,)),), Port("action", "action", (1,)))


def recurrent(
    cell: str = "gru", hidden_size: int = 128, n_layers: int = 2, head: str = "deterministic"
) -> Policy:
    """Returns a recurrent policy of 14 observations and 7 actions, the same at every call."""
    config = RecurrentConfig(
        observations=(VectorConfig(OBSERVATION, OBSERVATION_SIZE, normalisation="identity"),),
        action=VectorConfig("action", ACTION_SIZE, normalisation="identity"),
        cell=cell,
        hidden_size=hidden_size,
        n_layers=n_layers,
        head=head,
        horizon=50,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return RecurrentPolicy(config)


class NoisyPredictor(ChunkPredictor):
    """Predicts chunks from the observation, a memory of its own and noise."""

    family: ClassVar[str] = "bench_noisy"
    chunk_size = 8
    plan_kind = PlanKind.ADVANCES
    width = 32

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self._body = nn.Linear(OBSERVATION_SIZE + self.width, self.width)
            self._head = nn.Linear(self.width, self.chunk_size * ACTION_SIZE)
        self._module = nn.ModuleList([self._body, self._head])

    def config(self) -> Mapping[str, object]:
        """Sizes."""
        return {"chunk_size": self.chunk_size, "width": self.width}

    def module(self) -> nn.Module:
        """Both layers."""
        return self._module

    def layout(self) -> tuple[BufferSpec, ...]:
        """Memory, noise drawn, observation."""
        return (
            BufferSpec("memory", (self.width,), torch.float32, Role.STATE),
            BufferSpec(OBSERVATION, (OBSERVATION_SIZE,), torch.float32, Role.INPUT),
            BufferSpec("drawn", (self.chunk_size, ACTION_SIZE), torch.float32, Role.SCRATCH),
        )

    def observations(self) -> tuple[Port, ...]:
        """One vector."""
        return (Port(OBSERVATION, OBSERVATION, (OBSERVATION_SIZE,)),)

    def action(self) -> Port:
        """Seven elements."""
        return Port("action", ACTION, (ACTION_SIZE,))

    def reset_(self, state: Buffers) -> None:
        """Forgets."""
        state["memory"].zero_()

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        """See ``ChunkPredictor.predict``."""
        seen = torch.cat((inputs[OBSERVATION], state["memory"]))
        hidden = torch.tanh(self._body(seen))
        state["memory"].copy_(hidden)
        noise.normal_(outputs["drawn"], state)
        chunk_HA.copy_(self._head(hidden).view(self.chunk_size, ACTION_SIZE) + outputs["drawn"])


class SizedPolicy(Policy):
    """Adds up observations in a state of a given size, most of which lies idle."""

    family: ClassVar[str] = "bench_sized"

    def __init__(self, size_bytes: int) -> None:
        self._elements = size_bytes // 4
        self._module = nn.Module()

    def config(self) -> Mapping[str, object]:
        """Size."""
        return {"elements": self._elements}

    def module(self) -> nn.Module:
        """Empty."""
        return self._module

    def layout(self) -> tuple[BufferSpec, ...]:
        """The sum, in a large buffer."""
        return (
            BufferSpec("bulk", (self._elements,), torch.float32, Role.STATE),
            BufferSpec(OBSERVATION, (1,), torch.float32, Role.INPUT),
            BufferSpec("action", (1,), torch.float32, Role.OUTPUT),
        )

    def ports(self) -> Ports:
        """One element in, one out."""
        return ONE_IN_ONE_OUT

    def reset_(self, state: Buffers) -> None:
        """Zero."""
        state["bulk"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Adds to the first element."""
        state["bulk"][:1].add_(inputs[OBSERVATION])
        outputs["action"].copy_(state["bulk"][:1])


class GrowingPolicy(Policy):
    """Appends as many rows a step as the observation says, with its value in them.

    Args:
        capacity: Rows that there is room for.
        row_bytes: Size of one, a multiple of 16.
        most: Rows of one step at most; so many are written, whatever the observation says.
    """

    family: ClassVar[str] = "bench_growing"

    def __init__(self, capacity: int, row_bytes: int, most: int) -> None:
        self._capacity = capacity
        self._elements = row_bytes // 4
        self.rows_per_act = most
        self._module = nn.Module()

    def config(self) -> Mapping[str, object]:
        """Size of a row."""
        return {"elements": self._elements}

    def module(self) -> nn.Module:
        """Empty."""
        return self._module

    def layout(self) -> tuple[BufferSpec, ...]:
        """Rows, and a small sum beside them."""
        shape = (self._elements,)
        return (
            BufferSpec("sum", (1,), torch.float32, Role.STATE),
            BufferSpec("tape", shape, torch.float32, Role.STATE, "", self._capacity),
            BufferSpec(OBSERVATION, (1,), torch.float32, Role.INPUT),
            BufferSpec("action", (1,), torch.float32, Role.OUTPUT),
        )

    def ports(self) -> Ports:
        """One element in, one out."""
        return ONE_IN_ONE_OUT

    def reset_(self, state: Buffers) -> None:
        """Zero."""
        state["sum"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Adds to the sum, writes it into all new rows and commits those asked for."""
        length, most = state[ROWS_LENGTH], self.rows_per_act
        state["sum"].add_(inputs[OBSERVATION])
        at = length + torch.arange(most, device=length.device)
        state["tape"].index_copy_(0, at, state["sum"].expand(most, self._elements))
        length.add_(inputs[OBSERVATION].to(torch.int64))
        outputs["action"].copy_(state["sum"])


SAMENESS: dict[str, Callable[[], Policy]] = {
    "GRU": lambda: recurrent("gru"),
    "LSTM": lambda: recurrent("lstm"),
    "GRU, sampled mixture": lambda: recurrent("gru", head="gmm"),
    "chunked, noise and memory": lambda: ChunkedPolicy(NoisyPredictor(), n_action_steps=5),
}


def observations(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Returns ``count`` observations of 14 elements."""
    drawn = np.random.default_rng(seed).standard_normal((count, OBSERVATION_SIZE))
    return [{OBSERVATION: row} for row in drawn.astype(np.float32)]


class BusyPredictor(NoisyPredictor):
    """A network as slow as a large one: its plan keeps one core busy for about 80 ms."""

    family: ClassVar[str] = "bench_busy"
    chunk_size = 16
    plan_kind = PlanKind.BESIDE
    size = 768
    repeats = 6

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self._heavy = nn.Linear(self.size, self.size, bias=False)
        self._module.append(self._heavy)

    def layout(self) -> tuple[BufferSpec, ...]:
        """Two large scratch buffers besides."""
        shape = (self.size, self.size)
        return (
            *super().layout(),
            BufferSpec("heavy.a", shape, torch.float32, Role.SCRATCH),
            BufferSpec("heavy.b", shape, torch.float32, Role.SCRATCH),
        )

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        """Multiplies large matrices, then predicts from observation and memory alone."""
        a, b = outputs["heavy.a"], outputs["heavy.b"]
        a.fill_(1e-3)
        for _ in range(self.repeats):
            torch.mm(a, self._heavy.weight, out=b)
            torch.mm(b, self._heavy.weight, out=a)
        hidden = torch.tanh(self._body(torch.cat((inputs[OBSERVATION], state["memory"]))))
        chunk_HA.copy_(self._head(hidden).view(self.chunk_size, ACTION_SIZE))
        chunk_HA.add_(a.mean() * 0)


def beside() -> Policy:
    """Factory: slow plans that run beside the control thread."""
    return ChunkedPolicy(BusyPredictor(), n_action_steps=4)


def ahead() -> Policy:
    """Factory: the same, in chunks of 16 rows, which last longer than a plan takes."""
    return ChunkedPolicy(BusyPredictor())


def light() -> Policy:
    """Factory: an act of about 0.1 ms."""
    return recurrent(n_layers=1)


def heavy() -> Policy:
    """Factory: an act of several milliseconds on the control thread."""
    return recurrent(hidden_size=1000, n_layers=2)
