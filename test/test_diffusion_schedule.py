"""Pins the coefficients of both samplers to what the papers demand of them.

That they are diffusers' to the last bit is held by ``test_diffusion_oracle.py``; here they must
keep the identities that make them samplers, whatever the betas: a step leads to the share of the
clean sample and the variance around it that belong to the next timestep, and with a network that
knows the answer the answer comes out.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.diffusion.schedule import SAMPLERS, Schedule, ScheduleConfig

BASE = ScheduleConfig("DDPM", 100, 10, "squaredcos_cap_v2", 1e-4, 0.02, "epsilon", True, 1.0)
EVERY = [
    replace(BASE, noise_scheduler_type=sampler, beta_schedule=betas, num_inference_steps=steps)
    for sampler, schedules in SAMPLERS.items()
    for betas in schedules
    for steps in (1, 7, 100)
]


def ident(config: ScheduleConfig) -> str:
    return f"{config.noise_scheduler_type}-{config.beta_schedule}-{config.num_inference_steps}"


def kept(config: ScheduleConfig) -> list[float]:
    """Share of the clean sample's variance at each step, then 1; from the betas, in float64."""
    product, shares = 1.0, []
    for beta in config.betas().tolist():
        product *= 1 - beta
        shares.append(product)
    return [*(shares[t] for t in config.timesteps()), 1.0]


@pytest.mark.parametrize("config", EVERY, ids=ident)
def test_steps_keep_mean_and_variance(config: ScheduleConfig) -> None:
    shares = kept(config)
    steps = Schedule(config).steps
    assert len(steps) == config.num_inference_steps
    for index, step in enumerate(steps):
        now, then = shares[index], shares[index + 1]
        assert step.root_kept == pytest.approx(math.sqrt(now), rel=1e-3)
        assert step.root_noise == pytest.approx(math.sqrt(1 - now), rel=1e-3)
        if config.noise_scheduler_type == "DDPM":
            mean = step.of_clean + step.of_other * step.root_kept
            variance = (step.of_other * step.root_noise) ** 2 + step.deviation**2
        else:
            mean, variance = step.of_clean, step.of_other**2
        assert mean == pytest.approx(math.sqrt(then), abs=1e-4)
        assert variance == pytest.approx(1 - then, abs=1e-4)


@pytest.mark.parametrize("config", EVERY, ids=ident)
def test_noise_is_added_in_every_step_of_ddpm_but_the_last(config: ScheduleConfig) -> None:
    schedule = Schedule(config)
    adds = [step.deviation > 0 for step in schedule.steps]
    ancestral = config.noise_scheduler_type == "DDPM"
    assert adds == [ancestral] * (len(adds) - 1) + [False]
    assert schedule.n_draws == (len(adds) if ancestral else 1)


def test_a_noise_of_each_step_matters() -> None:
    schedule = Schedule(replace(BASE, num_inference_steps=4, clip_sample=False))
    noise = torch.randn(4, 1, 3, 2, generator=torch.Generator().manual_seed(1))
    usual = schedule.sample(lambda sample, step: 0.3 * sample, noise)
    for number in range(4):
        other = noise.clone()
        other[number] += 1
        assert not torch.equal(schedule.sample(lambda sample, step: 0.3 * sample, other), usual)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("prediction", ["epsilon", "sample"])
def test_a_network_that_knows_the_answer_gives_it(sampler: str, prediction: str) -> None:
    config = replace(
        BASE, noise_scheduler_type=sampler, prediction_type=prediction, clip_sample=False
    )
    schedule = Schedule(config)
    generator = torch.Generator().manual_seed(2)
    clean = torch.randn(1, 4, 3, generator=generator)
    noise = torch.randn(schedule.n_draws, 1, 4, 3, generator=generator)
    shares = kept(config)

    def predict(sample: torch.Tensor, step: int) -> torch.Tensor:
        if prediction == "sample":
            return clean
        return (sample - math.sqrt(shares[step]) * clean) / math.sqrt(1 - shares[step])

    torch.testing.assert_close(schedule.sample(predict, noise), clean, rtol=0, atol=1e-4)
    wrong = schedule.sample(lambda sample, step: predict(sample, step) + 0.2, noise)
    assert (wrong - clean).abs().max() > 0.001


def test_the_predicted_sample_is_clipped_to_its_range() -> None:
    noise = torch.zeros(10, 1, 2, 1)
    for limit in (0.5, 1.5):
        config = replace(BASE, prediction_type="sample", clip_sample_range=limit)
        far = Schedule(config).sample(lambda sample, step: torch.full_like(sample, 9.0), noise)
        assert far.unique().tolist() == [pytest.approx(limit)]
    free = replace(BASE, prediction_type="sample", clip_sample=False)
    far = Schedule(free).sample(lambda sample, step: torch.full_like(sample, 9.0), noise)
    assert far.unique().tolist() == [pytest.approx(9.0)]


def test_timesteps_lead_from_the_noisiest_to_the_first() -> None:
    assert BASE.timesteps() == (90, 80, 70, 60, 50, 40, 30, 20, 10, 0)
    assert replace(BASE, num_inference_steps=30).timesteps()[:3] == (87, 84, 81)
    assert replace(BASE, num_inference_steps=1).timesteps() == (0,)
    assert replace(BASE, num_inference_steps=100).timesteps() == tuple(range(99, -1, -1))


def test_betas() -> None:
    def betas(name: str) -> list[float]:
        config = replace(BASE, beta_schedule=name, num_train_timesteps=3, num_inference_steps=1)
        return config.betas().tolist()

    assert betas("linear") == pytest.approx([1e-4, 0.01005, 0.02])
    middle = ((0.01 + math.sqrt(0.02)) / 2) ** 2
    assert betas("scaled_linear") == pytest.approx([1e-4, middle, 0.02])
    low = 1 / (1 + math.exp(6))
    spread = [low, 0.5, 1 - low]
    assert betas("sigmoid") == pytest.approx([1e-4 + share * 0.0199 for share in spread])
    kept_at = [math.cos((t / 3 + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(4)]
    expected = [1 - kept_at[1] / kept_at[0], 1 - kept_at[2] / kept_at[1], 0.999]
    assert betas("squaredcos_cap_v2") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"noise_scheduler_type": "PNDM"}, "noise_scheduler_type: .* DDPM, DDIM, found 'PNDM'"),
        (
            {"noise_scheduler_type": "DDIM", "beta_schedule": "sigmoid"},
            "beta_schedule: .* with DDIM, found 'sigmoid'",
        ),
        ({"prediction_type": "v_prediction"}, "prediction_type: .* found 'v_prediction'"),
        ({"num_inference_steps": 101}, r"1 to num_train_timesteps \(100\), found 101"),
        ({"num_inference_steps": 0}, "num_inference_steps: .* found 0"),
        ({"beta_schedule": "linear", "beta_end": 1.0}, "beta_start and beta_end: .* found"),
        ({"beta_schedule": "linear", "beta_start": 0.0}, "beta_start and beta_end"),
        ({"clip_sample_range": 0.0}, "clip_sample_range: .* found 0.0"),
    ],
)
def test_what_is_no_schedule_is_refused(changed: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        replace(BASE, **changed)  # type: ignore[arg-type]
