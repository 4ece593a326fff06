"""Pins the guidance of real-time chunking to the paper's formulas, written out slowly.

The references build the whole Jacobian in float64, entry by entry, and loop over rows; the module
must agree with them for flows and for both diffusion samplers. Agreement with LeRobot is held by
test_guidance_oracle.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from flow_policy import A, Flow, H
from torch import nn

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.diffusion.schedule import Schedule, ScheduleConfig
from flashrt_ros.policies.guidance import (
    SCHEDULES,
    GuidanceConfig,
    Prefix,
    guidance_weight,
    guide,
    prefix_weights,
    pull,
)

Function = Callable[[torch.Tensor], torch.Tensor]


def slow_weights(schedule: str, delay: int, end: int, rows: int) -> list[float]:
    """Formula 5 and its variants, row by row."""
    weights = []
    start = min(delay, end)
    for row in range(rows):
        if row < start:
            weights.append(1.0)
        elif row >= end:
            weights.append(0.0)
        else:
            line = (end - row) / (end - start + 1)
            exponential = line * (math.exp(line) - 1) / (math.e - 1)
            weights.append(
                {"ZEROS": 0.0, "ONES": 1.0, "LINEAR": line, "EXP": exponential}[schedule]
            )
    return weights


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weights_row_by_row(schedule: str) -> None:
    seen = set()
    for delay in range(H + 2):
        for end in range(H + 1):
            found = prefix_weights(schedule, torch.tensor([delay]), torch.tensor([end]), H)
            expected = slow_weights(schedule, delay, end, H)
            torch.testing.assert_close(found, torch.tensor(expected))
            seen.add(tuple(expected))
    assert len(seen) > H


def test_the_schedules_differ_behind_the_frozen_rows_alone() -> None:
    rows = [
        prefix_weights(name, torch.tensor([4]), torch.tensor([10]), H).tolist()
        for name in SCHEDULES
    ]
    assert len({tuple(row) for row in rows}) == 4
    assert len({tuple(row[:4]) for row in rows}) == len({tuple(row[10:]) for row in rows}) == 1


def jacobian(function: Function, at: torch.Tensor) -> torch.Tensor:
    """``d function / d at`` as a matrix, by central differences in float64."""
    columns = []
    for index in range(at.numel()):
        nudge = torch.zeros(at.numel(), dtype=torch.float64)
        nudge[index] = 1e-6
        nudge = nudge.view_as(at)
        columns.append((function(at + nudge) - function(at - nudge)).flatten() / 2e-6)
    return torch.stack(columns, dim=1)


def slow_guide(
    sample: torch.Tensor, time: float, velocity: Function, prefix: Prefix
) -> torch.Tensor:
    """Formula 2, term by term, in float64."""

    def clean(noisy: torch.Tensor) -> torch.Tensor:
        return noisy + (1 - time) * velocity(noisy)

    noise2 = (1 - time) ** 2
    r2 = noise2 / (time**2 + noise2)
    weight = prefix.max_weight if time == 0 else min(prefix.max_weight, (1 - time) / (time * r2))
    weighted = prefix.weights_H.double().diag() @ (prefix.rows.double() - clean(sample))
    pulled = jacobian(clean, sample).T @ weighted.flatten()
    return velocity(sample) + weight * pulled.view_as(sample)


def example(seed: int = 0) -> tuple[torch.Tensor, Prefix, torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    weights_H = prefix_weights("LINEAR", torch.tensor([3]), torch.tensor([9]), H)
    prefix = Prefix(torch.randn(H, A, generator=drawn), weights_H, 8.0)
    return torch.randn(H, A, generator=drawn), prefix, torch.randn(3, generator=drawn)


@pytest.mark.parametrize("time", [0.0, 0.2, 0.5, 0.8, 0.97])
def test_a_guided_velocity_is_the_formula(time: float) -> None:
    sample, prefix, seen = example()
    single, double = Flow(), Flow()
    double.net.double()

    def velocity(noisy: torch.Tensor) -> torch.Tensor:
        return single.velocity(noisy, time, seen)

    def exact(noisy: torch.Tensor) -> torch.Tensor:
        now = torch.tensor([time], dtype=torch.float64)
        return double.net(torch.cat((noisy.flatten(), seen.double(), now))).view(H, A)

    with torch.no_grad():
        found = guide(sample, time, velocity, prefix)
        expected = slow_guide(sample.double(), time, exact, prefix)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)
    # The control: the distance alone, without the denoiser's Jacobian, is something else.
    with torch.no_grad():
        blind = guide(sample, time, lambda noisy: velocity(noisy.detach()), prefix)
    assert (blind - expected).abs().max() > 0.05
    assert not torch.allclose(found, velocity(sample).detach(), atol=0.05)


def test_without_weights_nothing_is_guided_to_the_bit() -> None:
    sample, prefix, seen = example()
    net = Flow()
    silent = Prefix(torch.full((H, A), float("nan")), torch.zeros(H), prefix.max_weight)

    def velocity(noisy: torch.Tensor) -> torch.Tensor:
        return net.velocity(noisy, 0.4, seen)

    with torch.no_grad():
        assert torch.equal(guide(sample, 0.4, velocity, silent), velocity(sample))
        assert not torch.equal(guide(sample, 0.4, velocity, prefix), velocity(sample))


def test_the_weight_is_limited_at_both_ends() -> None:
    assert guidance_weight(0.0, 1.0, 5.0) == guidance_weight(1.0, 0.0, 5.0) == 5.0
    assert guidance_weight(0.01, 0.99, 5.0) == 5.0
    assert guidance_weight(0.5, 0.5, 5.0) == pytest.approx(2.0)
    # Scaled by signal + noise, a step of a diffusion is a step of a flow.
    signal, noise = 0.6, 0.8
    time = signal / (signal + noise)
    scale = (signal + noise) ** 2
    assert guidance_weight(signal, noise, 99) == pytest.approx(scale / scale / (signal * noise))
    assert guidance_weight(time, 1 - time, 99) == pytest.approx(1 / (signal * noise))


class Denoiser(nn.Module):
    """A small network of sample and step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(H * A + 1, 40), nn.Tanh(), nn.Linear(40, H * A))
        generator = torch.Generator().manual_seed(11)
        for weight in self.net.parameters():
            nn.init.normal_(weight, std=0.3, generator=generator)

    def forward(self, sample: torch.Tensor, number: int) -> torch.Tensor:
        flat = torch.cat((sample.flatten(), torch.full((1,), 0.1 * number, dtype=sample.dtype)))
        return torch.as_tensor(self.net(flat).view_as(sample))


