"""What a process takes of this machine: memory, threads, descriptors, device memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 10.0


@dataclass(frozen=True)
class Usage:
    """Of one process, now; zero where it is gone.

    Attributes:
        resident_bytes: Physical memory, shared pages included.
        threads: All of them, those of the middleware too.
        descriptors: Open files, sockets and the like.
        device_bytes: GPU memory as the driver counts it; None where nothing says so.
        waited_s: For how long its threads were ready and had no CPU, all together and since they
            began; 0 where the system does not say.
    """

    resident_bytes: int = 0
    threads: int = 0
    descriptors: int = 0
    device_bytes: int | None = None
    waited_s: float = 0.0


def usage_of(pid: int) -> Usage:
    """What the process ``pid`` of ours takes."""
    folder = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):
        pages = int((folder / "statm").read_text().split()[1])
        return Usage(
            pages * os.sysconf("SC_PAGE_SIZE"),
            len(list((folder / "task").iterdir())),
            len(list((folder / "fd").iterdir())),
            _device_bytes(pid),
            sum(_waited_ns(task) for task in (folder / "task").iterdir()) / 1e9,
        )
    return Usage()


def _waited_ns(task: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((task / "schedstat").read_text().split()[1])
    return 0


def _device_bytes(pid: int) -> int | None:
    if (program := shutil.which("nvidia-smi")) is None:
        return None
    query = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        listed = subprocess.run(
            [program, *query], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        for line in listed.stdout.splitlines():
            words = line.split(",")
            if len(words) == 2 and int(words[0]) == pid:
                return int(words[1]) * 2**20
    return None
