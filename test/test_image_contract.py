"""The mapping ``image`` of a contract, its fit to the policy's port, and images in a sample.

An image of the right number of bytes may still be transposed, in another range or in other
colors than the policy was trained with; each of these is refused before the robot moves.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from contract_examples import MS, contract_dict
from image_messages import (
    camera_contract,
    compressed,
    encoded,
    image,
    image_part,
    noise,
    rgb_image,
)

from flashrt_ros.contract import Contract, Sampler
from flashrt_ros.contract.image.schema import COMPRESSED
from flashrt_ros.errors import ContractError
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Port, Ports

SIZE: dict[str, Any] = {"size": [4, 6]}
DEPTH = {"unit": "m", "scale": {"16UC1": 0.001}, "invalid": 0.0}


def test_what_a_file_means_is_plain() -> None:
    part = image_part(**SIZE)
    assert part.shape == (3, 4, 6)
    assert "bgr8" in part.encodings
    assert "mono8" not in part.encodings
    assert image_part(**SIZE, color="gray").shape == (1, 4, 6)
    assert "mono8" in image_part(**SIZE, color="gray").encodings
    assert image_part(**SIZE, depth=DEPTH).encodings == ("16UC1",)
    assert image_part(**SIZE, type=COMPRESSED).encodings == ("jpeg", "png")
    steps = [{"crop": [4, 4]}, {"resize": [8, 9]}]
    resized = image_part(**SIZE, steps=steps)
    assert resized.shape == (3, 8, 9)
    assert resized.steps[1].antialias
    assert not image_part(steps=[{"resize_with_pad": [8, 9]}]).steps[0].antialias
    nearest = image_part(steps=[{"resize": [8, 9]}], depth=DEPTH).steps[0]
    assert (nearest.interpolation, nearest.antialias) == ("nearest", False)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, r"image.size: expected \[height, width\] of the camera's images, or `steps`"),
        ({"size": [4]}, r"image.size: expected \[height, width\], two whole numbers"),
        ({"size": [0, 6]}, r"image.size: expected .* from 1 to 8192"),
        ({**SIZE, "type": "sensor_msgs/msg/JointState"}, r"image.type: expected one of sensor"),
        ({**SIZE, "encoding": "rgb16"}, r"encoding: expected any, or some of rgb8.*'rgb16'"),
        ({**SIZE, "encoding": ["16UC1"]}, r"encoding: expected any, or some of rgb8"),
        ({**SIZE, "color": "rgba"}, r"color: expected one of rgb, bgr, gray"),
        ({**SIZE, "range": "0-1"}, r"range: expected one of unit, byte"),
        ({**SIZE, "colour": "rgb"}, r"image.colour: unknown key.*did you mean 'color'"),
        ({**SIZE, "depth": DEPTH, "color": "gray"}, r"color: expected no such key beside"),
        ({**SIZE, "depth": DEPTH, "range": "unit"}, r"range: expected no such key beside"),
        ({**SIZE, "depth": {**DEPTH, "scale": 1}}, r"scale: expected a positive number.*REP 118"),
        ({**SIZE, "depth": {**DEPTH, "scale": {"16UC1": 0}}}, r"scale.16UC1: expected"),
        ({**SIZE, "depth": {**DEPTH, "clip": [2, 1]}}, r"clip: expected \[lowest, highest\]"),
        ({**SIZE, "depth": {"unit": "m", "scale": {"16UC1": 1}}}, r"depth.invalid: expected"),
        ({"steps": []}, r"steps: expected a list of mappings, at least one"),
        ({"steps": [{"interpolation": "area"}]}, r"steps\[0\]: expected exactly one of crop"),
        ({"steps": [{"crop": [1, 1], "resize": [1, 1]}]}, r"exactly one of crop, resize"),
        ({"steps": [{"crop": [4, 4], "fill": 0.0}]}, r"fill: expected one of crop, at in a crop"),
        ({"steps": [{"resize": [4, 4, 3]}]}, r"resize: expected \[height, width\]"),
        ({"steps": [{"resize": [4, 4], "interpolation": "cubic"}]}, r"one of bilinear, nearest"),
        (
            {"steps": [{"resize": [4, 4], "interpolation": "area", "antialias": True}]},
            r"antialias: expected no such key with interpolation area",
        ),
        ({"steps": [{"pad": [4, 4], "fill": 2.0}]}, r"fill: expected a finite number"),
        ({**SIZE, "steps": [{"crop": [5, 5]}]}, r"steps: .*crop: expected an image of at least"),
        ({"steps": [{"crop": [5, 5]}, {"pad": [4, 9]}]}, r"steps: .*pad: expected an image of at"),
    ],
)
def test_wrong_files_are_refused_with_key_and_found(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        image_part(**keys)


def test_an_image_stands_alone() -> None:
    entry = {"topic": "camera", "type": "sensor_msgs/msg/Image", **SIZE}
    for key, value in (("parts", []), ("present_flag", True)):
        observation = {"key": "o", "max_age_ms": 1, "optional": True, "image": entry, key: value}
        fields = contract_dict(observations=[observation], start="unchecked")
        with pytest.raises(ContractError, match=f"{key}: expected no such key beside `image`"):
            Contract.from_dict(fields)


ACTION = Port("action", "action", (2,), ("a", "b"), "rad")


def refusal(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, **keys: Any) -> str:
    ports = Ports((Port("observation.image", "pixels", shape),), ACTION)
    layout = (BufferSpec("pixels", shape, dtype, Role.INPUT),)
    try:
        camera_contract(**keys).check(ports, layout)
    except ContractError as error:
        return str(error)
    return ""


def test_the_port_must_have_the_image_s_shape_and_range() -> None:
    assert refusal((3, 4, 6), **SIZE) == ""
    words = refusal((3, 6, 4), **SIZE)
    assert "expected shape (3, 6, 4) for the policy, found (3, 4, 6)" in words
    assert "height and width are interchanged" in words
    assert "channels last" in refusal((4, 6, 3), **SIZE)
    assert "expected shape (1, 4, 6)" in refusal((1, 4, 6), **SIZE)
    assert "expected shape (72,)" in refusal((72,), **SIZE)
    assert refusal((3, 4, 6), torch.uint8, **SIZE, range="byte") == ""
    assert refusal((3, 4, 6), torch.float32, **SIZE, range="byte") == ""
    assert "range: expected byte for the policy's torch.uint8" in refusal(
        (3, 4, 6), torch.uint8, **SIZE
    )
    assert "only uint8" in refusal((3, 4, 6), torch.int32, **SIZE, range="byte")
    assert "torch.uint8" in refusal((1, 4, 6), torch.uint8, **SIZE, depth=DEPTH)


def test_a_decoder_that_is_missing_is_named_at_configure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal((3, 4, 6), **SIZE, type=COMPRESSED) == ""
    monkeypatch.setitem(sys.modules, "PIL", None)
    words = refusal((3, 4, 6), **SIZE, type=COMPRESSED)
    assert "image.type: compressed images need Pillow: pip install 'flashrt_ros[images]'" in words
    assert refusal((3, 4, 6), **SIZE) == "", "raw images do without"


def test_an_image_is_an_observation_until_it_is_stale() -> None:
    sampler = Sampler(camera_contract(**SIZE))
    assert "no message" in sampler.sample(0).faults[0]
    pixels = noise(4, 6, 3)
    assert sampler.put("camera", rgb_image(pixels), 0, digest=9).fault == ""
    sample = sampler.sample(50 * MS)
    assert not sample.faults
    assert sample.stamps[0].digest == 9
    wanted = np.moveaxis(pixels, 2, 0).astype(np.float32) / np.float32(255)
    assert np.array_equal(sample.observations["observation.image"], wanted)
    late = sampler.sample(120 * MS)
    assert late.faults == ("observation.image (camera): stale 120 ms > 100 ms",)
    assert not late.observations


def test_a_wrong_image_is_a_fault_until_a_good_one_comes() -> None:
    for lazy in (False, True):
        sampler = Sampler(camera_contract(**SIZE), lazy=lazy)
        for bad, words in [
            (rgb_image(noise(6, 4, 3)), "expected 4 x 6 (height x width), found 6 x 4"),
            (image(bytes(5), "rgb8", 4, 6, 18), "expected 72 bytes of data"),
            (rgb_image(noise(4, 6, 1), encoding="mono8"), "found 'mono8'"),
            (compressed(b"", "jpeg"), "expected a message of type sensor_msgs/msg/Image"),
            (b"\x00\x01\x00\x00abc", "expected"),
        ]:
            assert not sampler.put("camera", rgb_image(noise(4, 6, 3)), 0).fault
            assert not sampler.sample(0).faults
            assert words in sampler.put("camera", bad, 0).fault
            assert words in sampler.sample(0).faults[0]
            assert not sampler.sample(0).observations


def test_an_image_is_decoded_once_and_where_asked() -> None:
    contract = camera_contract(**SIZE, type=COMPRESSED)
    data = encoded(noise(4, 6, 3), "png")
    broken = compressed(data[:60], "png")
    eager, lazy = Sampler(contract), Sampler(contract, lazy=True)
    assert "expected a whole png" in eager.put("camera", broken, 0).fault
    assert lazy.put("camera", broken, 0).fault == "", "its header is sound"
    assert "expected a whole png" in lazy.sample(0).faults[0]
    assert "expected a whole png" in lazy.sample(0).faults[0], "remembered"
    lazy.put("camera", compressed(data, "png"), 1)
    first = lazy.sample(1).observations["observation.image"]
    assert lazy.sample(2).observations["observation.image"] is first


def test_an_optional_camera_may_be_missing() -> None:
    entry = {"topic": "camera", "type": "sensor_msgs/msg/Image", **SIZE, "range": "byte"}
    observation = {"key": "o", "max_age_ms": 50, "optional": True, "fill": 7, "image": entry}
    fields = contract_dict(observations=[observation], start="unchecked")
    sampler = Sampler(Contract.from_dict(fields))
    absent = sampler.sample(0).observations["o"]
    assert absent.dtype == np.uint8
    assert (absent == 7).all()
    sampler.put("camera", rgb_image(noise(4, 6, 3)), 0)
    assert np.array_equal(sampler.sample(0).observations["o"], np.moveaxis(noise(4, 6, 3), 2, 0))
