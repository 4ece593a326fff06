"""Strict reading of YAML mappings: every fault names file, key path, expected and found."""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn, TypeVar

import yaml

from flashrt_ros.errors import ContractError

Read = TypeVar("Read")

REQUIRED: Any = object()
"""Default of a key that must be there."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, which YAML would settle by the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in lines:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            lines[key] = key_node.start_mark.line + 1
        return Located(super().construct_mapping(node, deep), node.start_mark.line + 1, lines)

    def construct_located(self, node: yaml.MappingNode) -> Iterator[dict[Hashable, Any]]:
        """In two steps, as YAML's references need it."""
        found = Located({}, node.start_mark.line + 1, {})
        yield found
        found.take(self.construct_mapping(node))


class Located(dict[Hashable, Any]):
    """A mapping that knows where its keys stand.

    Attributes:
        line: Of the mapping, from 1.
        lines: Of each key.
    """

    def __init__(self, content: Mapping[Hashable, Any], line: int, lines: Mapping[str, int]):
        super().__init__(content)
        self.line, self.lines = line, dict(lines)

    def take(self, other: Mapping[Hashable, Any]) -> None:
        """Becomes another one."""
        self.update(other)
        if isinstance(other, Located):
            self.line, self.lines = other.line, other.lines


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _StrictLoader.construct_located)


def parse(text: str, source: str) -> object:
    """Parses YAML text.

    Raises:
        ContractError: The text is no YAML, or holds a key twice; names line and column.
    """
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        # PyYAML's constructors let ValueError through, e.g. for the date 2024-99-99.
        words = " ".join(str(error).split())
        raise ContractError(f"{source}: expected YAML, found a fault in it: {words}") from error


def lines_of(value: object, path: str = "") -> dict[str, int]:
    """Lines by key path, of all that ``parse`` read with a line."""
    found: dict[str, int] = {}
    if isinstance(value, Located):
        for key, line in value.lines.items():
            below = f"{path}.{key}" if path else key
            found |= {below: line, **lines_of(value.get(key), below)}
    elif isinstance(value, list):
        for position, entry in enumerate(value):
            below = f"{path}[{position}]"
            if isinstance(entry, Located):
                found[below] = entry.line
            found |= lines_of(entry, below)
    return found


def shown(value: object) -> str:
    """A value as a message shows it: short, whatever its size or nesting."""
    kind = {dict: "mapping", list: "list", str: "text", type(None): "nothing"}.get(type(value))
    return f"{kind or type(value).__name__} {_SHORT.repr(value)}" if value is not None else "null"


