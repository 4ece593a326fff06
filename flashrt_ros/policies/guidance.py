"""Real-time chunking: a sampler is drawn to what the chunk under way will still execute.

Black et al., "Real-Time Execution of Action Chunking Flow Policies", 2025 (arXiv 2506.07339),
section 3, formulas 2 to 5. While a plan runs, the rows that will be executed meanwhile are known;
a new chunk that disagrees with them jerks the arm where it is spliced in. So each denoising step
is corrected by the vector-Jacobian product of the denoiser with the weighted distance of its clean
estimate from these rows.

A noisy sample is ``signal * clean + noise * eps``: ``signal = t, noise = 1 - t`` in flow matching,
``signal^2 + noise^2 = 1`` in diffusion. Scaled by ``signal + noise`` the one is the other, so one
weight serves both.

``huggingface/lerobot:src/lerobot/policies/rtc/modeling_rtc.py`` has the same weights and names.
Difference: in its releases 0.4 and 0.6 the velocity is computed before gradients are asked for, so
that the Jacobian there is the identity; here it is the denoiser's, as in the paper.

Tensor suffixes: B batch, H horizon, A action.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from flashrt_ros.errors import InvalidArgumentError

SCHEDULES = ("ZEROS", "ONES", "LINEAR", "EXP")
"""How the weights of rows fall off behind those that are executed before the splice: at once, not
at all, in a line, or steeper at first."""


@dataclass(frozen=True)
class GuidanceConfig:
    """Options; the names are LeRobot's.

    Attributes:
        prefix_attention_schedule: One of ``SCHEDULES``.
        execution_horizon: Rows that are looked at, from the plan's observation on.
        max_guidance_weight: Upper limit of the weight of a correction.

    Raises:
        InvalidArgumentError: A value is none of those; names it.
    """

    prefix_attention_schedule: str = "LINEAR"
    execution_horizon: int = 10
    max_guidance_weight: float = 10.0

    def __post_init__(self) -> None:
        if self.prefix_attention_schedule not in SCHEDULES:
            raise InvalidArgumentError(
                f"prefix_attention_schedule: expected one of {', '.join(SCHEDULES)}, found"
                f" {self.prefix_attention_schedule!r}"
            )
        if self.execution_horizon < 1:
            raise InvalidArgumentError(
                f"execution_horizon: expected at least 1, found {self.execution_horizon}"
            )
        if not 0 < self.max_guidance_weight < math.inf:
            raise InvalidArgumentError(
                f"max_guidance_weight: expected a number above 0, found {self.max_guidance_weight}"
            )


@dataclass(frozen=True)
class Prefix:
    """What a sampler is drawn to.

    Attributes:
        rows: ``(..., H, A)`` float32, in the network's range; any number where the weight is 0.
        weights_H: ``(H,)`` float32, 0 to 1; all 0 guides nothing, to the bit.
        max_weight: See ``GuidanceConfig.max_guidance_weight``.
    """

    rows: torch.Tensor
    weights_H: torch.Tensor
    max_weight: float


def prefix_weights(
    schedule: str, delay_1: torch.Tensor, end_1: torch.Tensor, rows: int
) -> torch.Tensor:
    """Weights of the rows of a chunk: 1 for those executed before the splice, 0 from ``end`` on.

    Nothing is read back to the host.

    Args:
        schedule: One of ``SCHEDULES``.
        delay_1: ``(1,)`` int64, rows that will be executed before the chunk is adopted.
        end_1: ``(1,)`` int64, rows that are looked at.
        rows: H.

    Returns:
        ``(H,)`` float32.
    """
    row_H = torch.arange(rows, device=delay_1.device)
    start_1 = torch.minimum(delay_1, end_1)
    frozen_H, seen_H = row_H < start_1, row_H < end_1
    if schedule == "ZEROS":
        return frozen_H.to(torch.float32)
    if schedule == "ONES":
        return seen_H.to(torch.float32)
    # From 1 at the last frozen row to 0 at the end, both left out.
    soft_H = (end_1 - row_H) / (end_1 - start_1 + 1)
    if schedule == "EXP":
        soft_H = soft_H * torch.expm1(soft_H) / (math.e - 1)
    return soft_H.masked_fill(frozen_H, 1.0).masked_fill(~seen_H, 0.0)


def guidance_weight(signal: float, noise: float, most: float) -> float:
    """Weight of a correction: formula 2 with ``r^2`` of formula 4, for either kind of sampler.

    Args:
        signal: Share of the clean sample in the noisy one.
        noise: Share of the noise.
        most: Upper limit.
    """
    if signal <= 0 or noise <= 0:
        return most
    return min(most, (signal**2 + noise**2) / (signal * noise))


def guide(
    sample: torch.Tensor,
    time: float,
    velocity: Callable[[torch.Tensor], torch.Tensor],
    prefix: Prefix,
) -> torch.Tensor:
    """The velocity of a flow, drawn to a prefix.

    Args:
        sample: ``(..., H, A)`` float32: ``time * clean + (1 - time) * noise``.
        time: From 0, all noise, to 1.
        velocity: The network: a sample to ``clean - noise``.
        prefix: What it is drawn to.

    Returns:
        ``(..., H, A)`` float32, detached.
    """

    def denoise(noisy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flow = velocity(noisy)
        return flow, noisy + (1 - time) * flow

    flow, correction = pull(sample, denoise, prefix)
    return flow + guidance_weight(time, 1 - time, prefix.max_weight) * correction


def guide_clean(
    sample: torch.Tensor,
    signal: float,
    noise: float,
    denoise: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    prefix: Prefix,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a denoiser says of a sample, and by how much its clean estimate is to be moved.

    Args:
        sample: ``(..., H, A)`` float32: ``signal * clean + noise * eps``.
        signal: Share of the clean sample.
        noise: Share of the noise.
        denoise: A sample to the network's output and the clean estimate from it.
        prefix: What it is drawn to.

    Returns:
        The output, and what is to be added to the clean estimate; both detached.
    """
    output, correction = pull(sample, denoise, prefix)
    return output, noise * guidance_weight(signal, noise, prefix.max_weight) * correction


def pull(
    sample: torch.Tensor,
    denoise: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    prefix: Prefix,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of a denoiser, and the product of the prefix's distance with its Jacobian.

    Args:
        sample: ``(..., H, A)`` float32.
        denoise: A sample to the network's output and the clean estimate from it.
        prefix: What the estimate is compared with.

    Returns:
        Output and correction, both detached.
    """
    with _gradients(sample.is_cuda):
        noisy = sample.detach().requires_grad_(True)
        output, clean = denoise(noisy)
        distance = (prefix.rows - clean.detach()) * prefix.weights_H.unsqueeze(-1)
        # Where nothing is looked at the rows may be any number, and so may their distance.
        distance = distance.masked_fill(prefix.weights_H.unsqueeze(-1) == 0, 0.0)
        (correction,) = torch.autograd.grad(clean, noisy, distance)
    return output.detach(), correction


@contextlib.contextmanager
def _gradients(cuda: bool) -> Iterator[None]:
    """Gradients within a plan, which runs without; in this thread, which a capture belongs to."""
    deterministic = torch.backends.cudnn.deterministic
    if cuda:
        # Else the backward of a convolution may add up in another order at each replay.
        torch.backends.cudnn.deterministic = True
    try:
        with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        torch.backends.cudnn.deterministic = deterministic
