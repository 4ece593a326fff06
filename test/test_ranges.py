"""Profiler ranges enclose what they name, end however it ends, and are not there unasked."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from control_rig import Rig, plan_ready
from node_policies import Follow, FollowChunks

from flashrt_ros.errors import UnsupportedError
from flashrt_ros.ros import ranges


def marked(rig: Rig) -> list[str]:
    """Marks a rig; returns what begins (+) and ends (-), in order."""
    seen: list[str] = []
    intake = SimpleNamespace(sampler=rig.inputs.sampler)
    ranges.mark(
        rig.stepper,
        intake,
        lambda name: seen.append(f"+{name.removeprefix(ranges.PREFIX)}"),
        lambda: seen.append("-"),
    )
    return seen


def test_steps_verbs_and_decoding_are_enclosed() -> None:
    rig = Rig()
    seen = marked(rig)
    rig.tick()
    assert seen == ["+decode", "-", "+step", "-"]
    seen.clear()
    rig.ask("snapshot", name="cut")
    rig.ask("restore", name="cut")
    rig.ask("reset_episode")
    assert [name for name in seen if name != "-"] == ["+snapshot", "+restore", "+reset"]


def test_plans_beside_are_enclosed_in_their_thread() -> None:
    rig = Rig(FollowChunks())
    seen = marked(rig)
    for _ in range(2):
        rig.tick()
        plan_ready(rig)
    assert {"+plan", "+adopt"} <= set(seen)
    assert seen.count("-") == len(seen) - seen.count("-")
    rig.stepper.close()


def test_a_range_ends_with_what_raises_in_it() -> None:
    rig = Rig()
    seen = marked(rig)
    answer = rig.ask("restore", name="nowhere")
    assert answer.code != 0
    assert seen.count("-") == sum(name.startswith("+") for name in seen)


def test_nothing_is_wrapped_unasked() -> None:
    rig = Rig(Follow())
    assert "tick" not in vars(rig.stepper)
    assert "snapshot" not in vars(rig.session)


def test_a_torch_without_nvtx_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise RuntimeError("NVTX functions not installed")

    monkeypatch.setattr("torch.cuda.nvtx.range_push", missing)
    with pytest.raises(UnsupportedError, match="expected a torch with NVTX"):
        ranges.nvtx()


class Library:
    """A tracetools that keeps what it is told."""

    def __init__(self, compiled: bool = True) -> None:
        self.names: dict[int, str] = {}
        self.points: list[tuple[str, str]] = []

        def register(handle: int, name: bytes) -> None:
            self.names[handle] = name.decode()

        def start(handle: int, intra: bool) -> None:
            self.points.append(("start", self.names[handle]))

        def end(handle: int) -> None:
            self.points.append(("end", self.names[handle]))

        self.ros_trace_compile_status = lambda: compiled
        self.ros_trace_rclcpp_callback_register = register
        self.ros_trace_callback_start = start
        self.ros_trace_callback_end = end


def test_trace_points_are_callbacks_with_names_that_nest_in_their_thread() -> None:
    library = Library()
    points = ranges.TracePoints(library)
    points.begin("step")
    other = threading.Thread(target=lambda: (points.begin("plan"), points.end()))
    points.begin("snapshot")
    other.start()
    other.join()
    points.end()
    points.end()
    points.begin("step")
    points.end()
    assert library.points == [
        ("start", "step"),
        ("start", "snapshot"),
        ("start", "plan"),
        ("end", "plan"),
        ("end", "snapshot"),
        ("end", "step"),
        ("start", "step"),
        ("end", "step"),
    ]
    assert sorted(library.names.values()) == ["plan", "snapshot", "step"], "each named once"


def test_a_tracetools_that_traces_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="built without it"):
        ranges.TracePoints(Library(compiled=False))

    def missing(name: str) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(ranges.ctypes, "PyDLL", missing)
    with pytest.raises(UnsupportedError, match="expected tracetools, which comes with ROS 2"):
        ranges.trace_points()
