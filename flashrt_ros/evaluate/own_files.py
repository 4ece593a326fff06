"""Which files an evaluation may replace: those that one has written before, and no other.

A recording that carries the wrong name on a command line is not lost that way.
"""

from __future__ import annotations

from pathlib import Path

from flashrt_ros.errors import AlreadyExistsError

LIBRARY = "flashrt_ros evaluate"
"""What an MCAP file of ours says in its header of who wrote it."""
TITLE = "flashrt_ros evaluate"
"""Of the page."""
LOOKED_AT = 4096
MARKS = {
    ".json": b'"format": "flashrt_ros.evaluate"',
    ".html": f"<title>{TITLE}".encode(),
    ".mcap": LIBRARY.encode(),
}


def is_ours(path: Path, kind: str) -> bool:
    """Whether there is nothing that could be lost: no file, an empty one, or one of ours.

    Args:
        path: The file; a device or a pipe is always written to.
        kind: ``.json``, ``.html`` or ``.mcap``, whatever it is called.
    """
    if not path.is_file():
        return True
    with path.open("rb") as file:
        head = file.read(LOOKED_AT)
    return not head or MARKS[kind] in head


def refuse_others(path: Path, kind: str, option: str = "") -> None:
    """Raises if a file is there that no evaluation has written.

    Args:
        path: The file.
        kind: As for ``is_ours``.
        option: That named it.

    Raises:
        AlreadyExistsError: See there.
    """
    if not is_ours(path, kind):
        raise AlreadyExistsError(
            f"{option} {path}: exists, and no evaluation wrote it; name another file".strip()
        )
