"""A policy that may end its process, or its parent's, in the middle of a recording."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from keyframe_cases import Told

from flashrt_ros.runtime.policy import Buffers

FOLDER = "FLASHRT_ROS_TEST_FOLDER"
STEP = 30.0


class Mortal(Told):
    """Kills what the orders in a folder say, one each time, at step 30 of an episode."""

    family = "mortal"

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        if float(state["count"]) == STEP:
            self._heed("self", os.getpid())
            self._heed("driver", os.getppid())

    @staticmethod
    def _heed(name: str, pid: int) -> None:
        for path in sorted(Path(os.environ.get(FOLDER, "/nowhere")).glob(f"{name}.*")):
            try:
                path.unlink()  # whoever removes it has it, of all the workers
            except OSError:
                continue
            if path.suffix == ".now":
                os.kill(pid, signal.SIGKILL)
            return


def order(folder: Path, name: str, *words: str) -> None:
    """Gives orders for ``self`` or ``driver``: ``later`` or ``now``, one each time."""
    folder.mkdir(exist_ok=True)
    for number, word in enumerate(words):
        (folder / f"{name}.{number}.{word}").touch()


def orders_left(folder: Path, name: str) -> int:
    return len(list(folder.glob(f"{name}.*")))
