"""Our nodes in processes of their own: a ROS domain that is free, and none left behind.

For the demonstration and the benchmarks; imports no rclpy, which reads the environment at once.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

import flashrt_ros
from flashrt_ros.errors import InternalError, StorageError, UnsupportedError

LAST_DOMAIN = 101
"""Higher domains have ports that Linux gives away to others."""
LOCK_PORT = 41_960
"""First of the UDP ports whose owner owns the domain of the same place: a domain is taken from the
moment on that it is chosen, and not only once a node has started in it seconds later."""
OVERRULING = ("ROS_LOCALHOST_ONLY", "ROS_STATIC_PEERS", "ROS_DISCOVERY_SERVER")
"""Variables by which nodes look for others beyond ``ROS_AUTOMATIC_DISCOVERY_RANGE``."""
NO_MULTICAST = (
    "<CycloneDDS><Domain><General><AllowMulticast>false</AllowMulticast></General></Domain>"
    "</CycloneDDS>"
)
STOP_S = 5.0
"""A node that has not ended so long after SIGINT is killed."""
WATCH_S = 1.0
LOG_LINES = 12


class Domain:
    """A ROS domain id that no other process of ours is given.

    Attributes:
        id: To be put into ROS_DOMAIN_ID.
    """

    def __init__(self, among: Sequence[int] = ()) -> None:
        """Takes one in which nobody on this machine takes part.

        Args:
            among: To choose from, the first that is free; none: any.

        Raises:
            UnsupportedError: None is.
        """
        if not among:
            among = list(range(1, LAST_DOMAIN + 1))
            # Not the lowest free one: other programs than ours choose that, without a lock.
            random.SystemRandom().shuffle(among)
        for domain in among:
            lock = _bound(LOCK_PORT + domain)
            if lock is not None and _unused(domain):
                self.id, self._lock = domain, lock
                return
            if lock is not None:
                lock.close()
        raise UnsupportedError(
            f"no free ROS domain from {min(among)} to {max(among)}: end other ROS programs, or "
            "name a domain"
        )

    def close(self) -> None:
        """Gives it back."""
        self._lock.close()


_taken: list[Domain] = []


def free_domain() -> int:
    """A ROS domain that nobody on this machine takes part in, ours as long as this process lives.

    Raises:
        UnsupportedError: None found.
    """
    _taken.append(Domain())
    return _taken[-1].id


def _unused(domain: int) -> bool:
    # DDS-RTPS 9.6.2.3: unicast discovery of the first participants of a domain.
    base = 7400 + 250 * domain
    # The first one is where all listen that may hear of other machines.
    for port in (base, *(base + 10 + 2 * participant for participant in range(3))):
        probe = _bound(port)
        if probe is None:
            return False
        probe.close()
    return True


def _bound(port: int) -> socket.socket | None:
    """A UDP socket on a port of this machine; None where another has it."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        bound.bind(("127.0.0.1", port))
    except OSError:
        bound.close()
        return None
    return bound


def private_environment(domain: int, log_directory: Path) -> dict[str, str]:
    """Environment of processes that talk among themselves, on this machine only.

    Args:
        domain: Number of the ROS domain.
        log_directory: For the nodes' log files.
    """
    environment = dict(os.environ)
    _make_private(environment, domain, log_directory)
    return environment


def _make_private(environment: MutableMapping[str, str], domain: int, log_directory: Path) -> None:
    environment["ROS_DOMAIN_ID"] = str(domain)
    environment["ROS_LOG_DIR"] = str(log_directory)
    keep_local(environment)


def keep_local(environment: MutableMapping[str, str]) -> None:
    """Lets ROS programs of this environment find each other on this machine only.

    What names other machines, or overrules the range, goes; but for what stands in files of the
    middleware that the environment names.
    """
    environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    for name in OVERRULING:
        environment.pop(name, None)
    uri = environment.get("CYCLONEDDS_URI", "")
    # CycloneDDS takes the last word of a list, and the range comes before its own configuration.
    if uri and not uri.endswith(NO_MULTICAST):
        environment["CYCLONEDDS_URI"] = f"{uri},{NO_MULTICAST}"


def with_this_package(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a child imports the flashrt_ros that this process has imported."""
    parent = str(Path(flashrt_ros.__file__).resolve().parents[1])
    places = [parent, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environment, "PYTHONPATH": os.pathsep.join(places)}


@contextlib.contextmanager
def log_folder(word: str) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A folder for the logs of nodes that play something, and what is called if all went well.

    Then it is removed in the end; otherwise it stays, and its place is printed.
    """
    folder, well = Path(tempfile.mkdtemp(prefix=f"flashrt_ros_{word}_")), []
    try:
        yield folder, lambda: well.append(True)
    finally:
        if well or not any(folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"logs: {folder}", file=sys.stderr, flush=True)


def set_environment(domain: int, log_directory: Path) -> None:
    """Puts this process and its children into ``private_environment``; before rclpy is loaded."""
    _make_private(os.environ, domain, log_directory)


def node_command(module: str, parameters: Mapping[str, object]) -> list[str]:
    """Command line that runs the ``main`` of one of our node modules, as long as we live.

    Args:
        module: Such as ``flashrt_ros.demo.arm_node``.
        parameters: ROS parameters by name.
    """
    code = (
        f"from {__name__} import end_with; end_with({os.getpid()}); "
        f"from {module} import main; raise SystemExit(main())"
    )
    words = [sys.executable, "-c", code, "--ros-args"]
    for name, value in parameters.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words += ["-p", f"{name}:={text}"]
    return words


def end_with(parent: int) -> None:
    """Sends this process SIGINT when its parent is gone, even if that was killed.

    Args:
        parent: Process id; given, as the parent may be gone before this is called.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


class Process:
    """One node in a process of its own, while in a ``with`` block."""

    def __init__(self, name: str, command: Sequence[str], log_directory: Path) -> None:
        """Prepares it.

        Args:
            name: For messages and the log file.
            command: Program and arguments.
            log_directory: Where what it prints goes.
        """
        self.name, self.command = name, list(command)
        self.log = log_directory / f"{name}.log"

    def __enter__(self) -> Process:
        """Starts it, out of reach of the terminal's Ctrl-C: this process ends it in order.

        Raises:
            StorageError: Its log file cannot be written.
            InternalError: It cannot be started.
        """
        environment = {**with_this_package(os.environ), "PYTHONUNBUFFERED": "1"}
        try:
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
        except FileNotFoundError as error:
            raise InternalError(f"{self.name} cannot be started: {error}") from error
        except OSError as error:
            raise StorageError(f"{self.name}: {error}; is there room on the disk?") from error
        return self

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def check(self) -> None:
        """Does nothing while it runs.

        Raises:
            InternalError: It has ended; with the end of its log.
        """
        status = self._process.poll()
        if status is not None:
            raise InternalError(
                f"the process {self.name!r} ended with status {status}; its last words "
                f"({self.log}):\n{self.last_words()}"
            )

    def last_words(self) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            return "\n".join(f"  {line}" for line in lines[-LOG_LINES:]) or "  (none)"
        return "  (none)"

    def __exit__(self, *_: object) -> None:
        """Ends it: SIGINT, and SIGKILL if that does not do."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        deadline_s = time.monotonic() + STOP_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.02)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
