"""From messages to float32 vectors, the same for CDR bytes, rosbags objects and rclpy objects.

``input_types`` says where a message keeps its numbers; this file brings them into order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.cdr import deserialize
from flashrt_ros.contract.definitions import require_type
from flashrt_ros.contract.input_types import input_field, is_stamped
from flashrt_ros.contract.schema import Part
from flashrt_ros.errors import ContractError

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Decoded:
    """One message.

    Attributes:
        type: Full type name.
        message: A rosbags or rclpy message object.
        stamp_ns: Header stamp, clock of the publisher; 0 where the type has none or it is empty.
        trailing_bytes: Bytes behind the end of the serialized message.
    """

    type: str
    message: Any
    stamp_ns: int = 0
    trailing_bytes: int = 0

    def vector(self, part: Part) -> Vector:
        """The elements of ``part``, ``(len(part.names),)`` float32, a copy, in that order.

        Raises:
            ContractError: The message lacks a name, or its arrays have other lengths.
        """
        return _reader(part)(self)

    def carries_names(self, part: Part) -> bool:
        """False for a message of a type with names that has left them empty."""
        names = input_field(part.type, part.field, part.names_field).names
        return names is None or len(names(self.message)) > 0


def decode(type_name: str, message: Any) -> Decoded:
    """Decodes serialized bytes, or takes a message object as it is.

    Args:
        type_name: Full type name.
        message: CDR (bytes, bytearray or memoryview), or a rosbags or rclpy message object.

    Raises:
        ContractError: Type not defined, another type, or damaged bytes; names type and sizes.
    """
    require_type(type_name)
    trailing = 0
    if isinstance(message, (bytes, bytearray, memoryview)):
        message, trailing = deserialize(type_name, message)
    elif (found := _type_of(message)) != type_name:
        raise ContractError(f"expected a message of type {type_name}, found {found}")
    stamp_ns = 0
    if is_stamped(type_name):
        stamp = message.header.stamp
        stamp_ns = int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)
    return Decoded(type_name, message, stamp_ns, trailing)


def _type_of(message: Any) -> str:
    """Full type name of a rosbags or rclpy message object, else the name of its class."""
    if isinstance(name := getattr(message, "__msgtype__", None), str):
        return name
    cls = type(message)
    words = cls.__module__.split(".")
    return f"{words[0]}/msg/{cls.__name__}" if words[1:2] == ["msg"] else cls.__name__


class PartReader:
    """Reads one part; where each name stands is worked out once for each order of names seen."""

    MAX_ORDERS = 64
    """Bound of the cache: a publisher that shuffles its names must not fill the memory."""

    def __init__(self, part: Part) -> None:
        """Prepares for the part's type and field."""
        self.part = part
        self._field = input_field(part.type, part.field, part.names_field)
        self._fixed = self._field.labels or (
            () if self._field.names else (part.positional or part.names)
        )
        self._orders: dict[tuple[str, ...], npt.NDArray[np.intp]] = {}
        if self._fixed:
            self._orders[self._fixed] = self._order(self._fixed)

    def __call__(self, decoded: Decoded) -> Vector:
        """See ``Decoded.vector``."""
        part = self.part
        if part.frame_id and (found := decoded.message.header.frame_id) != part.frame_id:
            raise self._fault(
                f"expected frame_id {part.frame_id!r}, found {found!r}: nothing is transformed, "
                "so the numbers would be those of another frame; or say `transform: true`"
            )
        try:
            values = np.asarray(self._field.values(decoded.message), dtype=np.float64)
            carried = self._field.names
            names = self._fixed if carried is None else tuple(carried(decoded.message))
        except ContractError as error:
            raise self._fault(str(error)) from None
        except (AttributeError, TypeError, ValueError) as error:
            raise self._fault(f"expected a message of this type: {error}") from error
        if not names:
            if not part.positional:
                raise self._fault(
                    "expected joint names, found an empty `name` list; say which joint stands "
                    "where with `positional`"
                )
            names = part.positional
        if values.shape != (len(names),):
            raise self._fault(
                f"expected {len(names)} values in `{part.field}`, one for each of "
                f"{list(names)}, found {values.size}"
            )
        order = self._orders.get(names)
        if order is None:
            order = self._order(names)
        with np.errstate(over="ignore"):  # becomes inf, which the sampler reports by name
            return values[order].astype(np.float32)

    def _order(self, names: tuple[str, ...]) -> npt.NDArray[np.intp]:
        missing = [name for name in self.part.names if name not in names]
        if missing:
            raise self._fault(f"expected {missing}, found only {list(names)}")
        twice = [name for name in self.part.names if names.count(name) > 1]
        if twice:
            raise self._fault(f"expected each name once, found {twice} more than once")
        order = np.array([names.index(name) for name in self.part.names], dtype=np.intp)
        if len(self._orders) < self.MAX_ORDERS:
            self._orders[names] = order
        return order

    def _fault(self, words: str) -> ContractError:
        return ContractError(f"topic {self.part.topic!r} ({self.part.type}): {words}")


_reader = functools.lru_cache(maxsize=256)(PartReader)
