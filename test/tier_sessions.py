"""Small sessions with every tier, for tests of tiers."""

from __future__ import annotations

import torch
from separate_host import separate_host
from toy_policies import ToyRecurrent, observations

from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.place import Tier
from flashrt_ros.runtime.session import PolicySession

WEIGHT = 1280
"""Bytes of a capsule of ``ToyRecurrent``, as a test below says."""
HOST, DISK, DEVICE = Tier.HOST, Tier.DISK, Tier.DEVICE


def session_of(folder: CapsuleFolder | None, slots: int = 6, blocks: int = 3) -> PolicySession:
    torch.set_num_threads(1)
    with separate_host():
        session = PolicySession(
            ToyRecurrent(),
            seed=5,
            store_bytes=slots * WEIGHT,
            rollback_depth=2,
            host_store_bytes=blocks * WEIGHT,
            folder=folder,
        )
    assert session.layout.fixed_bytes == WEIGHT
    return session


def run(session: PolicySession, steps: int = 3) -> None:
    for _ in range(steps):
        session.step(observations(session.host.step))


def standing(session: PolicySession) -> object:
    """All that a refusal must leave as it was."""
    store = session.store
    capsules = [(c.name, c.segment.tier, c.segment.holders, c.pinned) for c in store.list()]
    held = [(c.segment.place.holders, c.segment.moving) for c in store.list()]
    folder = session.folder
    files = sorted(folder.path.iterdir()) if folder and folder.path.exists() else []
    used = store.bytes_used, store.host_bytes_used
    return session.state_digest(), session.generation, capsules, held, files, used
