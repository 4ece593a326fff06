"""Sessions with branches, and the slow way to what a preview gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ledger_policy import Beside, Planned
from toy_policies import ToyAdvancing, ToyChunk, ToyRecurrent, observations

from flashrt_ros.policies.attention import OBSERVATION, AttentionPolicy
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.preview import CHUNK
from flashrt_ros.runtime.session import PolicySession

Seen = dict[str, Any]


def told(step: int) -> Seen:
    return {"told": [1 + step % 2, step + 1]}


def waves(step: int) -> Seen:
    return {OBSERVATION: [((step * k) % 11) / 5.0 - 1.0 for k in (1, 2, 3, 5, 7, 8)]}


KINDS: dict[str, tuple[Callable[[], Policy], Callable[[int], Seen]]] = {
    "none": (ToyRecurrent, observations),
    "beside": (ToyChunk, observations),
    "advances": (ToyAdvancing, observations),
    "rows by act": (lambda: AttentionPolicy(capacity=96), waves),
    "rows by plan": (lambda: Planned(600), told),
    "rows by plan beside": (lambda: Beside(600), told),
}


def run(session: PolicySession, see: Callable[[int], Seen], first: int, end: int) -> None:
    for step in range(first, end):
        session.step(see(step))


def everything(session: PolicySession) -> tuple[Any, ...]:
    """All of a live state that a preview must leave as it is."""
    rows = session._rows
    return (
        session.state_bytes(),
        dict(vars(session.host)),
        (session.tick, session.generation, session.capsule_id, session._noise_key),
        [capsule.id for capsule in session.store.list()],
        session.store.bytes_used,
        None if rows is None else (rows._tail, rows._stored),
        session._offered,
    )


def by_restore(session: PolicySession, name: str, seen: Seen) -> torch.Tensor:
    """The slow way: makes the capsule live and steps, with a plan."""
    session.restore(name)
    return next_chunk(session, seen)


def next_chunk(session: PolicySession, seen: Seen) -> torch.Tensor:
    session.host.cursor = session.host.length  # so that a plan is due
    action = session.step(seen)
    chunk_HA = session.arena.state.get(CHUNK)
    return action.values.view(1, -1) if chunk_HA is None else chunk_HA.cpu().clone()


def branched(kind: str, device: str) -> tuple[PolicySession, Callable[[int], Seen]]:
    """A live state that shares its first 60 steps with its capsules."""
    make, see = KINDS[kind]
    shared = 16 if kind == "rows by plan beside" else 60  # its sums double: they shall stay exact
    session = PolicySession(make(), device=device, rollback_depth=8, seed=4)
    run(session, see, 0, shared)
    session.snapshot("a")
    session.fork("a", seeds=[5, 6], names=["b", "c"])
    run(session, see, shared, shared + 11)
    session.snapshot("later")
    session.restore("a")
    run(session, see, 80, 87)
    return session, see
