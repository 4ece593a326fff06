"""Ray as engine: the hash of the serial run though an actor is killed, and nothing stays behind.

The session with Ray itself takes half a minute and is marked slow; what is done with actors that
die is held in the normal run with a double that knows as much of Ray as we use.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import crew_cases
import pytest
from evaluate_bags import write_arm
from spread_cases import order, orders_left
from test_evaluate_crew import PATIENCE_S
from test_evaluate_spread import command, report, same, words_of

from flashrt_ros.cli import main
from flashrt_ros.errors import NoMemoryError, UnsupportedError
from flashrt_ros.evaluate import ray_engine
from flashrt_ros.evaluate.crew import Lost


class DeadError(Exception):
    """An actor's end."""


class FailedError(Exception):
    """What a task raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Double:
    """Ray without processes: ``deaths`` says how often the actor of a task dies of it."""

    exceptions = SimpleNamespace(RayActorError=DeadError, RayTaskError=FailedError)

    def __init__(self, deaths: dict[int, int]) -> None:
        self.deaths, self.actors = deaths, 0

    def remote(self, **options: Any) -> Callable[[type], Any]:
        assert options["max_restarts"] == options["max_task_retries"] == 0
        return lambda kind: SimpleNamespace(remote=functools.partial(self._actor, kind))

    def _actor(self, kind: type, hire: Any) -> Any:
        self.actors += 1
        try:
            clerk = kind(hire)
        except Exception as error:
            fault = DeadError("it could not begin")
            fault.__cause__ = FailedError(error)
            return SimpleNamespace(do=SimpleNamespace(remote=lambda task: _Later(fault)))

        def do(task: int) -> Any:
            if self.deaths.get(task, 0):
                self.deaths[task] -= 1
                return _Later(DeadError("killed"))
            try:
                return _Later(clerk.do(task))
            except Exception as error:
                return _Later(FailedError(error))

        return SimpleNamespace(do=SimpleNamespace(remote=do))

    @staticmethod
    def wait(futures: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return futures[-num_returns:], futures[:-num_returns]

    @staticmethod
    def get(future: Any) -> Any:
        if isinstance(future.value, Exception):
            raise future.value
        return future.value


class _Later:
    def __init__(self, value: Any) -> None:
        self.value = value


def test_tasks_of_actors_that_die_are_done_by_others() -> None:
    ray = Double({2: 1, 3: 2, 5: 9})
    found = dict(ray_engine._work(ray, crew_cases.square, list(range(7)), 2))
    assert found.pop(5) == Lost("3 workers died of it, the last with killed")
    assert found == {n: n * n for n in range(7) if n != 5}
    assert ray.actors >= 6, "a new one for each that died"


def test_what_a_task_raises_is_its_own_and_an_actor_that_cannot_begin_ends_it() -> None:
    found = dict(ray_engine._work(Double({}), crew_cases.raises, [1, 0, 2], 2))
    assert found[1] == Lost("unexpected ZeroDivisionError: division by zero")
    assert (found[0], found[2]) == (1.0, 0.5)
    with pytest.raises(NoMemoryError, match="expected 5 bytes, found 3"):
        dict(ray_engine._work(Double({}), crew_cases.unfit, [1], 1))


def test_without_ray_the_cure_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(ray_engine.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install 'flashrt_ros\[ray\]'"):
        ray_engine.check()
    assert main(["evaluate", "bag", "--policy", "hold", "--engine", "ray"]) == 3
    assert "--engine ray needs the Python package ray" in capsys.readouterr().err


@pytest.mark.slow
def test_ray_itself(tmp_path: Path) -> None:
    """One session: an actor is killed by what it does; afterwards no process of it is left."""
    pytest.importorskip("ray", reason="not installed: pip install 'flashrt_ros[ray]'")
    bags = [write_arm(tmp_path / f"bag{n}.mcap", 60 + 7 * n) for n in range(4)]
    words = words_of(tmp_path, bags, "spread_cases:Mortal")
    assert main(words) == 0
    plain = report(tmp_path)
    folder = tmp_path / "orders"
    order(folder, "self", "later", "now")
    spread = [*words, "--engine", "ray", "--workers", "2"]
    spread += ["--work-folder", str(tmp_path / "work")]
    done = command(spread, folder)
    assert done.returncode == 0, done.stderr
    assert not orders_left(folder, "self"), "an actor was killed"
    assert same(report(tmp_path), plain)
    deadline_s = time.monotonic() + PATIENCE_S
    while left := processes_of(str(tmp_path)):
        assert time.monotonic() < deadline_s, left
        time.sleep(0.2)


def processes_of(folder: str) -> list[str]:
    """Those that were started from this test: all have its folder in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if folder.encode() in path.read_bytes():
                found.append(path.with_name("cmdline").read_text().replace("\0", " ")[:80])
        except OSError:
            continue
    return found
