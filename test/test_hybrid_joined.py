"""Weights that become parts of one before anything is captured, and never again.

A captured graph reads weights where they lay. Had the head's keys and values been joined for one
plan and its queries with them for the next, the first would go on reading memory that has become
something else's: actions stay the same, and what is drafted changes from one replay to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from hybrid_robot import episode, robot_policy
from torch import nn

from flashrt_ros.errors import CaptureError
from flashrt_ros.policies.hybrid import model as models
from flashrt_ros.policies.hybrid.kernels.joined import joined
from flashrt_ros.policies.hybrid.ops import Norm, Ops
from flashrt_ros.runtime.device import Replay
from flashrt_ros.runtime.device.cpu import CpuDevice
from flashrt_ros.runtime.session import PolicySession


class Joining(Ops):
    """Torch's functions over joined weights."""

    def __init__(self, lays_out: bool) -> None:
        self.lays_out = lays_out

    def lay_out_(self, groups: Iterable[Sequence[nn.Linear]]) -> None:
        for linears in groups if self.lays_out else ():
            joined(linears)

    def normed_linear(
        self, x_TD: torch.Tensor, norm: Norm, linears: Sequence[nn.Linear]
    ) -> tuple[torch.Tensor, ...]:
        weight_ED = joined(linears)
        assert torch.equal(weight_ED, torch.cat([one.weight for one in linears]))
        return super().normed_linear(x_TD, norm, linears)


def session(monkeypatch: pytest.MonkeyPatch, lays_out: bool) -> PolicySession:
    """One whose device calls what it captures first, as CUDA does."""
    compiled = CpuDevice.compile

    def compile_(
        device: CpuDevice, fn: Callable[[], None], warm_up: int, before: Callable[[], None]
    ) -> Replay:
        before()
        fn()
        return compiled(device, fn, warm_up, before)

    monkeypatch.setattr(CpuDevice, "compile", compile_)
    monkeypatch.setattr(models, "ops_for", lambda device: Joining(lays_out))
    return PolicySession(robot_policy(2), "cpu")


def test_all_weights_are_laid_out_before_the_first_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = episode(4)
    plain = PolicySession(robot_policy(2), "cpu")
    expected = [plain.step(one).values.tolist() for one in seen]
    joining = session(monkeypatch, lays_out=True)
    assert [joining.step(one).values.tolist() for one in seen] == expected


def test_as_they_are_needed_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CaptureError, match="'plan': expected weights to stay where they were"):
        session(monkeypatch, lays_out=False)
