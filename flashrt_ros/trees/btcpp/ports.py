"""The ports of a leaf, read from and written to BehaviorTree.CPP's blackboard.

The bindings have neither ports nor any type but text, numbers and bool: texts of ports are kept
beside the tree, and what is none of these types stands on the blackboard as a word for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashrt_ros.errors import InvalidArgumentError, NotFoundError

LARGEST = 2**53
"""Numbers are doubles on the blackboard, as in scripts: up to here whole ones are exact."""


class Ports:
    """What a leaf sees of its tree while it is ticked.

    Attributes:
        name: Of the leaf, as in XML; its type if it has none.
        path: Of the leaf in the tree, different for each use of a subtree.
    """

    def __init__(
        self, name: str, path: str, texts: Mapping[str, str], board: Any, objects: dict[str, Any]
    ) -> None:
        """Makes them for one activation.

        Args:
            name: See the class.
            path: See the class.
            texts: By port, what stands in XML: a literal or ``{entry}``.
            board: The bindings' blackboard of this leaf.
            objects: By word on the blackboard, what it stands for; shared by the tree.
        """
        self.name, self.path = name, path
        self._texts, self._board, self._objects = texts, board, objects

    def __contains__(self, port: str) -> bool:
        """Whether XML says something for this port."""
        return port in self._texts

    def read(self, port: str, default: str = "") -> Any:
        """What a port holds: text as a rule.

        Args:
            port: Its name.
            default: Where XML says nothing.

        Returns:
            The text; an object where a leaf has written one.

        Raises:
            NotFoundError: It names an entry that nobody has written.
        """
        text = self._texts.get(port, default)
        entry = entry_of(port, text)
        if entry is None:
            return text
        try:
            found = str(self._board.get_string(entry))
        except RuntimeError:
            raise NotFoundError(
                f"{self.name}: {port}: expected blackboard entry {{{entry}}}, which nobody has "
                "written"
            ) from None
        return self._objects.get(found, found)

    def number(self, port: str, default: str = "") -> int:
        """What a port holds, as a whole number from 0 on.

        Raises:
            InvalidArgumentError: It is none.
            NotFoundError: See ``read``.
        """
        text = str(self.read(port, default)).strip()
        try:
            value = int(text) if text.isdecimal() else float(text)
            if value < 0 or value != int(value):
                raise ValueError
        except (ValueError, OverflowError):
            raise InvalidArgumentError(
                f"{self.name}: {port}: expected a whole number from 0 on, found {text!r}"
            ) from None
        return int(value)

    def truth(self, port: str, default: str = "false") -> bool:
        """What a port holds, as a truth.

        Raises:
            InvalidArgumentError: It is none.
            NotFoundError: See ``read``.
        """
        text = str(self.read(port, default)).strip().lower()
        if text not in ("true", "1", "false", "0"):
            raise InvalidArgumentError(
                f"{self.name}: {port}: expected true or false, found {text!r}"
            )
        return text in ("true", "1")

    def write(self, port: str, value: object) -> None:
        """Puts a value where XML says; nothing where it says nothing.

        Args:
            port: Its name.
            value: Text, bool or a number; any other object can be read by leaves only.

        Raises:
            InvalidArgumentError: XML has something else than ``{entry}`` there.
        """
        text = self._texts.get(port)
        if text is None:
            return
        entry = entry_of(port, text)
        if entry is None:
            raise InvalidArgumentError(
                f"{self.name}: {port}: expected {{ENTRY}}, where its result goes, found {text!r}"
            )
        if isinstance(value, bool):
            self._board.set_bool(entry, value)
        elif isinstance(value, int | float) and abs(value) <= LARGEST:
            self._board.set_double(entry, float(value))
        elif isinstance(value, str | int):
            self._board.set_string(entry, str(value))
        else:
            word = f"<{port} of {self.path}>"
            self._objects[word] = value
            self._board.set_string(entry, word)


def entry_of(port: str, text: str) -> str | None:
    """The blackboard entry that a port's text names; None where it is a literal."""
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    inner = text[1:-1].strip()
    return port if inner == "=" else inner


def listed(text: str) -> list[str]:
    """The parts of a list, which is text with semicolons."""
    return [part for part in (part.strip() for part in text.split(";")) if part]
