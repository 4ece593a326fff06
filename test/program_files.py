"""Alters archives of programs as an attacker or a bad disk would."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Members = dict[str, bytes]


def alter(path: Path, change: Callable[[Members], None], stored: bool = True) -> None:
    """Rewrites an archive after ``change`` has had its way with the members.

    Args:
        path: The archive.
        change: Gets names without the archive's own folder.
        stored: Uncompressed, as torch writes it.
    """
    with zipfile.ZipFile(path) as file:
        root = file.namelist()[0].split("/")[0]
        members = {name.split("/", 1)[1]: file.read(name) for name in file.namelist()}
    change(members)
    kind = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, content in members.items():
            file.writestr(f"{root}/{name}", content)


def alter_json(name: str, change: Callable[[Any], None]) -> Callable[[Members], None]:
    """A change of one member that is JSON."""

    def altered(members: Members) -> None:
        value = json.loads(members[name])
        change(value)
        members[name] = json.dumps(value).encode()

    return altered


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.target, "it ran"))


def bomb(target: Path) -> bytes:
    return pickle.dumps(Bomb(target))
