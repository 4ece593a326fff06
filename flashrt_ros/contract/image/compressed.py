"""From ``sensor_msgs/msg/CompressedImage`` to pixels: JPEG, PNG and compressed depth.

JPEG and PNG are Pillow's work, which is asked for only where a contract reads such a topic.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashrt_ros.contract.image.raw import Pixels, check_dimensions
from flashrt_ros.contract.image.rvl import Rvl
from flashrt_ros.errors import ContractError, UnsupportedError

FORMATS = ("jpeg", "png", "compressedDepth")
"""What the contract's ``encoding`` may name for this message type."""
INSTALL = "pip install 'flashrt_ros[images]' (or: apt-get install python3-pil)"
PNG_MAGIC, JPEG_MAGIC = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"

DEPTH_HEADER = struct.Struct("<iff")
"""Twelve bytes before the PNG or RVL of a compressed depth image: an enum, which is 0 for inverse
depth, then A and B of ``depth = A / (number - B)``; see ``compressed_depth_image_transport``'s
``ConfigHeader``. Written as the publisher's C struct, so little-endian on every robot in use."""


@dataclass(frozen=True)
class Opened:
    """A compressed image whose header has been read.

    Attributes:
        encoding: One of ``FORMATS``.
        height: Pixels.
        width: Pixels.
        kind: ``color``, ``gray`` or ``depth``.
        pixel: ``16UC1`` or ``32FC1`` for depth, else empty.
        reversed: The red and blue channels are interchanged.
        image: Pillow's, or RVL; not decoded yet.
        quantisation: A and B of a 32FC1 depth image.
    """

    encoding: str
    height: int
    width: int
    kind: str
    pixel: str
    reversed: bool
    image: Any
    quantisation: tuple[float, float] | None = None


def require_pillow() -> Any:
    """Pillow's ``Image`` module.

    Raises:
        UnsupportedError: Pillow is not installed; with the command that installs it.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedError(f"compressed images need Pillow: {INSTALL}") from error
    return Image


def open_compressed(message: Any) -> Opened:
    """Reads the header of a CompressedImage; decodes no pixel.

    Raises:
        ContractError: Unknown format, damaged, or of absurd size.
    """
    words = message.format.strip()
    data = np.frombuffer(message.data, np.uint8)
    pixel = words.split(";")[0].strip()
    if "compressedDepth" in words:
        return _open_depth(words, pixel, data)
    magic = data[:8].tobytes()
    encoding = "png" if magic == PNG_MAGIC else "jpeg" if magic[:3] == JPEG_MAGIC else ""
    if not encoding:
        raise ContractError(
            f"expected JPEG, PNG or compressed depth, found format {words!r} with data that begin "
            f"{magic.hex(' ') or 'with nothing'}"
        )
    image = _open(data, encoding)
    mode = image.mode
    if mode.startswith("I"):
        return Opened("png", image.height, image.width, "depth", "16UC1", False, image)
    if mode not in ("RGB", "RGBA", "L"):
        raise ContractError(f"expected a color or gray {encoding} of 8 bits, found mode {mode}")
    # The transport hands its array to an encoder that takes blue first. It says "compressed bgr8"
    # where that array had blue first, and "compressed rgb8" where it had not: then the channels
    # of the file are interchanged.
    swapped = "compressed rgb" in words
    kind = "gray" if mode == "L" else "color"
    return Opened(encoding, image.height, image.width, kind, "", swapped, image)


def decode_compressed(opened: Opened) -> Pixels:
    """Pixels, as ``raw.pixels_of`` gives them.

    Raises:
        ContractError: Damaged.
    """
    try:
        pixels: Pixels = np.asarray(opened.image)
    except Exception as error:  # Pillow promises nothing about what its decoders raise.
        raise ContractError(f"expected a whole {opened.encoding} image: {error}") from error
    if opened.kind == "color":
        return pixels[..., 2::-1] if opened.reversed else pixels[..., :3]
    pixels = pixels[..., None]
    if opened.kind == "depth":
        pixels = pixels.astype(np.uint16, copy=False)
    if opened.quantisation is None:
        return pixels
    a, b = (np.float32(value) for value in opened.quantisation)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        depth: Pixels = a / (pixels.astype(np.float32) - b)
    depth[pixels == 0] = np.nan  # a pixel without a measurement
    return depth


def _open_depth(words: str, pixel: str, data: Pixels) -> Opened:
    if pixel not in ("16UC1", "32FC1"):
        raise ContractError(f"expected compressed depth of 16UC1 or 32FC1, found format {words!r}")
    if data.size < DEPTH_HEADER.size:
        raise ContractError(
            f"expected {DEPTH_HEADER.size} bytes of depth header, found {data.size}"
        )
    _, a, b = DEPTH_HEADER.unpack_from(data.data)
    body = data[DEPTH_HEADER.size :]
    image = Rvl(body) if "compressedDepth rvl" in words else _open_depth_png(body)
    quantisation = None
    if pixel == "32FC1":
        quantisation = (a, b)
        if not (np.isfinite(a) and np.isfinite(b)):
            raise ContractError(f"expected finite numbers in the depth header, found {a} and {b}")
    return Opened(
        "compressedDepth",
        image.height,
        image.width,
        "depth",
        pixel,
        False,
        image,
        quantisation,
    )


def _open_depth_png(body: Pixels) -> Any:
    if body[:8].tobytes() != PNG_MAGIC:
        raise ContractError(
            f"expected a PNG behind the depth header, found {body[:8].tobytes().hex(' ')!r}"
        )
    image = _open(body, "png")
    if not image.mode.startswith("I"):
        raise ContractError(f"expected a gray PNG of 16 bits, found mode {image.mode}")
    return image


def _open(data: Pixels, encoding: str) -> Any:
    pillow = require_pillow()
    try:
        image = pillow.open(io.BytesIO(data.data), formats=(encoding.upper(),))
    except Exception as error:
        raise ContractError(f"expected a whole {encoding} image: {error}") from error
    check_dimensions(image.height, image.width)
    return image
