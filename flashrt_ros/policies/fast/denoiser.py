"""The denoiser of a Diffusion Policy in float16, as products of matrices.

With one chunk there are a few rows, and a convolution over time is bound by reading its weights:
as a product with windows of rows it is one call of cuBLAS. The conditioning of all blocks in all
denoising steps depends on the observation alone, so it is one product before the first step; the
embedding of the steps is a constant.

Tensor suffixes: L rows, C channels, B batch (1), H horizon, A action, D conditioning, K steps.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.policies.diffusion.encoder import RgbEncoder, resized
from flashrt_ros.policies.diffusion.network import DiffusionNetwork
from flashrt_ros.policies.diffusion.unet import ConvBlock, ResidualBlock, Unet
from flashrt_ros.policies.fast.norm import norm_mish, windows
from flashrt_ros.policies.fast.resnet import FoldedResNet
from flashrt_ros.runtime.derived import Derived

Film = tuple[torch.Tensor | None, torch.Tensor]


class Product(nn.Module):
    """A convolution over time as a matrix.

    Args:
        weight: ``(C out, C in, taps)``.
        bias: ``(C out,)``.
        dtype: Of the arithmetic.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.taps = weight.shape[-1]
        self.register_buffer("weight", weight.permute(0, 2, 1).flatten(1).to(dtype))
        self.register_buffer("bias", bias.to(dtype))

    def forward(self, seen_LW: torch.Tensor) -> torch.Tensor:
        """Returns rows of windows, or of rows where there is one tap."""
        return functional.linear(seen_LW, self.get_buffer("weight"), self.get_buffer("bias"))


def _product(conv: nn.Module, dtype: torch.dtype) -> Product:
    assert isinstance(conv, nn.Conv1d)
    assert conv.bias is not None
    return Product(conv.weight.detach(), conv.bias.detach(), dtype)


def doubling(conv: nn.ConvTranspose1d, dtype: torch.dtype) -> Product:
    """The transposed convolution of four taps and stride 2 as one of three taps, two rows at once.

    An even row sees the first row of its window by tap 3 and the middle one by tap 1, an odd row
    the middle one by tap 2 and the last one by tap 0.
    """
    assert conv.bias is not None
    zero_IO, taps = torch.zeros_like(conv.weight[..., 0]), conv.weight.detach().unbind(-1)
    even = torch.stack((taps[3], taps[1], zero_IO), dim=-1)
    odd = torch.stack((zero_IO, taps[2], taps[0]), dim=-1)
    weight = torch.cat((even, odd), dim=1).transpose(0, 1)
    return Product(weight, torch.cat((conv.bias, conv.bias)).detach(), dtype)


