"""Broken policies that hide it: rare latches, clocks, entropy, files, memory behind a weight."""

from __future__ import annotations

import os
import time

import torch
from suspect_policies import ACTION, OBSERVATION, Sound

from flashrt_ros.runtime.policy import Buffers


class RareLatch(Sound):
    """Remembers one extreme observation in a tensor of its own, which no episode may hold."""

    def __init__(self) -> None:
        super().__init__()
        self._latch = torch.zeros(1)

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        extreme = (inputs[OBSERVATION].abs().max() > 1e6).float()
        self._latch.copy_(torch.maximum(self._latch, extreme))
        outputs[ACTION].add_(self._latch)


class BehindAWeight(Sound):
    """Counts in memory that belongs to the storage of a weight, but to no tensor that is known."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.zeros(100)
        memory[:2] = self.net.bias.data
        self.net.bias.data = memory[:2]

    def _hidden(self) -> torch.Tensor:
        return torch.as_strided(self.net.bias.data, (1,), (1,), 50)

    def reset_(self, state: Buffers) -> None:
        super().reset_(state)
        self._hidden().zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        outputs[ACTION].add_(self._hidden().add_(1.0) * 0.0)


class OfTheHour(Sound):
    """Acts otherwise in the last second of an hour."""

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        outputs[ACTION].add_(float(time.time() % 3600 > 3599))


class Entropic(Sound):
    """Draws from the system, and hardly ever heeds it."""

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        outputs[ACTION].add_(float(os.urandom(4) == bytes(4)))


class Reloading(Sound):
    """Looks into a file at every step, which may be another one after a restore."""

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        with open(__file__, "rb") as file:
            outputs[ACTION].add_(float(len(file.read(1)) - 1))


class Startled(Sound):
    """Keeps in an attribute that an observation was extreme."""

    def __init__(self) -> None:
        super().__init__()
        self.startled = False

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        self.startled |= max(map(abs, inputs[OBSERVATION].tolist())) > 50.0
        outputs[ACTION].add_(float(self.startled))


class Workspace(Sound):
    """Makes its tensors anew in each call and writes to them: nothing is wrong with that."""

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        work = torch.zeros(2)
        work.add_(torch.tensor([0.0, 0.0]).mul_(2.0))
        work[0:1].copy_(work[1:2].clone().add_(0.0))
        outputs[ACTION].add_(work)
