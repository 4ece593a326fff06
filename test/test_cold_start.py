"""What shortens a control step without changing what it does: rehearsals, waking up, memory.

Each is held to leave no trace; what it is worth is measured by ``flashrt_ros bench path``.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_examples import contract_dict
from control_rig import Rig, plan_ready
from node_policies import FollowChunks

from flashrt_ros.ros.control import Control
from flashrt_ros.ros.rehearsal import WORTH_NS, Rehearsal
from flashrt_ros.runtime.session import PolicySession

LIMIT_S = 30.0
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


def rehearsed(rig: Rig, waited_ns: int) -> None:
    """Makes acts of a rig rehearse as if the device had been waited for so long."""
    rehearsal = Rehearsal(rig.session, rig.commander)
    rig.session.meanwhile = lambda: (
        setattr(rig.session._engine, "waited_ns", waited_ns),
        rehearsal(),
    )[1]


def told(rig: Rig) -> tuple[list[Any], list[Any], Any]:
    """All that a robot and a recorder see."""
    steps = [
        (step.step, step.action.tobytes(), step.published, step.hold_reason)
        for step in rig.out.steps
    ]
    return [command.fields for command in rig.out.sent], steps, rig.commander._last


def single() -> Rig:
    return Rig()


def whole_chunks() -> Rig:
    output = contract_dict()["actions"][0]
    output |= {"type": "trajectory_msgs/msg/JointTrajectory", "horizon": "chunk"}
    return Rig(FollowChunks(), actions=[output])


@pytest.mark.parametrize("make", [single, whole_chunks])
def test_a_rehearsal_leaves_no_trace(make: Callable[[], Rig]) -> None:
    plain, other = make(), make()
    rehearsed(other, WORTH_NS + 1)
    for rig in (plain, other):
        for count in (6, 6):
            for _ in range(count):
                rig.tick()
                if rig.planner is not None:
                    plan_ready(rig)
            rig.motion.pause()
            rig.commander.halt()
            rig.motion.resume(rig.now_ns)
    assert len(plain.out.sent) > 2
    assert repr(told(other)) == repr(told(plain))
    # Not before there was a command to rehearse.
    assert len(other.out.rehearsed) == len(other.out.steps) - 1
    assert not plain.out.rehearsed


def test_a_short_wait_is_not_spent_on_a_rehearsal() -> None:
    rig = Rig()
    rehearsed(rig, WORTH_NS)
    rig.tick(3)
    assert not rig.out.rehearsed
    assert len(rig.out.sent) == 3


def test_the_control_thread_looks_once_before_each_period(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, looked, enough = Rig(), [], threading.Event()
    ticks: list[int] = []
    peek, tick = rig.inputs.peek, rig.stepper.tick

    def counted(now_ns: int, not_before_ns: int) -> Any:
        looked.append(len(ticks))
        return peek(now_ns, not_before_ns)

    def ticked(now_ns: int) -> None:
        ticks.append(now_ns)
        tick(now_ns)
        if len(ticks) == 8:
            enough.set()

    monkeypatch.setattr(rig.inputs, "peek", counted)
    monkeypatch.setattr(rig.stepper, "tick", ticked)
    control = Control(lambda: rig.stepper, rig.out, 0.05, 1)
    control.start()
    try:
        assert enough.wait(LIMIT_S)
    finally:
        assert control.close()
    # On a machine that is busy a period may begin late, and then there is nothing to wait for.
    assert len(looked) == len(set(looked)), "at most once before each"
    assert len(looked) >= 4


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
