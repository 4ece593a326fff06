"""Residual image networks with torchvision's weight names, without torchvision.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, table 1; weight names and the
stride on the 3x3 convolution of a bottleneck are those of
``pytorch/vision:torchvision/models/resnet.py``. The pooling and the classifier at the end, which
robot policies do not use, are left out.

Tensor suffixes: B batch, C channels, H and W rows and columns.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.exact.once import Once
from flashrt_ros.policies.exact.pointwise import affine, affine_pool
from flashrt_ros.runtime.device.side_by_side import side_by_side

Norm = Callable[[int], nn.Module]
"""Makes the normalisation of so many channels."""

STAGES: dict[str, tuple[bool, tuple[int, int, int, int]]] = {
    "resnet18": (False, (2, 2, 2, 2)),
    "resnet34": (False, (3, 4, 6, 3)),
    "resnet50": (True, (3, 4, 6, 3)),
    "resnet101": (True, (3, 4, 23, 3)),
    "resnet152": (True, (3, 8, 36, 3)),
}
"""Name to whether its blocks are bottlenecks, and the number of blocks of each stage."""


class FrozenBatchNorm(nn.Module):
    """Batch normalisation by fixed statistics, with the arithmetic of torchvision's.

    Args:
        channels: C.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0)):
            self.register_buffer(name, torch.full((channels,), value))
        for name, value in (("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((channels,), value))
        self.scale_and_shift = Once(self._scale_and_shift)

    def forward(
        self,
        x_BCHW: torch.Tensor,
        residual_BCHW: torch.Tensor | None = None,
        active: bool = False,
    ) -> torch.Tensor:
        """Returns the normalised maps, of the same shape; see ``pointwise.affine``."""
        scale_C, shift_C = self.scale_and_shift.get()
        return affine(x_BCHW, scale_C, shift_C, residual_BCHW, active=active)

    def _scale_and_shift(self) -> tuple[torch.Tensor, ...]:
        names = ("weight", "bias", "running_mean", "running_var")
        weight, bias, mean, var = (self.get_buffer(name) for name in names)
        scale = weight * (var + 1e-5).rsqrt()
        return scale, bias - mean * scale


def _active(
    norm: nn.Module, x_BCHW: torch.Tensor, residual_BCHW: torch.Tensor | None = None
) -> torch.Tensor:
    """ReLU of normalised maps and a residual."""
    if isinstance(norm, FrozenBatchNorm):
        return torch.as_tensor(norm(x_BCHW, residual_BCHW, active=True))
    out_BCHW = norm(x_BCHW)
    if residual_BCHW is not None:
        out_BCHW += residual_BCHW
    return functional.relu_(out_BCHW)


def group_norm(channels: int) -> nn.GroupNorm:
    """Groups of 16 channels, which Diffusion Policy has in place of batch normalisation."""
    return nn.GroupNorm(channels // 16, channels)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut.

    Args:
        inside: Channels that come in.
        width: Channels that go out.
        stride: Of the first convolution and of the shortcut.
        norm: See ``Norm``.
        dilation: 1; only bottlenecks dilate.
    """

    expansion = 1

    def __init__(
        self, inside: int, width: int, stride: int, norm: Norm, dilation: int = 1
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride, 1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = norm(width)
        self.downsample = _shortcut(inside, width, stride, norm)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Returns ``(B, width, H / stride, W / stride)``."""

        def straight() -> torch.Tensor:
            return torch.as_tensor(self.conv2(_active(self.bn1, self.conv1(x_BCHW))))

        return _active(self.bn2, *_beside(straight, self.downsample, x_BCHW))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, beside a shortcut; see ``BasicBlock``."""

    expansion = 4

    def __init__(
        self, inside: int, width: int, stride: int, norm: Norm, dilation: int = 1
    ) -> None:
        super().__init__()
        outside = width * self.expansion
        self.conv1 = nn.Conv2d(inside, width, 1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, dilation, dilation, bias=False)
        self.bn2 = norm(width)
        self.conv3 = nn.Conv2d(width, outside, 1, bias=False)
        self.bn3 = norm(outside)
        self.downsample = _shortcut(inside, outside, stride, norm)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Returns ``(B, 4 * width, H / stride, W / stride)``."""

        def straight() -> torch.Tensor:
            narrow = _active(self.bn1, self.conv1(x_BCHW))
            return torch.as_tensor(self.conv3(_active(self.bn2, self.conv2(narrow))))

        return _active(self.bn3, *_beside(straight, self.downsample, x_BCHW))


def _shortcut(inside: int, outside: int, stride: int, norm: Norm) -> nn.Sequential | None:
    if stride == 1 and inside == outside:
        return None
    return nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), norm(outside))


def _beside(
    straight: Callable[[], torch.Tensor], shortcut: nn.Sequential | None, x_BCHW: torch.Tensor
) -> list[torch.Tensor]:
    """What comes straight, and what comes by the shortcut."""
    if shortcut is None:
        return [straight(), x_BCHW]
    return side_by_side(x_BCHW.device, straight, functools.partial(shortcut, x_BCHW))


class ResNet(nn.Sequential):
    """See ``make_resnet``; all between the first convolution and the first stage is one call."""

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Returns the feature map of the last stage."""
        conv, norm, _, pool, *stages = self.children()
        x_BCHW = conv(x_BCHW)
        if isinstance(norm, FrozenBatchNorm):
            x_BCHW = affine_pool(x_BCHW, *norm.scale_and_shift.get())
        else:
            x_BCHW = pool(_active(norm, x_BCHW))
        for stage in stages:
            x_BCHW = stage(x_BCHW)
        return x_BCHW


def make_resnet(name: str, norm: Norm, *, dilate_last: bool = False) -> ResNet:
    """Makes a network up to the feature map of its fourth stage.

    Args:
        name: One of ``STAGES``.
        norm: Normalisation behind each convolution.
        dilate_last: The fourth stage keeps its input's resolution and dilates instead.

    Returns:
        A sequence of ``conv1``, ``bn1``, ``relu``, ``maxpool`` and ``layer1`` to ``layer4`` by
        name, ``(B, 3, H, W)`` to ``(B, feature_channels(name), H / 32, W / 32)``, rounded up (or
        16ths with ``dilate_last``). Weights are random; its parts in a sequence without names are
        numbered, as Diffusion Policy has them.

    Raises:
        InvalidArgumentError: There is no such network, or it cannot dilate.
    """
    if name not in STAGES:
        raise InvalidArgumentError(
            f"vision backbone: expected one of {list(STAGES)}, found {name!r}"
        )
    deep, counts = STAGES[name]
    if dilate_last and not deep:
        raise InvalidArgumentError(
            f"vision backbone {name!r}: its blocks cannot be dilated; expected no"
            " replace_final_stride_with_dilation, or resnet50 and deeper"
        )
    block: type[BasicBlock] | type[Bottleneck] = Bottleneck if deep else BasicBlock
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        bn1=norm(64),
        relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(3, 2, 1),
    )
    inside = 64
    for stage, count in enumerate(counts):
        width = 64 << stage
        dilated = dilate_last and stage == 3
        blocks: list[nn.Module] = []
        for index in range(count):
            stride = 2 if stage and not index and not dilated else 1
            # The first block still looks at the map of the stage before, which is not dilated.
            blocks.append(block(inside, width, stride, norm, 2 if dilated and index else 1))
            inside = width * block.expansion
        parts[f"layer{stage + 1}"] = nn.Sequential(*blocks)
    return ResNet(parts)


def feature_channels(name: str) -> int:
    """Channels of the feature map."""
    return 2048 if STAGES[name][0] else 512
