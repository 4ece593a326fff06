"""The same as ``crew``, on Ray: actors on this machine or on a cluster that is there already.

On this machine Ray listens on loopback alone, without its dashboard, and ends with us.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from flashrt_ros.errors import FlashRTError, InvalidArgumentError, UnsupportedError
from flashrt_ros.evaluate.crew import MOST_DEATHS, Hire, Lost

INSTALL = "pip install 'flashrt_ros[ray]'"
STORE_BYTES = 80 << 20
"""Results go through files, so the object store may be as small as Ray allows."""


def check() -> None:
    """Raises if Ray is not there; called before anything is opened.

    Raises:
        UnsupportedError: With the command that installs it.
    """
    if importlib.util.find_spec("ray") is None:
        raise UnsupportedError(f"--engine ray needs the Python package ray: {INSTALL}")


def run(
    hire: Hire, tasks: Sequence[Any], workers: int, address: str = ""
) -> Iterator[tuple[int, Any]]:
    """As ``Crew.run``.

    Args:
        hire: Called in each actor.
        tasks: To be done.
        workers: Number of actors.
        address: Of a cluster: ``auto`` or ``host:port``; empty: one of our own, on this machine.

    Raises:
        FlashRTError: What ``hire`` raised in an actor, or the cluster was not found.
        UnsupportedError: Ray is not installed.
    """
    if workers < 1:
        raise InvalidArgumentError(f"--workers: expected a number from 1, found {workers}")
    ray = _ray(alone=not address)
    with _session(ray, workers, address):
        yield from _work(ray, hire, tasks, workers)


def _work(ray: Any, hire: Hire, tasks: Sequence[Any], workers: int) -> Iterator[tuple[int, Any]]:
    class Clerk:
        """One worker."""

        def __init__(self, hire: Hire) -> None:
            self._work = hire()

        def do(self, task: Any) -> Any:
            """One task."""
            return self._work(task)

    actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Clerk)
    waiting = deque(range(len(tasks)))
    deaths = [0] * len(tasks)
    idle: list[Any] = []
    busy: dict[Any, tuple[Any, int]] = {}
    while waiting or busy:
        while waiting and len(busy) < workers:
            clerk = idle.pop() if idle else actor.remote(hire)
            number = waiting.popleft()
            busy[clerk.do.remote(tasks[number])] = (clerk, number)
        (ready, *_), _ = ray.wait(list(busy), num_returns=1)
        clerk, number = busy.pop(ready)
        try:
            result = ray.get(ready)
            idle.append(clerk)
        except ray.exceptions.RayTaskError as error:
            result = Lost(f"unexpected {type(error.cause).__name__}: {error.cause}")
            idle.append(clerk)
        except ray.exceptions.RayActorError as error:
            if (cause := _unfit(error)) is not None:
                raise cause from None
            deaths[number] += 1
            if deaths[number] < MOST_DEATHS:
                waiting.append(number)
                continue
            words = f"{MOST_DEATHS} workers died of it, the last with {_last_line(error)}"
            result = Lost(words)
        yield number, result


def _last_line(error: BaseException) -> str:
    """What Ray says of a death, which it says last; such as a module that a worker lacks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _unfit(error: Any) -> FlashRTError | None:
    """What an actor's beginning raised; None where it died otherwise."""
    cause = getattr(error, "cause", None) or error.__cause__
    while cause is not None and not isinstance(cause, FlashRTError):
        cause = getattr(cause, "cause", None) or cause.__cause__
    return cause


@contextlib.contextmanager
def _session(ray: Any, workers: int, address: str) -> Iterator[None]:
    """Ray for as long as it is needed."""
    # Sockets lie in this folder, and the path of one may have but 107 characters.
    folder = "" if address else tempfile.mkdtemp(prefix="fr", dir="/tmp")
    try:
        if address:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        else:
            ray.init(
                num_cpus=workers,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=STORE_BYTES,
                _temp_dir=folder,
                _node_ip_address="127.0.0.1",
            )
        yield
    except ConnectionError as error:
        raise InvalidArgumentError(
            f"--ray-address: expected a cluster at {address!r}, found none: {error}"
        ) from error
    finally:
        ray.shutdown()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _ray(alone: bool = False) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if alone:
        # Read when Ray is imported: without it Ray takes the address of this machine's network and
        # listens there.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    check()
    return importlib.import_module("ray")
