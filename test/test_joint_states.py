"""Pins that joint states read as the last one was are what decoding them in full gives.

A shortcut that took a number from another joint's place would move a robot there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract_examples import cdr, joint_state
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.contract import cdr as module
from flashrt_ros.contract.cdr import deserialize, typestore
from flashrt_ros.contract.joint_states import JOINT_STATE, MAX_LENGTHS, MAX_SHAPES, JointStates
from flashrt_ros.errors import ContractError

NAMES = st.lists(st.text("abc_é", max_size=9), max_size=5)
NUMBERS = st.lists(st.floats(width=64), max_size=5)


def fresh() -> JointStates:
    return JointStates(typestore().types)


def in_full(raw: bytes) -> tuple[Any, int]:
    """Without what was learned from others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_joint_states", fresh)
        return deserialize(JOINT_STATE, raw)


def same(one: Any, other: Any) -> bool:
    return (
        one.header == other.header
        and list(one.name) == list(other.name)
        and all(
            getattr(one, f).tobytes() == getattr(other, f).tobytes()
            and getattr(one, f).dtype == getattr(other, f).dtype
            for f in ("position", "velocity", "effort")
        )
    )


@settings(max_examples=200, deadline=None)
@given(
    names=NAMES,
    numbers=st.tuples(NUMBERS, NUMBERS, NUMBERS),
    frame=st.text("xy", max_size=6),
    stamp_ns=st.integers(0, 2**31 * 10**9 - 1),
    trailing=st.integers(0, 15),
)
def test_a_message_of_a_known_shape_is_read_as_in_full(
    names: list[str],
    numbers: tuple[list[float], list[float], list[float]],
    frame: str,
    stamp_ns: int,
    trailing: int,
) -> None:
    first = joint_state(names, *[np.zeros(len(values)) for values in numbers])
    second = joint_state(names, *numbers, stamp_ns=stamp_ns)
    first.header.frame_id = second.header.frame_id = frame
    shapes = fresh()
    raw = cdr(first) + b"\0" * trailing
    shapes.learn(raw, *in_full(raw))
    raw = cdr(second) + b"\1" * trailing
    read = shapes.read(raw)
    assert read is not None
    assert read[1] == trailing
    assert same(read[0], in_full(raw)[0])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_byte_can_be_changed_so_that_it_reads_something_else(data: st.DataObject) -> None:
    """A changed byte changes a number or the stamp, or the message is decoded in full."""
    raw = cdr(joint_state(["a", "bc"], (1.0, 2.0), (3.0,), ()))
    shapes = fresh()
    shapes.learn(raw, *in_full(raw))
    place = data.draw(st.integers(0, len(raw) - 1))
    changed = raw[:place] + bytes([data.draw(st.integers(0, 255))]) + raw[place + 1 :]
    read = shapes.read(changed)
    try:
        full = in_full(changed)
    except ContractError:
        assert read is None
        return
    if read is not None:
        assert read[1] == full[1]
        assert same(read[0], full[0])


def test_names_in_another_order_are_another_shape() -> None:
    shapes = fresh()
    raw = cdr(joint_state(["a", "b"], (1.0, 2.0)))
    shapes.learn(raw, *in_full(raw))
    other = cdr(joint_state(["b", "a"], (1.0, 2.0)))
    assert len(other) == len(raw)
    assert shapes.read(other) is None
    shapes.learn(other, *in_full(other))
    for bytes_, names in ((raw, ["a", "b"]), (other, ["b", "a"])):
        read = shapes.read(bytes_)
        assert read is not None
        assert read[0].name == names
        read[0].name.append("mine")
        again = shapes.read(bytes_)
        assert again is not None
        assert again[0].name == names, "each message has names of its own"


def test_publishers_that_vary_take_no_memory() -> None:
    shapes = fresh()
    for number in range(3 * MAX_SHAPES):
        raw = cdr(joint_state([f"joint{number:04}"], (1.0,)))
        shapes.learn(raw, *in_full(raw))
    for length in range(3 * MAX_LENGTHS):
        raw = cdr(joint_state(["j" * length], (1.0,)))
        shapes.learn(raw, *in_full(raw))
    known = shapes._shapes
    assert len(known) <= MAX_LENGTHS
    assert max(map(len, known.values())) == MAX_SHAPES


def test_big_endian_messages_are_decoded_in_full() -> None:
    raw = cdr(joint_state(["a"], (1.0,)), little_endian=False)
    shapes = fresh()
    shapes.learn(raw, *in_full(raw))
    assert shapes.read(raw) is None
    assert deserialize(JOINT_STATE, raw)[0].position.tolist() == [1.0]
