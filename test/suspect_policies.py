"""Sound policies, and policies that are broken on purpose, for tests of the conformance suite."""

from __future__ import annotations

import itertools
import os
import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, PlanKind, Policy, Port, Ports

MEMORY, OBSERVATION, ACTION, SCRATCH = "memory.x", "observation.state", "action", "scratch.sum"


class Sound(Policy):
    """A leaky memory of the observation; the action is a linear map of it."""

    family: ClassVar[str] = "sound"

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.net = nn.Linear(3, 2)
        for weight in self.net.parameters():
            nn.init.normal_(weight, generator=generator)
        self.net.register_buffer("gain", torch.ones(2), persistent=False)

    def config(self) -> Mapping[str, object]:
        return {"type": self.family}

    def module(self) -> nn.Module:
        return self.net

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec(MEMORY, (3,), torch.float32, Role.STATE),
            BufferSpec(OBSERVATION, (3,), torch.float32, Role.INPUT),
            BufferSpec(ACTION, (2,), torch.float32, Role.OUTPUT),
            BufferSpec(SCRATCH, (3,), torch.float32, Role.SCRATCH),
        )

    def ports(self) -> Ports:
        return Ports((Port(OBSERVATION, OBSERVATION, (3,)),), Port(ACTION, ACTION, (2,)))

    def reset_(self, state: Buffers) -> None:
        state[MEMORY].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        outputs[SCRATCH].copy_(state[MEMORY] * 0.8 + inputs[OBSERVATION])
        state[MEMORY].copy_(outputs[SCRATCH])
        outputs[ACTION].copy_(self.net(state[MEMORY]) * self.net.gain)


