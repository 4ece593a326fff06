"""Messages to vectors: by name, bit-equal from bytes and objects, and damage always named.

The live node and the bag reader share this code, so what holds here holds for both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract_examples import JOINT_STATE, cdr, header, joint_state, point, rosbags_class
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flashrt_ros.contract.cdr import MAX_TRAILING_BYTES
from flashrt_ros.contract.conversions import PartReader, decode
from flashrt_ros.contract.input_types import INPUT_TYPES
from flashrt_ros.contract.schema import Part
from flashrt_ros.errors import ContractError

NAMES = ("a", "b", "c")
POSITION = Part("joint_states", JOINT_STATE, "position", NAMES)


def float64_multi_array(data: list[float], offset: int = 0) -> Any:
    dimension = rosbags_class("std_msgs/msg/MultiArrayDimension")("row", len(data), len(data))
    layout = rosbags_class("std_msgs/msg/MultiArrayLayout")([dimension], offset)
    return rosbags_class("std_msgs/msg/Float64MultiArray")(layout, np.array(data))


def pose() -> Any:
    inner = rosbags_class("geometry_msgs/msg/Pose")(
        rosbags_class("geometry_msgs/msg/Point")(1.0, 2.0, 3.0),
        rosbags_class("geometry_msgs/msg/Quaternion")(0.1, 0.2, 0.3, 0.9),
    )
    return rosbags_class("geometry_msgs/msg/PoseStamped")(header(7), inner)


EXAMPLES = [
    (POSITION, joint_state(["c", "x", "a", "b"], [3, 9, 1, 2]), [1, 2, 3]),
    (
        Part("j", JOINT_STATE, "effort", ("b",)),
        joint_state(["a", "b"], [1, 2], effort=[5, 6]),
        [6],
    ),
    (
        Part("f", "std_msgs/msg/Float64MultiArray", "data", ("u", "v")),
        float64_multi_array([4.0, 5.0]),
        [4, 5],
    ),
    (
        Part("f", "std_msgs/msg/Float64MultiArray", "data", ("v",), positional=("u", "v")),
        float64_multi_array([4.0, 5.0]),
        [5],
    ),
    (Part("p", "geometry_msgs/msg/PointStamped", "point", ("z", "x")), point(1, 2, 3), [3, 1]),
    (Part("p", "geometry_msgs/msg/PoseStamped", "position", ("y",)), pose(), [2]),
    (
        Part("p", "geometry_msgs/msg/PoseStamped", "orientation", ("w", "x", "y", "z")),
        pose(),
        [0.9, 0.1, 0.2, 0.3],
    ),
    (Part("p", "geometry_msgs/msg/PoseStamped", "pose", ("x", "qw")), pose(), [1, 0.9]),
]


@pytest.mark.parametrize(("part", "message", "wanted"), EXAMPLES)
def test_bytes_of_both_endians_and_objects_give_the_same_bits(
    part: Part, message: Any, wanted: list[float]
) -> None:
    expected = np.array(wanted, dtype=np.float32)
    for source in (message, cdr(message), cdr(message, little_endian=False)):
        decoded = decode(part.type, source)
        vector = decoded.vector(part)
        assert vector.dtype == np.float32
        assert vector.tobytes() == expected.tobytes()
        assert decoded.trailing_bytes == 0


def test_every_field_of_every_type_is_tried_above() -> None:
    tried = {(part.type, part.field) for part, _, _ in EXAMPLES}
    known = {(name, field) for name, kind in INPUT_TYPES.items() for field in kind}
    elsewhere = {(name, field) for name, field in known if name == "sensor_msgs/msg/Imu"}
    assert known - tried - elsewhere <= {(JOINT_STATE, "velocity")}


@given(st.permutations(["a", "b", "c", "d", "e"]))
def test_the_order_in_the_message_does_not_matter(order: list[str]) -> None:
    values = {"a": 1.5, "b": -2.5, "c": 3.25, "d": np.nan, "e": 0.0}
    message = joint_state(order, [values[name] for name in order])
    assert decode(JOINT_STATE, cdr(message)).vector(POSITION).tolist() == [1.5, -2.5, 3.25]
    # The control: by position another order gives another vector.
    by_position = message.position[:3].tolist()
    assert (by_position == [1.5, -2.5, 3.25]) == (order[:3] == ["a", "b", "c"])


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (joint_state(["a", "c"], [1, 2]), r"topic 'joint_states'.*expected \['b'\], found only"),
        (joint_state(["a", "b", "c"], [1, 2]), r"expected 3 values in `position`.*found 2"),
        (joint_state(["a", "b", "c"], []), r"expected 3 values in `position`.*found 0"),
        (joint_state([], [1, 2, 3]), "found an empty `name` list.*`positional`"),
        (joint_state(["a", "b", "c", "a"], [1, 2, 3, 4]), r"found \['a'\] more than once"),
    ],
)
def test_a_joint_state_that_does_not_fit(message: Any, words: str) -> None:
    with pytest.raises(ContractError, match=words):
        decode(JOINT_STATE, cdr(message)).vector(POSITION)


def test_empty_names_go_by_the_declared_positions_only() -> None:
    part = Part("j", JOINT_STATE, "position", ("b", "a"), positional=("a", "b", "c"))
    assert decode(JOINT_STATE, joint_state([], [1, 2, 3])).vector(part).tolist() == [2, 1]
    # Names in the message win over positions.
    assert decode(JOINT_STATE, joint_state(["b", "a"], [1, 2])).vector(part).tolist() == [1, 2]
    with pytest.raises(ContractError, match=r"expected 3 values .*'a', 'b', 'c'.*found 2"):
        decode(JOINT_STATE, joint_state([], [1, 2])).vector(part)


def test_arrays_of_another_length_or_with_padding() -> None:
    part = Part("f", "std_msgs/msg/Float64MultiArray", "data", ("u", "v"))
    with pytest.raises(ContractError, match=r"expected 2 values in `data`.*found 3"):
        decode(part.type, float64_multi_array([1.0, 2.0, 3.0])).vector(part)
    with pytest.raises(ContractError, match=r"topic 'f'.*data_offset 0, found 1"):
        decode(part.type, float64_multi_array([1.0, 2.0], offset=1)).vector(part)


def test_trailing_bytes_are_counted_up_to_a_bound() -> None:
    raw = cdr(joint_state(["a", "b", "c"], [1, 2, 3]))
    for count in range(MAX_TRAILING_BYTES + 1):
        decoded = decode(JOINT_STATE, raw + b"\xaa" * count)
        assert decoded.trailing_bytes == count
        assert decoded.vector(POSITION).tolist() == [1, 2, 3]
    with pytest.raises(
        ContractError, match=rf"expected {len(raw)} bytes .* found {len(raw) + 16}"
    ):
        decode(JOINT_STATE, raw + bytes(16))


def test_every_truncation_is_refused_with_type_and_size() -> None:
    raw = cdr(joint_state(["a", "b", "c"], [1, 2, 3]))
    for size in range(len(raw)):
        with pytest.raises(ContractError, match=rf"{JOINT_STATE}: .*{size}|nothing"):
            decode(JOINT_STATE, raw[:size])


def test_foreign_encapsulations_and_types() -> None:
    raw = cdr(joint_state(["a"], [1]))
    with pytest.raises(ContractError, match=r"expected plain CDR.*found 00 03 00 00"):
        decode(JOINT_STATE, b"\x00\x03" + raw[2:])
    with pytest.raises(ContractError, match=r"message type 'sensor_msgs/msg/JointStat'.*did you"):
        decode("sensor_msgs/msg/JointStat", raw)
    with pytest.raises(ContractError, match=r"std_msgs/msg/String: expected"):
        decode("std_msgs/msg/String", raw)
    with pytest.raises(ContractError, match=r"expected a message of type sensor_msgs.*found geom"):
        decode(JOINT_STATE, point(1, 2))
    with pytest.raises(ContractError, match="found dict"):
        decode(JOINT_STATE, {"name": []})


def test_stamps() -> None:
    assert (
        decode(JOINT_STATE, joint_state(["a"], stamp_ns=3_000_000_004)).stamp_ns == 3_000_000_004
    )
    assert decode("std_msgs/msg/Float64MultiArray", float64_multi_array([1.0])).stamp_ns == 0


RAW = cdr(joint_state(["a", "b", "c"], [1, 2, 3]))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(INPUT_TYPES)),
    st.sampled_from([b"", b"\x00\x01\x00\x00", b"\x00\x00\x00\x00"]),
    st.binary(max_size=120),
)
@example(JOINT_STATE, b"\x00\x01\x00\x00", b"\xff" * 64)
def test_random_bytes_are_a_message_or_refused(name: str, head: bytes, body: bytes) -> None:
    field = next(iter(INPUT_TYPES[name]))
    labels = INPUT_TYPES[name][field].labels or ("a",)
    try:
        vector = decode(name, head + body).vector(Part("t", name, field, labels))
    except ContractError:
        return
    assert vector.shape == (len(labels),)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(RAW) - 1), st.integers(0, 255)), max_size=4))
def test_flipped_bytes_are_a_message_or_refused(changes: list[tuple[int, int]]) -> None:
    raw = bytearray(RAW)
    for position, value in changes:
        raw[position] = value
    try:
        vector = decode(JOINT_STATE, raw).vector(POSITION)
    except ContractError:
        return
    assert vector.shape == (3,)


def test_positions_of_names_are_worked_out_once_for_each_order() -> None:
    reader = PartReader(POSITION)
    for _ in range(5):
        for order in (["a", "b", "c"], ["c", "b", "a"]):
            reader(decode(JOINT_STATE, joint_state(order, [1, 2, 3])))
    assert len(reader._orders) == 2
    for number in range(2 * PartReader.MAX_ORDERS):
        reader(decode(JOINT_STATE, joint_state(["a", "b", "c", f"x{number}"], [1, 2, 3, 4])))
    assert len(reader._orders) == PartReader.MAX_ORDERS


def test_too_large_for_float32_becomes_infinite_without_a_warning() -> None:
    vector = decode(JOINT_STATE, joint_state(["a", "b", "c"], [1e300, 0, 0])).vector(POSITION)
    assert np.isinf(vector[0])
