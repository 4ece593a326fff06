"""The store against a plain model: names, pins, shared storage, bytes and the order of eviction.

Random sequences of its operations must leave exactly the capsules that the documented order
leaves; an eviction too many loses a robot's way back, one too few grows without bound.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from flashrt_ros import errors
from flashrt_ros.runtime.capsule import Capsule, new_id
from flashrt_ros.runtime.device import open_device
from flashrt_ros.runtime.fingerprint import Fingerprint
from flashrt_ros.runtime.policy import HostRecord
from flashrt_ros.runtime.pool import Segment, SlotPool
from flashrt_ros.runtime.store import CapsuleStore

SLOT_BYTES = 256
EMPTY = Fingerprint({})


def make_store(slots: int) -> CapsuleStore:
    budget_bytes = slots * SLOT_BYTES + 100  # what is left over is no slot
    return CapsuleStore(SlotPool(open_device("cpu"), SLOT_BYTES, budget_bytes), budget_bytes)


def capsule(
    name: str, segment: Segment, *, pinned: bool = False, automatic: bool = False
) -> Capsule:
    return Capsule(
        id=new_id(),
        name=name,
        parent_id="",
        host=HostRecord(),
        tick=0,
        generation=0,
        created_ns=0,
        state_fingerprint=EMPTY,
        exec_fingerprint=EMPTY,
        size_bytes=segment.size_bytes,
        segment=segment,
        pinned=pinned,
        automatic=automatic,
    )


@dataclass
class Entry:
    """What the model knows of a capsule."""

    name: str
    content: int
    pinned: bool
    automatic: bool
    used: int


class StoreMachine(RuleBasedStateMachine):
    """Operations in any order; the model is a list, searched from the start each time."""

    @initialize(slots=st.integers(1, 5))
    def make(self, slots: int) -> None:
        self.slots = slots
        self.store = make_store(slots)
        self.entries: list[Entry] = []
        self.time = 0

    def holders(self, content: int) -> int:
        return sum(entry.content == content for entry in self.entries)

    def used(self) -> int:
        return len({entry.content for entry in self.entries})

    def victim(self, replacing: Entry | None) -> Entry | None:
        """The documented order, read aloud."""
        others = [e for e in self.entries if e is not replacing]
        ring = [e for e in others if e.automatic]
        for entry in ring[:-1]:
            if self.holders(entry.content) == 1:
                return entry
        named = [
            e for e in others if not e.automatic and not e.pinned and self.holders(e.content) == 1
        ]
        return min(named, key=lambda e: e.used, default=None)

    @rule(pinned=st.booleans(), automatic=st.booleans(), replace=st.booleans(), at=st.integers(0))
    def add(self, pinned: bool, automatic: bool, replace: bool, at: int) -> None:
        self.time += 1
        old = self.entries[at % len(self.entries)] if replace and self.entries else None
        replaced = self.store.get(old.name) if old else None
        name = old.name if old else f"c{self.time}"
        frees = old is not None and self.holders(old.content) == 1
        victim = None if self.used() < self.slots or frees else self.victim(old)
        if self.used() == self.slots and not frees and victim is None:
            before = self.store.list()
            with pytest.raises(errors.NoMemoryError, match="no room for one more"):
                self.store.reserve(replaced)
            assert self.store.list() == before
            return
        segment, evicted = self.store.reserve(replaced)
        assert [c.name for c in evicted] == ([victim.name] if victim else [])
        segment.bytes.fill_(self.time % 256)
        self.entries = [e for e in self.entries if e is not victim and e is not old]
        self.store.put(
            capsule(name, segment, pinned=pinned and not automatic, automatic=automatic)
        )
        self.entries.append(Entry(name, self.time, pinned and not automatic, automatic, self.time))

    @precondition(lambda self: self.entries)
    @rule(at=st.integers(0))
    def share(self, at: int) -> None:
        self.time += 1
        source = self.entries[at % len(self.entries)]
        segment = self.store.get(source.name).segment.retain()
        self.store.put(capsule(f"c{self.time}", segment))
        self.entries.append(Entry(f"c{self.time}", source.content, False, False, self.time))

    @precondition(lambda self: self.entries)
    @rule(at=st.integers(0), force=st.booleans(), by_id=st.booleans())
    def drop(self, at: int, force: bool, by_id: bool) -> None:
        entry = self.entries[at % len(self.entries)]
        key = self.store.get(entry.name).id if by_id else entry.name
        if entry.pinned and not force:
            with pytest.raises(errors.PinnedError, match=entry.name):
                self.store.drop(key)
            return
        expected = SLOT_BYTES if self.holders(entry.content) == 1 else 0
        assert self.store.unique_bytes(self.store.get(key)) == expected
        assert self.store.drop(key, force=force) == expected
        self.entries.remove(entry)

    @precondition(lambda self: self.entries)
    @rule(at=st.integers(0), pinned=st.booleans())
    def pin(self, at: int, pinned: bool) -> None:
        entry = self.entries[at % len(self.entries)]
        if entry.automatic:
            with pytest.raises(errors.InvalidArgumentError, match="rollback ring"):
                self.store.pin(entry.name, pinned)
            return
        assert self.store.pin(entry.name, pinned).pinned == pinned
        entry.pinned = pinned

    @precondition(lambda self: self.entries)
    @rule(at=st.integers(0))
    def touch(self, at: int) -> None:
        self.time += 1
        entry = self.entries[at % len(self.entries)]
        self.store.touch(self.store.get(entry.name))
        entry.used = self.time

    @precondition(lambda self: self.entries)
    @rule(at=st.integers(0))
    def reuse_name(self, at: int) -> None:
        entry = self.entries[at % len(self.entries)]
        for taken in (entry.name, self.store.get(entry.name).id):
            with pytest.raises(errors.AlreadyExistsError, match=taken):
                self.store.check_free(taken)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "store"):
            return
        listed = self.store.list()
        assert {c.name for c in listed} == {e.name for e in self.entries}
        assert self.store.bytes_used == self.used() * SLOT_BYTES <= self.store.bytes_budget
        for entry in self.entries:
            found = self.store.get(entry.name)
            assert self.store.get(found.id) is found
            assert (found.pinned, found.automatic) == (entry.pinned, entry.automatic)
            assert (found.segment.bytes == entry.content % 256).all()


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_unknown_capsule_names_the_newest() -> None:
    store = make_store(3)
    with pytest.raises(errors.NotFoundError, match="newest of 0 named capsules: none"):
        store.get("x")
    for name in ("a", "b"):
        store.put(capsule(name, store.reserve()[0]))
    store.put(capsule("boundary", store.reserve()[0], automatic=True))
    with pytest.raises(errors.NotFoundError, match=r"'x'.*newest of 2 named capsules: a, b"):
        store.get("x")


def test_full_store_says_why() -> None:
    store = make_store(2)
    store.put(capsule("a", store.reserve()[0], pinned=True))
    segment = store.reserve()[0]
    store.put(capsule("b", segment))
    store.put(capsule("b2", segment.retain()))
    with pytest.raises(errors.NoMemoryError) as caught:
        store.reserve()
    words = str(caught.value)
    assert "512 of 612 bytes are held by 3 capsules" in words
    assert "1 are pinned, 2 share storage and 0 are read or moved now" in words
    assert "raise store_bytes" in words


def test_released_segment_is_guarded() -> None:
    store = make_store(1)
    segment, _ = store.reserve()
    segment.release()
    with pytest.raises(errors.InternalError, match="released twice"):
        segment.release()
    with pytest.raises(errors.InternalError, match="after its release"):
        segment.retain()


def test_dropped_capsule_keeps_its_branches_bytes() -> None:
    store = make_store(1)
    segment, _ = store.reserve()
    segment.bytes.copy_(torch.arange(SLOT_BYTES).to(torch.uint8))
    source = capsule("source", segment)
    store.put(source)
    store.put(dataclasses.replace(source, id=new_id(), name="branch", segment=segment.retain()))
    assert store.drop("source") == 0
    assert store.get("branch").segment.bytes[5] == 5
    assert store.drop("branch") == SLOT_BYTES


def test_named_capsules_are_bounded_whatever_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashrt_ros.runtime.store.MAX_CAPSULES", 3)
    store = make_store(5)
    segment, _ = store.reserve()
    for name in ("first", "second", "third"):
        store.put(capsule(name, segment if name == "first" else segment.retain()))
    with pytest.raises(errors.NoMemoryError, match="3 capsules have a name already"):
        store.check_room(1)
    store.pin("first")
    fresh, evicted = store.reserve()
    assert [victim.name for victim in evicted] == ["second"]
    fresh.release()
    for name in ("third",):
        store.pin(name)
    store.put(capsule("fourth", store.reserve()[0], pinned=True))
    with pytest.raises(errors.NoMemoryError, match="pinned"):
        store.reserve()
