"""How much memory a session and this process may still take."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Memory:
    """Memory that one session may take.

    Attributes:
        free_bytes: Of the device; None where it is not known.
        host_free_bytes: Of the host; None where it is not known.
        shared: Device and host are one memory, and both figures are of the same bytes.
    """

    free_bytes: int | None
    host_free_bytes: int | None
    shared: bool


def in_words(size_bytes: int) -> str:
    """Returns a size for people, e.g. ``64.0 MiB``."""
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        # Not 1023.96, which would be printed as 1024.0 of the smaller unit.
        if size < 1023.95:
            break
        size, unit = size / 1024, larger
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def available_bytes(root: Path = Path("/")) -> int | None:
    """Returns what can be taken without swapping, None where the system does not say.

    The least of ``MemAvailable`` and what the control groups of this process leave: in a container
    the former tells of the whole machine.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    found = [_available(root), *_group_rooms(root)]
    known = [size_bytes for size_bytes in found if size_bytes is not None]
    return min(known) if known else None


def _available(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _group_rooms(root: Path) -> list[int]:
    """What is left in each control group from this process's up to the root, versions 1 and 2."""
    rooms = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        files = ("memory.max", "memory.current", "inactive_file")
        if controllers:
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        folder = top / path.lstrip("/")
        # Within a container its own group is mounted at the top, under a path of the host's.
        while True:
            room = _group_room(folder, *files)
            if room is not None:
                rooms.append(room)
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent
    return rooms


def _group_room(folder: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    limit_words, usage_words = _text(folder / limit), _text(folder / usage)
    if not limit_words.isdigit() or not usage_words.isdigit():
        return None  # no limit, or no such group
    # File pages that nobody has touched lately are given up before anything is refused.
    spare = 0
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == reclaimable and value.isdigit():
            spare = int(value)
    return max(int(limit_words) - int(usage_words) + spare, 0)


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""
