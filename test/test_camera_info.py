"""CameraInfo: the camera must be the one that the contract speaks of.

A camera that was exchanged, or started in another mode, gives sound images of another geometry.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract_examples import MS, cdr, header, rosbags_class
from image_messages import camera_contract, noise, rgb_image

from flashrt_ros.contract import Contract, Sampler
from flashrt_ros.errors import ContractError

INFO = "sensor_msgs/msg/CameraInfo"
K = [500.0, 0.0, 3.0, 0.0, 510.0, 2.0, 0.0, 0.0, 1.0]
EXPECTED = {"topic": "info", "intrinsics": [500.0, 510.0, 3.0, 2.0]}


def camera_info(height: int = 4, width: int = 6, stamp_ns: int = 5, **fields: Any) -> Any:
    region = rosbags_class("sensor_msgs/msg/RegionOfInterest")
    given = {
        "k": np.array(fields.pop("k", K)),
        "d": np.array(fields.pop("d", [0.0] * 5)),
        "distortion_model": fields.pop("distortion_model", "plumb_bob"),
        "binning_x": fields.pop("binning", 0),
        "roi": region(0, 0, *fields.pop("roi", (0, 0)), False),
    }
    assert not fields
    return rosbags_class(INFO)(
        header(stamp_ns),
        height,
        width,
        given["distortion_model"],
        given["d"],
        given["k"],
        np.eye(3).reshape(-1),
        np.zeros(12),
        given["binning_x"],
        given["binning_x"],
        given["roi"],
    )


def contract(**info: Any) -> Contract:
    return camera_contract(size=[4, 6], camera_info={**EXPECTED, **info})


def fault(info: Any, **expected: Any) -> str:
    sampler = Sampler(contract(**expected))
    sampler.put("camera", rgb_image(noise(4, 6, 3)), 0)
    sampler.put("info", info, 0)
    sample = sampler.sample(0)
    assert bool(sample.faults) == (not sample.observations)
    return "; ".join(sample.faults)


def test_the_expected_camera_passes_from_bytes_and_objects() -> None:
    assert fault(camera_info()) == ""
    assert fault(cdr(camera_info())) == ""
    assert [topic for topic, _, _ in contract().topics()] == ["camera", "info"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"height": 8, "width": 12}, "images of 8 x 12 (height x width) as the camera info says"),
        ({"height": 6, "width": 4}, "found 4 x 6"),
        ({"height": 0, "width": 0}, "the driver fills in nothing"),
        ({"k": [0.0] * 9}, "the camera is not calibrated"),
        ({"k": [520.0, *K[1:]]}, "fx of 500 within 0.02 of 500, found 520"),
        ({"k": [*K[:4], 400.0, *K[5:]]}, "fy of 510"),
        ({"k": [*K[:2], 3.5, *K[3:]]}, "cx of 3 within 0.02 of 6, found 3.5"),
        ({"k": [*K[:5], np.nan, *K[6:]]}, "cy of 2"),
    ],
)
def test_another_camera_is_a_fault_in_words(fields: dict[str, Any], words: str) -> None:
    found = fault(camera_info(**fields))
    assert words in found
    assert found.startswith("observation.image (info): ")


def test_binning_and_region_are_reckoned_with() -> None:
    assert fault(camera_info(8, 12, binning=2), tolerance=1.0) == ""
    assert fault(camera_info(40, 60, roi=(4, 6)), tolerance=1.0) == ""
    assert "images of 8 x 12" in fault(camera_info(40, 60, roi=(8, 12)), tolerance=1.0)


def test_distortion_is_compared_where_asked_and_said() -> None:
    assert fault(camera_info(), distortion_model="plumb_bob") == ""
    assert "expected distortion model 'fisheye', found 'plumb_bob'" in fault(
        camera_info(), distortion_model="fisheye"
    )
    sampler = Sampler(contract())
    notices = sampler.put("info", camera_info(d=[0.1, 0, 0, 0, 0]), 0).notices
    assert notices == ("topic 'info': images are distorted (plumb_bob), not undone",)
    assert sampler.put("info", camera_info(d=[0.1, 0, 0, 0, 0]), 0).notices == ()


def test_it_may_come_once_and_survives_reset_and_age() -> None:
    sampler = Sampler(contract())
    sampler.put("camera", rgb_image(noise(4, 6, 3)), 0)
    assert sampler.sample(0).faults == ("observation.image (info): no camera info yet",)
    sampler.put("info", camera_info(), 0)
    sampler.clear()
    sampler.put("camera", rgb_image(noise(4, 6, 3)), 10_000 * MS)
    sample = sampler.sample(10_000 * MS, not_before_ns=9_000 * MS)
    assert not sample.faults
    assert [(stamp.topic, stamp.sequence) for stamp in sample.stamps] == [
        ("camera", 2),
        ("info", 1),
    ]
    sampler.put("info", camera_info(8, 12), 10_001 * MS)
    assert "8 x 12" in sampler.sample(10_001 * MS).faults[0], "a camera restarted in another mode"
    sampler.put("info", b"garbage", 10_002 * MS)
    assert "expected plain CDR" in sampler.sample(10_002 * MS).faults[0]


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"intrinsics": [1, 2, 3]}, r"intrinsics: expected \[fx, fy, cx, cy\]"),
        ({"intrinsics": [0, 2, 3, 4]}, r"intrinsics: expected \[fx, fy, cx, cy\]"),
        ({"tolerance": 2}, "tolerance: expected a finite number"),
        ({"distortion_model": 5}, "distortion_model: expected a text"),
        ({"topic": "a b"}, "camera_info.topic: expected a ROS topic name"),
        ({"topic": "camera"}, "expected sensor_msgs/msg/Image as"),
    ],
)
def test_wrong_files(info: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        contract(**info)
