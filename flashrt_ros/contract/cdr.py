"""From serialized bytes to message objects, with every kind of damage named."""

from __future__ import annotations

import functools
import struct
from typing import Any

from flashrt_ros.contract.definitions import typestore
from flashrt_ros.contract.joint_states import JOINT_STATE, JointStates
from flashrt_ros.errors import ContractError

__all__ = ["MAX_TRAILING_BYTES", "deserialize", "peek_stamp", "typestore"]

MAX_TRAILING_BYTES = 15
"""Bytes behind a message that are forgiven; more is another message type.

Middleware pads to 4 or 8 bytes and some recorders keep it. Fast DDS's estimate of the size, which
``rclpy.serialization.serialize_message`` returns unshortened, adds up to 4 bytes for each empty
array of doubles: 12 for a JointState, of unwritten memory.
"""

ENCAPSULATIONS = {b"\x00\x00": "deserialize_cdr_be", b"\x00\x01": "deserialize_cdr_le"}
"""Plain CDR, big and little endian; what ROS 2 writes for messages without optional members."""


@functools.cache
def _deserializers(type_name: str) -> tuple[Any, dict[bytes, Any]]:
    definition = typestore().get_msgdef(type_name)
    return definition.cls, {
        encapsulation: getattr(definition, method)
        for encapsulation, method in ENCAPSULATIONS.items()
    }


@functools.cache
def _joint_states() -> JointStates:
    return JointStates(typestore().types)


def peek_stamp(cdr: bytes) -> int:
    """Header stamp in nanoseconds of a message whose first member is a ``std_msgs/Header``.

    Args:
        cdr: Its serialized form, or the first 12 bytes of it.

    Returns:
        0 where the bytes hold none.
    """
    order = {b"\x00\x00": ">", b"\x00\x01": "<"}.get(bytes(cdr[:2]))
    if order is None or len(cdr) < 12:
        return 0
    sec, nanosec = struct.unpack_from(f"{order}iI", cdr, 4)
    return int(sec) * 1_000_000_000 + int(nanosec)


def deserialize(type_name: str, cdr: bytes | bytearray | memoryview) -> tuple[Any, int]:
    """Decodes one serialized message.

    Args:
        type_name: A type of the typestore.
        cdr: Bytes with the four bytes of the encapsulation header.

    Returns:
        The message, a rosbags dataclass whose arrays may alias ``cdr``, and the number of bytes
        behind its end, 0 to ``MAX_TRAILING_BYTES``.

    Raises:
        ContractError: Wrong encapsulation, truncated, garbage, or too long for the type.
    """
    raw = bytes(cdr)
    if type_name == JOINT_STATE and (known := _joint_states().read(raw)) is not None:
        return known
    cls, functions = _deserializers(type_name)
    function = functions.get(raw[:2]) if len(raw) >= 4 else None
    if function is None:
        raise ContractError(
            f"{type_name}: expected plain CDR, which begins with 00 00 or 00 01 and two option "
            f"bytes, found {raw[:4].hex(' ') or 'nothing'} ({len(raw)} bytes)"
        )
    body = memoryview(raw)[4:]
    try:
        message, end = function(body, 0, cls, typestore())
    except struct.error as error:
        raise ContractError(
            f"{type_name}: expected a whole message, found one cut off or damaged after "
            f"{len(raw)} bytes: {error}"
        ) from error
    except Exception as error:
        # The functions are generated for the type and promise nothing about what they raise.
        raise ContractError(
            f"{type_name}: expected CDR of this type, found {len(raw)} bytes that are not: {error}"
        ) from error
    trailing = len(body) - end
    if not 0 <= trailing <= MAX_TRAILING_BYTES:
        raise ContractError(
            f"{type_name}: expected {end + 4} bytes and at most {MAX_TRAILING_BYTES} behind them, "
            f"found {len(raw)}: cut off, or another type"
        )
    if type_name == JOINT_STATE:
        _joint_states().learn(raw, message, trailing)
    return message, trailing
