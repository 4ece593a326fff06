"""A session with rows beside a reference in plain Python that keeps full copies of everything.

``Pair.do`` applies one verb to both and compares: every byte of the live state and of every
capsule, the bytes that were copied, and the memory that is held. Verbs are tuples of small
integers that mean something in every state, so a list of them stays valid when some are left out,
and a failing list can be shrunk.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from expected_error import expected
from ledger_policy import MOST, Ledger, row_bytes

from flashrt_ros.errors import (
    AlreadyExistsError,
    NoMemoryError,
    NotFoundError,
    PinnedError,
)
from flashrt_ros.runtime.capsule import Capsule
from flashrt_ros.runtime.device import Lane
from flashrt_ros.runtime.noise import as_signed
from flashrt_ros.runtime.place import Tier
from flashrt_ros.runtime.policy import HostRecord
from flashrt_ros.runtime.session import PolicySession

Verb = tuple[str, int, int]
NAMES = 7
DEPTH = 4


@dataclass
class Copy:
    """A full copy of a state, with the identity of every row: when it was appended."""

    total: int = 0
    key: int = 0
    rows: list[bytes] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    host: HostRecord = field(default_factory=HostRecord)

    def twin(self, key: int | None = None) -> Copy:
        return Copy(
            self.total,
            self.key if key is None else key,
            list(self.rows),
            list(self.ids),
            copy.copy(self.host),
        )


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(index for index in range(length) if one[index] != other[index])


class Pair:
    """The session and its reference.

    Attributes:
        copied: Bytes that the last verb copied.
    """

    def __init__(
        self,
        width: int = 3,
        capacity: int = 40,
        slots: int = 11,
        device: str = "cpu",
        **options: Any,
    ) -> None:
        """Makes both; rows are small beside a slot with the default width, large with 124."""
        self.width = width
        self.row_bytes = len(row_bytes(0, 0, 0, width))
        slot_bytes = 4 * 256
        least = (DEPTH + 1) * slot_bytes + capacity * self.row_bytes
        self.session = PolicySession(
            Ledger(capacity, width),
            device,
            seed=5,
            store_bytes=least + 2 * (slots - DEPTH - 1) * slot_bytes,
            rollback_depth=DEPTH,
            warm_up=0,
            **options,
        )
        self.live = Copy(key=5)
        self.kept: dict[str, Copy] = {}
        self.stamp = 0
        self.row_id = 0
        self.copied = 0
        self._count_copies()

    def _count_copies(self) -> None:
        device = self.session.device
        plain, pieces = device.copy_, device.copy_pieces_

        def copy_(dst: Any, src: Any) -> None:
            self.copied += dst.nbytes
            plain(dst, src)

        def copy_pieces_(dst: Any, src: Any, many: Any) -> None:
            self.copied += int(many.sizes.sum())
            pieces(dst, src, many)

        device.copy_ = copy_  # type: ignore[method-assign]
        device.copy_pieces_ = copy_pieces_  # type: ignore[method-assign]

    def do(self, verb: Verb) -> None:
        """Applies one verb to both and compares them whole."""
        kind, a, b = verb
        generation, removals = self.session.generation, self.session.store.removals
        self.copied = 0
        getattr(self, f"_{kind}")(a, b)
        self.compare(generation, removals)

    # Verbs. Each expects what the reference says, errors included.

    def _step(self, a: int, b: int) -> None:
        session, live = self.session, self.live
        if len(live.rows) + MOST > session.layout.capacity:
            with expected(NoMemoryError, "nothing was run"):
                session.step({"told": [a % 3, 1]})
            return
        before = live.twin()
        self.stamp += 1
        count = a % (MOST + 1)
        live.total += self.stamp
        for _ in range(count):
            self.row_id += 1
            live.ids.append(self.row_id)
            live.rows.append(row_bytes(self.stamp, len(live.rows), live.total, self.width))
        offered = {c.id for c in session.store.list() if c.automatic}
        action = session.step({"told": [count, self.stamp]})
        assert action.values.item() == live.total
        live.host.step += 1
        live.host.rows = len(live.rows)
        for capsule in session.store.list():
            if capsule.automatic and capsule.id not in offered:
                self.kept[capsule.id] = before

    def _trial(self, a: int, b: int) -> None:
        """A step that is taken back, as the node does with a first command that is unsafe."""
        session, before = self.session, self.live.twin()
        host, tick = copy.copy(session.host), session.tick
        with session.device.bind(Lane.CONTROL):
            fixed = session.arena.fixed.clone()
        self._step(a, b)
        with session.device.bind(Lane.CONTROL):
            session.device.copy_(session.arena.fixed, fixed)
            session.device.synchronize()
        session.host, session.tick = host, tick
        session.boundary_returned()
        self.live = before

    def _snapshot(self, a: int, b: int) -> None:
        session = self.session
        name, pin, again = f"n{a % NAMES}", b % 7 == 0, b % 2 == 0
        old = session.store.get(name) if name in session.store else None
        if old is not None and not again:
            with expected(AlreadyExistsError, name):
                session.snapshot(name, pin)
            return
        if old is not None and old.pinned:
            with expected(PinnedError, name):
                session.snapshot(name, pin, replace=True)
            return
        victims, new = self._foresee(old)
        if victims is None:
            with expected(NoMemoryError, "no room for one more"):
                session.snapshot(name, pin, replace=again)
            return
        made = session.snapshot(name, pin, replace=again)
        assert self.copied == session.layout.fixed_bytes + new * self.row_bytes
        self._gone(victims)
        self.kept[made.id] = self.live.twin()
        assert made.size_bytes == session.layout.fixed_bytes + len(self.live.rows) * self.row_bytes

    def _fork_live(self, a: int, b: int) -> None:
        victims, new = self._foresee(None)
        if victims is None:
            with expected(NoMemoryError, "no room for one more"):
                self.session.fork(None, count=1)
            return
        branches = self.session.fork(None, count=1 + a % 2)
        assert self.copied == self.session.layout.fixed_bytes + new * self.row_bytes
        self._gone(victims)
        for branch in branches:
            self.kept[branch.id] = self.live.twin(branch.noise_key)

    def _fork(self, a: int, b: int) -> None:
        source = self._pick(a)
        if source is None or len(self.kept) > 40:
            return
        for branch in self.session.fork(source, count=1 + b % 2):
            self.kept[branch.id] = self.kept[source.id].twin(branch.noise_key)
        assert self.copied == 0

    def _restore(self, a: int, b: int) -> None:
        target = self._pick(a)
        if target is not None:
            self.session.restore(target, seed=b if b % 5 == 0 else None)
            self._went(target, b if b % 5 == 0 else None)

    def _rollback(self, a: int, b: int) -> None:
        steps = 1 + a % (DEPTH + 1)
        ring = [c for c in self.session.store.list() if c.automatic]
        step = self.live.host.step
        targets = [c for c in ring if c.host.step <= step - steps]
        if not targets:
            with expected(NotFoundError, "rollback by"):
                self.session.rollback(steps)
            return
        assert self.session.rollback(steps) == step - targets[-1].host.step
        self._went(targets[-1], None)

    def _parent(self, a: int, b: int) -> None:
        parent = self.session.capsule_id
        if parent not in self.session.store:
            with expected(NotFoundError, ""):
                self.session.rollback()
            return
        target = self.session.store.get(parent)
        self.session.rollback()
        self._went(target, None)

    def _drop(self, a: int, b: int) -> None:
        target = self._pick(a)
        if target is None:
            return
        used = self.session.store.bytes_used
        unique = self.session.store.unique_bytes(target)
        here = target.segment.tier is Tier.DEVICE
        if target.pinned and b % 2:
            with expected(PinnedError, target.name):
                self.session.drop(target.name)
            return
        assert self.session.drop(target.name, force=True) == unique
        assert used - self.session.store.bytes_used == (unique if here else 0)

    def _pin(self, a: int, b: int) -> None:
        target = self._pick(a)
        if target is not None and not target.automatic:
            self.session.store.pin(target.id, b % 3 == 0)

    def _reset(self, a: int, b: int) -> None:
        self.session.reset_(seed=b)
        self.live = Copy(key=b, host=HostRecord(episode=self.live.host.episode + 1))

    # The reference.

    def _went(self, target: Capsule, seed: int | None) -> None:
        """After a restore: only rows that differ have been copied."""
        goal = self.kept[target.id]
        rows = len(goal.rows) - shared(self.live.ids, goal.ids)
        assert self.copied == self.session.layout.fixed_bytes + rows * self.row_bytes
        self.live = goal.twin(seed)

    def _pick(self, number: int) -> Capsule | None:
        capsules = self.session.store.list()
        return capsules[number % len(capsules)] if capsules else None

    def _foresee(
        self, old: Capsule | None, arriving: int | None = None
    ) -> tuple[list[Capsule] | None, int]:
        """Who must go for one more capsule, by trying it out on a recount; and new rows.

        Args:
            old: It takes the place of this one.
            arriving: It is not of the live state, but comes from elsewhere with so many rows.
        """
        store = self.session.store
        assert store.rows is not None
        capsules = [c for c in store.list() if c.segment.tier is Tier.DEVICE]
        # What is stored of the live rows, and in which segment.
        stored, tail = 0, None
        for capsule in capsules:
            length = shared(self.live.ids, self.kept[capsule.id].ids)
            if length > stored and capsule.segment.rows is not None:
                stored = length
                tail = next(s for s, _ in capsule.segment.rows.segments() if s.first < length)
        guard = [] if tail is None else [(tail, stored)]
        ends = recount(capsules, guard)
        new = len(self.live.rows) - stored
        pages = store.rows.page_rows
        room = 0
        if tail is not None and ends[id(tail)][1] == stored:
            room = -(-(stored - tail.first) // pages) * pages - (stored - tail.first)
        needed = max(0, -(-(new - room) // pages))
        if arriving is not None:
            needed, guard = -(-arriving // pages), []

        def fits(without: list[Capsule]) -> bool:
            left = [c for c in capsules if c not in without]
            held = recount(left, guard)
            used = sum(-(-(end - first) // pages) for first, end in held.values())
            slots = len({id(c.segment) for c in left})
            return slots < store.pool.slots and used + needed <= store.rows.pages

        gone = [old] if old in capsules else []
        ring = [c for c in capsules if c.automatic and c is not old][:-1]
        named = [c for c in capsules if not c.automatic and not c.pinned and c is not old]
        named.sort(key=lambda c: store._used[c.id])
        victims: list[Capsule] = []
        for capsule in (*ring, *named):
            if fits(gone + victims):
                break
            if sum(c.segment is capsule.segment for c in capsules) == 1:
                victims.append(capsule)
        if not fits(gone + victims):
            return None, new
        for capsule in victims[::-1]:
            rest = [c for c in victims if c is not capsule]
            if fits(gone + rest):
                victims = rest
        return victims, new

    def _gone(self, victims: list[Capsule]) -> None:
        left = [c for c in victims if c.segment.tier is not Tier.DISK]
        assert self.session.last_evicted == [c.name for c in left if not c.automatic]
        self._left(victims)

    def _left(self, victims: list[Capsule]) -> None:
        """Who gave way is gone, or is in its file again."""
        there = {id(capsule) for capsule in self.session.store.list()}
        for capsule in victims:
            assert (id(capsule) in there) == (capsule.segment.tier is Tier.DISK)

    def compare(self, generation: int, removals: int) -> None:
        """Every byte, every count."""
        session, live = self.session, self.live
        store = session.store
        with session.device.bind(Lane.CONTROL):
            session.device.synchronize()
        assert session.host == live.host
        assert session.arena.fixed.cpu().numpy().tobytes() == self._fixed(live)
        rows = session.arena.rows[: len(live.rows)].cpu().numpy().tobytes()
        assert rows == b"".join(live.rows)
        capsules = store.list()
        present = {c.id for c in capsules}
        if store.removals != removals:
            self.kept = {id_: kept for id_, kept in self.kept.items() if id_ in present}
        assert present == set(self.kept)
        assert store.rows is not None
        memory = store.rows.memory.cpu().numpy().reshape(-1, self.row_bytes)
        seen: set[int] = set()
        for capsule in capsules:
            kept, segment = self.kept[capsule.id], capsule.segment
            assert capsule.host == kept.host
            assert capsule.key == kept.key
            if id(segment) in seen:
                continue
            seen.add(id(segment))
            held = replace_key(self._fixed(kept), session, segment.noise_key)
            assert self._found(capsule, memory) == (held, b"".join(kept.rows))
            sharing = [c for c in capsules if c.segment is segment]
            assert segment.holders == len(sharing)
        self._audit(capsules)

    def _found(self, capsule: Capsule, memory: Any) -> tuple[bytes, bytes]:
        """The bytes that are stored of a capsule, and of its rows."""
        segment = capsule.segment
        assert segment.rows is not None
        parts = [memory[s.row : s.row + e - s.first] for s, e in segment.rows.segments()]
        found = np.concatenate(parts[::-1]).tobytes() if parts else b""
        return segment.bytes.cpu().numpy().tobytes(), found

    def _audit(self, capsules: list[Capsule]) -> None:
        """Counts anew who holds what; nothing else may be held."""
        store, pool = self.session.store, self.session.store.rows
        assert pool is not None
        here = [c for c in capsules if c.segment.tier is Tier.DEVICE]
        spans = {id(c.segment): c.segment.rows for c in here}
        holders: dict[int, dict[int, int]] = {}
        nodes: dict[int, Any] = {}
        waiting = [(s.tail, s.end) for s in spans.values() if s is not None and s.tail is not None]
        while waiting:
            node, end = waiting.pop()
            known = id(node) in nodes
            nodes[id(node)] = node
            counts = holders.setdefault(id(node), {})
            counts[end] = counts.get(end, 0) + 1
            if not known and node.parent is not None:
                waiting.append((node.parent, node.first))
        used = np.zeros(pool.pages, np.int64)
        for number, node in nodes.items():
            assert node.holders == holders[number]
            assert node.end == max(holders[number]) > node.first
            assert node.pages == -(-(node.end - node.first) // pool.page_rows)
            used[node.page : node.page + node.pages] += 1
        for start, length in pool.runs():
            used[start : start + length] += 1
        assert (used == 1).all(), "each page is free or held, once"
        runs = pool.runs()
        assert all(a + n < b for (a, n), (b, _) in itertools.pairwise(runs)), "coalesced"
        pages = sum(node.pages for node in nodes.values())
        assert pool.free == pool.pages - pages
        slot_bytes = len(spans) * store.pool.slot_bytes
        assert store.bytes_used == slot_bytes + pages * pool.page_bytes <= store.bytes_budget

    def _fixed(self, state: Copy) -> bytes:
        values = {"sum": state.total, "rows.length": len(state.rows), "noise.counter": 0}
        values["noise.key"] = as_signed(state.key)
        section = bytearray(self.session.layout.fixed_bytes)
        for slot in self.session.layout.state:
            value = values[slot.spec.name].to_bytes(8, "little", signed=True)
            section[slot.offset : slot.offset + 8] = value
        return bytes(section)


def replace_key(section: bytes, session: PolicySession, key: int) -> bytes:
    """``section`` with another noise key: a branch shares the bytes of its source."""
    (slot,) = (s for s in session.layout.state if s.spec.name == "noise.key")
    value = as_signed(key).to_bytes(8, "little", signed=True)
    return section[: slot.offset] + value + section[slot.offset + 8 :]


def recount(capsules: list[Capsule], guard: list[Any]) -> dict[int, tuple[int, int]]:
    """Segment to its first token and the last that anyone needs."""
    ends: dict[int, tuple[int, int]] = {}
    spans = [list(c.segment.rows.segments()) for c in capsules if c.segment.rows is not None]
    for node, end in guard:
        span = [(node, end)]
        while node.parent is not None:
            span.append((node.parent, node.first))
            node = node.parent
        spans.append(span)
    for span in spans:
        for node, end in span:
            first, most = ends.get(id(node), (node.first, 0))
            ends[id(node)] = (first, max(most, end))
    return ends
