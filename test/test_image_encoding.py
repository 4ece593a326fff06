"""Every encoding against a reference that goes through the bytes one by one.

A camera that is read as another encoding than its own shows the policy a world of other colors;
nothing downstream would notice.
"""

from __future__ import annotations

import struct
import warnings
from typing import Any

import numpy as np
import pytest
from contract_examples import cdr
from hypothesis import given, settings
from hypothesis import strategies as st
from image_messages import (
    camera_contract,
    compressed,
    encoded,
    image,
    image_part,
    noise,
    rgb_image,
)

from flashrt_ros.contract import Sampler
from flashrt_ros.contract.conversions import decode
from flashrt_ros.contract.image import compressed as compressed_module
from flashrt_ros.contract.image.compressed import DEPTH_HEADER, require_pillow
from flashrt_ros.contract.image.raw import ENCODINGS, pixels_of
from flashrt_ros.contract.image.reader import ImageReader
from flashrt_ros.contract.image.schema import COMPRESSED, RAW
from flashrt_ros.errors import ContractError, UnsupportedError


def read(message: Any, **keys: Any) -> np.ndarray:
    return ImageReader(image_part(**keys)).frame(message).array()


def yuv(y: int, u: int, v: int) -> tuple[int, int, int]:
    """The formula of the docs, in real numbers."""
    luma, u, v = 1.164 * max(y - 16, 0), u - 128, v - 128
    values = (luma + 1.596 * v, luma - 0.391 * u - 0.813 * v, luma + 2.018 * u)
    return tuple(min(max(round(value), 0), 255) for value in values)  # type: ignore[return-value]


