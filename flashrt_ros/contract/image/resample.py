"""Crop, resize and pad, in float32, with the pixels of the libraries that policies train with.

``resize`` is torchvision's ``Resize`` of float tensors, ``resize_with_pad`` the function of that
name in openpi and LeRobot, ``area`` OpenCV's ``INTER_AREA``. docs/contract.md has the tolerances.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from flashrt_ros.contract.image.schema import Step
from flashrt_ros.errors import ContractError


def crop_box(step: Step, height: int, width: int) -> tuple[int, int]:
    """Top and left edge of a crop.

    Raises:
        ContractError: The image is too small.
    """
    # Rounded as torchvision's CenterCrop does: halves to the even number.
    centre = (round((height - step.height) / 2), round((width - step.width) / 2))
    top, left = centre if step.at is None else step.at
    if top < 0 or left < 0 or top + step.height > height or left + step.width > width:
        raise ContractError(
            f"crop: expected an image of at least {max(top, 0) + step.height} x "
            f"{max(left, 0) + step.width}, found {height} x {width} (height x width)"
        )
    return top, left


def check_steps(steps: Sequence[Step], height: int, width: int) -> None:
    """Walks an image's size through the steps.

    Raises:
        ContractError: Some step cannot take what the one before it makes.
    """
    for step in steps:
        if step.kind == "crop":
            crop_box(step, height, width)
        elif step.kind == "pad":
            _check_room(step, height, width)
        elif step.interpolation == "area":
            inner = _inner_size(step, height, width)
            if inner[0] > height or inner[1] > width:
                raise ContractError(
                    f"{step.kind}: interpolation `area` only makes images smaller, found "
                    f"{height} x {width} to become {inner[0]} x {inner[1]} (height x width)"
                )
        height, width = step.height, step.width


def apply_steps(image_CHW: torch.Tensor, steps: Sequence[Step]) -> torch.Tensor:
    """Runs the steps.

    Args:
        image_CHW: float32, read.
        steps: In this order.

    Returns:
        ``(C, H, W)`` float32; may alias the argument.

    Raises:
        ContractError: An image too small for a step.
    """
    for step in steps:
        height, width = image_CHW.shape[1:]
        if step.kind == "crop":
            top, left = crop_box(step, height, width)
            image_CHW = image_CHW[:, top : top + step.height, left : left + step.width]
            continue
        if step.kind == "pad":
            _check_room(step, height, width)
        else:
            image_CHW = _resize(image_CHW, step, *_inner_size(step, height, width))
        if step.kind != "resize":
            image_CHW = _pad(image_CHW, step)
    return image_CHW


def _inner_size(step: Step, height: int, width: int) -> tuple[int, int]:
    """Height and width before padding."""
    if step.kind == "resize":
        return step.height, step.width
    ratio = max(width / step.width, height / step.height)
    inner = int(height / ratio), int(width / ratio)
    if min(inner) < 1:
        raise ContractError(
            f"resize_with_pad: expected an image that fits into {step.height} x {step.width}, "
            f"found {height} x {width} (height x width), of which nothing would be left"
        )
    return inner


def _resize(image_CHW: torch.Tensor, step: Step, height: int, width: int) -> torch.Tensor:
    if (height, width) == tuple(image_CHW.shape[1:]):
        return image_CHW
    if step.interpolation == "area":
        return _area(_area(image_CHW, height, 1), width, 2)
    bilinear = step.interpolation == "bilinear"
    resized: torch.Tensor = F.interpolate(
        image_CHW[None],
        (height, width),
        mode=step.interpolation,
        align_corners=False if bilinear else None,
        antialias=bilinear and step.antialias,
    )
    return resized[0]


def _area(image_CHW: torch.Tensor, size: int, axis: int) -> torch.Tensor:
    """Mean over intervals of equal length, which may begin and end within a pixel."""
    length = image_CHW.shape[axis]
    if length == size:
        return image_CHW
    shape = [1, 1, 1]
    shape[axis] = size
    total: torch.Tensor | None = None
    for pixels, shares in _taps(length, size):
        share = image_CHW.index_select(axis, pixels) * shares.view(shape)
        total = share if total is None else total.add_(share)
    assert total is not None
    return total


@functools.lru_cache(maxsize=32)
def _taps(length: int, size: int) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """For the first, second ... pixel under each interval: its index and its share."""
    edges = torch.arange(size + 1, dtype=torch.float64) * (length / size)
    low, high = edges[:-1], edges[1:]
    taps = []
    for tap in range(-(-length // size) + 1):
        pixels = low.to(torch.int64) + tap
        covered = torch.minimum(high, pixels + 1.0) - torch.maximum(low, pixels.double())
        shares = covered.clamp_(min=0.0) * (size / length)
        taps.append((pixels.clamp_(max=length - 1), shares.to(torch.float32)))
    return tuple(taps)


def _check_room(step: Step, height: int, width: int) -> None:
    if height > step.height or width > step.width:
        raise ContractError(
            f"pad: expected an image of at most {step.height} x {step.width}, found {height} x "
            f"{width} (height x width)"
        )


def _pad(image_CHW: torch.Tensor, step: Step) -> torch.Tensor:
    height, width = image_CHW.shape[1:]
    free_height, free_width = step.height - height, step.width - width
    if not free_height and not free_width:
        return image_CHW
    top, left = free_height, free_width
    if step.place == "centre":
        top, left = free_height // 2, free_width // 2
    sides = (left, free_width - left, top, free_height - top)
    return F.pad(image_CHW, sides, value=step.fill)