class Planned(Sound):
    """The same as a chunk of three, planned beside."""

    plan_kind = PlanKind.BESIDE
    chunk_size = 3
    n_action_steps = 2

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            *super().layout(),
            BufferSpec("chunk.actions", (3, 2), torch.float32, Role.STATE),
            BufferSpec("chunk.cursor", (1,), torch.int64, Role.STATE),
            BufferSpec("chunk.next", (3, 2), torch.float32, Role.OUTPUT),
        )

    def reset_(self, state: Buffers) -> None:
        for name in (MEMORY, "chunk.actions", "chunk.cursor"):
            state[name].zero_()

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        action_A = self.net(state[MEMORY] + inputs[OBSERVATION])
        outputs["chunk.next"].copy_(torch.stack([action_A, action_A * 2, action_A * 3]))

    def adopt(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        state["chunk.actions"].copy_(outputs["chunk.next"])
        state["chunk.cursor"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        row_1 = state["chunk.cursor"].clamp(max=2)
        outputs[ACTION].copy_(state["chunk.actions"].index_select(0, row_1)[0])
        state["chunk.cursor"].add_(1)
        state[MEMORY].mul_(0.5)[:2].add_(outputs[ACTION])


class Noisy(Sound):
    """Adds noise of the runtime to the action, and says so."""

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            *super().layout(),
            *noise.NOISE_SPECS,
            BufferSpec("scratch.noise", (2,), torch.float32, Role.SCRATCH),
        )

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        noise.normal_(outputs["scratch.noise"], state)
        outputs[ACTION].add_(outputs["scratch.noise"])


class UndeclaredNoise(Noisy):
    """The runtime adds the noise to every state, so a policy need not name it."""

    def layout(self) -> tuple[BufferSpec, ...]:
        return tuple(spec for spec in super().layout() if spec not in noise.NOISE_SPECS)


class OverDeclared(Sound):
    def layout(self) -> tuple[BufferSpec, ...]:
        written = BufferSpec("memory.log", (3,), torch.float32, Role.STATE)
        constant = BufferSpec("memory.constant", (1,), torch.float32, Role.STATE)
        return (*super().layout(), written, constant)

    def reset_(self, state: Buffers) -> None:
        super().reset_(state)
        state["memory.log"].zero_()
        state["memory.constant"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        state["memory.log"].copy_(inputs[OBSERVATION])


# Broken policies. Each is `Sound` but for one thing.


class Deque(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.recent: deque[torch.Tensor] = deque([torch.zeros(3)] * 2, maxlen=2)

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        self.recent.append(inputs[OBSERVATION].clone())
        outputs[ACTION].add_(self.recent[0][:2])


class Rebind(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.zeros(3)

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        self.hidden = torch.tanh(self.hidden + inputs[OBSERVATION])
        super().act(state, inputs, outputs)


class Tracker:
    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0.0


class Nested(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.net.trackers = {"a": [Tracker()]}

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        self.net.trackers["a"][0].last += 1.0


class Counter(Sound):
    count = 0

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        self.count += 1
        outputs[ACTION].mul_(1 + self.count % 3)


class ClassCounter(Sound):
    count = 0

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        ClassCounter.count += 1


class Iterating(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.ticks = itertools.count()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        next(self.ticks)


class Generating(Sound):
    def __init__(self) -> None:
        super().__init__()

        def walk() -> Iterator[int]:
            place = 0
            while True:
                place += 1
                yield place

        self.walk = walk()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        next(self.walk)


_seen = 0


class Global(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        global _seen
        _seen += 1
        super().act(state, inputs, outputs)


def closure() -> Policy:
    steps = 0

    class Closure(Sound):
        def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
            nonlocal steps
            steps += 1
            super().act(state, inputs, outputs)

    return Closure()


class OwnGenerator(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        outputs[ACTION].add_(torch.randn(2, generator=self.generator))


class Learning(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        self.net.weight.mul_(0.999)


class HiddenBuffer(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        self.net.gain.mul_(0.9)


class Environment(Sound):
    """Remembers where no walk over Python objects comes; only the bits can tell."""

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        count = int(os.environ.get("FLASHRT_TEST_COUNT", "0")) + 1
        os.environ["FLASHRT_TEST_COUNT"] = str(count)
        outputs[ACTION].mul_(1 + count % 7)


class GlobalTorch(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        outputs[ACTION].add_(torch.randn(2))


class GlobalPython(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        outputs[ACTION].mul_(random.random())


class GlobalNumpy(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        outputs[ACTION].mul_(float(np.random.rand()))


class OldOutput(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        smoothed_A = outputs[ACTION] * 0.5
        super().act(state, inputs, outputs)
        outputs[ACTION].add_(smoothed_A)


class OldScratch(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        outputs[SCRATCH].mul_(0.8).add_(inputs[OBSERVATION])
        state[MEMORY].copy_(outputs[SCRATCH])
        outputs[ACTION].copy_(self.net(state[MEMORY]))


class HalfWritten(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        state[MEMORY].mul_(0.8).add_(inputs[OBSERVATION])
        outputs[ACTION][:1].copy_(self.net(state[MEMORY])[:1])


class ScratchOverAdopt(Planned):
    def layout(self) -> tuple[BufferSpec, ...]:
        return tuple(
            replace(spec, role=Role.SCRATCH) if spec.name == "chunk.next" else spec
            for spec in super().layout()
        )


class ActReadsInput(Planned):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        outputs[ACTION].add_(inputs[OBSERVATION][:2])


class BoundAnew(Sound):
    def act(self, state: dict[str, torch.Tensor], inputs: Buffers, outputs: Buffers) -> None:
        state[MEMORY] = state[MEMORY] * 0.8 + inputs[OBSERVATION]
        outputs[ACTION].copy_(self.net(state[MEMORY]))


class Moved(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        state[MEMORY].data = state[MEMORY] * 0.8 + inputs[OBSERVATION]
        outputs[ACTION].copy_(self.net(state[MEMORY]))


class KeepsFirstBuffer(Sound):
    first: torch.Tensor | None = None

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        if self.first is None:
            self.first = state[MEMORY]
        self.first.mul_(0.8).add_(inputs[OBSERVATION])
        outputs[ACTION].copy_(self.net(self.first))


class WritesInput(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        inputs[OBSERVATION].clamp_(-0.1, 0.1)
        super().act(state, inputs, outputs)


class HalfReset(Sound):
    def reset_(self, state: Buffers) -> None:
        state[MEMORY][:2].zero_()


class PlanWritesState(Planned):
    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().plan(state, inputs, outputs)
        state[MEMORY].add_(1.0)


class Item(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        if outputs[ACTION].sum() > 0:
            outputs[ACTION].mul_(0.5)


class Mask(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        outputs[ACTION][outputs[ACTION] > 1.0] = 1.0


class IdleNoise(Sound):
    def layout(self) -> tuple[BufferSpec, ...]:
        return (*super().layout(), *noise.NOISE_SPECS)


class NotANumber(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        outputs[ACTION].div_(0.0).sub_(outputs[ACTION])


class Raising(Sound):
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        raise RuntimeError("no such layer")
