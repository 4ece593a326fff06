"""What shortens a control step without changing what it does: memory, and looking ahead.

Each is held to leave no trace; what it is worth is measured by ``flashrt_ros bench path``.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_rig import Rig
from keyframe_cases import Told
from node_policies import FollowChunks

from flashrt_ros.ros import control as control_module
from flashrt_ros.ros.control import Control
from flashrt_ros.runtime.session import PolicySession

LIMIT_S = 30.0
PERIOD_S = 0.05
RESIDENT = """
import resource, sys
from flashrt_ros.ros.allocator import keep_memory
if sys.argv[1] == "kept":
    assert keep_memory()
def message():
    return b"x" * (1 << 20)
for _ in range(20):
    message()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    message()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(word: str) -> int:
    """Pages that the kernel clears for 100 blocks of 1 MiB, one after the other."""
    return printed(
        RESIDENT, word, MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072"
    )


def printed(code: str, word: str, **environment: str) -> int:
    """The number that a process prints which runs this code."""
    done = subprocess.run(
        [sys.executable, "-c", code, word],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env=environment or None,
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="settings of glibc")
def test_memory_of_a_message_is_cleared_once() -> None:
    assert faults("kept") < 100
    assert faults("given back") > 10_000, "control: each block is mapped anew"


def looks(rig: Rig, monkeypatch: pytest.MonkeyPatch, look: Callable[[], None] = int) -> list[int]:
    """Runs eight control periods; steady clock of each look ahead, from the first period on."""
    at_ns: list[int] = []
    ticks: list[int] = []
    enough = threading.Event()
    tick = rig.stepper.tick

    def pictures(now_ns: int, not_before_ns: int) -> dict[str, Any]:
        at_ns.append(now_ns)
        look()
        return {}

    def ticked(now_ns: int) -> None:
        ticks.append(now_ns)
        tick(rig.now_ns)
        if len(ticks) == 8:
            enough.set()

    monkeypatch.setattr(rig.inputs, "pictures", pictures)
    monkeypatch.setattr(rig.stepper, "tick", ticked)
    control = Control(lambda: rig.stepper, rig.out, PERIOD_S, 1)
    control.start()
    try:
        assert enough.wait(LIMIT_S)
    finally:
        assert control.close()
    assert control.lost is None
    # The first period begins when the thread finds the node active, all others by the clock.
    return [now_ns - ticks[0] for now_ns in at_ns]


