"""The capsules of one session: names, pins, byte budget and eviction."""

from __future__ import annotations

import dataclasses
import itertools

from flashrt_ros.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NoMemoryError,
    NotFoundError,
    PinnedError,
)
from flashrt_ros.runtime.capsule import Capsule, check_name
from flashrt_ros.runtime.pool import Segment, SlotPool

_SHOWN = 8

Capsules = list[Capsule]  # within the class, list is the verb


class CapsuleStore:
    """Holds capsules in a pool of equal slots; several capsules may share one slot.

    Where a slot is needed and none is free, capsules are evicted in this order, as few as needed:
    boundaries of the rollback ring, oldest first, but never the newest; then named capsules that
    are not pinned, least recently used first (made, restored or forked). Pinned capsules and those
    that share their storage with others are never evicted: dropping one of them frees nothing.

    Attributes:
        pool: Where the bytes lie.
        bytes_budget: Bytes that the pool may hold.
        removals: Capsules dropped or evicted so far.
    """

    def __init__(self, pool: SlotPool, budget_bytes: int) -> None:
        self.pool = pool
        self.bytes_budget = budget_bytes
        self.removals = 0
        self._capsules: dict[str, Capsule] = {}
        self._id_of_name: dict[str, str] = {}
        self._used: dict[str, int] = {}
        self._clock = itertools.count()

    @property
    def bytes_used(self) -> int:
        """Bytes that all capsules hold together; shared storage counts once."""
        return self.pool.bytes_used

    def __len__(self) -> int:
        return len(self._capsules)

    def __contains__(self, name_or_id: object) -> bool:
        return name_or_id in self._id_of_name or name_or_id in self._capsules

    def list(self) -> Capsules:
        """Returns all capsules, in the order in which they were put in."""
        return list(self._capsules.values())

    def get(self, name_or_id: str) -> Capsule:
        """Returns a capsule by name or, if no capsule has that name, by id.

        Raises:
            NotFoundError: There is none.
        """
        capsule = self._capsules.get(self._id_of_name.get(name_or_id, name_or_id))
        if capsule is None:
            names = [c.name for c in self._capsules.values() if not c.automatic]
            shown = ", ".join(names[-_SHOWN:]) if names else "none"
            raise NotFoundError(
                f"no capsule {name_or_id!r}: it was never made, dropped or evicted; newest of"
                f" {len(names)} named capsules: {shown}"
            )
        return capsule

    def touch(self, capsule: Capsule) -> None:
        """Makes ``capsule`` the one used last."""
        self._used[capsule.id] = next(self._clock)

    def check_free(self, name: str) -> None:
        """Raises if ``name`` cannot be given to a new capsule.

        Raises:
            InvalidNameError: It does not match ``CAPSULE_NAME``.
            AlreadyExistsError: A capsule has it as its name or id.
        """
        check_name(name)
        if name in self:
            raise AlreadyExistsError(
                f"capsule {name!r} exists already; drop it, ask for it to be replaced, or choose"
                " another name"
            )

    def put(self, capsule: Capsule) -> None:
        """Adds a capsule, which brings its hold on its segment with it.

        Raises:
            InvalidNameError: Its name does not match ``CAPSULE_NAME``.
            AlreadyExistsError: Its name is taken.
        """
        self.check_free(capsule.name)
        self._capsules[capsule.id] = capsule
        self._id_of_name[capsule.name] = capsule.id
        self.touch(capsule)

    def drop(self, name_or_id: str, force: bool = False) -> int:
        """Removes a capsule; its branches and its source keep what they share with it.

        Returns:
            Bytes freed, 0 while other capsules share its storage.

        Raises:
            NotFoundError: There is none.
            PinnedError: It is pinned and ``force`` is not set.
        """
        capsule = self.get(name_or_id)
        if capsule.pinned and not force:
            raise PinnedError(f"capsule {capsule.name!r} is pinned; unpin it, or drop it by force")
        return self._remove(capsule)

    def pin(self, name_or_id: str, pinned: bool = True) -> Capsule:
        """Protects a capsule from eviction, or no longer; returns it as it is now.

        Raises:
            NotFoundError: There is none.
            InvalidArgumentError: It is a boundary of the rollback ring.
        """
        capsule = self.get(name_or_id)
        if capsule.automatic:
            raise InvalidArgumentError(
                f"capsule {capsule.name!r} belongs to the rollback ring, which reuses its storage;"
                " restore it and take a snapshot to keep it"
            )
        capsule = dataclasses.replace(capsule, pinned=pinned)
        self._capsules[capsule.id] = capsule
        return capsule

    def unique_bytes(self, capsule: Capsule) -> int:
        """Returns the bytes that would be freed if ``capsule`` alone were dropped."""
        return capsule.segment.size_bytes if capsule.segment.holders == 1 else 0

    def reserve(self, replacing: Capsule | None = None) -> tuple[Segment, Capsules]:
        """Takes a slot for one more capsule, evicting as the class says where none is free.

        Args:
            replacing: Capsule that the new one takes the place of; it is removed, and is the last
                one to give its slot.

        Returns:
            The slot, and the capsules evicted, without ``replacing``.

        Raises:
            NoMemoryError: Nothing may be evicted; nothing was changed.
        """
        victims = self._victims(replacing)
        if replacing is not None:
            self._remove(replacing)
        for victim in victims:
            self._remove(victim)
        return self.pool.take(), victims

    def close(self) -> None:
        """Forgets all capsules and frees the pool."""
        self._capsules.clear()
        self._id_of_name.clear()
        self._used.clear()
        self.pool.close()

    def _victims(self, replacing: Capsule | None) -> Capsules:
        if self.pool.free or (replacing is not None and replacing.segment.holders == 1):
            return []
        others = [c for c in self._capsules.values() if c is not replacing]
        ring = [c for c in others if c.automatic][:-1]
        named = [c for c in others if not (c.automatic or c.pinned)]
        for capsule in (*ring, *sorted(named, key=lambda c: self._used[c.id])):
            if capsule.segment.holders == 1:
                return [capsule]
        raise NoMemoryError(self._full())

    def _full(self) -> str:
        pinned = sum(c.pinned for c in self._capsules.values())
        shared = sum(c.segment.holders > 1 for c in self._capsules.values())
        return (
            f"no room for one more capsule of {self.pool.slot_bytes} bytes: {self.bytes_used} of"
            f" {self.bytes_budget} bytes are held by {len(self)} capsules, of which {pinned} are"
            f" pinned and {shared} share storage; drop some, or raise store_bytes"
        )

    def _remove(self, capsule: Capsule) -> int:
        del self._capsules[capsule.id]
        del self._id_of_name[capsule.name]
        del self._used[capsule.id]
        self.removals += 1
        return capsule.segment.release()
