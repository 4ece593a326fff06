"""Random operations of a session whose pictures cross ahead, beside one that gets numbers alone.

Copies and plans are done late, as on a GPU, and some fail. Whatever was foreseen, both take the
same actions, to the bit.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from image_messages import noise
from late_device import LateDevice, OutOfLuckError
from torch import nn

import flashrt_ros.runtime.session as session_module
from flashrt_ros.errors import FlashRTError
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.engine import Engine
from flashrt_ros.runtime.inputs import Inputs
from flashrt_ros.runtime.picture import BytePicture, PictureWire
from flashrt_ros.runtime.picture_slots import SLOTS
from flashrt_ros.runtime.policy import Buffers, PlanKind, Policy, Port, Ports
from flashrt_ros.runtime.session import PolicySession

CHW = (3, 4, 6)
CAMERAS = ("front", "wrist")
ROWS, ACTION = 4, 2


class Looking(Policy):
    """Maps two pictures and a vector, or two pictures alone, to actions."""

    family = "looking"

    def __init__(self, kind: PlanKind, act_observes: bool, numbers: bool = True) -> None:
        self.plan_kind, self.act_observes = kind, act_observes or kind is not PlanKind.BESIDE
        self._sizes = {**dict.fromkeys(CAMERAS, CHW), **({"vector": (3,)} if numbers else {})}
        if kind is not PlanKind.NONE:
            self.chunk_size, self.n_action_steps = ROWS, ROWS - 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self._map = nn.Linear(
                sum(int(np.prod(s)) for s in self._sizes.values()), ROWS * ACTION
            )

    def config(self) -> Mapping[str, object]:
        return {"kind": self.plan_kind.value, "act_observes": self.act_observes}

    def module(self) -> nn.Module:
        return self._map

    def layout(self) -> tuple[BufferSpec, ...]:
        inputs = (BufferSpec(n, s, torch.float32, Role.INPUT) for n, s in self._sizes.items())
        return (
            BufferSpec("chunk.actions", (ROWS, ACTION), torch.float32, Role.STATE),
            BufferSpec("chunk.cursor", (1,), torch.int64, Role.STATE),
            BufferSpec("memory", (ACTION,), torch.float32, Role.STATE),
            *inputs,
            BufferSpec("planned", (ROWS, ACTION), torch.float32, Role.OUTPUT),
            BufferSpec("action", (ACTION,), torch.float32, Role.OUTPUT),
        )

    def ports(self) -> Ports:
        seen = tuple(Port(name, name, shape) for name, shape in self._sizes.items())
        return Ports(seen, Port("action", "action", (ACTION,)))

    def reset_(self, state: Buffers) -> None:
        for name in ("chunk.actions", "chunk.cursor", "memory"):
            state[name].zero_()

    def _rows(self, state: Buffers, inputs: Buffers) -> torch.Tensor:
        seen = torch.cat([inputs[name].flatten() for name in self._sizes])
        return torch.tanh(self._map(seen)).view(ROWS, ACTION) + state["memory"]

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        outputs["planned"].copy_(self._rows(state, inputs))

    def adopt(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        state["chunk.actions"].copy_(outputs["planned"])
        state["chunk.cursor"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        action = state["chunk.actions"][state["chunk.cursor"].clamp(max=ROWS - 1)][0]
        if self.act_observes:
            action = action + self._rows(state, inputs)[1]
        state["chunk.cursor"].add_(1)
        state["memory"].mul_(0.9).add_(action, alpha=0.1)
        outputs["action"].copy_(action)


class Pair:
    """Both sessions, and cameras."""

    def __init__(
        self, seed: int, policy: Callable[[], Policy], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.draw, self.seed, self.device = random.Random(seed), 1000 * seed, LateDevice()
        options: dict[str, Any] = {"rollback_depth": 6, "store_bytes": 1 << 18}
        with monkeypatch.context() as patched:
            patched.setattr(session_module, "open_device", lambda name: self.device)
            self.ahead = PolicySession(policy(), pictures=CAMERAS, **options)
        self.plain = PolicySession(policy(), **options)
        self.frames = {name: self.frame() for name in CAMERAS}
        self.kept = self.frame()
        self.names = 0

    def frame(self) -> BytePicture:
        self.seed += 1
        picture = BytePicture(noise(*CHW[1:], 3, seed=self.seed))
        return self.ahead.stage_picture(picture) if self.draw.random() < 0.9 else picture

    def look(self) -> dict[str, object]:
        """What cameras and robot say now; some have nothing new, some come as numbers."""
        self.seed += 1
        seen: dict[str, object] = {}
        for name in CAMERAS:
            if self.draw.random() < 0.6:
                self.frames[name] = self.frame()
            # Now and then an old one comes back.
            picture = self.kept if self.draw.random() < 0.1 else self.frames[name]
            seen[name] = picture if self.draw.random() < 0.85 else np.asarray(picture)
            if self.draw.random() < 0.05:
                self.kept = self.frames[name]
        if "vector" in self.plain.arena.inputs:
            seen["vector"] = noise(3, seed=self.seed).astype(np.float32)
        return seen

    def both(self, call: Callable[[PolicySession], object]) -> tuple[object, object]:
        """What it returns, or the type of what it raises, of each."""
        found = []
        for session in (self.ahead, self.plain):
            try:
                found.append(call(session))
            except FlashRTError as error:
                found.append(type(error))
        return found[0], found[1]

    def step(self, seen: Mapping[str, object], words: str = "step") -> None:
        numbers = {name: np.array(value) for name, value in seen.items()}
        ours, theirs = self.both(lambda s: s.step(seen if s is self.ahead else numbers))
        values = [getattr(found, "values", found) for found in (ours, theirs)]
        if isinstance(values[0], torch.Tensor):
            values = [value.numpy().tobytes() for value in values]
        assert values[0] == values[1], words

    def foresee(self, seen: Mapping[str, object]) -> None:
        self.device.fails_in = self.draw.choice([None] * 8 + [0, 1, 2])
        with contextlib.suppress(OutOfLuckError):
            self.ahead.foresee(seen)
        self.device.fails_in = None

    def plan(self, seen: Mapping[str, object]) -> None:
        """Of policies that plan beside: the cameras go on while the plan is under way."""
        numbers = {name: np.array(value) for name, value in seen.items()}
        ours, theirs = self.ahead.begin_plan(seen), self.plain.begin_plan(numbers)
        del seen
        for _ in range(self.draw.randrange(4)):
            self.foresee(self.look())
        following = [self.frame() for _ in range(len(CAMERAS) * SLOTS)]
        self.ahead.run_plan(ours)
        del following
        self.plain.run_plan(theirs)
        assert self.ahead.adopt(ours) == self.plain.adopt(theirs)

    def verb(self) -> None:
        kind, number = self.draw.randrange(4), self.draw.randrange(1, 4)
        self.names += kind == 0
        name = f"c{self.names if kind == 0 else max(self.names - number, 0)}"
        calls: list[Callable[[PolicySession], object]] = [
            lambda s: s.snapshot(name),
            lambda s: s.restore(name),
            lambda s: s.rollback(number),
            lambda s: s.reset_(),
        ]
        with self.device.at_once():
            ours, theirs = self.both(calls[kind])
        assert isinstance(ours, type) == isinstance(theirs, type)
        assert self.ahead.host == self.plain.host


def operate(seed: int, policy: Callable[[], Policy], monkeypatch: pytest.MonkeyPatch) -> None:
    """The random test, and a comparison of all state at its end."""
    pair = Pair(seed, policy, monkeypatch)
    beside = pair.plain.policy.plan_kind is PlanKind.BESIDE
    seen = pair.look()
    for index in range(250):
        if pair.draw.random() < 0.5:
            pair.device.work(pair.draw.randrange(4))
        kind = pair.draw.random()
        if kind < 0.4:
            seen = pair.look() if pair.draw.random() < 0.8 else seen
            pair.foresee(seen)
        elif kind < 0.8:
            seen = seen if pair.draw.random() < 0.6 else pair.look()
            pair.step(seen, f"step of operation {index}, seed {seed}")
        elif kind < 0.9:
            if beside:
                pair.plan(seen if pair.draw.random() < 0.5 else pair.look())
        else:
            pair.verb()
    assert pair.ahead.state_digest() == pair.plain.state_digest()


KINDS = [
    (PlanKind.NONE, True, True),
    (PlanKind.ADVANCES, True, True),
    (PlanKind.BESIDE, True, True),
    (PlanKind.BESIDE, True, False),
    (PlanKind.BESIDE, False, True),
]
SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_actions_are_those_of_numbers(
    kind: tuple[PlanKind, bool, bool], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    operate(seed, lambda: Looking(*kind), monkeypatch)


def _keeps_what_numbers_overwrote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PictureWire, "forget", lambda wire, key: None)


def _does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inputs, "_await_crossing", lambda inputs: None)


def _lets_a_plan_lose_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Engine.begin_plan

    def begun(engine: Engine, delay: int = 0) -> None:
        crossing = engine.inputs.crossing
        begin(engine, delay)
        engine.inputs.crossing = crossing

    monkeypatch.setattr(Engine, "begin_plan", begun)


@pytest.mark.parametrize(
    "mistake", [_keeps_what_numbers_overwrote, _does_not_wait, _lets_a_plan_lose_its_slots]
)
def test_mistakes_are_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with any of these some seed shows other actions."""
    mistake(monkeypatch)
    for kind in KINDS:
        for seed in SEEDS:
            try:
                operate(seed, lambda kind=kind: Looking(*kind), monkeypatch)
            except AssertionError:
                return
    pytest.fail("nothing was found")
