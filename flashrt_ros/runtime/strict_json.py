"""JSON from files that nobody vouches for: no key twice, no floats, nothing huge or deep."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from flashrt_ros.errors import CorruptError

_LONGEST_INTEGER = 20
"""Digits: 2^64-1 has as many."""
_SHOWN = 80


def shown(value: object) -> str:
    """Returns ``repr(value)``, cut where it is long."""
    if isinstance(value, (str, bytes)):
        value = value[: _SHOWN + 1]
    words = repr(value)
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."


def canonical(value: object) -> str:
    """Returns the one text that a value may have in a file: ASCII, no spaces, keys as given."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def parse(where: str, text: str) -> Any:
    """Returns the value of a JSON text that may come from anywhere.

    Raises:
        CorruptError: It is no JSON, has a key twice, a number that is no integer or a long one, or
            is nested too deeply; begins with ``where``.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=unique,
            parse_int=_integer,
            parse_float=_no_number,
            parse_constant=_no_number,
        )
    except RecursionError:
        raise CorruptError(f"{where}: expected JSON, found one nested too deeply") from None
    except ValueError as error:
        raise CorruptError(f"{where}: expected JSON, found {error}") from None


def integer(where: str, value: object, most: int = 2**63 - 1) -> int:
    """Returns an integer from 0 to ``most``.

    Raises:
        CorruptError: It is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise CorruptError(f"{where}: expected an integer in 0 .. {most}, found {shown(value)}")
    return value


def text(where: str, value: object) -> str:
    """Returns a string.

    Raises:
        CorruptError: It is something else.
    """
    if not isinstance(value, str):
        raise CorruptError(f"{where}: expected a string, found {shown(value)}")
    return value


def record(where: str, value: object, keys: tuple[str, ...]) -> dict[str, Any]:
    """Returns an object that has exactly these keys.

    Raises:
        CorruptError: It has others, or is none.
    """
    if not isinstance(value, dict):
        raise CorruptError(f"{where}: expected an object, found {shown(value)}")
    if set(value) != set(keys):
        raise CorruptError(
            f"{where}: expected the keys {', '.join(keys)}, found {shown(sorted(value))}"
        )
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For ``object_pairs_hook``: returns the object.

    Raises:
        ValueError: It has a key twice.
    """
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key {shown(key)} twice")
        value[key] = item
    return value


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{shown(word)} where only integers may stand")