def test_the_control_thread_looks_ahead_just_before_a_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, foreseen = Rig(), []
    rig.hear()
    monkeypatch.setattr(PolicySession, "foresees", True)
    monkeypatch.setattr(rig.session, "foresee", foreseen.append)
    found = looks(rig, monkeypatch)
    assert len(found) >= 4
    within = sorted(at_ns / 1e9 / PERIOD_S % 1.0 for at_ns in found)
    # 1 ms of 50; on a machine that is busy some are late.
    assert within[len(within) // 2] > 0.97
    assert len(foreseen) == len(found), "what it has seen crosses"


@pytest.mark.parametrize("case", ["nothing crosses", "held"])
def test_it_does_not_look_where_that_saves_nothing(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(hold=case == "held")
    rig.hear()
    monkeypatch.setattr(PolicySession, "foresees", case == "held")
    assert not looks(rig, monkeypatch)


def test_others_get_their_turn_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an input, a service or a stop that comes then waits for the whole control step."""
    rig, asked, ended = Rig(), threading.Event(), False
    turns: list[int] = []

    def look() -> None:
        # It takes its time and keeps the interpreter.
        until_ns = time.monotonic_ns() + 100_000
        while time.monotonic_ns() < until_ns:
            pass
        asked.set()

    def other() -> None:
        while asked.wait(LIMIT_S) and not ended:
            asked.clear()
            turns.append(time.monotonic_ns())

    monkeypatch.setattr(PolicySession, "foresees", True)
    monkeypatch.setattr(control_module, "EARLY_NS", round(PERIOD_S * 1e8))
    thread = threading.Thread(target=other)
    interval_s = sys.getswitchinterval()
    thread.start()
    try:
        sys.setswitchinterval(LIMIT_S)  # nobody is made to give way
        found = looks(rig, monkeypatch, look)
    finally:
        sys.setswitchinterval(interval_s)
        ended = True
        asked.set()
        thread.join()
    # Eight windows of 5 ms: with a turn a window only there would be eight.
    assert len(turns) > 24
    assert len(found) > 24


def test_a_number_that_stands_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    session = PolicySession(FollowChunks())
    inputs, crossed = session._engine.inputs, []
    name = next(iter(session.arena.mirrors))
    session.arena.mirrors[name].zero_()
    monkeypatch.setattr(inputs, "_cross", lambda *_: crossed.append(1))
    for number in (3, 3, 4, 4, 3):
        inputs.write_number(name, number)
        assert np.all(session.arena.mirrors[name].numpy() == number)
    assert len(crossed) == 3


def test_what_keeps_warm_does_not_begin_just_before_a_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, enough = Rig(), threading.Event()  # without input: not running
    monkeypatch.setattr(PolicySession, "foresees", True)
    begun: list[float] = []
    ticks: list[float] = []
    tick, step = rig.stepper.tick, rig.session.step
    rig.options.keep_warm_s = 0.23

    def ticked(now_ns: int) -> None:
        ticks.append(time.monotonic())
        tick(now_ns)

    def stepped(observations: Any) -> Any:
        begun.append(time.monotonic() - ticks[-1])
        if len(begun) == 6:
            enough.set()
        return step(observations)

    monkeypatch.setattr(rig.stepper, "tick", ticked)
    monkeypatch.setattr(rig.session, "step", stepped)
    control = Control(lambda: rig.stepper, rig.out, 0.1, 1)
    control.start()
    try:
        assert enough.wait(LIMIT_S)
    finally:
        assert control.close()
    # The first may come before the first period; on a machine that is busy one more is off.
    assert sorted(begun)[3] < 0.05


def test_the_control_thread_outlives_a_look_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(PolicySession, "foresees", True)
    assert looks(Rig(), monkeypatch, failing)


class Picky(Told):
    """Judges its task by what it sees."""

    task_observes = True
    broken = False

    def encode_task(self, task: str, observations: Any) -> dict[str, Any]:
        if self.broken:
            raise ValueError("out of luck")
        return super().encode_task(task, observations)


def test_a_state_is_whole_where_its_inputs_could_not_be_written() -> None:
    policy = Picky()
    session = PolicySession(policy, rollback_depth=4)
    (port,) = policy.ports().observations
    seen = {port.key: np.zeros(port.shape, np.float32)}
    for _ in range(3):
        session.step(seen)
    digest = session.state_digest()
    policy.broken = True
    with pytest.raises(ValueError, match="out of luck"):
        session.step(seen)
    policy.broken = False
    assert session.state_digest() == digest
    session.snapshot("whole")
    session.step(seen)
    assert session._ring.boundaries()[-1].host.step == 3
    assert session.rollback(1) == 1
    assert session.state_digest() == digest


def test_a_number_that_did_not_cross_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    session = PolicySession(FollowChunks())
    inputs = session._engine.inputs
    name = next(iter(session.arena.mirrors))
    inputs.write_number(name, 3)

    def broken(*_: object) -> None:
        raise RuntimeError("no copy today")

    with monkeypatch.context() as patched:
        patched.setattr(inputs, "_cross", broken)
        with pytest.raises(RuntimeError, match="no copy"):
            inputs.write_number(name, 4)
    inputs.write_number(name, 3)
    assert np.all(session.arena.mirrors[name].numpy() == 3)


WEIGHTS = """
import sys
from flashrt_ros.ros.allocator import give_back, keep_memory
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) >> 8
assert keep_memory()
before, weights, between = resident(), [], []
for _ in range(300):
    weights.append(b"x" * (1 << 20))
    between.append(bytes(600))
del weights
if sys.argv[1] == "given back":
    give_back()
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="settings of glibc")
@pytest.mark.parametrize(("word", "least", "most"), [("given back", -9, 50), ("kept", 250, 400)])
def test_memory_of_weights_that_went_to_a_device_is_given_back(
    word: str, least: int, most: int
) -> None:
    found = printed(WEIGHTS, word)
    assert least < found < most, "MiB; the control: objects between weights keep them"
