"""Numbers by field path from a message of any type, worked out from its definition.

``pose.pose.position`` is a member of a member, ``transforms[0].translation`` a member of an
array's first element. A path leads to one number, to an array of numbers, to a message of numbers
alone (``x``, ``y``, ``z``; ``linear.x``), or to an array of such messages.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashrt_ros.contract.definitions import typestore
from flashrt_ros.errors import ContractError

_SEGMENT = re.compile(r"([A-Za-z_]\w*)(?:\[(\d{1,6})\])?")
_TEXT = ("string", "wstring")


@dataclass(frozen=True)
class Target:
    """What a path leads to.

    Attributes:
        kind: ``number``, ``numbers``, ``message`` or ``messages``.
        leaves: Paths of the numbers within a message, in the order of its definition.
        length: Of an array of fixed size, else 0.
        get: Message to what the path leads to.
        text: It is a text or an array of texts.
    """

    kind: str
    leaves: tuple[str, ...]
    length: int
    get: Callable[[Any], Any]
    text: bool = False


def follow(type_name: str, path: str) -> Target:
    """Follows a path through a type's definition.

    Raises:
        ContractError: It leads nowhere, or to something that is not numbers alone; lists what
            there is.
    """
    steps: list[tuple[str, int | None]] = []
    description: Any = None
    at = type_name
    for word in path.split("."):
        match = _SEGMENT.fullmatch(word)
        members = dict(typestore().fielddefs[at][1]) if at else {}
        if match is None or match[1] not in members:
            raise ContractError(
                f"expected a path of fields, found {word!r}, which {at or 'a number'} has not; it "
                f"has {', '.join(members) or 'no fields'}"
            )
        description = members[match[1]]
        index = None if match[2] is None else int(match[2])
        array = description[0].name in ("ARRAY", "SEQUENCE")
        if index is not None:
            if not array:
                raise ContractError(f"expected no index behind {match[1]!r}, which is no array")
            size = description[1][1] if description[0].name == "ARRAY" else 0
            if size and index >= size:
                raise ContractError(f"{match[1]}: expected an index below {size}, found {index}")
            description = description[1][0]
            array = False
        steps.append((match[1], index))
        at = description[1] if description[0].name == "NAME" else ""
    return _target(description, _getter(steps), path)


def _target(description: Any, get: Callable[[Any], Any], path: str) -> Target:
    kind, detail = description
    if kind.name == "BASE":
        return Target("number", (), 0, get, detail[0] in _TEXT)
    if kind.name == "NAME":
        return Target("message", leaves(detail, path), 0, get)
    (inner, inner_detail), size = detail
    length = size if kind.name == "ARRAY" else 0
    if inner.name == "BASE":
        return Target("numbers", (), length, get, inner_detail[0] in _TEXT)
    return Target("messages", leaves(inner_detail, path), length, get)


def leaves(type_name: str, path: str) -> tuple[str, ...]:
    """Paths of all numbers in a message type that holds nothing else.

    Raises:
        ContractError: It holds texts or arrays; lists its fields.
    """
    found: list[str] = []
    members = typestore().fielddefs[type_name][1]
    for name, (kind, detail) in members:
        if kind.name == "NAME":
            found += [f"{name}.{leaf}" for leaf in leaves(detail, f"{path}.{name}")]
        elif kind.name == "BASE" and detail[0] not in _TEXT:
            found.append(name)
        else:
            raise ContractError(
                f"expected numbers in {path}, found {name!r}, a text or an array; name one of "
                f"{', '.join(f'{path}.{member}' for member, _ in members)}"
            )
    return tuple(found)


def _getter(steps: Sequence[tuple[str, int | None]]) -> Callable[[Any], Any]:
    def get(message: Any) -> Any:
        for name, index in steps:
            message = getattr(message, name)
            if index is not None:
                if index >= len(message):
                    raise ContractError(
                        f"expected at least {index + 1} elements in `{name}`, found {len(message)}"
                    )
                message = message[index]
        return message

    return get


def attributes(paths: Sequence[str]) -> Callable[[Any], tuple[float, ...]]:
    """Message to the numbers at these paths of names."""
    split = [tuple(path.split(".")) for path in paths]

    def values(message: Any) -> tuple[float, ...]:
        return tuple(functools.reduce(getattr, names, message) for names in split)

    return values


def rows(target: Target) -> Callable[[Any], np.ndarray[Any, Any]]:
    """Message to all numbers of an array of messages, one after the other."""
    each = attributes(target.leaves)

    def values(message: Any) -> np.ndarray[Any, Any]:
        found = [each(element) for element in target.get(message)]
        return np.array(found, dtype=np.float64).reshape(-1)

    return values
