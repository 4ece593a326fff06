"""Acts of many sizes: further shapes that a caller names, and replays that the device asks for.

A tape policy writes what it was told to rows, so any token that is lost, doubled or taken by the
wrong plan can be read from the state.
"""

from __future__ import annotations

from functools import partial

import pytest
import session_checks as checks
import torch
from torch import nn

from flashrt_ros.errors import InternalError, InvalidArgumentError, NoMemoryError, SpecError
from flashrt_ros.runtime.buffers import ROWS_LENGTH, BufferSpec, Role
from flashrt_ros.runtime.policy import ACT_LEFT, ActShape, Buffers, Policy, Port, Ports
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
on_devices = pytest.mark.parametrize("device", DEVICES)


class Tape(Policy):
    """Writes ``told[0]`` as many times as ``told[1]`` says, two at most in one replay.

    The shapes ``bulk.N`` write it N times at once.
    """

    family = "tape"
    rows_per_act = 8
    act_replays = 4

    def __init__(self, capacity: int = 64, sizes: tuple[int, ...] = (4, 16)) -> None:
        self.capacity, self.sizes = capacity, sizes
        self.net = nn.Module()

    def config(self) -> dict[str, object]:
        return {}

    def module(self) -> nn.Module:
        return self.net

    def layout(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec("tape", (1,), torch.int64, Role.STATE, "", self.capacity),
            BufferSpec("done", (1,), torch.int64, Role.STATE),
            BufferSpec("told", (2,), torch.int64, Role.INPUT),
            BufferSpec("action", (1,), torch.float32, Role.OUTPUT),
            BufferSpec(ACT_LEFT, (1,), torch.int64, Role.OUTPUT),
        )

    def ports(self) -> Ports:
        return Ports((Port("told", "told", (2,)),), Port("action", "action", (1,)))

    def reset_(self, state: Buffers) -> None:
        state["done"].zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        # done counts within a step; the step before left it at what it was told.
        most_1 = inputs["told"][1:].clamp(0, 8)
        now_1 = torch.minimum(most_1 - state["done"], torch.full_like(most_1, 2))
        self.write_(state, inputs, 2, now_1)
        left_1 = most_1 - state["done"] - now_1
        state["done"].add_(now_1).mul_((left_1 > 0).long())
        outputs[ACT_LEFT].copy_(left_1)
        outputs["action"].copy_(state[ROWS_LENGTH])

    def bulk(self, size: int, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        self.write_(state, inputs, size, torch.full_like(state["done"], size))
        outputs["action"].copy_(state[ROWS_LENGTH])

    def write_(self, state: Buffers, inputs: Buffers, size: int, count_1: torch.Tensor) -> None:
        rows_T = state[ROWS_LENGTH] + torch.arange(size, device=count_1.device)
        state["tape"].index_copy_(0, rows_T, inputs["told"][:1].expand(size, 1))
        state[ROWS_LENGTH].add_(count_1)

    def act_shapes(self) -> tuple[ActShape, ...]:
        return tuple(ActShape(f"bulk.{n}", n, partial(self.bulk, n)) for n in self.sizes)


def tape(session: PolicySession) -> list[int]:
    checks.settle(session)
    return session.arena.state["tape"][: session.host.rows, 0].tolist()


@on_devices
def test_an_act_is_replayed_until_nothing_is_left(device: str) -> None:
    session = PolicySession(Tape(), device=device)
    expected: list[int] = []
    for step, count in enumerate((1, 8, 0, 3, 2, 7)):
        action = session.step({"told": [step, count]})
        expected += [step] * count
        assert tape(session) == expected
        assert action.values.tolist() == [len(expected)]
        assert (action.step, session.host.step) == (step, step + 1)
    session.close()


@on_devices
def test_shapes_are_steps_of_their_own_that_verbs_know(device: str) -> None:
    session = PolicySession(Tape(), device=device, rollback_depth=8)
    assert session.act({"told": [1, 0]}, shape="bulk.16").values.tolist() == [16.0]
    session.snapshot("sixteen")
    session.act({"told": [2, 0]}, shape="bulk.4")
    session.step({"told": [3, 3]})
    assert tape(session) == [1] * 16 + [2] * 4 + [3] * 3
    state = session.state_bytes()
    session.rollback(1)
    assert tape(session) == [1] * 16 + [2] * 4
    session.restore("sixteen")
    session.act({"told": [2, 0]}, shape="bulk.4")
    session.step({"told": [3, 3]})
    assert session.state_bytes() == state
    session.close()


def test_room_is_that_of_the_shape() -> None:
    session = PolicySession(Tape(capacity=20))
    session.act({"told": [1, 0]}, shape="bulk.16")
    with pytest.raises(NoMemoryError, match="room for 16 more rows, found 16 of 20"):
        session.act({"told": [1, 0]}, shape="bulk.16")
    with pytest.raises(NoMemoryError, match="room for 8 more rows"):
        session.step({"told": [1, 1]})
    assert session.act({"told": [1, 0]}, shape="bulk.4").values.tolist() == [20.0]


def test_shapes_are_in_the_exec_id_alone() -> None:
    one, other = PolicySession(Tape()), PolicySession(Tape(sizes=(4,)))
    assert one.state_id == other.state_id
    difference = one.exec_fingerprint.difference(other.exec_fingerprint)
    assert difference == ("act.shapes", "bulk.4 bulk.16", "bulk.4")


def test_unknown_shapes_are_refused() -> None:
    session = PolicySession(Tape())
    with pytest.raises(InvalidArgumentError, match=r"'bulk.5': policy 'tape' has bulk.4, bulk.16"):
        session.act({"told": [1, 0]}, shape="bulk.5")
    assert session.host.step == 0


def test_it_conforms() -> None:
    report = check_policy(Tape(capacity=512))
    assert report.ok, str(report)


class Endless(Tape):
    act_replays = 2


class Silent(Tape):
    def layout(self) -> tuple[BufferSpec, ...]:
        return tuple(spec for spec in super().layout() if spec.name != ACT_LEFT)


def test_an_act_that_never_ends_fails_and_tears_the_state() -> None:
    session = PolicySession(Endless())
    session.step({"told": [1, 4]})
    with pytest.raises(InternalError, match=r"expected 'act.left' to be 0 after 2 replays .*1"):
        session.step({"told": [1, 5]})
    with pytest.raises(InternalError, match="the state is incomplete"):
        session.step({"told": [1, 1]})
    session.reset_()
    session.step({"told": [1, 1]})


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Tape(sizes=(4, 4)), "act shapes with different names"),
        (Tape(sizes=(4, 65)), "'bulk.65': expected 0 to 64 rows, which is the capacity, found 65"),
        (Silent(), "no buffer 'act.left' is declared"),
    ],
)
def test_wrong_declarations_are_refused(policy: Policy, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        PolicySession(policy)
