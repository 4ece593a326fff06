"""Workers that die: their tasks are done all the same, and nobody outlives the driver.

Over thousands of recordings some process will be killed, by the kernel for its memory or by a
scheduler; an evaluation that has to begin anew then never ends.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import crew_cases
import pytest

from flashrt_ros.errors import InternalError, InvalidArgumentError, NoMemoryError
from flashrt_ros.evaluate.crew import Crew, Hire, Lost

PATIENCE_S = 60.0


def done(hire: Hire, tasks: list[Any], workers: int = 2) -> dict[int, Any]:
    found = list(Crew(hire, workers).run(tasks))
    assert len(found) == len(tasks)
    return dict(found)


def test_every_task_is_done_once() -> None:
    assert done(crew_cases.square, list(range(20))) == {n: n * n for n in range(20)}
    assert done(crew_cases.square, [3], workers=4) == {0: 9}
    assert done(crew_cases.square, []) == {}
    with pytest.raises(InvalidArgumentError, match="--workers: expected a number from 1, found 0"):
        Crew(crew_cases.square, 0)


def test_tasks_of_workers_that_die_are_done_by_others(tmp_path: Path) -> None:
    for number, deaths in ((2, 1), (3, 2), (5, 9)):
        (tmp_path / str(number)).write_text("once more\n" * deaths)
    found = done(functools.partial(crew_cases.dies, str(tmp_path)), list(range(7)))
    lost = found.pop(5)
    assert found == {n: n * n for n in range(7) if n != 5}
    assert lost == Lost("3 workers died of it, the last with signal SIGKILL")


def test_a_worker_that_ends_by_itself_is_as_dead() -> None:
    found = done(crew_cases.ends, list(range(5)), workers=1)
    assert found.pop(3) == Lost("3 workers died of it, the last with exit code 7")
    assert found == {n: n for n in (0, 1, 2, 4)}


def test_what_a_task_raises_is_its_own() -> None:
    found = done(crew_cases.raises, [1, 0, 2])
    assert found == {0: 1.0, 1: Lost("unexpected ZeroDivisionError: division by zero"), 2: 0.5}


def test_workers_that_cannot_begin_end_it_all() -> None:
    with pytest.raises(NoMemoryError, match="expected 5 bytes, found 3"):
        done(crew_cases.unfit, [1, 2])
    with pytest.raises(InternalError, match="ValueError: no such thing"):
        done(crew_cases.broken, [1, 2])


def test_who_stops_asking_leaves_nobody_behind(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("once\n")
    running = Crew(functools.partial(crew_cases.dies, str(tmp_path)), 2)
    rest = running.run(list(range(50)))
    next(rest)
    pids = [worker.process.pid for worker in running._workers]
    rest.close()
    assert pids
    assert all(gone(pid) for pid in pids if pid is not None)


DRIVER = """
import functools, crew_cases
from flashrt_ros.evaluate.crew import Crew
if __name__ == "__main__":
    list(Crew(functools.partial(crew_cases.waits, {folder!r}), 2).run([1, 2]))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_driver(how: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    folder = tmp_path / "pids"
    folder.mkdir()
    script.write_text(DRIVER.format(folder=str(folder)))
    here = Path(__file__).resolve().parent
    path = os.pathsep.join([str(here), str(here.parent)])
    environment = {**os.environ, "PYTHONPATH": path}
    driver = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=-3)
    pids: list[int] = []
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while len(pids) < 2:
            assert time.monotonic() < deadline_s
            assert driver.poll() is None
            pids = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
            time.sleep(0.02)
        driver.send_signal(how)
        driver.wait(PATIENCE_S)
        assert all(gone(pid) for pid in pids)
    finally:
        for pid in (driver.pid, *pids):
            if not gone(pid, 0.0):
                os.kill(pid, signal.SIGKILL)


def gone(pid: int, patience_s: float = PATIENCE_S) -> bool:
    """Whether a process ends, in time."""
    deadline_s = time.monotonic() + patience_s
    while True:
        status = Path(f"/proc/{pid}/stat")
        try:
            # One that has ended and was not waited for is as good as gone.
            if status.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.02)
