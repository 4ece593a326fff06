"""Integers that come from outside."""

from __future__ import annotations

import operator

from flashrt_ros.errors import InvalidArgumentError


def check_int(label: str, value: int, least: int, most: int | None = None) -> int:
    """Returns ``value`` as a Python integer; numpy's integers are accepted, bools are not.

    Raises:
        InvalidArgumentError: It is no integer, or not in ``least .. most``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        limit = f"of at least {least}" if most is None else f"in {least} .. {most}"
        raise InvalidArgumentError(f"{label}: expected an integer {limit}, found {value!r}")
    return number
