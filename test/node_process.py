"""A policy node in a process of its own: started, ended for certain, and quoted when it fails.

Each process gets a domain that no other test session on this machine uses at the same time.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashrt_ros import process

DOMAINS = range(60, 90)
END_S = 60.0
"""A generous limit: it only decides how long a failure takes."""
MAIN = "import sys; from flashrt_ros.ros.policy_node import main; sys.exit(main())"

_children: list[subprocess.Popen[bytes]] = []


@atexit.register
def _end_all() -> None:
    for child in _children:
        if child.poll() is None:
            child.kill()
            child.wait()


def environment(domain: int, folder: Path) -> dict[str, str]:
    """Variables of a process that shall see this domain and write its logs into ``folder``."""
    return {
        **os.environ,
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "ROS_DOMAIN_ID": str(domain),
        "ROS_LOG_DIR": str(folder / "log"),
        "PYTHONUNBUFFERED": "1",
        # The same flashrt_ros as in this process, and the policies of the tests.
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
    }


class Domain(process.Domain):
    """One of those that few people use."""

    def __init__(self) -> None:
        super().__init__(DOMAINS)


class NodeProcess:
    """One process of the policy node; use it in a ``with`` block."""

    def __init__(
        self,
        folder: Path,
        domain: int,
        namespace: str = "/",
        parameters: Mapping[str, Any] | None = None,
        main: str = MAIN,
        words: Sequence[str] = (),
        remaps: Sequence[str] = (),
    ) -> None:
        """Starts it.

        Args:
            folder: For its log and its output.
            domain: ROS domain id.
            namespace: Of the node.
            parameters: Given on its command line.
            main: What Python runs.
            words: Arguments before those of ROS, which then say where the nodes are.
            remaps: Further ones, such as ``joint_states:=/arm/states``.
        """
        arguments = [*words, "--ros-args"]
        arguments += [] if words else ["-r", f"__ns:={namespace}"]
        for rule in remaps:
            arguments += ["-r", rule]
        for name, value in (parameters or {}).items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            arguments += ["-p", f"{name}:={text}"]
        folder.mkdir(parents=True, exist_ok=True)
        self._output = folder / f"output_{len(list(folder.glob('output_*')))}.txt"
        command = [sys.executable, "-c", main, *arguments]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=environment(domain, folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )
        _children.append(self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code; None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """All that it has printed."""
        return self._output.read_text(errors="replace")

    def quote(self, lines: int = 40) -> str:
        """The end of its output, for the message of a failure."""
        tail = "\n".join(self.output().splitlines()[-lines:])
        return f"\n--- the node (code {self.code}) printed at last:\n{tail}\n---"

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; after SIGSTOP it returns once all its threads stand still."""
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wait(self) -> int:
        """Waits for its end and returns its exit code."""
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {END_S} s{self.quote()}") from None

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """Ends it, whatever state it is in."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        # Shown by pytest if a test failed.
        print(self.quote(80))

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
