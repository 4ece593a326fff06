"""Compares the interfaces that are installed with those beside the sources.

A source tree that is newer than what was generated from it fails late, in a callback that misses
a field, and the words do not say why.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PACKAGE = "flashrt_ros"


def installed_share(environment: Mapping[str, str], prefix: str) -> Path | None:
    """Where definitions are installed, or None.

    Args:
        environment: For ``AMENT_PREFIX_PATH``, which comes first.
        prefix: Of this Python, where wheels have them.
    """
    places = [*environment.get("AMENT_PREFIX_PATH", "").split(os.pathsep), prefix]
    shares = [Path(place, "share", PACKAGE) for place in places if place]
    return next((share for share in shares if (share / "msg").is_dir()), None)


def differing(source: Path, share: Path) -> tuple[str, ...]:
    """Names such as ``msg/PolicyStatus.msg`` that only one side has, or that say another thing.

    Args:
        source: Source tree.
        share: See ``installed_share``.
    """
    ours, theirs = _definitions(source), _definitions(share)
    return tuple(sorted(n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n)))


def _definitions(folder: Path) -> dict[str, list[str]]:
    """By name the lines without comments and layout, which generate nothing."""
    paths = [*folder.glob("msg/*.msg"), *folder.glob("srv/*.srv")]
    return {f"{path.parent.name}/{path.name}": _lines(path.read_text()) for path in paths}


def _lines(text: str) -> list[str]:
    bare = (" ".join(line.partition("#")[0].split()) for line in text.splitlines())
    return [line for line in bare if line]
