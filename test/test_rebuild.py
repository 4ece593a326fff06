"""Observations made again from the messages that a sample names equal the sample's, to the bit.

A reproduction that read messages otherwise than the robot did would find differences where there
are none, or none where there are some.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xxhash
from contract_examples import (
    JOINT_STATE,
    JOINTS,
    MS,
    cdr,
    contract_dict,
    header,
    joint_state,
    point,
    rosbags_class,
)
from image_messages import noise, rgb_image
from test_frames import NAMES, POSE, pose, transforms

from flashrt_ros.contract import Contract, Sample, Sampler
from flashrt_ros.contract.rebuild import Key, Rebuilder, array_digest
from flashrt_ros.contract.sampler import Prepared
from flashrt_ros.errors import ContractError


class Bag:
    """Messages as a recorder has them, and a sampler that has received them."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.sampler = Sampler(contract)
        self.messages: dict[Key, bytes] = {}

    def hear(self, topic: str, message: Any, received_ms: float) -> None:
        raw = cdr(message)
        digest = xxhash.xxh3_64_intdigest(raw)
        self.messages["/ns/" + topic, digest] = raw
        self.sampler.put(topic, raw, round(received_ms * MS), digest)

    def again(self, sample: Sample, contract: Contract | None = None) -> dict[str, Any]:
        rebuilder = Rebuilder(contract or self.contract)
        stamps = [replace(stamp, topic="/ns/" + stamp.topic) for stamp in sample.stamps]
        prepared: dict[Key, Prepared] = {
            key: rebuilder.prepare(topic, self.messages[key])
            for key, topic in rebuilder.needed(stamps).items()
        }
        return rebuilder.observations(stamps, prepared)


def same(sample: Sample, found: dict[str, Any]) -> bool:
    assert sample.observations.keys() == found.keys()
    return array_digest(sample.observations) == array_digest(found)


def arm(number: int) -> Any:
    return joint_state(
        ["b", "a"], [0.1 * number, 1.0], [2.0, 0.3 * number], stamp_ns=(1 + number) * 20 * MS
    )


def test_vectors_present_and_absent() -> None:
    bag = Bag(Contract.from_dict(contract_dict()))
    bag.hear("joint_states", arm(1), 0)
    bag.hear("cue", point(0.25, 0.5), 1)
    bag.hear("joint_states", arm(2), 20)
    both, alone = bag.sampler.sample(21 * MS), bag.sampler.sample(90 * MS)
    for sample in (both, alone):
        assert not sample.faults
        assert same(sample, bag.again(sample))
    assert alone.observations["observation.cue"].tolist() == [-1.0, -1.0, 0.0]
    assert not same(both, bag.again(alone)), "control"


@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize("before", ["repeat", "wait"])
def test_histories(stamped: bool, before: str) -> None:
    history = {"steps": 3, "period_ms": 40, "before": before}
    observation = {
        "key": "o",
        "max_age_ms": 150,
        "parts": [
            {**JOINTS, "names": ["a", "b"]},
            {**JOINTS, "field": "velocity", "names": ["b"]},
        ],
        "history": history,
    }
    contract = Contract.from_dict(contract_dict(observations=[observation], start="unchecked"))
    bag = Bag(contract)
    compared = 0
    for number in range(9):
        message = arm(number)
        if not stamped:
            message.header.stamp.sec = message.header.stamp.nanosec = 0
        bag.hear("joint_states", message, 20 * number)
        sample = bag.sampler.sample((20 * number + 3) * MS)
        if sample.faults:
            assert before == "wait"
            continue
        assert len(sample.stamps) == 3
        assert same(sample, bag.again(sample))
        compared += 1
    assert compared == (9 if before == "repeat" else 5)


