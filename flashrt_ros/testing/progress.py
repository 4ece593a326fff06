"""What a command that takes long is doing: one line of a terminal, written over and over."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import TextIO

Say = Callable[[str], None]
"""Takes what is done next, in a few words; empty: all is done."""


def silent(words: str) -> None:
    """Says nothing."""


def on_terminal(stream: TextIO | None = None) -> Say:
    """Returns what writes one line to a terminal, and ``silent`` where there is none.

    Args:
        stream: None: the error stream, so that what the command prints can go to a file.
    """
    target = sys.stderr if stream is None else stream
    if not target.isatty():
        return silent

    def say(words: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        # Back to the first column, and what stood there is erased.
        target.write(f"\r\x1b[K{words[:width]}")
        target.flush()

    return say
