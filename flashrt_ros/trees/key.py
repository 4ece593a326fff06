"""Arguments that stand on the blackboard, and results that are put there."""

from __future__ import annotations

from typing import Any

from py_trees.behaviour import Behaviour
from py_trees.common import Access

from flashrt_ros.errors import InvalidArgumentError, NotFoundError

SHOWN = 12
"""Attributes of a value that are named."""


class Key:
    """An argument that is read from the blackboard when the behaviour begins.

        Restore(capsule=Key("before"))

    Attributes:
        name: As py_trees writes keys; attributes after dots, as in ``capsule.name``.
    """

    def __init__(self, name: str) -> None:
        """Args: see the class.

        Raises:
            InvalidArgumentError: The name is empty.
        """
        if not name:
            raise InvalidArgumentError("Key: expected the name of a blackboard key, found ''")
        self.name = name

    def __repr__(self) -> str:
        return f"Key({self.name!r})"


class Board:
    """What one behaviour reads and writes; on the blackboard only if a key is named."""

    def __init__(self, owner: Behaviour) -> None:
        """Args: owner: shown as reader and writer by tools that look at the blackboard."""
        self._owner = owner
        self._client: Any = None

    def reads(self, value: object) -> None:
        """Declares an argument, which may be a ``Key``."""
        if isinstance(value, Key):
            self._register(value.name, Access.READ)

    def writes(self, key: str) -> None:
        """Declares a result; nothing if ``key`` is empty.

        Raises:
            InvalidArgumentError: The key names an attribute.
        """
        if "." in key:
            raise InvalidArgumentError(
                f"{self._owner.name}: expected a key without dots for a result, found {key!r}"
            )
        if key:
            self._register(key, Access.WRITE)

    def _register(self, name: str, access: Access) -> None:
        if self._client is None:
            self._client = self._owner.attach_blackboard_client()
        self._client.register_key(key=_absolute(name).partition(".")[0], access=access)

    def value(self, argument: str, value: Any) -> Any:
        """What an argument amounts to now.

        Args:
            argument: Its name, for words.
            value: As given to the constructor.

        Raises:
            NotFoundError: There is no such key, or it has no such attribute.
        """
        if not isinstance(value, Key):
            return value
        try:
            return self._client.get(_absolute(value.name))
        except (KeyError, AttributeError):
            words = self._missing(_absolute(value.name))
            raise NotFoundError(f"{argument}: expected blackboard key {words}") from None

    def _missing(self, name: str) -> str:
        """What is not there of a key that could not be read."""
        known, *attributes = name.split(".")
        try:
            found = self._client.get(known)
        except KeyError:
            return f"{known!r}, which nobody has written"
        for attribute in attributes:
            if not hasattr(found, attribute):
                return f"{name!r}, but {known!r} has no {attribute!r}; it has {_has(found)}"
            known, found = f"{known}.{attribute}", getattr(found, attribute)
        return f"{name!r}, which was just written"

    def values(self, argument: str, value: Any) -> list[Any]:
        """Likewise, of an argument that is a list.

        Raises:
            NotFoundError: See ``value``.
            InvalidArgumentError: It is none.
        """
        found = self.value(argument, value)
        try:
            return list(found)
        except TypeError:
            raise InvalidArgumentError(f"{argument}: expected a list, found {found!r}") from None

    def write(self, key: str, value: object) -> None:
        """Puts a result on the blackboard; nothing if ``key`` is empty."""
        if key:
            self._client.set(_absolute(key), value)


def _has(value: Any) -> str:
    """Names of the attributes of a value that say what it holds."""
    fields = getattr(value, "get_fields_and_field_types", None)
    names = fields() if fields is not None else [n for n in dir(value) if not n.startswith("_")]
    return ", ".join(list(names)[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _absolute(name: str) -> str:
    """In full: a key such as ``name`` is otherwise taken for an attribute of py_trees' client."""
    return name if name.startswith("/") else f"/{name}"
