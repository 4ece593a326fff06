"""Plans that cannot be captured: found before a capture is tried, named, and called instead.

The device here only claims to capture: it hands back what it is given, or fails as CUDA would. So
what is pinned is the decision and its words; captures themselves are for the tests on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hosted_objects import Asks, Flow, host

from flashrt_ros.errors import CaptureError
from flashrt_ros.runtime import session as sessions
from flashrt_ros.runtime.device import Replay
from flashrt_ros.runtime.device.cpu import CpuDevice
from flashrt_ros.runtime.graph import GraphPlan
from flashrt_ros.runtime.host_read import first_obstacle, place_of
from flashrt_ros.runtime.session import PolicySession

CPU = torch.device("cpu")


class Capturing(CpuDevice):
    captures = True

    def __init__(self, error: str = "") -> None:
        super().__init__()
        self.error = error
        self.compiled = 0

    def compile(self, fn: Callable[[], None], warm_up: int, before: Callable[[], None]) -> Replay:
        self.compiled += 1
        if self.error:
            raise CaptureError(self.error)
        return super().compile(fn, warm_up, before)


def test_an_operation_is_named_with_the_line_that_asked_for_it() -> None:
    values = torch.arange(4.0)
    found = first_obstacle(lambda: values[values > 1].sum(), CPU)
    assert found.startswith("aten::index (indexing with a boolean mask) at test_plain_plans.py:")
    assert found.endswith("found = first_obstacle(lambda: values[values > 1].sum(), CPU)")
    assert first_obstacle(lambda: values[1:].sum(), CPU) == ""


def test_what_lies_elsewhere_than_the_plan_may_be_read() -> None:
    times = torch.arange(4.0)
    assert first_obstacle(lambda: times[2].item(), torch.device("meta")) == ""
    assert "item()" in first_obstacle(lambda: times[2].item(), CPU)


def test_a_plan_that_reads_is_called_and_no_capture_is_tried() -> None:
    device, value = Capturing(), torch.ones(1)

    def plan() -> None:
        if value.item() > 0:
            value.add_(1)

    graph = GraphPlan("plan", plan, device, may_run_plain=True)
    graph.prepare(before=lambda: value.fill_(1))
    assert graph.plain.startswith("aten::_local_scalar_dense (item()")
    assert not device.compiled
    value.fill_(5)
    graph.replay()
    assert value.item() == 6


def test_a_plan_that_can_be_captured_is(monkeypatch: pytest.MonkeyPatch) -> None:
    device, value = Capturing(), torch.ones(1)
    graph = GraphPlan("plan", lambda: value.add_(1) and None, device, may_run_plain=True)
    monkeypatch.setattr("flashrt_ros.runtime.graph.first_obstacle", lambda fn, device: "")
    graph.prepare()
    assert device.compiled == 1
    assert not graph.plain


def test_a_capture_that_fails_is_told_or_raised() -> None:
    value = torch.ones(1)
    graph = GraphPlan("plan", lambda: None, Capturing("no"), may_run_plain=True)
    graph.prepare()
    assert graph.plain == "no"
    with pytest.raises(CaptureError, match="no"):
        GraphPlan("plan", lambda: None, Capturing("no")).prepare()
    assert value.item() == 1


def test_the_place_of_an_error_is_where_it_began() -> None:
    def fail() -> None:
        torch.zeros(2).view(3)

    def fail_as_a_capture_does() -> None:
        try:
            fail()
        finally:
            raise RuntimeError("what torch says when the capture ends")

    with pytest.raises(RuntimeError) as caught:
        fail_as_a_capture_does()
    assert place_of(caught.value).endswith("torch.zeros(2).view(3)")


@pytest.mark.parametrize("asks", [True, False])
def test_a_session_says_which_operation_it_was(
    monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    monkeypatch.setattr(sessions, "open_device", lambda name: Capturing())
    session = PolicySession(host(Asks() if asks else Flow()))
    assert session.plain.startswith("aten::_local_scalar_dense") == asks
    assert bool(session.plain) == asks
    observation = {"observation.state": torch.ones(4)}
    plain = PolicySession(host(Asks() if asks else Flow()))
    assert torch.equal(session.step(observation).values, plain.step(observation).values)


def test_weights_that_move_after_a_plan_was_captured_are_refused() -> None:
    module = torch.nn.Linear(3, 3)
    plan = GraphPlan("plan", lambda: None, CpuDevice(), module=module)
    plan.prepare()
    with torch.no_grad():
        module.weight.mul_(2.0)
    plan.check()  # other numbers, in the same place
    keep, module.weight.data = module.weight.data, module.weight.data.clone()
    with pytest.raises(CaptureError, match=r"'plan': expected weights to stay .* 'weight' elsew"):
        plan.check()
    module.weight.data = keep
    plan.check()
