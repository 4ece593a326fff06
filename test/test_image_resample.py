"""Crop, resize and pad give the pixels that the training libraries give.

A policy that was trained on one filter sees other edges through another one. The oracles are
torch's interpolation, called as torchvision calls it, LeRobot's functions written out, exact
integrals, and OpenCV where it is installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from image_messages import image_part, noise, rgb_image

from flashrt_ros.contract.image.reader import ImageReader
from flashrt_ros.errors import ContractError

SIZES = st.integers(1, 40)


def read(pixels_HWC: np.ndarray, *steps: dict[str, Any], **keys: Any) -> np.ndarray:
    part = image_part(steps=list(steps), **keys)
    found = ImageReader(part).frame(rgb_image(pixels_HWC)).array()
    assert found.shape == part.shape
    return found


def unit(pixels_HWC: np.ndarray) -> torch.Tensor:
    """As data sets hand images over: ``(1, C, H, W)`` float32 from 0 to 1."""
    return torch.from_numpy(pixels_HWC.copy()).permute(2, 0, 1)[None].to(torch.float32) / 255


def torchvision_resize(image: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """``torchvision.transforms.Resize(size)`` of a float tensor, bilinear with antialiasing."""
    return F.interpolate(image, size, mode="bilinear", align_corners=False, antialias=True)


def lerobot_resize_with_pad(
    image: torch.Tensor, height: int, width: int, centred: bool, value: float
) -> torch.Tensor:
    """``resize_with_pad`` of SmolVLA, and of pi0 (``centred``), without antialiasing."""
    ratio = max(image.shape[3] / width, image.shape[2] / height)
    inner = int(image.shape[2] / ratio), int(image.shape[3] / ratio)
    resized = F.interpolate(image, inner, mode="bilinear", align_corners=False)
    below, right = height - inner[0], width - inner[1]
    top, left = (below // 2, right // 2) if centred else (below, right)
    return F.pad(resized, (left, right - left, top, below - top), value=value)


@settings(max_examples=80, deadline=None)
@given(source=st.tuples(SIZES, SIZES), target=st.tuples(SIZES, SIZES))
def test_resize_is_torchvision_s(source: tuple[int, int], target: tuple[int, int]) -> None:
    pixels = noise(*source, 3)
    found = read(pixels, {"resize": list(target)})
    wanted = torchvision_resize(unit(pixels), target)[0].numpy()
    assert np.abs(found - wanted).max() <= 1e-6
    assert found.min() >= 0.0
    assert found.max() <= 1.0


def test_antialiasing_makes_the_difference_that_the_test_above_can_see() -> None:
    pixels = noise(40, 60, 3)
    smooth = read(pixels, {"resize": [10, 15]})
    sharp = read(pixels, {"resize": [10, 15], "antialias": False})
    assert np.abs(smooth - sharp).max() > 0.1
    wanted = F.interpolate(unit(pixels), (10, 15), mode="bilinear", align_corners=False)
    assert np.abs(sharp - wanted[0].numpy()).max() <= 1e-6


@settings(max_examples=80, deadline=None)
@given(
    source=st.tuples(st.integers(6, 40), st.integers(6, 40)),
    target=st.tuples(st.integers(8, 40), st.integers(8, 40)),
    centred=st.booleans(),
)
def test_resize_with_pad_is_lerobot_s(
    source: tuple[int, int], target: tuple[int, int], centred: bool
) -> None:
    pixels = noise(*source, 3)
    place = "centre" if centred else "bottom_right"
    found = read(pixels, {"resize_with_pad": list(target), "place": place, "fill": 0.25})
    wanted = lerobot_resize_with_pad(unit(pixels), *target, centred, 0.25)[0].numpy()
    assert np.abs(found - wanted).max() <= 1e-6


def test_both_ways_of_padding_differ() -> None:
    pixels = noise(20, 40, 3)
    centre = read(pixels, {"resize_with_pad": [30, 30]})
    corner = read(pixels, {"resize_with_pad": [30, 30], "place": "bottom_right"})
    assert not centre[:, :7].any()
    assert not centre[:, 22:].any()
    assert centre[:, 7:22].any()
    assert not corner[:, :15].any()
    assert np.array_equal(corner[:, 15:], centre[:, 7:22])
    assert np.array_equal(read(pixels, {"pad": [20, 44]})[:, :, 2:42], unit(pixels)[0].numpy())


def exact_area(pixels_HWC: np.ndarray, height: int, width: int) -> np.ndarray:
    """Each pixel's share of each result, summed one by one."""

    def shares(length: int, size: int) -> np.ndarray:
        return np.array(
            [
                [
                    max(min(i + 1, (o + 1) * length / size) - max(i, o * length / size), 0.0)
                    for i in range(length)
                ]
                for o in range(size)
            ]
        ) * (size / length)

    rows, columns = shares(pixels_HWC.shape[0], height), shares(pixels_HWC.shape[1], width)
    return np.einsum("oh,hwc,pw->cop", rows, pixels_HWC / 255.0, columns)


