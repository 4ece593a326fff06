"""Tiers on an NVIDIA GPU: pinned memory, streams of their own, and bytes that stay exact.

On the CPU a copy is done when it returns, so only here it shows whether a slot is reused while the
storage lane still reads it, or read before it was written.
"""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import pytest
import torch
from capsule_child import continuation
from row_images import image_with_rows
from toy_policies import ToyRecurrent, observations

from flashrt_ros.bench.policies import OBSERVATION, SizedPolicy
from flashrt_ros.bench.tiers import control_periods
from flashrt_ros.policies.attention import AttentionConfig, AttentionPolicy
from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.device import Lane
from flashrt_ros.runtime.moves import Move
from flashrt_ros.runtime.place import Tier
from flashrt_ros.runtime.session import PolicySession

pytestmark = pytest.mark.cuda
MIB = 1 << 20


def sized(size_bytes: int, capsules: int, folder: Path, blocks: int = 4) -> PolicySession:
    weight = size_bytes + 4096
    return PolicySession(
        SizedPolicy(size_bytes),
        device="cuda",
        store_bytes=capsules * weight,
        rollback_depth=0,
        preview_sets=0,
        host_store_bytes=blocks * weight,
        folder=CapsuleFolder(folder),
    )


def test_the_host_tier_is_pinned_and_nothing_is_allocated_later(tmp_path: Path) -> None:
    session = sized(8 * MIB, 4, tmp_path)
    assert session.store.host is not None
    assert session.store.host.memory.is_pinned()
    session.snapshot("a")
    torch.cuda.synchronize()
    device = torch.cuda.memory_stats()["allocation.all.allocated"]
    host = torch.cuda.host_memory_stats()["active_requests.allocated"]
    for tier in (Tier.HOST, Tier.DISK, Tier.HOST, Tier.DEVICE, Tier.DISK, Tier.DEVICE):
        session.move("a", tier)
        session.export("a")
    session.import_(session.export("a"), "b")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == device
    assert torch.cuda.host_memory_stats()["active_requests.allocated"] == host
    session.close()


@pytest.mark.parametrize("kind", ["recurrent", "attention"])
def test_what_was_elsewhere_continues_bit_equally(kind: str, tmp_path: Path) -> None:
    policy = ToyRecurrent()
    if kind == "attention":
        policy = AttentionPolicy(AttentionConfig(observation_size=4))  # type: ignore[assignment]
    session = PolicySession(
        policy, device="cuda", host_store_bytes=16 * MIB, folder=CapsuleFolder(tmp_path)
    )
    for step in range(40):
        session.step({k: v for k, v in observations(step).items() if k == "observation.state"})
    session.snapshot("cut")
    expected = continuation(session, 30)
    session.snapshot("other")
    for tier in (Tier.HOST, Tier.DISK, Tier.HOST):
        session.move("cut", tier)
        session.restore("cut")
        assert continuation(session, 30) == expected
        session.restore("other")
        assert continuation(session, 30) != expected, "control"
    session.close()


def test_copies_beside_steps_are_exact_and_slots_are_not_reused_too_early(tmp_path: Path) -> None:
    """Each capsule is filled with a number of its own; few slots, all of them always moving."""
    session = sized(32 * MIB, 5, tmp_path, blocks=12)
    jobs: queue.SimpleQueue[Move | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[Move] = queue.SimpleQueue()

    def storage() -> None:
        while (move := jobs.get()) is not None:
            session.carry(move)
            done.put(move)

    thread = threading.Thread(target=storage)
    thread.start()
    bulk_N = session.arena.state["bulk"]
    for number in range(1, 11):
        for _ in range(3):
            session.step({OBSERVATION: [1.0]})
        with session.device.bind(Lane.CONTROL):
            bulk_N.fill_(number)
        session.snapshot(f"c{number}")
        move = session.begin_move(f"c{number}", Tier.HOST)
        assert move is not None
        jobs.put(move)
        while not done.empty():
            session.commit_move(done.get())
        if session.store.pool.free < 2:
            session.commit_move(done.get())
    for _ in range(10 - sum(c.segment.tier is Tier.HOST for c in session.store.list())):
        session.commit_move(done.get())
    for number in range(1, 11):
        move = session.begin_move(f"c{number}", Tier.DEVICE)
        assert move is not None
        jobs.put(move)
        back = done.get()
        session.commit_move(back)
        session.restore(f"c{number}")
        session.drop(f"c{number}")
        torch.cuda.synchronize()
        assert (bulk_N == number).all()
    jobs.put(None)
    thread.join()
    session.close()


def test_rows_of_a_file_come_back_on_a_gpu() -> None:
    """Written by the CPU; on a GPU only inexactly, and to the byte."""
    from ledger_policy import Ledger

    session = PolicySession(Ledger(), device="cuda", warm_up=1)
    image = image_with_rows(15)
    session.import_(image, allow_inexact=True)
    session.restore("cut", allow_inexact=True)
    assert image.rows is not None
    found = session.state_bytes()[session.layout.fixed_bytes :]
    assert found == bytes(image.rows.data)
    session.close()


def test_the_loop_runs_beside_moves(tmp_path: Path) -> None:
    session = sized(4 * MIB, 4, tmp_path)
    found = control_periods(session, 200, Tier.HOST)
    assert found.moves > 4
    assert len(found.late_ms) == 200
    session.close()
