"""Images that the tests of images and the sampler share."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from contract_examples import contract_dict, header, rosbags_class

from flashrt_ros.contract import Contract
from flashrt_ros.contract.image.schema import COMPRESSED, RAW, ImagePart


def image(
    data: Any,
    encoding: str,
    height: int,
    width: int,
    step: int,
    big_endian: bool = False,
    stamp_ns: int = 5,
) -> Any:
    """A rosbags Image."""
    array = np.frombuffer(bytes(data), np.uint8)
    return rosbags_class(RAW)(
        header(stamp_ns), height, width, encoding, int(big_endian), step, array
    )


def rgb_image(pixels_HWC: np.ndarray, stamp_ns: int = 5, encoding: str = "rgb8") -> Any:
    """An Image without padding."""
    height, width, channels = pixels_HWC.shape
    data = pixels_HWC.tobytes()
    return image(data, encoding, height, width, width * channels, stamp_ns=stamp_ns)


def compressed(data: bytes, words: str, stamp_ns: int = 5) -> Any:
    """A rosbags CompressedImage."""
    array = np.frombuffer(data, np.uint8)
    return rosbags_class(COMPRESSED)(header(stamp_ns), words, array)


def encoded(pixels: np.ndarray, encoding: str, **options: Any) -> bytes:
    """Pixels as a PNG or JPEG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, encoding, **options)
    return file.getvalue()


def camera_contract(max_age_ms: float = 100.0, **keys: Any) -> Contract:
    """One camera and nothing else to read."""
    entry = {"topic": "camera", "type": RAW, **keys}
    observation = {"key": "observation.image", "max_age_ms": max_age_ms, "image": entry}
    return Contract.from_dict(contract_dict(observations=[observation], start="unchecked"))


def image_part(**keys: Any) -> ImagePart:
    """The image of ``camera_contract``."""
    part = camera_contract(**keys).observations[0].image
    assert part is not None
    return part


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Random bytes, the same at each call."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
