"""Poses in other frames: transformed as of their moment into the contract's, or refused.

A pose taken for one of another frame sends an arm to the other side of its base; one that is
transformed by where a moving camera is now, rather than where it was, misses by that way. The
oracle multiplies 4x4 matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from contract_examples import MS, cdr, contract_dict, header, rosbags_class
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.contract import Contract, Sampler
from flashrt_ros.contract.frames import INPUTS, LATE_NS, Frames
from flashrt_ros.contract.message import Message
from flashrt_ros.contract.pose import from_vector, to_matrix
from flashrt_ros.errors import ContractError

Values = npt.NDArray[np.float64]
MOVING, STATIC = INPUTS
POSE = "geometry_msgs/msg/PoseStamped"
S = 1_000_000_000
NAMES = ["x", "y", "z", "qx", "qy", "qz", "qw"]


def pose(*numbers: float) -> Values:
    """Position, and rotation vector."""
    return np.concatenate([numbers[:3], from_vector(np.array(numbers[3:], dtype=np.float64))])


def matrix(values: Values) -> Values:
    found = np.eye(4)
    found[:3, :3], found[:3, 3] = to_matrix(values[3:]), values[:3]
    return found


def transforms(*links: tuple[str, str, int, Values]) -> Any:
    """A TFMessage of (parent, child, stamp, pose of the child in the parent)."""
    found = []
    for parent, child, stamp_ns, values in links:
        moved = rosbags_class("geometry_msgs/msg/Vector3")(*values[:3])
        turned = rosbags_class("geometry_msgs/msg/Quaternion")(*values[3:])
        inner = rosbags_class("geometry_msgs/msg/Transform")(moved, turned)
        stamped = rosbags_class("geometry_msgs/msg/TransformStamped")
        found.append(stamped(header(stamp_ns, parent), child, inner))
    return rosbags_class("tf2_msgs/msg/TFMessage")(found)


def tree(*links: tuple[str, str, int, Values], static: bool = False) -> Frames:
    frames = Frames()
    frames.take(transforms(*links), Message(0), STATIC if static else MOVING)
    return frames


NUMBERS = st.tuples(*[st.floats(-2.0, 2.0)] * 6).map(lambda six: pose(*six))


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_any_two_frames_of_a_tree_are_related_as_their_matrices(
    a: Values, b: Values, c: Values, d: Values
) -> None:
    frames = tree(
        ("world", "base", 0, a),
        ("base", "arm", 0, b),
        ("world", "stand", 0, c),
        ("stand", "camera", 0, d),
        static=True,
    )
    arm, camera = matrix(a) @ matrix(b), matrix(c) @ matrix(d)
    for target, source, wanted in (
        ("arm", "camera", np.linalg.inv(arm) @ camera),
        ("camera", "arm", np.linalg.inv(camera) @ arm),
        ("base", "arm", matrix(b)),
        ("/arm", "base", np.linalg.inv(matrix(b))),
        ("stand", "stand", np.eye(4)),
    ):
        found, _ = frames.lookup(target, source, 5)
        assert np.allclose(matrix(found), wanted, atol=1e-9)


def test_between_two_stamps_it_is_on_the_way_and_names_both_messages() -> None:
    frames = Frames()
    first, second = Message(0, sequence=1), Message(0, sequence=2)
    end = pose(1, 0, 0, 0, 0, 1.0)
    frames.take(transforms(("base", "hand", S + 400 * MS, end)), second, MOVING)
    frames.take(transforms(("base", "hand", S, pose(0, 0, 0, 0, 0, 0))), first, MOVING)
    found, used = frames.lookup("base", "hand", S + 100 * MS)
    assert np.allclose(found, pose(0.25, 0, 0, 0, 0, 0.25))
    assert [message.sequence for _, message in used] == [1, 2]
    exact, used = frames.lookup("base", "hand", S)
    assert np.allclose(exact, pose(0, 0, 0, 0, 0, 0))
    assert [message.sequence for _, message in used] == [1]


def test_a_moment_that_no_transform_is_near_to_is_refused_in_words() -> None:
    frames = tree(("base", "hand", S, pose(0, 0, 0, 0, 0, 0)))
    frames.lookup("base", "hand", S + LATE_NS)
    for stamp_ns, words in (
        (S + LATE_NS + MS, "at most 200 ms older than the pose, found the newest 201 ms older"),
        (S - 3 * MS, "as old as the pose, found the oldest 3 ms newer"),
        (0, "it moves, and the pose has no header stamp"),
    ):
        with pytest.raises(ContractError, match=words):
            frames.lookup("base", "hand", stamp_ns)
    with pytest.raises(ContractError, match=r"from 'x' to 'base' .* \(frames known: base, hand\)"):
        frames.lookup("base", "x", S)


def test_between_two_that_are_both_far_away_nobody_knows_where_it_was() -> None:
    """Of a publisher that had died, or whose last stamp before it did was in the future."""
    still, moved = pose(0, 0, 0, 0, 0, 0), pose(1, 0, 0, 0, 0, 0)
    frames = tree(("base", "hand", S, still), ("base", "hand", 6 * S, moved))
    frames.lookup("base", "hand", S + LATE_NS)
    frames.lookup("base", "hand", 6 * S - LATE_NS)
    words = "at most 200 ms from the pose, found none between 300 ms older and 4700 ms newer"
    with pytest.raises(ContractError, match=words):
        frames.lookup("base", "hand", S + 300 * MS)


def test_one_stamp_from_the_future_does_not_shut_out_those_that_follow() -> None:
    frames = tree(("base", "hand", 3600 * S, pose(9, 0, 0, 0, 0, 0)))
    for k in range(3):
        link = ("base", "hand", S + k * 100 * MS, pose(k, 0, 0, 0, 0, 0))
        frames.take(transforms(link), Message(0), MOVING)
    assert frames.lookup("base", "hand", S + 150 * MS)[0][0] == 1.5
    with pytest.raises(ContractError, match="the newest 800 ms older"):
        frames.lookup("base", "hand", 2 * S)


def test_a_static_transform_that_becomes_none_is_not_used_as_it_was() -> None:
    frames = tree(("base", "eye", 0, pose(0, 0, 1, 0, 0, 0)), static=True)
    frames.take(transforms(("base", "eye", 0, np.full(7, np.nan))), Message(0), STATIC)
    with pytest.raises(ContractError, match="expected a finite translation and a unit"):
        frames.lookup("base", "eye", S)


def test_what_is_no_transform_is_not_taken_and_said_where_it_is_missed() -> None:
    bad = pose(0, 0, 0, 0, 0, 0)
    bad[6] = 0.0
    for values in (bad, np.full(7, np.nan)):
        with pytest.raises(ContractError, match="expected a finite translation and a unit"):
            tree(("base", "hand", S, values)).lookup("base", "hand", S)
    ring = tree(("a", "b", 0, pose(0, 0, 0, 0, 0, 0)), ("b", "a", 0, pose(0, 0, 0, 0, 0, 0)))
    with pytest.raises(ContractError, match="none that lead there"):
        ring.lookup("base", "a", S)


def test_moving_transforms_are_kept_for_ten_seconds_and_forgotten_by_clear() -> None:
    frames = Frames()
    for k in range(2000):
        link = ("base", "hand", S + k * 10 * MS, pose(k, 0, 0, 0, 0, 0))
        frames.take(transforms(link), Message(0), MOVING)
    frames.take(transforms(("base", "eye", 0, pose(0, 0, 1, 0, 0, 0))), Message(0), STATIC)
    assert frames.lookup("base", "hand", 12 * S)[0][0] == 1100
    with pytest.raises(ContractError, match="the oldest"):
        frames.lookup("base", "hand", 10 * S)
    frames.clear()
    with pytest.raises(ContractError, match="none that lead there"):
        frames.lookup("base", "hand", 12 * S)
    assert frames.lookup("base", "eye", 12 * S)[0][2] == 1


# From contract to observation


def part(**changes: Any) -> dict[str, Any]:
    found = {"topic": "tool", "type": POSE, "field": "pose", "names": NAMES}
    return {**found, "frame_id": "base", "transform": True, **changes}


def sampler(**changes: Any) -> Sampler:
    observation = {"key": "o", "max_age_ms": 100, "parts": [part(**changes)]}
    fields = contract_dict(observations=[observation], start="unchecked")
    return Sampler(Contract.from_dict(fields))


def tool(values: Values, frame: str, stamp_ns: int) -> bytes:
    point = rosbags_class("geometry_msgs/msg/Point")(*values[:3])
    turned = rosbags_class("geometry_msgs/msg/Quaternion")(*values[3:])
    inner = rosbags_class("geometry_msgs/msg/Pose")(point, turned)
    return cdr(rosbags_class(POSE)(header(stamp_ns, frame), inner))


def test_a_pose_is_sampled_in_the_frame_of_the_contract_with_the_messages_behind_it() -> None:
    camera, seen = pose(0.5, 0, 1, 0, 0.3, 0), pose(0.1, 0.2, 0.3, 0.4, 0, 0)
    inputs = sampler()
    assert [topic for topic, *_ in inputs.contract.topics()] == ["tool", "/tf", "/tf_static"]
    assert inputs.contract.needed_topics() == {"tool"}
    inputs.put("tool", tool(seen, "camera", S), 10 * MS)
    (fault,) = inputs.sample(20 * MS).faults
    assert fault.startswith("o (tool): expected transforms from 'camera' to 'base'")
    # The transform may come after the pose.
    inputs.put("/tf_static", cdr(transforms(("base", "camera", 0, camera))), 15 * MS, digest=7)
    sample = inputs.sample(20 * MS)
    assert not sample.faults
    assert not sample.notices, "transforms have stamps of their own"
    found = np.asarray(sample.observations["o"], dtype=np.float64)
    assert np.allclose(matrix(found), matrix(camera) @ matrix(seen), atol=1e-6)
    stamps = {stamp.topic: stamp for stamp in sample.stamps}
    assert stamps["/tf_static"].digest == 7
    assert sample.age_ms(20 * MS, {"o"}) == 10.0, "how old a lasting transform is says nothing"


@pytest.mark.parametrize(
    ("field", "names", "picked"),
    [
        ("position", ["z", "x"], [2, 0]),
        ("orientation", ["w", "x", "y", "z"], [6, 3, 4, 5]),
        ("pose", ["y"], [1]),
    ],
)
def test_parts_of_a_pose_are_those_of_the_whole(
    field: str, names: list[str], picked: list[int]
) -> None:
    results = []
    for each, labels in ((field, names), ("pose", NAMES)):
        inputs = sampler(field=each, names=labels)
        camera = pose(0.5, 0, 1, 0.1, 0.3, 0)
        inputs.put("/tf_static", transforms(("base", "camera", 0, camera)), 0)
        inputs.put("tool", tool(pose(0.1, 0.2, 0.3, 0.4, 0, 0), "camera", S), 10 * MS)
        results.append(inputs.sample(20 * MS).observations["o"])
    assert np.allclose(results[0], results[1][picked], atol=1e-6)


def test_a_pose_that_is_in_the_frame_needs_no_transforms() -> None:
    inputs = sampler()
    seen = pose(0.1, 0.2, 0.3, 0.4, 0, 0)
    inputs.put("tool", tool(seen, "base", 0), 10 * MS)
    assert np.allclose(inputs.sample(20 * MS).observations["o"], seen, atol=1e-6)


def test_control_of_the_above_without_transform_another_frame_is_refused() -> None:
    inputs = sampler(transform=False)
    inputs.put("tool", tool(pose(0, 0, 0, 0, 0, 0), "camera", S), 10 * MS)
    (fault,) = inputs.sample(20 * MS).faults
    assert "expected frame_id 'base', found 'camera'" in fault


def test_a_rotation_that_is_none_is_a_fault() -> None:
    inputs = sampler()
    inputs.put("tool", tool(np.zeros(7), "base", 0), 10 * MS)
    (fault,) = inputs.sample(20 * MS).faults
    assert "expected a quaternion of length 1" in fault


def test_a_measured_pose_without_a_transform_is_not_known() -> None:
    fields = contract_dict()
    fields["observations"] = fields["observations"][:1]
    fields["actions"][0] = {
        "topic": "c",
        "type": POSE,
        "field": "pose",
        "rotation": "quaternion",
        "names": NAMES,
        "frame_id": "base",
    }
    fields["start"] = {
        "measured": part(),
        "max_distance": {"x": 1, "y": 1, "z": 1, "rotation": 1},
    }
    inputs = Sampler(Contract.from_dict(fields))
    inputs.put("tool", tool(pose(0, 0, 0, 0, 0, 0), "camera", S), 10 * MS)
    sample = inputs.sample(20 * MS)
    assert sample.measured is None
    assert "expected transforms from 'camera'" in sample.measured_fault
    inputs.put("/tf_static", transforms(("base", "camera", 0, pose(1, 2, 3, 0, 0, 0))), 15 * MS)
    measured = inputs.sample(20 * MS).measured
    assert measured is not None
    assert measured[:3].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"frame_id": ""}, "frame_id: expected the frame to transform to"),
        ({"type": "geometry_msgs/msg/TwistStamped", "field": "twist"}, "transform: expected this"),
        ({"transform": "yes"}, "transform: expected true or false"),
    ],
)
def test_wrong_entries_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        sampler(**changes)