class FastConvBlock(nn.Module):
    """Convolution, group norm, Mish; see ``ConvBlock``."""

    def __init__(self, source: ConvBlock, dtype: torch.dtype) -> None:
        super().__init__()
        conv, norm = source.block[0], cast(nn.GroupNorm, source.block[1])
        self.product = _product(conv, dtype)
        self.norm = copy.deepcopy(norm)

    def forward(
        self,
        seen_LW: torch.Tensor,
        film: Film | None = None,
        residual_LC: torch.Tensor | None = None,
        taps: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns rows and windows of ``taps``; see ``norm_mish``."""
        norm = self.norm
        return norm_mish(
            self.product(seen_LW),
            norm.weight,
            norm.bias,
            norm.num_groups,
            norm.eps,
            film,
            residual_LC,
            taps,
        )


class FastResidualBlock(nn.Module):
    """See ``ResidualBlock``."""

    def __init__(self, source: ResidualBlock, dtype: torch.dtype) -> None:
        super().__init__()
        self.conv1, self.conv2 = (
            FastConvBlock(conv, dtype) for conv in (source.conv1, source.conv2)
        )
        self.residual: Product | None = None
        if isinstance(source.residual_conv, nn.Conv1d):
            self.residual = _product(source.residual_conv, dtype)
        self.dtype = dtype
        self.taps = self.conv1.product.taps

    def forward(
        self, x_LC: torch.Tensor, seen_LW: torch.Tensor | None, film: Film, taps: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns rows and windows of ``taps``.

        Args:
            x_LC: Rows.
            seen_LW: Their windows, None where nobody made them yet.
            film: Scale and shift of this step.
            taps: Of the convolution that follows; 0: none.
        """
        if seen_LW is None:
            seen_LW = windows(x_LC, self.taps, self.dtype)
        beside_LC = x_LC if self.residual is None else self.residual(x_LC)
        _, seen_LW = self.conv1(seen_LW, film, taps=self.conv2.product.taps)
        rows, seen = self.conv2(seen_LW, residual_LC=beside_LC, taps=taps)
        return rows, seen


class FastUnet(nn.Module):
    """``Unet`` for one dtype and a batch of one.

    Args:
        unet: With its weights, on the CPU; not changed.
        dtype: Of the arithmetic.
    """

    @torch.no_grad()
    def __init__(self, unet: Unet, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("steps", unet.embeddings.get()[0])
        sources: list[ResidualBlock] = []

        def make(block: nn.Module) -> FastResidualBlock:
            assert isinstance(block, ResidualBlock)
            sources.append(block)
            return FastResidualBlock(block, dtype)

        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        for parts in unet.down_modules:
            first, second, shrink = cast(nn.ModuleList, parts)
            self.down.append(nn.ModuleList((make(first), make(second))))
            deepest = isinstance(shrink, nn.Identity)
            self.shrink.append(shrink if deepest else _product(shrink, dtype))
        self.middle = nn.ModuleList(make(block) for block in unet.mid_modules)
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for parts in unet.up_modules:
            first, second, grow = cast(nn.ModuleList, parts)
            self.up.append(nn.ModuleList((make(first), make(second))))
            self.grow.append(doubling(cast(nn.ConvTranspose1d, grow), dtype))
        self.final = FastConvBlock(cast(ConvBlock, unet.final_conv[0]), dtype)
        # Behind the last norm float32 costs nothing and keeps the small steps of a sample.
        last = cast(nn.Conv1d, unet.final_conv[1])
        self.out = Product(
            last.weight.detach(), cast(nn.Parameter, last.bias).detach(), torch.float32
        )
        linears = [cast(nn.Linear, block.cond_encoder[1]) for block in sources]
        self.register_buffer("film_weight", torch.cat([x.weight.detach() for x in linears]))
        self.register_buffer("film_bias", torch.cat([x.bias.detach() for x in linears]))
        self.widths = [linear.out_features for linear in linears]
        self.scales = [block.scales for block in sources]

    def films(self, condition_BD: torch.Tensor) -> list[list[Film]]:
        """Scale and shift of every block, in the order of the network, for each step."""
        steps_KD = self.get_buffer("steps")
        known_KD = torch.cat((steps_KD, condition_BD.expand(len(steps_KD), -1)), dim=-1)
        weight, bias = self.get_buffer("film_weight"), self.get_buffer("film_bias")
        all_K = functional.linear(functional.mish(known_KD), weight, bias)
        return [
            [
                (part[: len(part) // 2], part[len(part) // 2 :]) if scales else (None, part)
                for part, scales in zip(row.split(self.widths), self.scales, strict=True)
            ]
            for row in all_K.unbind(0)
        ]

    def forward(self, sample_BHA: torch.Tensor, films: Sequence[Film]) -> torch.Tensor:
        """Predicts ``(1, H, A)`` float32 for one denoising step.

        Args:
            sample_BHA: ``(1, H, A)`` float32.
            films: Of this step.
        """
        film = iter(films)
        taps = self.final.product.taps
        # The rows are not needed in float32 but by the first residual.
        x_LC = sample_BHA[0].to(self.dtype)
        seen: torch.Tensor | None = None
        skipped: list[torch.Tensor] = []
        for pair, shrink in zip(self.down, self.shrink, strict=True):
            first, second = cast(nn.ModuleList, pair)
            deepest = isinstance(shrink, nn.Identity)
            x_LC, seen = first(x_LC, seen, next(film), second.taps)
            x_LC, seen = second(x_LC, seen, next(film), first.taps if deepest else 0)
            skipped.append(x_LC)
            if not deepest:
                x_LC = shrink(windows(x_LC, 3, self.dtype, stride=2))
                seen = None
        for block in self.middle:
            x_LC, seen = cast(FastResidualBlock, block)(x_LC, seen, next(film), block.taps)
        for pair, grow in zip(self.up, self.grow, strict=True):
            first, second = cast(nn.ModuleList, pair)
            x_LC = torch.cat((x_LC, skipped.pop()), dim=1)
            x_LC, seen = first(x_LC, None, next(film), second.taps)
            _, seen = second(x_LC, seen, next(film), 3)
            x_LC = grow(seen).view(2 * len(x_LC), -1)
        y_LC, _ = self.final(windows(x_LC, taps, self.dtype))
        return torch.as_tensor(self.out(y_LC.float())).unsqueeze(0)


class FastEncoder(nn.Module):
    """``RgbEncoder`` with its residual network in one dtype; takes and returns float32."""

    def __init__(self, encoder: RgbEncoder, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = encoder.config
        self.backbone = FoldedResNet(encoder.backbone, dtype)
        self.pool, self.out = copy.deepcopy(encoder.pool), copy.deepcopy(encoder.out)

    def forward(self, image_BCHW: torch.Tensor) -> torch.Tensor:
        """As ``RgbEncoder.forward``."""
        image_BCHW = resized(image_BCHW, self.config)
        points = torch.flatten(self.pool(self.backbone(image_BCHW).float()), start_dim=1)
        return functional.relu(self.out(points))


class FastDiffusion(Derived):
    """``DiffusionNetwork`` for one dtype; takes and returns float32.

    Args:
        network: With its weights, on the CPU; not changed.
        dtype: Of the arithmetic.
    """

    def __init__(self, network: DiffusionNetwork, dtype: torch.dtype) -> None:
        super().__init__()
        self.schedule, self.n_obs_steps = network.schedule, network.config.n_obs_steps
        self.encoders: nn.ModuleList | None = None
        self.shared = True
        if network.config.vision is not None:
            separate = isinstance(network.rgb_encoder, nn.ModuleList)
            found = network.rgb_encoder if separate else [network.rgb_encoder]
            self.shared = not separate
            self.encoders = nn.ModuleList(
                FastEncoder(cast(RgbEncoder, e), dtype) for e in cast(nn.ModuleList, found)
            )
        self.unet = FastUnet(network.unet, dtype)

    def condition(
        self,
        state_OS: torch.Tensor,
        images_OCHW: Sequence[torch.Tensor],
        environment_OE: torch.Tensor | None,
    ) -> torch.Tensor:
        """As ``DiffusionNetwork.condition``."""
        parts = [state_OS]
        if self.encoders is not None:
            if self.shared:
                batch_BCHW = torch.stack(list(images_OCHW), dim=1).flatten(0, 1)
                parts.append(self.encoders[0](batch_BCHW).view(self.n_obs_steps, -1))
            else:
                pairs = zip(self.encoders, images_OCHW, strict=True)
                parts += [encoder(images) for encoder, images in pairs]
        if environment_OE is not None:
            parts.append(environment_OE)
        return torch.cat(parts, dim=-1).flatten().unsqueeze(0)

    def sample(self, condition_BD: torch.Tensor, noise_NBHA: torch.Tensor) -> torch.Tensor:
        """As ``DiffusionNetwork.sample``, drawn to nothing."""
        films = self.unet.films(condition_BD)

        def predict(sample_BHA: torch.Tensor, step: int) -> torch.Tensor:
            return torch.as_tensor(self.unet(sample_BHA, films[step]))

        return self.schedule.sample(predict, noise_NBHA)