def reference(
    data: bytes, encoding: str, height: int, width: int, step: int, big_endian: bool
) -> np.ndarray:
    """``(H, W, C)``, one pixel at a time."""
    order = ">" if big_endian else "<"

    def pixel(row: int, column: int) -> tuple[float, ...]:
        begin = row * step
        if encoding in ("rgb8", "bgr8", "rgba8", "bgra8"):
            size = len(encoding) - 1
            values = data[begin + size * column :][:3]
            return tuple(values) if encoding.startswith("rgb") else tuple(reversed(values))
        if encoding == "mono8":
            return (data[begin + column],)
        if encoding == "16UC1":
            return struct.unpack_from(order + "H", data, begin + 2 * column)
        if encoding == "32FC1":
            return struct.unpack_from(order + "f", data, begin + 4 * column)
        if encoding in ("nv12", "nv21"):
            chroma = data[(height + row // 2) * step + column // 2 * 2 :]
            u, v = chroma[:2] if encoding == "nv12" else (chroma[1], chroma[0])
            return yuv(data[begin + column], u, v)
        quad = data[begin + column // 2 * 4 :][:4]
        if encoding in ("yuv422", "uyvy"):
            return yuv(quad[1 + column % 2 * 2], quad[0], quad[2])
        return yuv(quad[column % 2 * 2], quad[1], quad[3])

    return np.array([[pixel(row, column) for column in range(width)] for row in range(height)])


@settings(max_examples=200, deadline=None)
@given(
    encoding=st.sampled_from(sorted(ENCODINGS)),
    half=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.integers(0, 5),
    big_endian=st.booleans(),
    whole=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_pixels_are_those_of_the_slow_reference(
    encoding: str,
    half: tuple[int, int],
    padding: int,
    big_endian: bool,
    whole: bool,
    seed: int,
) -> None:
    height, width = 2 * half[0], 2 * half[1]
    kind = ENCODINGS[encoding]
    step = kind.row_bytes(width) + padding
    data = noise(step * kind.rows(height), seed=seed).tobytes()
    wanted = reference(data, encoding, height, width, step, big_endian)
    given_data = data if whole else data[: len(data) - padding]
    message = image(given_data, encoding, height, width, step, big_endian)
    for received in (message, decode(RAW, cdr(message)).message):
        found = pixels_of(received)
        assert found.shape == wanted.shape
        tolerance = 1 if kind.even[1] else 0  # the formula's digits are rounded
        with np.errstate(invalid="ignore"):  # random bytes make signalling NaNs
            same = np.isclose(found.astype(float), wanted, rtol=0, atol=tolerance, equal_nan=True)
        assert same.all()


def test_the_reference_tells_encodings_apart() -> None:
    data = noise(4, 12).tobytes()
    seen = {
        encoding: reference(data, encoding, 2, 4, 12, False).tobytes()
        for encoding in ("rgb8", "bgr8", "nv12", "nv21", "uyvy", "yuyv")
    }
    assert len(set(seen.values())) == len(seen)


def test_colors_come_out_by_name_whatever_the_encoding() -> None:
    rgb = noise(4, 6, 3)
    rgba = np.dstack((rgb, noise(4, 6, 1, seed=1)))
    for encoding, pixels in [
        ("rgb8", rgb),
        ("bgr8", rgb[..., ::-1].copy()),
        ("rgba8", rgba),
        ("bgra8", rgba[..., [2, 1, 0, 3]].copy()),
    ]:
        message = rgb_image(pixels, encoding=encoding)
        assert np.array_equal(read(message, size=[4, 6], range="byte"), np.moveaxis(rgb, 2, 0))
        bgr = read(message, size=[4, 6], range="byte", color="bgr")
        assert np.array_equal(bgr, np.moveaxis(rgb[..., ::-1], 2, 0))
        gray = read(message, size=[4, 6], range="byte", color="gray")
        wanted = rgb @ np.array([0.299, 0.587, 0.114])
        assert gray.shape == (1, 4, 6)
        assert np.abs(gray[0] - wanted).max() <= 0.51
    unit = read(rgb_image(rgb), size=[4, 6])
    assert unit.dtype == np.float32
    assert np.array_equal(unit, np.moveaxis(rgb, 2, 0).astype(np.float32) / np.float32(255))


def test_gray_becomes_colored_only_where_the_contract_says_so() -> None:
    message = rgb_image(noise(4, 6, 1), encoding="mono8")
    with pytest.raises(ContractError, match=r"expected an encoding among rgb8, .*, found 'mono8'"):
        read(message, size=[4, 6])
    both = read(message, size=[4, 6], encoding=["rgb8", "mono8"], range="byte")
    assert both.shape == (3, 4, 6)
    assert (both == noise(4, 6, 1)[..., 0]).all()


def test_results_do_not_hang_on_the_message() -> None:
    for keys in ({"color": "gray"}, {"color": "rgb"}):
        array = bytearray(noise(4, 6, 1).tobytes() * 3)
        message = image(b"", "mono8" if keys["color"] == "gray" else "rgb8", 4, 6, 18)
        message.data = np.frombuffer(array, np.uint8)
        if keys["color"] == "gray":
            message.step, message.data = 6, message.data[:24]
        found = read(message, size=[4, 6], range="byte", **keys)
        before = found.copy()
        array[:] = bytes(len(array))
        assert np.array_equal(found, before)
        assert not found.flags.writeable


DEPTH = {"depth": {"unit": "m", "scale": {"16UC1": 0.001, "32FC1": 1.0}, "invalid": -1.0}}


def test_depth_has_unit_scale_and_a_number_for_nothing() -> None:
    counts = np.array([[0, 1500], [65535, 250]], "<u2")
    message = image(counts.tobytes(), "16UC1", 2, 2, 4)
    found = read(message, size=[2, 2], **DEPTH)
    assert found == pytest.approx(np.array([[[-1.0, 1.5], [65.535, 0.25]]]))
    metres = np.array([[np.nan, 1.5], [np.inf, -2.0]], "<f4")
    message = image(metres.tobytes(), "32FC1", 2, 2, 8)
    assert read(message, size=[2, 2], **DEPTH).tolist() == [[[-1.0, 1.5], [-1.0, -1.0]]]
    clipped = {"depth": {**DEPTH["depth"], "clip": [0.3, 1.0]}}
    assert read(message, size=[2, 2], **clipped)[0, 0, 1] == 1.0
    only = {"depth": {**DEPTH["depth"], "scale": {"32FC1": 1.0}}}
    with pytest.raises(ContractError, match="expected an encoding among 32FC1, found '16UC1'"):
        read(image(counts.tobytes(), "16UC1", 2, 2, 4), size=[2, 2], **only)


def test_jpeg_and_png() -> None:
    smooth = np.dstack(np.broadcast_arrays(np.arange(32)[:, None] * 8, np.arange(48) * 5, 90))
    smooth = smooth.astype(np.uint8)
    keys = {"type": COMPRESSED, "size": [32, 48], "range": "byte"}
    png = encoded(smooth, "png")
    exact = read(compressed(png, "rgb8; png compressed bgr8"), **keys)
    assert np.array_equal(exact, np.moveaxis(smooth, 2, 0))
    jpeg = compressed(encoded(smooth, "jpeg", quality=95), "jpeg")
    near = read(jpeg, **keys)
    assert np.abs(near.astype(int) - exact).max() < 12
    # An encoder that takes blue first was handed red first: the file's channels are reversed.
    odd = read(compressed(png, "rgb8; png compressed rgb8"), **keys)
    assert np.array_equal(odd, exact[::-1])
    gray = compressed(encoded(smooth[..., 0], "png"), "mono8; png compressed mono8")
    assert np.array_equal(read(gray, **keys, color="gray")[0], smooth[..., 0])
    with pytest.raises(ContractError, match="expected an encoding among png, found 'jpeg'"):
        read(jpeg, **keys, encoding="png")


def test_compressed_depth() -> None:
    counts = np.array([[0, 1000, 2000], [40000, 1, 65535]], np.uint16)
    keys = {"type": COMPRESSED, "size": [2, 3], **DEPTH}
    body = encoded(counts, "png")
    plain = DEPTH_HEADER.pack(0, 0.0, 0.0) + body
    found = read(compressed(plain, "16UC1; compressedDepth png"), **keys)
    wanted = np.where(counts == 0, -1.0, counts * 0.001)
    assert found[0] == pytest.approx(wanted, rel=1e-6)
    a, b = 50.0, 3.5
    inverse = DEPTH_HEADER.pack(0, a, b) + body
    found = read(compressed(inverse, "32FC1; compressedDepth"), **keys)
    with np.errstate(divide="ignore"):
        metres = np.array([[np.nan, a / (1000 - b), a / (2000 - b)], [a / (40000 - b)] * 3])
    metres[1, 1:] = a / (1 - b), a / (65535 - b)
    metres[~(metres > 0)] = -1.0
    assert found[0] == pytest.approx(metres, rel=1e-6)
    raw_png = read(compressed(body, "16UC1; png compressed "), **keys)
    assert np.array_equal(raw_png[0], wanted.astype(np.float32))


HOSTILE = [
    (image(bytes(36), "rgb8", 4, 3, 8), r"step of at least 9 bytes for 3 pixels of rgb8, found 8"),
    (image(bytes(35), "rgb8", 4, 3, 9), r"expected 36 bytes of data \(4 rows of 9\), found 35"),
    (image(bytes(99), "rgb8", 4, 3, 9), r"expected 36 bytes of data"),
    (image(b"", "rgb8", 4, 3, 9), r"found 0"),
    (image(bytes(35), "rgb8", 4, 3, 10), r"expected 39 to 40 bytes"),
    (image(b"", "rgb8", 0, 3, 9), r"1 to \d+ pixels, found 0 x 3"),
    (image(b"", "rgb8", 4, 0, 0), r"pixels, found 4 x 0"),
    (image(b"", "rgb8", 0xFFFFFFFF, 0xFFFFFFFF, 9), r"found 4294967295 x 4294967295"),
    (image(bytes(36), "rgb8", 4, 3, 0xFFFFFFFF), r"found 36"),
    (image(bytes(36), "", 4, 3, 9), r"encoding among rgb8, .*, found ''"),
    (image(bytes(36), "bayer_rggb8", 4, 3, 9), r"found 'bayer_rggb8'"),
    (image(bytes(36), "nv12", 4, 3, 6), r"even width with encoding nv12, found 3"),
    (image(bytes(36), "nv12", 3, 4, 6), r"even height with encoding nv12, found 3"),
    (image(bytes(36), "uyvy", 3, 3, 12), r"even width with encoding uyvy, found 3"),
    (image(bytes(36), "16UC1", 4, 3, 9), r"expected an encoding among"),
    (rgb_image(noise(3, 4, 3)), r"expected 4 x 3 .* found 3 x 4; height and width are interch"),
    (rgb_image(noise(8, 6, 3)), r"expected 4 x 3 \(height x width\), found 8 x 6"),
]


@pytest.mark.parametrize(("message", "words"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_contradicts_itself_is_refused_in_words(message: Any, words: str) -> None:
    with pytest.raises(ContractError, match=words) as caught:
        read(message, size=[4, 3])
    assert str(caught.value).startswith("topic 'camera' (sensor_msgs/msg/Image): expected")


def test_damaged_files_are_refused_in_words() -> None:
    keys = {"type": COMPRESSED, "size": [40, 60]}
    jpeg, png = encoded(noise(40, 60, 3), "jpeg"), encoded(noise(40, 60, 3), "png")
    depth = DEPTH_HEADER.pack(0, 1.0, 0.0)
    for data, words, refusal in [
        (b"", "jpeg", "with nothing"),
        (b"GIF89a" + bytes(99), "jpeg", "47 49 46"),
        (jpeg[: len(jpeg) // 2], "jpeg", "expected a whole jpeg image"),
        (png[: len(png) // 2], "png", "expected a whole png image"),
        (png[:30], "png", "png image"),
        (encoded(noise(30, 60, 3), "jpeg"), "jpeg", "expected 40 x 60"),
        (depth[:7], "16UC1; compressedDepth png", "12 bytes of depth header, found 7"),
        (depth + jpeg, "16UC1; compressedDepth png", "expected a PNG behind the depth header"),
        (depth + png, "16UC1; compressedDepth png", "gray PNG of 16 bits, found mode RGB"),
        (depth + png, "16UC1; compressedDepth rvl", "pixels"),
        (depth + b"123", "16UC1; compressedDepth rvl", "8 bytes of size before RVL, found 3"),
        (depth + png, "bgr8; compressedDepth png", "16UC1 or 32FC1, found format 'bgr8"),
        (DEPTH_HEADER.pack(0, np.nan, 1) + png, "32FC1; compressedDepth", "gray PNG of 16 bits"),
    ]:
        with pytest.raises(ContractError, match=refusal):
            read(compressed(data, words), **keys)
    bad = DEPTH_HEADER.pack(0, np.nan, 1) + encoded(np.ones((2, 2), np.uint16), "png")
    with pytest.raises(ContractError, match="finite numbers in the depth header"):
        read(compressed(bad, "32FC1; compressedDepth"), **{**keys, "size": [2, 2]}, **DEPTH)
    with pytest.raises(ContractError, match="expected an image of colors or gray, found one of d"):
        read(compressed(encoded(np.ones((40, 60), np.uint16), "png"), "png"), **keys)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 3), st.sampled_from(["jpeg", "png", "depth"]))
def test_no_bytes_crash_the_decoder(garbage: bytes, where: int, kind: str) -> None:
    whole = {
        "jpeg": (encoded(noise(8, 8, 3), "jpeg"), "jpeg"),
        "png": (encoded(noise(8, 8, 3), "png"), "png"),
        "depth": (
            DEPTH_HEADER.pack(0, 1.0, 0.5) + encoded(noise(8, 8).astype(np.uint16), "png"),
            "32FC1; compressedDepth png",
        ),
    }
    data, words = whole[kind]
    at = len(data) * where // 4
    keys = DEPTH if kind == "depth" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = read(
                compressed(data[:at] + garbage + data[at + len(garbage) :], words),
                type=COMPRESSED,
                size=[8, 8],
                **keys,
            )
        except ContractError:
            return
    assert np.isfinite(found).all()


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(UnsupportedError, match=r"flashrt_ros\[images\]"):
        require_pillow()
    assert "python3-pil" in compressed_module.INSTALL


def test_colors_are_the_bytes_that_opencv_gives() -> None:
    cv2 = pytest.importorskip("cv2")
    packed, planes, rgb = noise(48, 64, 2), noise(72, 64), noise(48, 64, 3)
    for encoding, pixels, code in (
        ("uyvy", packed, cv2.COLOR_YUV2RGB_UYVY),
        ("yuv422_yuy2", packed, cv2.COLOR_YUV2RGB_YUY2),
        ("nv12", planes, cv2.COLOR_YUV2RGB_NV12),
        ("nv21", planes, cv2.COLOR_YUV2RGB_NV21),
    ):
        step = 128 if pixels is packed else 64
        found = pixels_of(image(pixels.tobytes(), encoding, 48, 64, step))
        assert np.array_equal(found, cv2.cvtColor(pixels, code)), encoding
    gray = read(rgb_image(rgb), size=[48, 64], color="gray", range="byte")[0]
    assert np.array_equal(gray, cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY))
    data = encoded(cv2.GaussianBlur(rgb, (0, 0), 3), "jpeg", quality=90)
    found = read(compressed(data, "jpeg"), size=[48, 64], type=COMPRESSED, range="byte")
    wanted = cv2.imdecode(np.frombuffer(data, np.uint8), 1)[..., ::-1]
    assert np.array_equal(np.moveaxis(found, 0, 2), wanted)


FRAMES = {
    RAW: cdr(rgb_image(noise(4, 6, 3))),
    COMPRESSED: cdr(compressed(encoded(noise(4, 6, 3), "png"), "png")),
}


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(sorted(FRAMES)),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=5),
    cut=st.integers(0, 40),
)
def test_damaged_messages_are_an_image_or_a_fault(
    kind: str, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(FRAMES[kind])
    for position, value in changes:
        data[position % len(data)] = value
    sampler = Sampler(camera_contract(size=[4, 6], type=kind))
    fault = sampler.put("camera", bytes(data[: len(data) - cut]), 0).fault
    sample = sampler.sample(0)
    assert bool(fault) == bool(sample.faults)
    if not fault:
        found = sample.observations["observation.image"]
        assert found.shape == (3, 4, 6)
        assert np.isfinite(found).all()
