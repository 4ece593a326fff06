"""What shortens a control step without changing what it does: memory, and looking ahead.

Each is held to leave no trace; what it is worth is measured by ``flashrt_ros bench path``.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_rig import Rig
from keyframe_cases import Told
from node_policies import FollowChunks

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
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, word],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env={"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"},
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="settings of glibc")
def test_memory_of_a_message_is_cleared_once() -> None:
    assert faults("kept") < 100
    assert faults("given back") > 10_000, "control: each block is mapped anew"


def looks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Runs eight control periods; when in its period each look ahead began, 1 the end."""
    begun_ns: list[int] = []
    ticks: list[int] = []
    enough = threading.Event()
    peek, tick = rig.inputs.peek, rig.stepper.tick

    def peeked(now_ns: int, not_before_ns: int) -> Any:
        begun_ns.append(now_ns)
        return peek(rig.now_ns, not_before_ns)

    def ticked(now_ns: int) -> None:
        ticks.append(now_ns)
        tick(rig.now_ns)
        if len(ticks) == 8:
            enough.set()

    monkeypatch.setattr(rig.inputs, "peek", peeked)
    monkeypatch.setattr(rig.stepper, "tick", ticked)
    control = Control(lambda: rig.stepper, rig.out, PERIOD_S, 1)
    control.start()
    try:
        assert enough.wait(LIMIT_S)
    finally:
        assert control.close()
    # The first period begins when the thread finds the node active, all others by the clock.
    return [(at_ns - ticks[0]) / 1e9 / PERIOD_S % 1.0 for at_ns in begun_ns]


def test_the_control_thread_looks_ahead_just_before_a_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, foreseen = Rig(), []
    rig.hear()
    monkeypatch.setattr(PolicySession, "foresees", True)
    monkeypatch.setattr(rig.session, "foresee", foreseen.append)
    begun = looks(rig, monkeypatch)
    assert len(begun) >= 4
    # 1 ms of 50; on a machine that is busy some are late.
    assert sorted(begun)[len(begun) // 2] > 0.97
    assert foreseen, "what it has seen crosses"


@pytest.mark.parametrize("case", ["nothing crosses", "held"])
def test_it_does_not_look_where_that_saves_nothing(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(hold=case == "held")
    rig.hear()
    monkeypatch.setattr(PolicySession, "foresees", case == "held")
    assert not looks(rig, monkeypatch)


def test_it_does_not_let_cross_what_no_step_would_see(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, foreseen = Rig(), []
    monkeypatch.setattr(PolicySession, "foresees", True)
    monkeypatch.setattr(rig.session, "foresee", foreseen.append)
    assert looks(rig, monkeypatch), "no input has come"
    assert not foreseen


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
    rig, looked = Rig(), threading.Event()
    monkeypatch.setattr(PolicySession, "foresees", True)

    def failing(now_ns: int, not_before_ns: int) -> Any:
        looked.set()
        raise RuntimeError("out of luck")

    monkeypatch.setattr(rig.inputs, "peek", failing)
    control = Control(lambda: rig.stepper, rig.out, 0.05, 1)
    control.start()
    try:
        assert looked.wait(LIMIT_S)
    finally:
        assert control.close()
    assert control.lost is None


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
    done = subprocess.run(
        [sys.executable, "-c", WEIGHTS, word],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert least < int(done.stdout) < most, "MiB; the control: objects between weights keep them"
