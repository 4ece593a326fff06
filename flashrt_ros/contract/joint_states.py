"""Joint states of one publisher, read as the last one was: names and lengths rarely change.

A robot sends the same names hundreds of times a second, and decoding them anew is most of what a
message costs. The bytes that decide where everything lies are compared with those of a message
that was decoded in full; where they are equal, only stamp and numbers are taken.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

JOINT_STATE = "sensor_msgs/msg/JointState"
HEAD = 4
"""Bytes of the encapsulation, which are not counted for alignment."""
LITTLE = b"\x00\x01"
MAX_SHAPES = 4
"""Of one length; publishers beyond that are decoded in full each time."""
MAX_LENGTHS = 64

_STAMP = struct.Struct("<iI")
_COUNT = struct.Struct("<I")
_DOUBLE = np.dtype("<f8")


@dataclass(frozen=True)
class Shape:
    """Where things lie in messages of one publisher.

    Attributes:
        fixed: From the frame id to the count of positions, these bytes.
        counts: Place and bytes of the other two counts.
        arrays: Elements and place of positions, velocities and efforts.
        end: Behind the last byte of the message.
        frame_id: Of the header.
        names: Of the joints.
    """

    fixed: bytes
    counts: tuple[tuple[int, bytes], tuple[int, bytes]]
    arrays: tuple[tuple[int, int], ...]
    end: int
    frame_id: str
    names: tuple[str, ...]


class JointStates:
    """Reads serialized joint states that look like one that ``learn`` was shown."""

    def __init__(self, types: Any) -> None:
        """Knows no message yet.

        Args:
            types: Message classes by type name.
        """
        self._message = types[JOINT_STATE]
        self._header = types["std_msgs/msg/Header"]
        self._time = types["builtin_interfaces/msg/Time"]
        self._shapes: dict[int, list[Shape]] = {}

    def read(self, raw: bytes) -> tuple[Any, int] | None:
        """The message and the number of bytes behind its end; None: decode it in full."""
        for shape in self._shapes.get(len(raw), ()):
            if (
                raw.startswith(shape.fixed, HEAD + _STAMP.size)
                and raw[:2] == LITTLE
                and all(raw.startswith(count, place) for place, count in shape.counts)
            ):
                stamp = self._time(*_STAMP.unpack_from(raw, HEAD))
                numbers = [np.frombuffer(raw, _DOUBLE, n, place) for n, place in shape.arrays]
                message = self._message(
                    self._header(stamp, shape.frame_id), list(shape.names), *numbers
                )
                return message, len(raw) - shape.end
        return None

    def learn(self, raw: bytes, message: Any, trailing: int) -> None:
        """Takes note of how a message that was decoded in full is laid out."""
        known = self._shapes.get(len(raw), [])
        if raw[:2] != LITTLE or len(known) >= MAX_SHAPES:
            return
        if not known and len(self._shapes) >= MAX_LENGTHS:
            return
        place = _after_text(raw, HEAD + _STAMP.size)
        place = _aligned(place, 4) + _COUNT.size
        for _ in message.name:
            place = _after_text(raw, _aligned(place, 4))
        place = _aligned(place, 4)
        first = place + _COUNT.size
        arrays, counts = [], []
        for values in (message.position, message.velocity, message.effort):
            counts.append((place, raw[place : place + _COUNT.size]))
            begin = place + _COUNT.size
            begin = _aligned(begin, 8) if len(values) else begin
            arrays.append((len(values), begin))
            place = begin + len(values) * _DOUBLE.itemsize
        if place != len(raw) - trailing:
            return  # laid out in a way that is not known here
        fixed = raw[HEAD + _STAMP.size : first]
        shape = Shape(
            fixed,
            (counts[1], counts[2]),
            tuple(arrays),
            place,
            message.header.frame_id,
            tuple(message.name),
        )
        self._shapes[len(raw)] = [*known, shape]


def _aligned(place: int, to: int) -> int:
    return HEAD + (place - HEAD + to - 1) // to * to


def _after_text(raw: bytes, place: int) -> int:
    return place + _COUNT.size + int(_COUNT.unpack_from(raw, place)[0])
