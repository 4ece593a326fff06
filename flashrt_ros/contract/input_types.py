"""How the numbers of a message are read, by type and field: a table, and any other by its path.

A type that needs a rule of its own is one entry of ``INPUT_TYPES``.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashrt_ros.contract.definitions import require_type, typestore
from flashrt_ros.contract.field_path import Target, attributes, follow, rows
from flashrt_ros.contract.image.schema import IMAGE_TYPES
from flashrt_ros.errors import ContractError


@dataclass(frozen=True)
class InputField:
    """How one field of a message type is read.

    Attributes:
        values: Message to its numbers, in the message's own order.
        labels: Names of the numbers where the type fixes them, else empty.
        names: Message to the names that it carries; None where the type carries none.
        length: How many numbers there always are where the type fixes that alone, else 0.
    """

    values: Callable[[Any], Any]
    labels: tuple[str, ...] = ()
    names: Callable[[Any], Sequence[str]] | None = None
    length: int = 0


def _joint(field: str) -> InputField:
    return InputField(operator.attrgetter(field), names=operator.attrgetter("name"))


def _struct(*paths: str, labels: tuple[str, ...]) -> InputField:
    return InputField(operator.attrgetter(*paths), labels=labels)


def _imu(field: str, labels: tuple[str, ...]) -> InputField:
    """REP 145: a covariance that begins with -1 says that the sensor does not measure this."""
    read = attributes([f"{field}.{label}" for label in labels])

    def values(message: Any) -> Any:
        if getattr(message, f"{field}_covariance")[0] == -1.0:
            raise ContractError(
                f"expected a measured {field}, found {field}_covariance[0] = -1, by which the "
                "sensor says that it has none"
            )
        return read(message)

    return InputField(values, labels=labels)


_XYZ = ("x", "y", "z")
_POSITION = tuple(f"pose.position.{axis}" for axis in _XYZ)
_ORIENTATION = tuple(f"pose.orientation.{axis}" for axis in (*_XYZ, "w"))

INPUT_TYPES: Mapping[str, Mapping[str, InputField]] = {
    "sensor_msgs/msg/JointState": {
        field: _joint(field) for field in ("position", "velocity", "effort")
    },
    "sensor_msgs/msg/Imu": {
        "orientation": _imu("orientation", (*_XYZ, "w")),
        "angular_velocity": _imu("angular_velocity", _XYZ),
        "linear_acceleration": _imu("linear_acceleration", _XYZ),
    },
    "geometry_msgs/msg/PointStamped": {
        "point": _struct("point.x", "point.y", "point.z", labels=_XYZ)
    },
    "geometry_msgs/msg/PoseStamped": {
        "position": _struct(*_POSITION, labels=_XYZ),
        "orientation": _struct(*_ORIENTATION, labels=(*_XYZ, "w")),
        "pose": _struct(*_POSITION, *_ORIENTATION, labels=(*_XYZ, "qx", "qy", "qz", "qw")),
    },
}
"""Types and fields with names, labels or rules of their own."""

NAMES_FIELDS = {"sensor_msgs/msg/MultiDOFJointState": "joint_names"}
"""Where a type keeps the names of its arrays' elements, as ``names_field`` says it of others."""


@functools.lru_cache(maxsize=256)
def input_field(type_name: str, field: str, names_field: str = "") -> InputField:
    """How one field is read.

    Args:
        type_name: Full type name.
        field: A word of ``INPUT_TYPES``, or a path.
        names_field: Path of an array of texts that names the elements of the array ``field``.

    Raises:
        ContractError: No such type or field, or not numbers.
    """
    if type_name in IMAGE_TYPES:
        raise ContractError("expected a type with numbers, found images: use the key `image`")
    known = INPUT_TYPES.get(type_name, {})
    if field in known and not names_field:
        return known[field]
    require_type(type_name)
    try:
        target = follow(type_name, field)
    except ContractError as error:
        hint = f"; or one of {', '.join(known)}" if known else ""
        raise ContractError(f"{error}{hint}") from None
    if target.text:
        raise ContractError(f"expected numbers in {field}, found text")
    named = _names_of(type_name, names_field or NAMES_FIELDS.get(type_name, ""), target)
    if target.kind in ("number", "numbers"):
        values = _unpadded(type_name, target.get)
        length = 1 if target.kind == "number" else target.length
        return InputField(
            _listed(values) if target.kind == "number" else values, (), named, length
        )
    if target.kind == "message":
        read = attributes(target.leaves)
        return InputField(lambda message: read(target.get(message)), target.leaves)
    if named is None:
        raise ContractError(
            f"expected an index behind {field}, as in {field}[0], or a `names_field` that names "
            "its elements; found an array of messages"
        )
    return InputField(rows(target), (), _with_leaves(named, target.leaves))


def _listed(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda message: (get(message),)


def _names_of(
    type_name: str, names_field: str, target: Target
) -> Callable[[Any], Sequence[str]] | None:
    if not names_field or target.kind not in ("numbers", "messages"):
        return None
    names = follow(type_name, names_field)
    if not names.text or names.kind != "numbers":
        raise ContractError(f"names_field: expected an array of texts, found {names_field}")
    return names.get


def _with_leaves(
    names: Callable[[Any], Sequence[str]], leaves: Sequence[str]
) -> Callable[[Any], list[str]]:
    return lambda message: [f"{name}/{leaf}" for name in names(message) for leaf in leaves]


def _unpadded(type_name: str, get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """For arrays with a layout: the numbers begin where the data begin."""
    members = dict(typestore().fielddefs[type_name][1])
    if "layout" not in members or members["layout"][1] != "std_msgs/msg/MultiArrayLayout":
        return get

    def values(message: Any) -> Any:
        if message.layout.data_offset != 0:
            raise ContractError(
                f"expected layout.data_offset 0, found {message.layout.data_offset}: padded "
                "arrays are not supported"
            )
        return get(message)

    return values


@functools.lru_cache(maxsize=256)
def is_stamped(type_name: str) -> bool:
    """Whether a defined type begins with a header."""
    members = typestore().fielddefs[type_name][1]
    return bool(members) and members[0][0] == "header" and members[0][1][1] == _HEADER


_HEADER = "std_msgs/msg/Header"
