"""Noise schedules and the two samplers, DDPM and DDIM, as plain numbers for each step.

Ho et al., "Denoising Diffusion Probabilistic Models", 2020, formulas 7 and 15; Song et al.,
"Denoising Diffusion Implicit Models", 2021, formula 12 with eta 0. Defaults and the order of
operations are those of ``huggingface/diffusers:schedulers/scheduling_ddpm.py`` and
``scheduling_ddim.py`` as LeRobot sets them up (timesteps ``leading``, variance ``fixed_small``, no
rescaling), so that the bits are the same. There the coefficients are looked up at every step and
random numbers are drawn in between; here they are computed once, each rounded to float32, and the
noise is given, so that all steps are one sequence without decisions on the host.

Tensor suffixes: T training timesteps, K denoising steps, B batch, H horizon, A action.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.guidance import Prefix, guide_clean

SAMPLERS: dict[str, tuple[str, ...]] = {
    "DDPM": ("linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid"),
    "DDIM": ("linear", "scaled_linear", "squaredcos_cap_v2"),
}
"""Sampler to the beta schedules that it has in diffusers."""
PREDICTIONS = ("epsilon", "sample")
"""What the network predicts: the noise in a sample, or the sample without it."""

Predict = Callable[[torch.Tensor, int], torch.Tensor]
"""The network: a noisy ``(B, H, A)`` and the number of the step, from 0, to its prediction."""


@dataclass(frozen=True)
class ScheduleConfig:
    """What shapes a schedule; the names are LeRobot's.

    Attributes:
        noise_scheduler_type: One of ``SAMPLERS``.
        num_train_timesteps: T.
        num_inference_steps: K, at most T.
        beta_schedule: One that the sampler has.
        beta_start: First beta; of no meaning for ``squaredcos_cap_v2``.
        beta_end: Last beta.
        prediction_type: One of ``PREDICTIONS``.
        clip_sample: Whether the predicted sample is clipped in every step.
        clip_sample_range: To plus and minus this.

    Raises:
        InvalidArgumentError: A value is none of those; names it.
    """

    noise_scheduler_type: str
    num_train_timesteps: int
    num_inference_steps: int
    beta_schedule: str
    beta_start: float
    beta_end: float
    prediction_type: str
    clip_sample: bool
    clip_sample_range: float

    def __post_init__(self) -> None:
        for name, choices in (
            ("noise_scheduler_type", tuple(SAMPLERS)),
            ("beta_schedule", SAMPLERS.get(self.noise_scheduler_type, ())),
            ("prediction_type", PREDICTIONS),
        ):
            if getattr(self, name) not in choices:
                also = f" with {self.noise_scheduler_type}" if name == "beta_schedule" else ""
                raise InvalidArgumentError(
                    f"{name}: expected one of {', '.join(choices)}{also}, "
                    f"found {getattr(self, name)!r}"
                )
        if not 1 <= self.num_inference_steps <= self.num_train_timesteps:
            raise InvalidArgumentError(
                f"num_inference_steps: expected 1 to num_train_timesteps "
                f"({self.num_train_timesteps}), found {self.num_inference_steps}"
            )
        betas_T = self.betas()
        if not bool(((betas_T > 0) & (betas_T < 1)).all()):
            raise InvalidArgumentError(
                f"beta_start and beta_end: expected betas between 0 and 1, found {self.beta_start}"
                f" and {self.beta_end}"
            )
        if self.clip_sample and not self.clip_sample_range > 0:
            raise InvalidArgumentError(
                f"clip_sample_range: expected a number above 0, found {self.clip_sample_range}"
            )

    def betas(self) -> torch.Tensor:
        """``(T,)`` float32: the share of variance that each training timestep adds."""
        count, start, end = self.num_train_timesteps, self.beta_start, self.beta_end
        if self.beta_schedule == "linear":
            return _line(start, end, count)
        if self.beta_schedule == "scaled_linear":
            return _line(start**0.5, end**0.5, count) ** 2
        if self.beta_schedule == "sigmoid":
            return torch.sigmoid(_line(-6, 6, count)) * (end - start) + start
        kept = [math.cos((t / count + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(count + 1)]
        added = [min(1 - after / before, 0.999) for before, after in itertools.pairwise(kept)]
        return torch.tensor(added, dtype=torch.float32, device="cpu")

    def timesteps(self) -> tuple[int, ...]:
        """K training timesteps, from the noisiest to 0."""
        stride = self.num_train_timesteps // self.num_inference_steps
        return tuple(range((self.num_inference_steps - 1) * stride, -1, -stride))


def _line(start: float, end: float, count: int) -> torch.Tensor:
    # On the CPU wherever a network is made, since its numbers are needed at once.
    return torch.linspace(start, end, count, dtype=torch.float32, device="cpu")


@dataclass(frozen=True)
class Step:
    """Coefficients of one denoising step, each a number of float32.

    Attributes:
        root_kept: Root of the share of the sample that is no noise yet.
        root_noise: Root of the share that is noise.
        of_clean: Factor of the predicted clean sample.
        of_other: Factor of the noisy sample (DDPM), of the predicted noise (DDIM).
        deviation: Factor of the fresh noise; 0 where none is added.
    """

    root_kept: float
    root_noise: float
    of_clean: float
    of_other: float
    deviation: float


class Schedule:
    """All denoising steps of a configuration.

    The coefficients are Python numbers, which become arguments of kernels; as tensors of the
    device they would have to be read, and divided by where kernels multiply by a reciprocal.

    Attributes:
        config: As given.
        timesteps: Training timestep of each step.
        steps: Coefficients of each step.
        n_draws: Noises that a sample takes: the one it starts from, and one for each step that
            adds some.
    """

    def __init__(self, config: ScheduleConfig) -> None:
        self.config = config
        self.timesteps = config.timesteps()
        kept_T = torch.cumprod(1.0 - config.betas(), dim=0)
        make = _ddpm if config.noise_scheduler_type == "DDPM" else _ddim
        one = torch.tensor(1.0, device="cpu")
        after = (*self.timesteps[1:], -1)
        self.steps = tuple(
            make(kept_T[now], kept_T[then] if then >= 0 else one, now)
            for now, then in zip(self.timesteps, after, strict=True)
        )
        self.n_draws = 1 + sum(step.deviation > 0 for step in self.steps)

    def sample(self, predict: Predict, noise_NBHA: torch.Tensor) -> torch.Tensor:
        """Denoises.

        Args:
            predict: The network.
            noise_NBHA: ``(n_draws, B, H, A)`` float32, standard normal: what to start from, then
                what is added.

        Returns:
            ``(B, H, A)`` float32.
        """
        sample_BHA, drawn = noise_NBHA[0], 1
        ancestral = self.config.noise_scheduler_type == "DDPM"
        for number, step in enumerate(self.steps):
            output_BHA = predict(sample_BHA, number)
            other_BHA = sample_BHA
            if not ancestral and self.config.prediction_type == "epsilon":
                other_BHA = output_BHA
            elif not ancestral:
                other_BHA = (sample_BHA - step.root_kept * output_BHA) / step.root_noise
            clean_BHA = self._clean(step, sample_BHA, output_BHA)
            sample_BHA = step.of_clean * clean_BHA + step.of_other * other_BHA
            if step.deviation > 0:
                sample_BHA = sample_BHA + step.deviation * noise_NBHA[drawn]
                drawn += 1
        return sample_BHA

    def _clean(
        self, step: Step, sample_BHA: torch.Tensor, output_BHA: torch.Tensor
    ) -> torch.Tensor:
        clean_BHA = output_BHA
        if self.config.prediction_type == "epsilon":
            clean_BHA = (sample_BHA - step.root_noise * output_BHA) / step.root_kept
        if self.config.clip_sample:
            limit = self.config.clip_sample_range
            clean_BHA = clean_BHA.clamp(-limit, limit)
        return clean_BHA

    def guided(self, predict: Predict, prefix: Prefix) -> Predict:
        """The network, drawn to a prefix: what it predicts is moved as its clean sample is.

        The clean sample is the one that ``sample`` goes on with, clipped where it is clipped: an
        estimate beyond the limits, as there are at the noisy end, does not pull.

        Args:
            predict: The network.
            prefix: ``(B, H, A)`` rows and their weights.
        """

        def drawn(sample_BHA: torch.Tensor, number: int) -> torch.Tensor:
            step = self.steps[number]

            def denoise(noisy_BHA: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                output_BHA = predict(noisy_BHA, number)
                return output_BHA, self._clean(step, noisy_BHA, output_BHA)

            output_BHA, shift_BHA = guide_clean(
                sample_BHA, step.root_kept, step.root_noise, denoise, prefix
            )
            if self.config.prediction_type == "epsilon":
                return output_BHA - step.root_kept / step.root_noise * shift_BHA
            return output_BHA + shift_BHA

        return drawn


def _ddpm(kept: torch.Tensor, kept_then: torch.Tensor, timestep: int) -> Step:
    noise, noise_then = 1 - kept, 1 - kept_then
    kept_here = kept / kept_then
    variance = (noise_then / noise * (1 - kept_here)).clamp(min=1e-20)
    return Step(
        root_kept=(kept**0.5).item(),
        root_noise=(noise**0.5).item(),
        of_clean=(kept_then**0.5 * (1 - kept_here) / noise).item(),
        of_other=(kept_here**0.5 * noise_then / noise).item(),
        deviation=(variance**0.5).item() if timestep > 0 else 0.0,
    )


def _ddim(kept: torch.Tensor, kept_then: torch.Tensor, timestep: int) -> Step:
    return Step(
        root_kept=(kept**0.5).item(),
        root_noise=((1 - kept) ** 0.5).item(),
        of_clean=(kept_then**0.5).item(),
        of_other=((1 - kept_then) ** 0.5).item(),
        deviation=0.0,
    )
