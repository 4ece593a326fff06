"""RVL depth against a slow encoder written from the paper's description, and against damage.

An off-by-one in a run shifts all depth behind it, which looks like a scene; so whole images are
compared, bit for bit.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_image_encoding import COMPRESSED, DEPTH, compressed, read

from flashrt_ros.contract.image.compressed import DEPTH_HEADER
from flashrt_ros.contract.image.rvl import Rvl, decode
from flashrt_ros.errors import ContractError

Depth = npt.NDArray[np.uint16]


def encode(pixels: Depth) -> bytes:
    """Nibble by nibble."""
    nibbles: list[int] = []

    def number(value: int) -> None:
        while value >= 8:
            nibbles.append(8 | value & 7)
            value >>= 3
        nibbles.append(value)

    left = [int(value) for value in pixels.reshape(-1)]
    before = 0
    while left:
        zeros = next((i for i, value in enumerate(left) if value), len(left))
        left = left[zeros:]
        others = next((i for i, value in enumerate(left) if not value), len(left))
        number(zeros)
        number(others)
        for value in left[:others]:
            change = value - before
            number(2 * change if change >= 0 else -2 * change - 1)
            before = value
        left = left[others:]
    nibbles += [0] * (-len(nibbles) % 8)
    words = [
        int("".join(f"{n:x}" for n in nibbles[i : i + 8]), 16) for i in range(0, len(nibbles), 8)
    ]
    return struct.pack(f"<{len(words)}I", *words)


def as_data(body: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(body, np.uint8)


@given(st.lists(st.sampled_from([0, 0, 0, 1, 2, 500, 501, 499, 65535, 32768]), min_size=1))
@example([0])
@example([65535, 1, 65535, 0, 65535])
def test_any_pixels_come_back(pixels: list[int]) -> None:
    image = np.array(pixels, np.uint16)
    assert np.array_equal(decode(as_data(encode(image)), len(pixels)), image)


def test_an_example_by_hand() -> None:
    # Two zeros, two others: 3 (code 6), then 2 less (code 3). One zero, none: the image ends.
    # Nibbles 2, 2, 6, 3, 1, 0.
    word = struct.pack("<I", 0x22631000)
    assert decode(as_data(word), 5).tolist() == [0, 0, 3, 1, 0]


def test_a_whole_message_has_unit_and_holes() -> None:
    rng = np.random.default_rng(0)
    depth = rng.integers(400, 5000, (48, 64)).astype(np.uint16)
    depth[rng.random(depth.shape) < 0.3] = 0
    body = DEPTH_HEADER.pack(0, 0.0, 0.0) + struct.pack("<II", 64, 48) + encode(depth)
    keys = {"type": COMPRESSED, "size": [48, 64], **DEPTH}
    found = read(compressed(body, "16UC1; compressedDepth rvl"), **keys)
    wanted = np.where(depth == 0, -1.0, depth * 0.001)
    assert found[0] == pytest.approx(wanted, rel=1e-6)
    inverse = DEPTH_HEADER.pack(0, 50.0, 3.5) + struct.pack("<II", 64, 48) + encode(depth)
    found = read(compressed(inverse, "32FC1; compressedDepth rvl"), **keys)
    with np.errstate(divide="ignore"):
        metres = np.where(depth == 0, -1.0, 50.0 / (depth.astype(np.float64) - 3.5))
    assert found[0] == pytest.approx(metres, rel=1e-5)


@pytest.mark.parametrize("keep", [0, 4, 8, -4])
def test_what_is_cut_off_is_refused(keep: int) -> None:
    body = encode(np.arange(1, 200, dtype=np.uint16))
    with pytest.raises(ContractError, match="expected RVL of 199 pixels"):
        decode(as_data(body[:keep]), 199)


def test_more_pixels_than_there_are_places_for_are_refused() -> None:
    body = encode(np.arange(1, 200, dtype=np.uint16))
    with pytest.raises(ContractError, match="expected RVL of 100 pixels"):
        decode(as_data(body), 100)
    with pytest.raises(ContractError, match=r"pixels, found 0 x 3"):
        Rvl(as_data(struct.pack("<II", 3, 0)))
    with pytest.raises(ContractError, match="numbers of 30 bits"):
        decode(as_data(b"\xff" * 8 + b"\x00" * 4), 10)


@given(st.binary(max_size=64), st.integers(1, 400))
def test_no_bytes_crash_it(garbage: bytes, count: int) -> None:
    try:
        pixels = decode(as_data(garbage), count)
    except ContractError:
        return
    assert pixels.shape == (count,)