def slow_sample(
    config: ScheduleConfig, net: nn.Module, noise_NBHA: torch.Tensor, prefix: Prefix | None
) -> torch.Tensor:
    """DDPM and DDIM as their papers write them, guided by the score of the prefix, in float64.

    The prefix adds ``weight / noise`` times its pull to the score, so ``-weight`` times it to eps.
    """
    kept_T = torch.cumprod(1 - config.betas().double(), 0)
    steps = config.timesteps()
    sample, drawn = noise_NBHA[0, 0].double(), 1
    for number, now in enumerate(steps):
        kept = float(kept_T[now])
        then = steps[number + 1] if number + 1 < len(steps) else -1
        kept_then = float(kept_T[then]) if then >= 0 else 1.0

        def clean_of(
            noisy: torch.Tensor, number: int = number, kept: float = kept
        ) -> torch.Tensor:
            out = net(noisy, number)
            if config.prediction_type == "epsilon":
                out = (noisy - (1 - kept) ** 0.5 * out) / kept**0.5
            limit = config.clip_sample_range
            return out.clamp(-limit, limit) if config.clip_sample else out

        out = net(sample, number)
        if config.prediction_type == "epsilon":
            eps = out
        else:
            eps = (sample - kept**0.5 * out) / (1 - kept) ** 0.5
        if prefix is not None:
            weight = min(prefix.max_weight, 1 / (kept * (1 - kept)) ** 0.5)
            far = prefix.weights_H.double().diag() @ (prefix.rows.double() - clean_of(sample))
            pulled = (jacobian(clean_of, sample).T @ far.flatten()).view_as(sample)
            eps = eps - kept**0.5 * weight * pulled
        clean = (sample - (1 - kept) ** 0.5 * eps) / kept**0.5
        if config.clip_sample:
            clean = clean.clamp(-config.clip_sample_range, config.clip_sample_range)
        if config.noise_scheduler_type == "DDIM":
            sample = kept_then**0.5 * clean + (1 - kept_then) ** 0.5 * eps
            continue
        here = kept / kept_then
        mean = kept_then**0.5 * (1 - here) / (1 - kept) * clean
        mean = mean + here**0.5 * (1 - kept_then) / (1 - kept) * sample
        if now > 0:
            variance = max((1 - kept_then) / (1 - kept) * (1 - here), 1e-20)
            mean = mean + variance**0.5 * noise_NBHA[drawn, 0].double()
            drawn += 1
        sample = mean
    return sample


