"""The capsules of one session: names, pins, byte budget and eviction."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

from flashrt_ros.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NoMemoryError,
    NotFoundError,
    PinnedError,
)
from flashrt_ros.runtime.capsule import Capsule, check_name
from flashrt_ros.runtime.pool import Segment, SlotPool

MAX_CAPSULES = 2048
"""Named capsules of one store: branches share their bytes, but each is an object on the host, and
listing them takes the interpreter for tens of milliseconds."""
_SHOWN = 8

Capsules = list[Capsule]  # within the class, list is the verb


class CapsuleStore:
    """Holds capsules in a pool of equal slots; several capsules may share one slot.

    Where a slot is needed and none is free, capsules are evicted in this order, as few as needed:
    boundaries of the rollback ring, oldest first, but never the newest; then named capsules that
    are not pinned, least recently used first (made, restored or forked). Pinned capsules and those
    that share their storage with others are never evicted: dropping one of them frees nothing.
    Where there are ``MAX_CAPSULES`` named ones, the least recently used that is not pinned gives
    way to the next, whatever it shares.

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

    def check_room(self, count: int) -> None:
        """Raises if ``count`` more named capsules would be too many, whatever their bytes.

        Raises:
            NoMemoryError: They would.
        """
        named = self._named()
        if named + count > MAX_CAPSULES:
            raise NoMemoryError(
                f"{named} capsules have a name already: expected at most {MAX_CAPSULES} with the"
                f" {count} asked for; drop some"
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

    def _named(self) -> int:
        return sum(not capsule.automatic for capsule in self._capsules.values())

    def _victims(self, replacing: Capsule | None) -> Capsules:
        first = [] if replacing is not None else self._one_too_many()
        going = first if replacing is None else [replacing]
        if self.pool.free or any(capsule.segment.holders == 1 for capsule in going):
            return first
        others = [c for c in self._capsules.values() if c not in going]
        ring = [c for c in others if c.automatic][:-1]
        for capsule in (*ring, *self._by_use(others)):
            if capsule.segment.holders == 1:
                return [*first, capsule]
        raise NoMemoryError(self._full())

    def _one_too_many(self) -> Capsules:
        if len(self) < MAX_CAPSULES or self._named() < MAX_CAPSULES:
            return []
        candidates = self._by_use(self._capsules.values())
        if not candidates:
            raise NoMemoryError(f"all {MAX_CAPSULES} capsules that may be are pinned; drop some")
        return candidates[:1]

    def _by_use(self, capsules: Iterable[Capsule]) -> Capsules:
        """Named ones that are not pinned, least recently used first."""
        named = [c for c in capsules if not (c.automatic or c.pinned)]
        return sorted(named, key=lambda c: self._used[c.id])

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