@settings(max_examples=60, deadline=None)
@given(
    source=st.tuples(st.integers(4, 30), st.integers(4, 30)),
    share=st.tuples(st.floats(0.1, 1.0), st.floats(0.1, 1.0)),
)
def test_area_is_the_exact_integral(source: tuple[int, int], share: tuple[float, float]) -> None:
    target = [max(1, int(length * part)) for length, part in zip(source, share, strict=True)]
    pixels = noise(*source, 3)
    found = read(pixels, {"resize": target, "interpolation": "area"})
    assert np.abs(found - exact_area(pixels, *target)).max() <= 1e-6


def test_nearest_takes_the_pixel_at_the_floor() -> None:
    pixels = noise(9, 14, 3)
    found = read(pixels, {"resize": [4, 20], "interpolation": "nearest"}, range="byte")
    rows, columns = np.arange(4) * 9 // 4, np.arange(20) * 14 // 20
    assert np.array_equal(found, np.moveaxis(pixels[rows][:, columns], 2, 0))


@settings(max_examples=60, deadline=None)
@given(source=st.tuples(SIZES, SIZES), target=st.tuples(SIZES, SIZES))
def test_centre_crop_rounds_as_torchvision_does(
    source: tuple[int, int], target: tuple[int, int]
) -> None:
    pixels = noise(*source, 3)
    if target[0] > source[0] or target[1] > source[1]:
        with pytest.raises(ContractError, match=r"crop: expected an image of at least"):
            read(pixels, {"crop": list(target)})
        return
    top, left = (round((has - wanted) / 2.0) for has, wanted in zip(source, target, strict=True))
    found = read(pixels, {"crop": list(target)})
    wanted = unit(pixels)[0, :, top : top + target[0], left : left + target[1]].numpy()
    assert np.array_equal(found, wanted)


def test_steps_run_in_their_order() -> None:
    pixels = noise(40, 60, 3)
    image = unit(pixels)
    first_resized = read(pixels, {"resize": [20, 30]}, {"crop": [16, 16]})
    wanted = torchvision_resize(image, (20, 30))[0, :, 2:18, 7:23].numpy()
    assert np.abs(first_resized - wanted).max() <= 1e-6
    first_cropped = read(pixels, {"crop": [32, 32], "at": [1, 2]}, {"resize": [16, 16]})
    wanted = torchvision_resize(image[:, :, 1:33, 2:34], (16, 16))[0].numpy()
    assert np.abs(first_cropped - wanted).max() <= 1e-6
    assert np.abs(first_cropped - first_resized).max() > 0.1


def test_bytes_are_rounded_once() -> None:
    pixels = noise(40, 60, 3)
    found = read(pixels, {"resize": [20, 30]}, range="byte")
    wanted = torchvision_resize(unit(pixels) * 255, (20, 30))[0]
    assert found.dtype == np.uint8
    assert np.abs(found - wanted.numpy()).max() <= 0.5 + 1e-4


@pytest.mark.parametrize("size", [(24, 24), (17, 31), (50, 90)])
def test_resize_of_bytes_by_opencv_is_one_step_away_at_most(size: tuple[int, int]) -> None:
    cv2 = pytest.importorskip("cv2")
    pixels = noise(48, 64, 3)
    plain = {"resize": list(size), "antialias": False}
    found = read(pixels, plain, range="byte").astype(int)
    wanted = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_LINEAR)
    assert np.abs(found - np.moveaxis(wanted, 2, 0)).max() <= 1
    if size[0] < 48:
        found = read(pixels, {"resize": list(size), "interpolation": "area"}, range="byte")
        wanted = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA)
        assert np.abs(found.astype(int) - np.moveaxis(wanted, 2, 0)).max() <= 1


def test_sizes_that_a_step_cannot_take_are_refused_with_each_message() -> None:
    for step, words in [
        ({"pad": [8, 8]}, "pad: expected an image of at most 8 x 8, found 9 x 7"),
        ({"resize": [8, 8], "interpolation": "area"}, "only makes images smaller, found 9 x 7"),
        ({"crop": [8, 8]}, "crop: expected an image of at least 8 x 8, found 9 x 7"),
        ({"crop": [4, 4], "at": [6, 1]}, "at least 10 x 5, found 9 x 7"),
    ]:
        with pytest.raises(ContractError, match=words):
            read(noise(9, 7, 3), step)
    thin = rgb_image(noise(1, 100, 3))
    with pytest.raises(ContractError, match="of which nothing would be left"):
        ImageReader(image_part(steps=[{"resize_with_pad": [8, 8]}])).frame(thin).array()
