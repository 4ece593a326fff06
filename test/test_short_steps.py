"""What shortens a control step without changing what it does: memory, and fewer waits.

Each is held to leave no trace; what it is worth is measured by ``flashrt_ros bench path``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keyframe_cases import Told
from node_policies import FollowChunks

from flashrt_ros.runtime.session import PolicySession

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