class Section:
    """One mapping of the file, read key by key.

    Attributes:
        path: Key path of this mapping, e.g. ``observations[0].parts[1]``; empty at the top.
        source: File name for messages.
    """

    def __init__(self, value: object, path: str, source: str, known: Sequence[str]) -> None:
        """Takes a mapping, and refuses keys that are not ``known``.

        Raises:
            ContractError: Not a mapping, or a key is unknown.
        """
        self.path, self.source, self.known = path, source, tuple(known)
        if not isinstance(value, Mapping):
            raise ContractError(
                f"{source}: {path or 'top level'}: expected a mapping with the keys "
                f"{', '.join(known)}, found {shown(value)}"
            )
        self._value: Mapping[str, Any] = value
        for key in value:
            if key not in self.known:
                place = self.place(str(key))
                near = difflib.get_close_matches(str(key), self.known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                word = key if isinstance(key, str) and len(key) < 60 else shown(key)
                raise ContractError(
                    f"{place}: {self.at(word)}: unknown key, expected one of "
                    f"{', '.join(self.known)}{hint}"
                )

    def place(self, key: str) -> str:
        """File, and the line of a key, or of this mapping where it has no such key."""
        if not isinstance(self._value, Located):
            return self.source
        first = re.split(r"[.\[]", key, maxsplit=1)[0]
        return f"{self.source}:{self._value.lines.get(first, self._value.line)}"

    def at(self, key: str) -> str:
        """Key path of one of the keys here."""
        return f"{self.path}.{key}" if self.path else key

    def fail(self, key: str, expected: str, found: object, hint: str = "") -> NoReturn:
        """Raises the ContractError for one key.

        Raises:
            ContractError: Always.
        """
        words = found if isinstance(found, _Words) else shown(found)
        end = f"; {hint}" if hint else ""
        raise ContractError(
            f"{self.place(key)}: {self.at(key)}: expected {expected}, found {words}{end}"
        )

    def has(self, key: str) -> bool:
        """Whether the file gives the key."""
        return key in self._value

    def given(self) -> tuple[str, ...]:
        """The keys that the file gives."""
        return tuple(self._value)

    def raw(self, key: str, expected: str, default: Any = REQUIRED) -> Any:
        """The value as parsed, or the default.

        Raises:
            ContractError: The key is missing and has no default.
        """
        if key in self._value:
            return self._value[key]
        if default is REQUIRED:
            self.fail(key, expected, _Words("no such key"))
        return default

    def text(
        self, key: str, default: Any = REQUIRED, choices: Sequence[str] = (), expected: str = ""
    ) -> str:
        """A string, one of ``choices`` where given.

        Raises:
            ContractError: Missing, no string, empty, or not one of the choices.
        """
        expected = expected or (f"one of {', '.join(choices)}" if choices else "a text")
        value = self.raw(key, expected, default)
        if not isinstance(value, str) or (choices and value not in choices):
            near = difflib.get_close_matches(str(value), choices, 1)
            hint = f"did you mean {near[0]!r}?" if near else _hint(value)
            self.fail(key, expected, value, hint)
        if not value and default != "":
            self.fail(key, expected, value)
        return value

    def number(
        self,
        key: str,
        default: Any = REQUIRED,
        least: float = -math.inf,
        above: float = -math.inf,
        most: float = math.inf,
    ) -> float:
        """A finite number with ``least <= number <= most`` and ``number > above``.

        Raises:
            ContractError: Missing, no number, not finite, or out of range.
        """
        words = "a finite number"
        words += f" above {above:g}" if above > -math.inf else ""
        words += f" of at least {least:g}" if least > -math.inf else ""
        words += f" up to {most:g}" if most < math.inf else ""
        value = self.raw(key, words, default)
        number = as_number(value)
        if number is None or not least <= number <= most or not number > above:
            self.fail(key, words, value, _hint(value) if isinstance(value, str) else "")
        return number

    def flag(self, key: str, default: Any = REQUIRED) -> bool:
        """True or false.

        Raises:
            ContractError: Missing, or something else.
        """
        value = self.raw(key, "true or false", default)
        if not isinstance(value, bool):
            self.fail(key, "true or false", value)
        return value

    def integer(
        self, key: str, default: Any = REQUIRED, least: int = 0, most: int = 1 << 31
    ) -> int:
        """A whole number from ``least`` to ``most``.

        Raises:
            ContractError: Missing, not whole, or out of range.
        """
        words = f"a whole number from {least} to {most}"
        value = self.raw(key, words, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(key, words, value)
        return value

    def names(self, key: str, default: Any = REQUIRED) -> tuple[str, ...]:
        """A list of different non-empty names.

        Raises:
            ContractError: Missing, empty, no list of texts, or a name given twice.
        """
        words = "a list of names"
        value = self.raw(key, words, default)
        if value is default and default is not REQUIRED:
            return tuple(default)
        if not isinstance(value, list) or not value:
            self.fail(key, words, value)
        seen: set[str] = set()
        for position, name in enumerate(value):
            if not isinstance(name, str) or not name:
                self.fail(f"{key}[{position}]", "a name", name, _hint(name))
            if name in seen:
                self.fail(key, "each name once", _Words(f"{name!r} twice"))
            seen.add(name)
        return tuple(value)

    def indices(
        self, key: str, default: Sequence[int], count: int | None = None
    ) -> tuple[int, ...]:
        """A list of different element numbers, ``count`` of them where that is given.

        Raises:
            ContractError: No such list, another length, or a number given twice.
        """
        each = "" if count is None else f", {count} of them, one for each name"
        words = f"a list of different whole numbers from 0{each}"
        value = self.raw(key, words, list(default))
        if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
            self.fail(key, words, value)
        if len(set(value)) != len(value) or count not in (None, len(value)):
            self.fail(key, words, value)
        return tuple(value)

    def section(self, key: str, known: Sequence[str]) -> Section:
        """A mapping below this one.

        Raises:
            ContractError: Missing, no mapping, or with unknown keys.
        """
        value = self.raw(key, "a mapping")
        return Section(value, self.at(key), self.source, known)

    def sections(
        self,
        key: str,
        known: Sequence[str],
        read: Callable[[Section], Read],
        faults: Faults | None = None,
    ) -> list[Read]:
        """What ``read`` makes of each mapping in a non-empty list.

        Args:
            key: Of the list.
            known: Keys of each mapping.
            read: Called with each.
            faults: Keeps the complaint of each; None: the first one is raised.

        Raises:
            ContractError: Missing, empty, no list, or an entry is wrong.
        """
        value = self.raw(key, "a list of mappings")
        if not isinstance(value, list) or not value:
            self.fail(key, "a list of mappings, at least one", value)
        found: list[Read] = []
        for position, entry in enumerate(value):
            with faults or nullcontext():
                path = f"{self.at(key)}[{position}]"
                found.append(read(Section(entry, path, self.source, known)))
        return found

    def by_name(self, key: str, names: Sequence[str]) -> dict[str, Any]:
        """A mapping from some of ``names`` to values; empty where the key is missing.

        Raises:
            ContractError: No mapping, or a name that is not among ``names``.
        """
        value = self.raw(key, "a mapping by name", {})
        if not isinstance(value, Mapping):
            self.fail(key, f"a mapping by name ({', '.join(names)})", value)
        for name in value:
            if name not in names:
                near = difflib.get_close_matches(str(name), names, 1)
                hint = f"did you mean {near[0]!r}?" if near else ""
                self.fail(f"{key}.{name}", f"one of the names {', '.join(names)}", name, hint)
        return dict(value)


class Faults:
    """Collects what several parts of a file complain of, so that all is said at once.

    In a ``with`` block a ContractError is kept, and what comes after the block goes on.
    """

    def __init__(self) -> None:
        """Begins without any."""
        self._found: list[str] = []

    def __enter__(self) -> None:
        """Begins a part."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Keeps its complaint."""
        if not isinstance(error, ContractError):
            return False
        self._found.append(str(error))
        return True

    def settle(self) -> None:
        """Raises what was found.

        Raises:
            ContractError: Something was; a line each.
        """
        found, self._found = self._found, []
        if found:
            raise ContractError("\n".join(found))


class _Words(str):
    """Words for ``found`` that are shown as they stand."""


def as_number(value: object) -> float | None:
    """The value as a float where it is a finite YAML number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _hint(value: object) -> str:
    """What to do about YAML 1.1's best known traps."""
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return ""
        return "a number is written without quotes, and with a point before an exponent: 1.0e-3"
    if isinstance(value, (bool, int, float)):
        return "put the name in quotes: YAML reads the bare word otherwise"
    return ""
