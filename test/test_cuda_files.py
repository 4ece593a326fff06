"""Capsules that leave an NVIDIA GPU and come back: the promises of the CPU, and no device memory.

A capsule of a GPU is refused by a session on the CPU unless asked, since its kernels round
otherwise; the noise integers go on the same on both.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from capsule_images import content_of
from test_transfer import check_continues_in_another_process
from toy_policies import ToyRecurrent, observations

from flashrt_ros.errors import ExecMismatchError
from flashrt_ros.runtime.capsule_file import decode
from flashrt_ros.runtime.session import PolicySession

pytestmark = pytest.mark.cuda


def test_continues_in_another_process(tmp_path: Path) -> None:
    check_continues_in_another_process("cuda", tmp_path)


def test_export_and_import_are_exact_and_take_no_device_memory() -> None:
    session = PolicySession(ToyRecurrent(hidden=1024), device="cuda")
    session.step(observations(0))
    session.snapshot("a")
    digest = session.state_digest()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for number in range(20):
        image = session.export("a")
        for step in range(3):  # overwrites the live state while nothing holds the copy
            session.step(observations(step))
        session.import_(image, f"again-{number}")
        session.restore(f"again-{number}")
        assert session.state_digest() == digest
        session.drop(f"again-{number}")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    content = content_of(session.export("a"))
    session.step(observations(9))
    assert session.state_digest() != digest, "control: a step changes the state"
    session.import_(decode(content, "file"), "file")
    session.restore("file")
    assert session.state_digest() == digest
    session.close()


def test_a_capsule_moves_to_the_cpu_only_inexactly() -> None:
    gpu, cpu = PolicySession(ToyRecurrent(), device="cuda"), PolicySession(ToyRecurrent())
    for step in range(5):
        gpu.step(observations(step))
    gpu.snapshot("a")
    image = gpu.export("a")
    with pytest.raises(ExecMismatchError, match="device: expected cpu, found cuda"):
        cpu.import_(image)
    cpu.import_(image, allow_inexact=True)
    cpu.restore("a", allow_inexact=True)
    assert cpu.state_digest() == gpu.state_digest()
    for step in range(5, 25):
        one, other = (s.step(observations(step)).values for s in (gpu, cpu))
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    for name in ("noise.key", "noise.counter"):
        assert torch.equal(gpu.arena.state[name].cpu(), cpu.arena.state[name])
    gpu.close()
    cpu.close()
