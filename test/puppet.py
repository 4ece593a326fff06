"""A policy that the tests of the running node make behave or misbehave through its observation.

It has a memory and draws noise at every step, so that any continuation tells where it began.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import thread_killer
import torch
from node_policies import FollowChunks, TwoJoints
from torch import nn

from flashrt_ros.policies.chunked import ChunkedPolicy, ChunkPredictor
from flashrt_ros.policies.splice import ACTIONS, CURSOR
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.file_system import FileSystem
from flashrt_ros.runtime.policy import Buffers, Policy, Port

NAN, RAISES, FAR, BEYOND, HELD = 2.0, 3.0, 4.0, 5.0, 6.0
"""Velocity of the first joint: a step makes a NaN, raises, lands 1 rad away from the measured
position, or far outside the limits, or lasts until a test lets it go (``held``). Zero: none of
these."""
GO_ON = "go_on"
"""File in the node's folder: how many computations that are held may have ended."""
HOLDS, GOES_ON = "held: begins", "held: goes on"
"""What one of them prints."""
KILLS = (10.0, 11.0, 12.0, 13.0, 14.0)
"""Velocity of the first joint that kills a thread of the node, once: see ``thread_killer``."""
DISK_FULL, DISK_FREE = 20.0, 21.0
"""Velocity of the first joint from which on capsule files of the node find no room, or some."""
ROW_RAD = 0.001
"""Between two rows of a chunk."""
PERIOD_S = 0.02
"""Control period of the tests' contracts."""


class Puppet(TwoJoints):
    """Commands at most 0.05 rad off the measured positions, by memory and noise."""

    family = "puppet"

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec("memory", (2,), torch.float32, Role.STATE),
            BufferSpec("state_in", (4,), torch.float32, Role.INPUT),
            BufferSpec("draw", (2,), torch.float32, Role.SCRATCH),
            BufferSpec("action_out", (2,), torch.float32, Role.OUTPUT, "rad"),
        )

    def reset_(self, state: Buffers) -> None:
        state["memory"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        order = float(inputs["state_in"][2])
        if order == HELD:
            _hold()
        if order == RAISES:
            raise RuntimeError("the puppet's string broke")
        if order in KILLS:
            thread_killer.kill_once(thread_killer.THREADS[KILLS.index(order)])
        if order in (DISK_FULL, DISK_FREE):
            _fill_disk(order == DISK_FULL)
        noise.normal_(outputs["draw"], state)
        memory = state["memory"]
        memory.mul_(0.9).add_(inputs["state_in"][:2], alpha=0.1).add_(outputs["draw"], alpha=0.1)
        action = inputs["state_in"][:2] + 0.05 * torch.tanh(memory)
        action += {FAR: 1.0, BEYOND: 100.0, NAN: float("nan")}.get(order, 0.0)
        outputs["action_out"].copy_(action)


_held = itertools.count(1)


def _hold() -> None:
    """Returns once the file ``GO_ON`` allows as many as this one is."""
    number = next(_held)
    print(HOLDS, flush=True)
    while int(Path(GO_ON).read_text()) < number:
        time.sleep(0.005)
    print(GOES_ON, flush=True)


def _fill_disk(full: bool) -> None:
    """Has every write of a capsule file fail in this process, as on a disk without room."""
    FileSystem.write = _no_room if full else _write  # type: ignore[method-assign]


_write = FileSystem.write


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Planner(FollowChunks):
    """Plans chunks beside: the measured positions, then a little farther each row."""

    family = "planner_puppet"

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        # What it saw is taken before it is held: a late chunk is recognised by its positions.
        seen = inputs["state_in"].clone()
        if float(seen[2]) == HELD:
            _hold()
        if float(seen[2]) == RAISES:
            raise RuntimeError("the puppet's string broke")
        outputs["planned"].copy_(seen[:2] + ROW_RAD * torch.arange(4.0)[:, None])

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        if float(inputs["state_in"][2]) == KILLS[-1]:
            thread_killer.kill_once("planner")
        super().act(state, inputs, outputs)


class Five(ChunkPredictor):
    """Plans 16 rows beside, for five control periods: from the measured positions onwards.

    By the count of control steps where the arm moves on, whatever either thread waits for: a
    machine that stalls makes a plan neither shorter than five of them nor much longer.
    """

    family = "five_puppet"
    chunk_size = 16

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._planning = False
        self._acts = 0

    def acts(self) -> None:
        """A control step takes a row; the sixth beside one plan waits for its end."""
        with self._turn:
            self._acts += 1
            self._turn.notify_all()
            if self._acts > 5:
                self._turn.wait_for(lambda: not self._planning, 5.0)

    def _wait_for_acts(self, count: int) -> None:
        silent = 0  # more than once, as a process that was stopped finds its time-outs over
        while self._acts < count and silent < 3:
            acts = self._acts
            self._turn.wait(5 * PERIOD_S)
            silent = silent + 1 if self._acts == acts else 0

    def config(self) -> Mapping[str, object]:
        return {}

    def module(self) -> nn.Module:
        return nn.Module()

    def layout(self) -> tuple[BufferSpec, ...]:
        return (BufferSpec("state_in", (4,), torch.float32, Role.INPUT),)

    def observations(self) -> tuple[Port, ...]:
        return (Port("observation.state", "state_in", (4,)),)

    def action(self) -> Port:
        return Port("action", "action", (2,))

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        seen = inputs["state_in"].clone()
        with self._turn:
            self._planning, self._acts = True, 0
            # A reset leaves no chunk; nobody asks for rows that are not there.
            rows = self.chunk_size - int(state[CURSOR]) if state[ACTIONS].any() else 0
            beside = max(0, min(5, rows))
            self._wait_for_acts(beside)
        time.sleep((5 - beside) * PERIOD_S)
        chunk_HA.copy_(seen[:2] + ROW_RAD * torch.arange(16.0)[:, None])
        with self._turn:
            self._planning = False
            self._turn.notify_all()


class FiveChunks(ChunkedPolicy):
    """Tells its predictor of each control step."""

    def __init__(self, predictor: Five) -> None:
        super().__init__(predictor)
        self._five = predictor

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        self._five.acts()
        super().act(state, inputs, outputs)


def five(directory: Any = None) -> Policy:
    """Chunks of 16 rows, planned for five control periods and spliced."""
    return FiveChunks(Five())


def large(directory: Any = None) -> Policy:
    """A puppet whose every capsule weighs a megabyte more."""

    class Large(Puppet):
        family = "large_puppet"

        def layout(self) -> tuple[BufferSpec, ...]:
            return (*super().layout(), BufferSpec("weight", (1 << 18,), torch.float32, Role.STATE))

        def reset_(self, state: Buffers) -> None:
            super().reset_(state)
            state["weight"].zero_()

    return Large()
