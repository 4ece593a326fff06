"""Profiler ranges enclose what they name, end however it ends, and are not there unasked."""

from __future__ import annotations

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
