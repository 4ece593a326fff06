"""Inputs and results cross between host and device within the act, where its replay costs nothing.

A device whose memory is not the host's must act as one that shares it, whoever reads the inputs;
and a step of a policy that never plans may ask the device for no copy of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import session_checks as checks
import torch
from separate_host import SeparateHost, separate_host
from toy_policies import ToyAdvancing, ToyChunk, ToyRecurrent, observations

from flashrt_ros.bench.policies import OBSERVATION, GrowingPolicy
from flashrt_ros.runtime.device import Lane, open_device
from flashrt_ros.runtime.host_copy import HostCopy
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession

MakePolicy = Callable[[], Policy]


def apart(policy: Policy, **arguments: Any) -> PolicySession:
    with separate_host():
        session = PolicySession(policy, **arguments)
    assert session.arena.mirror.data_ptr() != session.arena.input_section.data_ptr()
    return session


def counted(session: PolicySession, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Copies that are asked for outside of replays, or within, from now on."""
    found: list[str] = []
    within: list[bool] = []
    device, plan = session.device, session._engine._act
    copy_, replay = device.copy_, plan.replay

    def copied(dst: torch.Tensor, src: torch.Tensor) -> None:
        found.append("within" if within else "outside")
        copy_(dst, src)

    def replayed() -> None:
        within.append(True)
        replay()
        within.pop()

    monkeypatch.setattr(device, "copy_", copied)
    monkeypatch.setattr(plan, "replay", replayed)
    return found


@pytest.mark.parametrize("make", [ToyRecurrent, ToyChunk, ToyAdvancing])
def test_separate_memory_acts_as_shared_memory(make: MakePolicy) -> None:
    shared, separate = PolicySession(make()), apart(make())
    expected = checks.actions(shared, 0, 12)
    assert checks.actions(separate, 0, 12) == expected
    assert separate.state_digest() == shared.state_digest()
    # The control: what does not cross is missed.
    unlike = apart(make())
    unlike.arena.mirror.zero_()
    unlike._engine.inputs.writer.write = lambda checked: None  # type: ignore[method-assign]
    assert checks.actions(unlike, 0, 12) != expected


def test_a_step_asks_for_no_copy_beside_its_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    session = apart(ToyRecurrent(), rollback_depth=0)
    found = counted(session, monkeypatch)
    session.step(observations(0))
    assert found == ["within", "within"], "inputs and action"


def test_a_plan_reads_inputs_before_the_act(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the count: these cross by themselves."""
    session = apart(ToyAdvancing(), rollback_depth=0)
    found = counted(session, monkeypatch)
    session.step(observations(0))
    assert "outside" in found
    assert found[-1] == "within", "the action"


def test_rows_are_counted_by_what_crossed() -> None:
    session = apart(GrowingPolicy(64, 16, 3), rollback_depth=4)
    for rows in (1, 3, 0, 2):
        before = session.host.rows
        session.step({OBSERVATION: [float(rows)]})
        assert session.host.rows == before + rows
    assert session.rollback(1) == 1
    assert session.host.rows == 4
    session.step({OBSERVATION: [3.0]})
    assert session.host.rows == 7


def test_an_act_that_failed_may_still_read_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the next observation waits for the device before it is written."""
    session = apart(ToyRecurrent())
    device = session.device
    waits: list[str] = []
    synchronize = device.synchronize

    def fails() -> None:
        raise RuntimeError("no such luck")

    session.step(observations(0))
    monkeypatch.setattr(session, "_book_boundary", fails)
    with pytest.raises(RuntimeError, match="no such luck"):
        session.step(observations(1))
    monkeypatch.undo()
    session.reset_()
    monkeypatch.setattr(device, "synchronize", lambda: (waits.append("wait"), synchronize()))
    session.step(observations(2))
    assert waits == ["wait", "wait"], "before the observation, and for the action"
    session.step(observations(3))
    assert waits == ["wait"] * 3, "control: after an act that succeeded only the latter"


def test_a_copy_is_what_the_buffer_held_when_it_crossed() -> None:
    device = SeparateHost()
    buffer = device.allocate(8).view(torch.int64)
    copy = HostCopy(buffer, device)
    buffer.fill_(-(2**62) - 1)
    assert copy.number == 0
    copy.cross()
    assert copy.number == -(2**62) - 1
    assert torch.equal(copy.values, buffer)
    buffer.fill_(5)
    assert copy.number != 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_room_is_filled_with_what_has_crossed_and_is_nobody_elses(dtype: torch.dtype) -> None:
    device = SeparateHost()
    buffer = device.allocate(3 * dtype.itemsize).view(dtype)
    copy = HostCopy(buffer, device)
    room, fill = copy.blank()
    buffer.copy_(torch.tensor([1.5, -2.0, 0.25]))
    copy.cross()
    fill()
    assert room.dtype == torch.float32
    assert room.tolist() == [1.5, -2.0, 0.25]
    buffer.zero_()
    copy.cross()
    assert room.tolist() == [1.5, -2.0, 0.25]
    fill()
    assert room.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.cuda
def test_a_lane_is_bound_within_and_nothing_is_bound_after() -> None:
    device = open_device("cuda")
    before = torch.cuda.current_stream()
    with device.bind(Lane.CONTROL):
        control = torch.cuda.current_stream()
        assert control != before
        with device.bind(Lane.CONTROL):
            assert torch.cuda.current_stream() == control
        with device.bind(Lane.PLANNER):
            assert torch.cuda.current_stream() not in (before, control)
        assert torch.cuda.current_stream() == control
        with pytest.raises(ZeroDivisionError), device.bind(Lane.PLANNER):
            _ = 1 // 0
        assert torch.cuda.current_stream() == control
    assert torch.cuda.current_stream() == before


@pytest.mark.cuda
def test_an_act_on_a_gpu_takes_and_gives_what_crosses() -> None:
    runs = [
        [PolicySession(ToyRecurrent(), device).step(observations(step)).values for step in (1, 2)]
        for device in ("cpu", "cuda")
    ]
    torch.testing.assert_close(*(torch.stack(run) for run in runs), rtol=1e-4, atol=1e-4)
    assert not torch.equal(runs[1][0], runs[1][1])
