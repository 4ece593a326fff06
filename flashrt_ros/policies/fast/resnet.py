"""Residual image networks with their norms folded into the convolutions, in channels-last float16.

Batch normalisation by fixed statistics is a scale and a shift for each channel, and so is part of
the convolution before it. Group norms depend on the image: networks that have them keep them.

Tensor suffixes: B batch, C channels, H and W rows and columns.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.policies.resnet import BasicBlock, Bottleneck, FrozenBatchNorm

Folding = (FrozenBatchNorm, nn.BatchNorm2d)


def fold(conv: nn.Conv2d, norm: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias, float32, of the convolution that does what ``conv`` and ``norm`` do.

    Args:
        conv: Without a bias.
        norm: Batch normalisation by fixed statistics.
    """
    state = norm.state_dict()
    epsilon = norm.eps if isinstance(norm, nn.BatchNorm2d) else 1e-5
    scale_C = state["weight"] * (state["running_var"] + epsilon).rsqrt()
    weight = conv.weight.detach() * scale_C.view(-1, 1, 1, 1)
    return weight, state["bias"] - state["running_mean"] * scale_C


class FoldedConv(nn.Module):
    """Convolution and norm, then perhaps a shortcut and a ReLU, in one kernel where there is one.

    Args:
        conv: As trained.
        norm: Behind it.
        dtype: Of the arithmetic.
        active: Whether a ReLU follows.
    """

    def __init__(
        self, conv: nn.Conv2d, norm: nn.Module, dtype: torch.dtype, active: bool = True
    ) -> None:
        super().__init__()
        self.active = active
        self.stride = cast(tuple[int, int], conv.stride)
        self.padding = cast(tuple[int, int], conv.padding)
        self.dilation = cast(tuple[int, int], conv.dilation)
        self.norm: nn.GroupNorm | None = None
        bias: torch.Tensor | None = None
        weight = conv.weight.detach()
        if isinstance(norm, Folding):
            weight, bias = fold(conv, norm)
        else:
            self.norm = nn.GroupNorm(cast(nn.GroupNorm, norm).num_groups, weight.shape[0])
            self.norm.load_state_dict(norm.state_dict())
            self.norm.to(dtype)
        weight = weight.to(dtype)
        if self.norm is None:
            weight = weight.contiguous(memory_format=torch.channels_last)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", None if bias is None else bias.to(dtype))

    def forward(
        self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns the maps; ``shortcut_BCHW`` has their shape."""
        weight, bias = self.get_buffer("weight"), cast(torch.Tensor | None, self.bias)
        places = (self.stride, self.padding, self.dilation)
        if x_BCHW.is_cuda and self.norm is None and self.active:
            # cuDNN adds bias, shortcut and ReLU while it writes the convolution's result.
            if shortcut_BCHW is None:
                return torch.cudnn_convolution_relu(x_BCHW, weight, bias, *places, 1)
            return torch.cudnn_convolution_add_relu(
                x_BCHW, weight, shortcut_BCHW, 1.0, bias, *places, 1
            )
        out = functional.conv2d(x_BCHW, weight, bias, *places)
        if self.norm is not None:
            out = self.norm(out)
        if shortcut_BCHW is not None:
            out = out.add_(shortcut_BCHW)
        return functional.relu_(out) if self.active else out


class FoldedBlock(nn.Module):
    """A residual block of two or three convolutions; see ``resnet.BasicBlock``."""

    def __init__(self, block: BasicBlock | Bottleneck, dtype: torch.dtype) -> None:
        super().__init__()
        pairs = [(block.conv1, block.bn1), (block.conv2, block.bn2)]
        if isinstance(block, Bottleneck):
            pairs.append((block.conv3, block.bn3))
        self.convs = nn.ModuleList(FoldedConv(*pair, dtype) for pair in pairs)
        self.shortcut: FoldedConv | None = None
        if block.downsample is not None:
            conv, norm = block.downsample
            self.shortcut = FoldedConv(cast(nn.Conv2d, conv), norm, dtype, active=False)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """As the block does."""
        beside = x_BCHW if self.shortcut is None else self.shortcut(x_BCHW)
        *before, last = self.convs
        for conv in before:
            x_BCHW = conv(x_BCHW)
        return torch.as_tensor(last(x_BCHW, beside))


class FoldedResNet(nn.Module):
    """What ``make_resnet`` makes, for one dtype.

    Args:
        network: With its weights; not changed.
        dtype: Of the arithmetic.
    """

    def __init__(self, network: nn.Sequential, dtype: torch.dtype) -> None:
        super().__init__()
        first, norm, _, self.pool, *stages = network.children()
        self.dtype = dtype
        self.first = FoldedConv(cast(nn.Conv2d, first), norm, dtype)
        self.blocks = nn.Sequential(
            *(FoldedBlock(cast(BasicBlock, b), dtype) for s in stages for b in s.children())
        )

    def forward(self, image_BCHW: torch.Tensor) -> torch.Tensor:
        """Returns the feature maps ``(B, C, H, W)`` of float32 images, in ``dtype``."""
        kept = self.first.norm is None
        form = torch.channels_last if kept else torch.contiguous_format
        x_BCHW = image_BCHW.to(self.dtype, memory_format=form)
        return torch.as_tensor(self.blocks(self.pool(self.first(x_BCHW))))
