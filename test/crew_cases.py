"""What workers do in the tests of crews; imported by them, so it imports next to nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashrt_ros.errors import NoMemoryError


def square() -> Callable[[int], int]:
    return lambda number: number * number


def dies(folder: str) -> Callable[[int], int]:
    """Killed by each number as often as its file in a folder has lines left."""

    def work(number: int) -> int:
        path = Path(folder) / str(number)
        lines = path.read_text().splitlines() if path.exists() else []
        if lines:
            path.write_text("\n".join(lines[1:]))
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number

    return work


def ends() -> Callable[[int], int]:
    """Ends by itself at 3, before it has answered."""

    def work(number: int) -> int:
        if number == 3:
            os._exit(7)
        return number

    return work


def raises() -> Callable[[int], float]:
    return lambda number: 1 / number


def unfit() -> Callable[[Any], Any]:
    raise NoMemoryError("expected 5 bytes, found 3")


def broken() -> Callable[[Any], Any]:
    raise ValueError("no such thing")


def waits(folder: str) -> Callable[[int], None]:
    """Says who it is and waits for the end."""

    def work(number: int) -> None:
        part = Path(folder) / f".{os.getpid()}"
        part.touch()
        part.rename(Path(folder) / str(os.getpid()))
        while True:
            time.sleep(60)

    return work
