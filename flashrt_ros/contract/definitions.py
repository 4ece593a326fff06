"""Message definitions: those of ROS 2 Jazzy, those of installed packages, and .msg files.

One store serves the process. A definition that differs from one already known is refused: two
readings of the same bytes are one too many.
"""

from __future__ import annotations

import difflib
import functools
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flashrt_ros.errors import ContractError

_OWN = "flashrt_ros"
_LOCK = threading.Lock()
_COMPLETE: set[str] = set()
"""Types that have been found defined, with all that they hold."""


@functools.cache
def typestore() -> Any:
    """The rosbags store of definitions, loaded at first use."""
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.ROS2_JAZZY)


def require_type(type_name: str) -> None:
    """Makes sure that a type and all that it holds are defined.

    Looks for what the store lacks in the packages on AMENT_PREFIX_PATH, in those that lie in this
    Python's environment, and for our own in the source tree.

    Raises:
        ContractError: A definition is nowhere; says how to give it.
    """
    if type_name in _COMPLETE:
        return
    missing = [type_name]
    seen: set[str] = set()
    while missing:
        name = missing.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in typestore().fielddefs and not _find_installed(name):
            inner = "" if name == type_name else f", which {type_name} holds"
            near = difflib.get_close_matches(name, list(typestore().fielddefs), 1)
            hint = f"did you mean {near[0]!r}? Else " if near else ""
            raise ContractError(
                f"message type {name!r}{inner}: expected one of ROS 2's common types or of a "
                f"sourced package (share/PACKAGE/msg/NAME.msg), found no definition; {hint}give "
                "its .msg file, or the folder of its package, in the contract's "
                "`message_definitions`"
            )
        missing += nested_types(name)
    _COMPLETE.update(seen)


def nested_types(type_name: str) -> list[str]:
    """Message types of the members of a defined type."""
    found = []
    for _, (kind, detail) in typestore().fielddefs[type_name][1]:
        if kind.name in ("ARRAY", "SEQUENCE"):
            kind, detail = detail[0]
        if kind.name == "NAME":
            found.append(detail)
    return found


def add_definitions(paths: Iterable[str | Path]) -> None:
    """Registers .msg files, and folders of packages with a folder ``msg``.

    Raises:
        ContractError: Not found, not readable, or other than what is known under that name.
    """
    for given in paths:
        path = Path(given)
        files = sorted(path.glob("msg/*.msg")) if path.is_dir() else [path]
        if not files:
            raise ContractError(f"{path}: expected a folder msg with .msg files, found none")
        for file in files:
            if file.suffix != ".msg" or file.parent.name != "msg":
                raise ContractError(
                    f"{file}: expected a path that ends in PACKAGE/msg/NAME.msg, which is where "
                    "the type's name comes from"
                )
            _register(file)


def _find_installed(type_name: str) -> bool:
    words = type_name.split("/")
    if len(words) != 3 or words[1] != "msg" or not all(word.isidentifier() for word in words):
        return False
    prefixes = [*os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep), sys.prefix]
    shares = [Path(prefix, "share", words[0]) for prefix in filter(None, prefixes)]
    if words[0] == _OWN:
        shares.insert(0, Path(__file__).parents[2])
    for share in shares:
        file = share / "msg" / f"{words[2]}.msg"
        if file.is_file():
            _register(file, type_name)
            return True
    return False


def _register(file: Path, name: str = "") -> None:
    from rosbags.typesys import get_types_from_msg

    name = name or f"{file.resolve().parents[1].name}/msg/{file.stem}"
    try:
        parsed = get_types_from_msg(file.read_text(encoding="utf-8"), name)
        with _LOCK:
            typestore().register(parsed)
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(f"{file}: expected a readable .msg file: {error}") from error
    except Exception as error:  # the parser's errors are of many kinds
        raise ContractError(f"{file}: expected the definition of {name}: {error}") from error
