"""The denoiser: a U-Net over the time of a chunk, conditioned in each block (FiLM).

Chi et al., "Diffusion Policy", RSS 2023, section III; weight names and options are those of
``huggingface/lerobot:policies/diffusion/modeling_diffusion.py:DiffusionConditionalUnet1d``. Two
things are done once rather than again and again, with the same bits: the embedding of the steps,
which is a table here, and the activation in front of the conditioning, which all blocks share.

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
    """Sines and cosines of each step's timestep, as a table.

    Args:
        width: Elements of an embedding.
        timesteps: K training timesteps, one a denoising step.
    """

    def __init__(self, width: int, timesteps: Sequence[int]) -> None:
        super().__init__()
        half = width // 2
        rates = torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1)))
        angles = torch.tensor(timesteps, dtype=torch.int64).unsqueeze(-1) * rates.unsqueeze(0)
        table_KD = torch.cat((angles.sin(), angles.cos()), dim=-1)
        self.register_buffer("table", table_KD, persistent=False)

    def forward(self, step: int) -> torch.Tensor:
        """Returns the embedding ``(1, width)`` of a step, a view."""
        return self.get_buffer("table")[step : step + 1]


class ConvBlock(nn.Module):
    """Convolution, group norm, Mish."""

    def __init__(self, inside: int, outside: int, kernel_size: int, n_groups: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv1d(inside, outside, kernel_size, padding=kernel_size // 2),
            nn.GroupNorm(n_groups, outside),
            nn.Mish(),
        )

    def forward(self, x_BCH: torch.Tensor) -> torch.Tensor:
        """Returns ``(B, outside, H)``."""
        return torch.as_tensor(self.block(x_BCH))


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
        self.outside = outside
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
        out = self.conv1(x_BCH)
        film_BC1 = self.cond_encoder[1](active_BD).unsqueeze(-1)
        if self.scales:
            out = film_BC1[:, : self.outside] * out + film_BC1[:, self.outside :]
        else:
            out = out + film_BC1
        return torch.as_tensor(self.conv2(out) + self.residual_conv(x_BCH))


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
        embedding_BD = self.diffusion_step_encoder(step).expand(len(sample_BHA), -1)
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
