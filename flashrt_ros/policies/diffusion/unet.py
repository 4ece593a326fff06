"""The denoiser: a U-Net over the time of a chunk, conditioned in each block (FiLM).

Chi et al., "Diffusion Policy", RSS 2023, section III; weight names and options are those of
``huggingface/lerobot:policies/diffusion/modeling_diffusion.py:DiffusionConditionalUnet1d``. Two
things are done once rather than again and again, with the same bits: the embedding of the steps,
which no observation changes, and the activation in front of the conditioning, which all blocks
share. On a GPU the conditioning and the shortcut of a block are calculated beside its first
convolution, and what stands between two convolutions is one kernel.

Tensor suffixes: B batch, C channels, H horizon, A action, D conditioning, K denoising steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.exact.convolution import convolve
from flashrt_ros.policies.exact.once import Once
from flashrt_ros.policies.exact.pointwise import norm_mish
from flashrt_ros.runtime.device.side_by_side import side_by_side

_LAST_GROUPS = 8
"""Groups of the norm behind the last block; LeRobot does not make them follow ``n_groups``."""


@dataclass(frozen=True)
class UnetConfig:
    """Options of the denoiser; the names are LeRobot's.

    Attributes:
        down_dims: Channels of each resolution, the full one first.
        kernel_size: Of the convolutions over time; odd.
        n_groups: Groups of the norms.
        diffusion_step_embed_dim: Width of the embedding of a step; even, at least 4.
        use_film_scale_modulation: Conditioning scales, too, and does not only shift.

    Raises:
        InvalidArgumentError: They contradict each other; names the option.
    """

    down_dims: tuple[int, ...]
    kernel_size: int
    n_groups: int
    diffusion_step_embed_dim: int
    use_film_scale_modulation: bool

    def __post_init__(self) -> None:
        if not self.down_dims or min(self.down_dims) < 1:
            raise _fault("down_dims", "at least one number, each above 0", self.down_dims)
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise _fault("kernel_size", "an odd number, which keeps lengths", self.kernel_size)
        unfit = [d for d in self.down_dims if self.n_groups < 1 or d % self.n_groups]
        if unfit:
            raise _fault("n_groups", f"a divisor of down_dims {self.down_dims}", self.n_groups)
        if self.down_dims[0] % _LAST_GROUPS:
            raise _fault("down_dims[0]", f"a multiple of {_LAST_GROUPS}", self.down_dims[0])
        width = self.diffusion_step_embed_dim
        if width < 4 or width % 2:
            raise _fault("diffusion_step_embed_dim", "an even number of at least 4", width)


def _fault(name: str, expected: str, found: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name}: expected {expected}, found {found}")


class StepEmbedding(nn.Module):
    """Sines and cosines of each step's timestep.

    Args:
        width: Elements of an embedding.
        timesteps: K training timesteps, one a denoising step.
    """

    def __init__(self, width: int, timesteps: Sequence[int]) -> None:
        super().__init__()
        self.pairs = width // 2
        values = torch.tensor(timesteps, dtype=torch.int64)
        self.register_buffer("timesteps", values, persistent=False)

    def forward(self, step: int) -> torch.Tensor:
        """Returns the embedding ``(1, width)`` of a step."""
        time_B = self.get_buffer("timesteps")[step : step + 1]
        order = torch.arange(self.pairs, device=time_B.device)
        rates = torch.exp(order * -(math.log(10000) / (self.pairs - 1)))
        angles = time_B.unsqueeze(-1) * rates.unsqueeze(0)
        return torch.cat((angles.sin(), angles.cos()), dim=-1)


class ConvBlock(nn.Module):
    """Convolution, group norm, Mish."""

    def __init__(self, inside: int, outside: int, kernel_size: int, n_groups: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv1d(inside, outside, kernel_size, padding=kernel_size // 2),
            nn.GroupNorm(n_groups, outside),
            nn.Mish(),
        )

    def forward(
        self, x_BCH: torch.Tensor, residual_BCH: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns ``(B, outside, H)``, the residual added."""
        return self.behind(*self.convolve(x_BCH), residual_BCH=residual_BCH)

    def convolve(self, x_BCH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The convolution alone; see ``convolution.convolve``."""
        return convolve(cast(nn.Conv1d, self.block[0]), x_BCH)

    def behind(
        self,
        x_BCH: torch.Tensor,
        bias_C: torch.Tensor | None,
        film_BF: torch.Tensor | None = None,
        residual_BCH: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """All behind the convolution; see ``pointwise.norm_mish``."""
        norm = cast(nn.GroupNorm, self.block[1])
        return norm_mish(x_BCH, bias_C, norm, film_BF, residual_BCH)


class ResidualBlock(nn.Module):
    """Two convolutions with the conditioning between them, beside a shortcut.

    Args:
        inside: Channels that come in.
        outside: Channels that go out.
        cond_dim: D.
        config: Options.
    """

    def __init__(self, inside: int, outside: int, cond_dim: int, config: UnetConfig) -> None:
        super().__init__()
        self.scales = config.use_film_scale_modulation
        self.conv1 = ConvBlock(inside, outside, config.kernel_size, config.n_groups)
        width = 2 * outside if self.scales else outside
        # The activation is applied once for all blocks; its place keeps the weights' names.
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(cond_dim, width))
        self.conv2 = ConvBlock(outside, outside, config.kernel_size, config.n_groups)
        self.residual_conv: nn.Module = (
            nn.Conv1d(inside, outside, 1) if inside != outside else nn.Identity()
        )

    def forward(self, x_BCH: torch.Tensor, active_BD: torch.Tensor) -> torch.Tensor:
        """Returns ``(B, outside, H)``.

        Args:
            x_BCH: ``(B, inside, H)``.
            active_BD: Mish of the conditioning.
        """
        apart: list[tuple[torch.Tensor, torch.Tensor | None]] = side_by_side(
            x_BCH.device,
            lambda: self.conv1.convolve(x_BCH),
            lambda: (self.cond_encoder[1](active_BD), None),
            lambda: (self.residual_conv(x_BCH), None),
        )
        seen, (film_BF, _), (shortcut_BCH, _) = apart
        return torch.as_tensor(self.conv2(self.conv1.behind(*seen, film_BF), shortcut_BCH))


class Unet(nn.Module):
    """Predicts what a noisy chunk holds.

    Args:
        config: Options.
        action_dim: A.
        global_cond_dim: Width of the observations' conditioning.
        timesteps: Training timestep of each denoising step.
    """

    def __init__(
        self, config: UnetConfig, action_dim: int, global_cond_dim: int, timesteps: Sequence[int]
    ) -> None:
        super().__init__()
        width, dims = config.diffusion_step_embed_dim, config.down_dims
        cond_dim = width + global_cond_dim

        def block(inside: int, outside: int) -> ResidualBlock:
            return ResidualBlock(inside, outside, cond_dim, config)

        self.diffusion_step_encoder = nn.Sequential(
            StepEmbedding(width, timesteps),
            nn.Linear(width, 4 * width),
            nn.Mish(),
            nn.Linear(4 * width, width),
        )
        self.embeddings = Once(self._embeddings)
        down = [
            [block(inside, outside), block(outside, outside), nn.Conv1d(outside, outside, 3, 2, 1)]
            for inside, outside in zip((action_dim, *dims[:-1]), dims, strict=True)
        ]
        down[-1][2] = nn.Identity()
        up = [
            [
                block(2 * inside, outside),
                block(outside, outside),
                nn.ConvTranspose1d(outside, outside, 4, 2, 1),
            ]
            for outside, inside in reversed(list(itertools.pairwise(dims)))
        ]
        self.down_modules = nn.ModuleList(nn.ModuleList(parts) for parts in down)
        self.mid_modules = nn.ModuleList(block(dims[-1], dims[-1]) for _ in range(2))
        self.up_modules = nn.ModuleList(nn.ModuleList(parts) for parts in up)
        self.final_conv = nn.Sequential(
            ConvBlock(dims[0], dims[0], config.kernel_size, _LAST_GROUPS),
            nn.Conv1d(dims[0], action_dim, 1),
        )

    def forward(
        self, sample_BHA: torch.Tensor, step: int, global_cond_BD: torch.Tensor
    ) -> torch.Tensor:
        """Predicts for one denoising step.

        Args:
            sample_BHA: ``(B, H, A)``, noisy.
            step: Its number, from 0.
            global_cond_BD: Conditioning by the observations.

        Returns:
            ``(B, H, A)``.
        """
        (steps_KD,) = self.embeddings.get()
        embedding_BD = steps_KD[step].expand(len(sample_BHA), -1)
        active_BD = functional.mish(torch.cat([embedding_BD, global_cond_BD], dim=-1))
        x = sample_BHA.transpose(1, 2)
        skipped: list[torch.Tensor] = []
        for parts in self.down_modules:
            first, second, shrink = cast(nn.ModuleList, parts)
            x = second(first(x, active_BD), active_BD)
            skipped.append(x)
            x = shrink(x)
        for middle in self.mid_modules:
            x = middle(x, active_BD)
        for parts in self.up_modules:
            first, second, grow = cast(nn.ModuleList, parts)
            x = torch.cat((x, skipped.pop()), dim=1)
            x = grow(second(first(x, active_BD), active_BD))
        return torch.as_tensor(self.final_conv(x).transpose(1, 2))

    def _embeddings(self) -> tuple[torch.Tensor, ...]:
        """Of each denoising step, one at a time: a product of all at once has other bits."""
        steps = range(len(self.diffusion_step_encoder[0].get_buffer("timesteps")))
        return (torch.cat([self.diffusion_step_encoder(step) for step in steps]),)
