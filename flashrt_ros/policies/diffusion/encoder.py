"""The image encoder: resize and crop, a residual network, keypoints, one layer.

Finn et al., "Deep Spatial Autoencoders for Visuomotor Learning", ICRA 2016, for the keypoints;
weight names and options are those of
``huggingface/lerobot:policies/diffusion/modeling_diffusion.py:DiffusionRgbEncoder``, whose
torchvision parts (network, resize, crop) are rebuilt here.

Tensor suffixes: B batch, C channels, H and W rows and columns, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.resnet import STAGES, ResNet, feature_channels, group_norm, make_resnet

Size = tuple[int, int]
"""Rows and columns."""


@dataclass(frozen=True)
class VisionConfig:
    """Options of the image encoder; the names are LeRobot's.

    Attributes:
        vision_backbone: One of ``resnet.STAGES``.
        use_group_norm: Group norms in the backbone, in the place of batch norms.
        spatial_softmax_num_keypoints: Keypoints; the feature is twice as wide.
        image_size: Of every camera's image.
        resize_shape: To this size first; None for no resizing.
        crop_shape: Then the middle of this size; None for no cropping.

    Raises:
        InvalidArgumentError: They contradict each other; names the option.
    """

    vision_backbone: str
    use_group_norm: bool
    spatial_softmax_num_keypoints: int
    image_size: Size
    resize_shape: Size | None = None
    crop_shape: Size | None = None

    def __post_init__(self) -> None:
        if self.vision_backbone not in STAGES:
            raise InvalidArgumentError(
                f"vision_backbone: expected one of {', '.join(STAGES)}, "
                f"found {self.vision_backbone!r}"
            )
        whole = self.resize_shape or self.image_size
        crop = self.crop_shape or whole
        if crop[0] > whole[0] or crop[1] > whole[1] or min(*whole, *crop) < 1:
            raise InvalidArgumentError(
                f"crop_shape: expected at most the {whole[0]} rows and {whole[1]} columns of the "
                f"image, found {crop[0]} and {crop[1]}"
            )

    @property
    def kept_size(self) -> Size:
        """Of what must be kept of an image: cropping comes first, unless it is resized before."""
        if self.resize_shape is not None or self.crop_shape is None:
            return self.image_size
        return self.crop_shape

    @property
    def feature_dim(self) -> int:
        """Width of an image's feature."""
        return 2 * self.spatial_softmax_num_keypoints


def crop_centre(image: torch.Tensor, size: Size) -> torch.Tensor:
    """The middle of images ``(..., H, W)``, a view; half a pixel is rounded as by torchvision."""
    top = round((image.shape[-2] - size[0]) / 2.0)
    left = round((image.shape[-1] - size[1]) / 2.0)
    return image[..., top : top + size[0], left : left + size[1]]


class SpatialSoftmax(nn.Module):
    """Reduces each map to the point where its mass lies.

    Args:
        channels: C of the maps that come in.
        size: Of the maps.
        keypoints: Maps that they are mixed into first.
    """

    def __init__(self, channels: int, size: Size, keypoints: int) -> None:
        super().__init__()
        self.nets = nn.Conv2d(channels, keypoints, kernel_size=1)
        self.keypoints = keypoints
        x, y = np.meshgrid(np.linspace(-1.0, 1.0, size[1]), np.linspace(-1.0, 1.0, size[0]))
        grid_N2 = np.stack((x.reshape(-1), y.reshape(-1)), axis=1).astype(np.float32)
        self.register_buffer("pos_grid", torch.from_numpy(grid_N2))

    def forward(self, maps_BCHW: torch.Tensor) -> torch.Tensor:
        """Returns ``(B, keypoints, 2)``: x and y, -1 to 1."""
        grid_N2 = self.get_buffer("pos_grid")
        flat = self.nets(maps_BCHW).reshape(-1, len(grid_N2))
        return (functional.softmax(flat, dim=-1) @ grid_N2).view(-1, self.keypoints, 2)


def resized(image_BCHW: torch.Tensor, config: VisionConfig) -> torch.Tensor:
    """Returns images of ``kept_size`` as the backbone sees them: resized, then cropped."""
    if config.resize_shape is None:
        return image_BCHW
    image_BCHW = functional.interpolate(
        image_BCHW,
        size=config.resize_shape,
        mode="bilinear",
        align_corners=False,
        antialias=True,
    )
    if config.crop_shape is None:
        return image_BCHW
    return crop_centre(image_BCHW, config.crop_shape)


class RgbEncoder(nn.Module):
    """Images to features.

    Args:
        config: Options.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        norm = group_norm if config.use_group_norm else nn.BatchNorm2d
        name = config.vision_backbone
        # Numbered, not named, as in a checkpoint.
        self.backbone = ResNet(*make_resnet(name, norm).children())
        rows, columns = config.crop_shape or config.resize_shape or config.image_size
        size = (-(-rows // 32), -(-columns // 32))
        keypoints = config.spatial_softmax_num_keypoints
        self.pool = SpatialSoftmax(feature_channels(name), size, keypoints)
        self.out = nn.Linear(config.feature_dim, config.feature_dim)

    def forward(self, image_BCHW: torch.Tensor) -> torch.Tensor:
        """Returns ``(B, F)`` of normalised images of ``kept_size``."""
        image_BCHW = resized(image_BCHW, self.config)
        points = torch.flatten(self.pool(self.backbone(image_BCHW)), start_dim=1)
        return functional.relu(self.out(points))
