"""From ``sensor_msgs/msg/Image`` to pixels: every encoding by its name, none guessed.

Suffixes: H height, W width, C channel. Pixels are ``(H, W, C)`` uint8 in the order red, green,
blue, or ``(H, W, 1)`` gray (uint8) or depth (uint16 or float32). Where bytes need no arithmetic
the array is a view of the message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.errors import ContractError

Pixels = npt.NDArray[Any]

MAX_PIXELS = 1 << 26
"""More than any camera of a robot has; a damaged header must not make us allocate it."""


@dataclass(frozen=True)
class Encoding:
    """How the bytes of one encoding become pixels.

    Attributes:
        row_bytes: Of one pixel row of this width, without padding.
        pixels: Rows as ``(rows, row_bytes)`` uint8 and big-endianness, to pixels.
        kind: ``color``, ``gray`` or ``depth``.
        rows: Rows of bytes for an image of this height.
        even: The dimensions, of height and width, that must be even.
    """

    row_bytes: Callable[[int], int]
    pixels: Callable[[Pixels, bool], Pixels]
    kind: str = "color"
    rows: Callable[[int], int] = lambda height: height
    even: tuple[bool, bool] = (False, False)


def _packed(channels: int, order: slice) -> Encoding:
    def pixels(rows: Pixels, big_endian: bool) -> Pixels:
        return _split(rows, channels)[..., order]

    return Encoding(lambda width: channels * width, pixels)


def _split(rows: Pixels, channels: int) -> Pixels:
    """``(rows, n * channels)`` with any row stride to ``(rows, n, channels)``, a view."""
    height, row_bytes = rows.shape
    return np.lib.stride_tricks.as_strided(
        rows,
        (height, row_bytes // channels, channels),
        (rows.strides[0], channels, 1),
        writeable=False,
    )


def _gray(rows: Pixels, big_endian: bool) -> Pixels:
    return rows[..., None]


def _numbers(kind: str, size: int) -> Encoding:
    def pixels(rows: Pixels, big_endian: bool) -> Pixels:
        # Rows may begin anywhere, so the bytes are brought together first.
        numbers = np.ascontiguousarray(rows).view((">" if big_endian else "<") + kind)
        return numbers.astype(kind, copy=False)[..., None]

    return Encoding(lambda width: size * width, pixels, "depth")


def rgb_from_yuv(luma_HW: Pixels, u_HW: Pixels, v_HW: Pixels) -> Pixels:
    """BT.601 of limited range, as OpenCV and so ``cv_bridge`` compute it, in 20-bit fixed point.

    R = 1.164 (Y - 16) + 1.596 (V - 128); G = 1.164 (Y - 16) - 0.391 (U - 128) - 0.813 (V - 128);
    B = 1.164 (Y - 16) + 2.018 (U - 128); luma below 16 counts as 16.

    Args:
        luma_HW: uint8.
        u_HW: uint8, of half the width (one value for two pixels of a row).
        v_HW: As ``u_HW``.

    Returns:
        ``(H, W, 3)`` uint8.
    """
    height, width = luma_HW.shape
    luma = np.maximum(luma_HW, 16).astype(np.int32)
    luma -= 16
    luma *= 1220542
    pairs_HWP = luma.reshape(height, width // 2, 2)
    u = u_HW.astype(np.int32) - 128
    v = v_HW.astype(np.int32) - 128
    half = 1 << 19
    added = (1673527 * v + half, -409993 * u - 852492 * v + half, 2116026 * u + half)
    rgb = np.empty((height, width, 3), np.uint8)
    for channel, chroma in enumerate(added):
        value = pairs_HWP + chroma[..., None]
        value >>= 20
        np.clip(value, 0, 255, out=value)
        rgb[..., channel] = value.reshape(height, width)
    return rgb


def _interleaved(y: int, u: int, v: int) -> Encoding:
    """Four bytes for two pixels; ``y`` is where the first luma stands."""

    def pixels(rows: Pixels, big_endian: bool) -> Pixels:
        quads = _split(rows, 4)
        luma = _split(rows, 2)[..., y]
        return rgb_from_yuv(luma, quads[..., u], quads[..., v])

    return Encoding(lambda width: 2 * width, pixels, even=(False, True))


def _planar(u: int, v: int) -> Encoding:
    """A luma plane, then one chroma pair for two by two pixels."""

    def pixels(rows: Pixels, big_endian: bool) -> Pixels:
        height = rows.shape[0] * 2 // 3
        pairs = np.repeat(_split(rows[height:], 2), 2, axis=0)
        return rgb_from_yuv(rows[:height], pairs[..., u], pairs[..., v])

    return Encoding(
        lambda width: width, pixels, rows=lambda height: height * 3 // 2, even=(True, True)
    )


_UYVY, _YUYV = _interleaved(1, 0, 2), _interleaved(0, 1, 3)

ENCODINGS: dict[str, Encoding] = {
    "rgb8": _packed(3, slice(None)),
    "bgr8": _packed(3, slice(None, None, -1)),
    "rgba8": _packed(4, slice(None, 3)),
    "bgra8": _packed(4, slice(2, None, -1)),
    "yuv422": _UYVY,
    "uyvy": _UYVY,
    "yuv422_yuy2": _YUYV,
    "yuyv": _YUYV,
    "nv12": _planar(0, 1),
    "nv21": _planar(1, 0),
    "mono8": Encoding(lambda width: width, _gray, "gray"),
    "16UC1": _numbers("u2", 2),
    "32FC1": _numbers("f4", 4),
}
"""Every encoding that is read; names as in ``sensor_msgs/image_encodings.hpp``, and ``nv12``."""


def check_dimensions(height: int, width: int) -> None:
    """Refuses images without pixels, and those of absurd size.

    Raises:
        ContractError: With both numbers.
    """
    if height < 1 or width < 1 or height * width > MAX_PIXELS:
        raise ContractError(
            f"expected an image of 1 to {MAX_PIXELS} pixels, found {height} x {width} (height x "
            "width)"
        )


def byte_rows(message: Any) -> Pixels:
    """Checks an Image message against its own header.

    Returns:
        ``(rows, row_bytes)`` uint8, a view of the message without the padding of its rows.

    Raises:
        ContractError: Encoding unknown, or the sizes contradict each other.
    """
    height, width, step = int(message.height), int(message.width), int(message.step)
    name = message.encoding
    check_dimensions(height, width)
    encoding = ENCODINGS.get(name)
    if encoding is None:
        raise ContractError(f"expected an encoding among {', '.join(ENCODINGS)}, found {name!r}")
    for word, size, even in zip(("height", "width"), (height, width), encoding.even, strict=True):
        if even and size % 2:
            raise ContractError(f"expected an even {word} with encoding {name}, found {size}")
    data = np.frombuffer(message.data, np.uint8)
    row_bytes, rows = encoding.row_bytes(width), encoding.rows(height)
    if step < row_bytes:
        raise ContractError(
            f"expected a step of at least {row_bytes} bytes for {width} pixels of {name}, found "
            f"{step}"
        )
    # Some drivers leave out the padding behind the last row.
    least, most = step * (rows - 1) + row_bytes, step * rows
    if not least <= data.size <= most:
        words = f"{most}" if least == most else f"{least} to {most}"
        raise ContractError(
            f"expected {words} bytes of data ({rows} rows of {step}), found {data.size}"
        )
    return np.lib.stride_tricks.as_strided(data, (rows, row_bytes), (step, 1), writeable=False)


def pixels_of(message: Any) -> Pixels:
    """Pixels of an Image message, see the top of this file.

    Raises:
        ContractError: As ``byte_rows``.
    """
    rows = byte_rows(message)
    return ENCODINGS[message.encoding].pixels(rows, bool(message.is_bigendian))
