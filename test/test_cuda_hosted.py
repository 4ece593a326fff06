"""Hosted policies on a GPU: captured where that is possible, called where it is not."""

from __future__ import annotations

import pytest
import torch
from hosted_objects import STATE, Asks, Draws, Flow, S, host

from flashrt_ros.policies.hosted.description import SAMPLED, HostedNoise
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("hosted", [Flow, Asks])
def test_conforms(hosted: type[Flow]) -> None:
    report = check_policy(host(hosted()), device="cuda")
    assert report.ok, str(report)


def test_sampled_noise_conforms() -> None:
    report = check_policy(host(Draws(), noise=HostedNoise(argument=SAMPLED)), device="cuda")
    assert report.ok, str(report)


def test_what_cannot_be_captured_is_called_and_named() -> None:
    captured = PolicySession(host(Flow()), device="cuda")
    called = PolicySession(host(Asks()), device="cuda")
    assert captured.plain == ""
    assert called.plain.startswith("aten::_local_scalar_dense")
    # The same weights and noise, and an observation for which both objects answer alike.
    for _ in range(7):
        observation = {STATE: -torch.ones(S)}
        one, other = (session.step(observation).values for session in (captured, called))
        assert torch.equal(one, other)