def test_images_of_several_moments_beside_a_vector_of_two_topics() -> None:
    camera = {
        "key": "image",
        "max_age_ms": 200,
        "history": {"steps": 2, "period_ms": 50, "before": "repeat"},
        "image": {
            "topic": "camera",
            "type": "sensor_msgs/msg/Image",
            "encoding": ["rgb8"],
            "steps": [{"resize": [6, 8]}],
        },
    }
    vector = {
        "key": "o",
        "max_age_ms": 200,
        "parts": [
            {**JOINTS, "names": ["a"]},
            {"topic": "other", "type": JOINT_STATE, "field": "position", "names": ["b"]},
        ],
    }
    fields = contract_dict(observations=[camera, vector], start="unchecked")
    bag = Bag(Contract.from_dict(fields))
    for number in range(4):
        picture = rgb_image(noise(12, 16, 3, seed=number))
        picture.header.stamp.nanosec = (1 + number) * 50 * MS
        bag.hear("camera", picture, 50 * number)
        bag.hear("joint_states", arm(number), 50 * number)
        bag.hear("other", arm(number + 1), 50 * number + 10)
    sample = bag.sampler.sample(170 * MS)
    assert not sample.faults
    assert sample.observations["image"].shape == (2, 3, 6, 8)
    assert same(sample, bag.again(sample))


def test_poses_in_another_frame() -> None:
    """With the transforms that were used then, whatever /tf has said since."""
    part = {"topic": "seen", "type": POSE, "field": "pose", "names": NAMES}
    part |= {"frame_id": "base", "transform": True}
    observation = {"key": "o", "max_age_ms": 500, "parts": [part]}
    fields = contract_dict(observations=[observation], start="unchecked")
    bag = Bag(Contract.from_dict(fields))
    mount = ("base", "mount", 0, pose(0.1, 0.2, 0.3, 0.0, 0.0, 0.4))
    bag.hear("/tf_static", transforms(mount), 0)
    samples = []
    for number in range(1, 5):
        turned = ("mount", "camera", number * 40 * MS, pose(0.1 * number, 0, 0, 0.1, 0, 0))
        bag.hear("/tf", transforms(turned), 10 * number)
        message = rosbags_class(POSE)(
            header((number * 40 - 15) * MS, "camera"), pose_message(0.5, 0.1 * number)
        )
        bag.hear("seen", message, 10 * number + 1)
        if number > 1:
            samples.append(bag.sampler.sample((10 * number + 2) * MS))
    assert [len(sample.stamps) for sample in samples] == [4, 4, 4], "two of /tf around the pose"
    for sample in samples:
        assert not sample.faults
        assert same(sample, bag.again(sample))
    assert not same(samples[0], bag.again(samples[1])), "control"


def pose_message(*position: float) -> Any:
    types = ("geometry_msgs/msg/Point", "geometry_msgs/msg/Quaternion", "geometry_msgs/msg/Pose")
    point_, rotation, whole = map(rosbags_class, types)
    return whole(point_(*position, 0.0), rotation(0.0, 0.0, 0.0, 1.0))


def test_another_contract_is_said() -> None:
    bag = Bag(Contract.from_dict(contract_dict()))
    bag.hear("joint_states", arm(1), 0)
    sample = bag.sampler.sample(1 * MS)
    fields = contract_dict()
    fields["observations"][0]["parts"][0]["names"] = ["c", "a"]
    with pytest.raises(ContractError, match=r"observation.state \(joint_states\): .*'c'"):
        bag.again(sample, Contract.from_dict(fields))
    fields = contract_dict()
    fields["observations"][0]["key"] = "observation.arm"
    with pytest.raises(ContractError, match=r"observation.arm: expected a record of what it was"):
        bag.again(sample, Contract.from_dict(fields))


def test_one_byte_makes_another_observation() -> None:
    """The control of all above."""
    bag = Bag(Contract.from_dict(contract_dict()))
    bag.hear("joint_states", arm(1), 0)
    sample = bag.sampler.sample(1 * MS)
    ((key, raw),) = bag.messages.items()
    place = raw.index(np.float64(0.1).tobytes())
    other = bytes([raw[place + 5] ^ 1])
    bag.messages[key] = raw[: place + 5] + other + raw[place + 6 :]
    assert not same(sample, bag.again(sample))
