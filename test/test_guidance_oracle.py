"""Real-time chunking against LeRobot's own: the same weights, the same corrections.

LeRobot's releases 0.4 and 0.6 compute the velocity before they ask for gradients, so that their
Jacobian is the identity. With a denoiser that lets no gradient through ours is the same; with the
denoiser's Jacobian, as in the paper, it is not.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from flow_policy import A, Flow, H
from lerobot_oracle import allow_any_torchvision, oracle

from flashrt_ros.policies.guidance import SCHEDULES, Prefix, guide, prefix_weights

pytestmark = oracle


def processor(schedule: str, most: float = 10.0) -> Any:
    allow_any_torchvision()
    module = importlib.import_module("lerobot.policies.rtc.modeling_rtc")
    options = module.RTCConfig(
        enabled=True,
        prefix_attention_schedule=module.RTCAttentionSchedule[schedule],
        max_guidance_weight=most,
    )
    return module.RTCProcessor(options)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weights(schedule: str) -> None:
    theirs = processor(schedule)
    for delay in range(H + 1):
        for end in range(1, H + 1):
            ours = prefix_weights(schedule, torch.tensor([delay]), torch.tensor([end]), H)
            torch.testing.assert_close(ours, theirs.get_prefix_weights(delay, end, H))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("left", [H, 9, 3])
def test_a_guided_velocity(schedule: str, step: int, left: int) -> None:
    drawn = torch.Generator().manual_seed(step)
    sample_HA = torch.randn(H, A, generator=drawn)
    rows_HA = torch.randn(left, A, generator=drawn)
    seen, net, delay, horizon = torch.randn(3, generator=drawn), Flow(), 4, 10
    time = step / 5

    def backwards(noisy_BHA: torch.Tensor) -> torch.Tensor:
        # Their time goes from 1 to 0, and their velocity from data to noise.
        return -net.velocity(noisy_BHA[0], time, seen).unsqueeze(0)

    theirs = -processor(schedule).denoise_step(
        sample_HA, rows_HA, delay, 1 - time, backwards, horizon
    )
    end = torch.tensor([min(horizon, left)])
    weights_H = prefix_weights(schedule, torch.tensor([delay]), end, H)
    padded_HA = torch.zeros(H, A)
    padded_HA[:left] = rows_HA
    prefix = Prefix(padded_HA, weights_H, 10.0)

    def blind(noisy_HA: torch.Tensor) -> torch.Tensor:
        return net.velocity(noisy_HA.detach(), time, seen)

    ours = guide(sample_HA, time, blind, prefix)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-5)
    through = guide(sample_HA, time, lambda noisy: net.velocity(noisy, time, seen), prefix)
    assert (through - ours).abs().max() > 0.01
