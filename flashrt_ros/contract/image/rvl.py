"""Depth images in RVL, as ``compressed_depth_image_transport`` sends them with ``format: rvl``.

Run length and variable length codes (Wilson, "Fast Lossless Depth Image Compression", ISS 2017):
pixels are runs of zeros and of others, in turn; the others are differences to the one before, with
the sign in the lowest bit. All numbers are written three bits at a time, the lowest first, each
with a bit that says whether more follow, and eight such nibbles make a little-endian word whose
highest nibble is the first.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.image.raw import check_dimensions
from flashrt_ros.errors import ContractError

SIZE = struct.Struct("<II")
"""Width and height, in front of the words."""
LONGEST = 10
"""Nibbles of a number: 30 bits, more than any image has pixels."""


class Rvl:
    """A depth image whose size has been read and whose pixels have not."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        """Reads the size.

        Args:
            data: What stands behind the depth header.

        Raises:
            ContractError: Too short, or of absurd size.
        """
        if data.size < SIZE.size:
            raise ContractError(
                f"expected {SIZE.size} bytes of size before RVL, found {data.size}"
            )
        self.width, self.height = SIZE.unpack_from(data.data)
        check_dimensions(self.height, self.width)
        self._data = data[SIZE.size :]

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        """The pixels, ``(height, width)`` uint16.

        Raises:
            ContractError: Damaged.
        """
        pixels = decode(self._data, self.height * self.width).reshape(self.height, self.width)
        return pixels if dtype is None else pixels.astype(dtype)


def decode(data: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.uint16]:
    """Pixels from words.

    Args:
        data: The words, as bytes.
        count: Pixels that there must be.

    Raises:
        ContractError: There are fewer or more.
    """
    values = _numbers(data)
    lengths = values.tolist()
    is_run = np.zeros(len(values), dtype=bool)
    runs: list[int] = []
    at, left = 0, count
    while left and at + 1 < len(lengths):
        zeros, others = lengths[at], lengths[at + 1]
        is_run[at : at + 2] = True
        runs += (zeros, others)
        at += 2 + others
        left -= zeros + others
        if left < 0 or at > len(lengths):
            break
    if left or at > len(lengths):
        raise ContractError(f"expected RVL of {count} pixels, found another number of them")
    codes = values[:at][~is_run[:at]]
    differences = (codes >> 1) ^ -(codes & 1)
    pixels = np.zeros(count, dtype=np.uint16)
    pixels[np.repeat(np.arange(len(runs)) % 2 == 1, runs)] = np.cumsum(differences).astype(
        np.uint16
    )
    return pixels


def _numbers(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """All numbers of the words, those of the padding behind the last pixel included."""
    words = np.frombuffer(data[: data.size // 4 * 4].tobytes(), dtype="<u4")
    shifts = np.arange(28, -4, -4, dtype=np.uint32)
    nibbles = ((words[:, None] >> shifts) & 0xF).reshape(-1).astype(np.int32)
    ends = np.flatnonzero(nibbles < 8)
    if not len(ends):
        return np.zeros(0, dtype=np.int32)
    begins = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - begins + 1
    if int(lengths.max()) > LONGEST:
        raise ContractError(
            f"expected RVL numbers of 30 bits, found one of {lengths.max()} nibbles"
        )
    within = np.arange(ends[-1] + 1, dtype=np.int32) - np.repeat(begins, lengths).astype(np.int32)
    parts = (nibbles[: ends[-1] + 1] & 7) << (3 * within)
    return np.asarray(np.add.reduceat(parts, begins), dtype=np.int32)