@pytest.mark.parametrize("sampler", ["DDPM", "DDIM"])
@pytest.mark.parametrize("prediction", ["epsilon", "sample"])
@pytest.mark.parametrize("clip", [True, False])
def test_guided_samplers_are_the_formulas(sampler: str, prediction: str, clip: bool) -> None:
    config = ScheduleConfig(sampler, 50, 6, "scaled_linear", 0.004, 0.2, prediction, clip, 1.0)
    schedule = Schedule(config)
    drawn = torch.Generator().manual_seed(5)
    noise_NBHA = torch.randn(schedule.n_draws, 1, H, A, generator=drawn)
    weights_H = prefix_weights("EXP", torch.tensor([4]), torch.tensor([12]), H)
    prefix = Prefix(0.5 * torch.randn(1, H, A, generator=drawn), weights_H, 4.0)
    net, exact = Denoiser(), Denoiser().double()

    def predict(sample: torch.Tensor, number: int) -> torch.Tensor:
        return torch.as_tensor(net(sample, number))

    flat = Prefix(prefix.rows[0], weights_H, prefix.max_weight)
    with torch.no_grad():
        found = schedule.sample(schedule.guided(predict, prefix), noise_NBHA)[0]
        expected = slow_sample(config, exact, noise_NBHA, flat)
        plain = slow_sample(config, exact, noise_NBHA, None)
        unguided = schedule.sample(predict, noise_NBHA)[0]
    torch.testing.assert_close(unguided, plain.float(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found, expected.float(), rtol=1e-3, atol=2e-3)
    assert (found - plain).abs().max() > 0.02, "the control"
    silent = Prefix(prefix.rows, torch.zeros(H), prefix.max_weight)
    with torch.no_grad():
        assert torch.equal(
            schedule.sample(schedule.guided(predict, silent), noise_NBHA)[0], unguided
        )


def test_a_flow_of_known_data_keeps_to_the_frozen_rows() -> None:
    """Of a normal distribution, whose velocities are known: what comes out must fit both."""
    rows = torch.arange(float(H))
    covariance = torch.exp(-((rows[:, None] - rows[None]) / 6).square()) + 0.05 * torch.eye(H)
    drawn = torch.Generator().manual_seed(1)
    factor = torch.linalg.cholesky(covariance)
    target_HA = factor @ torch.randn(H, A, generator=drawn)
    weights_H = prefix_weights("EXP", torch.tensor([5]), torch.tensor([12]), H)
    start_HA = torch.randn(H, A, generator=drawn)
    steps = 50

    def sample(prefix: Prefix | None) -> torch.Tensor:
        sample_HA = start_HA
        for step in range(steps):
            time = step / steps
            total = time**2 * covariance + (1 - time) ** 2 * torch.eye(H)
            slope = (time * covariance - (1 - time) * torch.eye(H)) @ torch.linalg.inv(total)

            def velocity(noisy: torch.Tensor, slope: torch.Tensor = slope) -> torch.Tensor:
                return slope @ noisy

            flow = (
                velocity(sample_HA) if prefix is None else guide(sample_HA, time, velocity, prefix)
            )
            sample_HA = sample_HA + flow / steps
        return sample_HA

    free = sample(None)
    kept = sample(Prefix(target_HA, weights_H, 5.0))
    before = (free - target_HA)[:5].abs().mean()
    assert (kept - target_HA)[:5].abs().mean() < 0.15 * before
    assert (kept - target_HA)[:5].abs().mean() < (kept - target_HA)[12:].abs().mean()
    # Smooth where it goes on: no step between rows as large as between two chunks of their own.
    assert (kept[5] - target_HA[4]).norm() < 0.5 * (free[5] - target_HA[4]).norm()


def test_gradients_are_off_again_afterwards() -> None:
    sample, prefix, _ = example()
    weight = torch.ones(A, requires_grad=True)
    with torch.no_grad():
        output, correction = pull(sample, lambda noisy: (noisy * weight, noisy * weight), prefix)
        assert not torch.is_grad_enabled()
    assert not output.requires_grad
    assert not correction.requires_grad
    assert weight.grad is None
    assert not sample.requires_grad


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"prefix_attention_schedule": "linear"},
            "prefix_attention_schedule: expected one of ZEROS",
        ),
        ({"execution_horizon": 0}, "execution_horizon: expected at least 1, found 0"),
        ({"max_guidance_weight": 0.0}, "max_guidance_weight: expected a number above 0"),
        ({"max_guidance_weight": math.nan}, "max_guidance_weight: expected a number above 0"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        GuidanceConfig(**options)  # type: ignore[arg-type]
