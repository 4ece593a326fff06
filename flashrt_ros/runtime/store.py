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
from flashrt_ros.runtime.host_pool import BlockPlace, HostPool, units
from flashrt_ros.runtime.place import Tier
from flashrt_ros.runtime.pool import Segment, SlotPool
from flashrt_ros.runtime.row_pool import RowPool
from flashrt_ros.runtime.row_segment import WhatIf

MAX_CAPSULES = 2048
"""Named capsules of one store: branches share their bytes, but each is an object on the host, and
listing them takes the interpreter for tens of milliseconds."""
WATERMARK = 8
"""Share of the slots, and of the pages, below which the store wants some to be free again."""
_SHOWN = 8

Capsules = list[Capsule]  # within the class, list is the verb


class CapsuleStore:
    """Holds capsules in a pool of equal slots; several capsules may share one slot.

    Their rows lie in a pool of pages, which capsules of one lineage share. A page is free again
    when no capsule needs a row of it.

    Where a slot is needed and none is free, capsules are evicted in this order, as few as needed:
    boundaries of the rollback ring, oldest first, but never the newest; then named capsules that
    are not pinned, least recently used first (made, restored, forked or moved). Pinned capsules
    and those that share their slot with others are never evicted: dropping one of them frees
    nothing. Where pages are short the order is the same, and of those that came up, the ones whose
    going does not help stay, the most recently used first. What lies in host memory or in a file
    is no storage of the device, so it stays; and who has a file as well goes back to that.
    Where host memory is short, only those go that the store itself has put there, least recently
    used first; what was moved there by request stays.
    Where there are ``MAX_CAPSULES`` named ones, the least recently used that is not pinned, and
    was not moved by request, gives way to the next, whatever it shares.

    Attributes:
        pool: Where the bytes lie.
        rows: Where rows lie; None: there are none.
        host: Blocks of host memory; None: there is no such tier.
        bytes_budget: Bytes that both pools of the device may hold.
        removals: Capsules dropped or evicted so far.
    """

    def __init__(
        self,
        pool: SlotPool,
        budget_bytes: int,
        rows: RowPool | None = None,
        host: HostPool | None = None,
    ) -> None:
        self.pool = pool
        self.rows = rows
        self.host = host
        self.bytes_budget = budget_bytes
        self.removals = 0
        self._capsules: dict[str, Capsule] = {}
        self._id_of_name: dict[str, str] = {}
        self._used: dict[str, int] = {}
        self._clock = itertools.count()

    @property
    def bytes_used(self) -> int:
        """Bytes of the device that all capsules hold together; shared storage counts once."""
        return self.pool.bytes_used + (0 if self.rows is None else self.rows.bytes_used)

    @property
    def host_bytes_used(self) -> int:
        """Bytes of the host tier that are held."""
        return 0 if self.host is None else self.host.bytes_used

    @property
    def host_bytes_budget(self) -> int:
        """Bytes of the host tier."""
        return 0 if self.host is None else self.host.memory.nbytes

    @property
    def free_pages(self) -> int:
        """Pages for rows that may be taken."""
        return 0 if self.rows is None else self.rows.free

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
        segment = capsule.segment
        if not segment.alone:
            return 0
        if segment.tier is not Tier.DEVICE:
            return segment.place.size_bytes
        if segment.rows is None or self.rows is None:
            return segment.size_bytes
        what_if = WhatIf()
        with self.rows.lock:
            what_if.release(segment.rows)
        return segment.size_bytes + what_if.freed * self.rows.page_bytes

    def reserve(
        self, replacing: Capsule | None = None, pages: int = 0, named: bool = False
    ) -> tuple[Segment, Capsules]:
        """Takes a slot for one more capsule, evicting as the class says where none is free.

        Args:
            replacing: Capsule that the new one takes the place of; it is removed, and is the last
                one to give its slot.
            pages: Pages for its rows, which are free afterwards.
            named: Whether it is in the store already, and only comes from elsewhere.

        Returns:
            The slot, and the capsules evicted, without ``replacing`` and those that have a file.

        Raises:
            NoMemoryError: Nothing may be evicted; nothing was changed.
        """
        if self.rows is None:
            victims = self._victims(replacing, pages, named)
        else:
            with self.rows.lock:
                victims = self._victims(replacing, pages, named)
        evicted = self._evict(victims, replacing)
        return self.pool.take(), evicted

    def reserve_block(self, size_bytes: int) -> tuple[BlockPlace, Capsules]:
        """Takes a block of host memory, evicting as the class says where there is no room.

        Returns:
            The block, and the capsules evicted, without those that have a file.

        Raises:
            NoMemoryError: Nothing may be evicted; nothing was changed.
        """
        assert self.host is not None  # there is a host tier
        evicted = self._evict(self.block_victims(size_bytes))
        return self.host.block(size_bytes, self.pool.lock), evicted

    def block_victims(self, size_bytes: int) -> Capsules:
        """Returns who must give way to a block of host memory.

        Raises:
            NoMemoryError: Nobody may, and there is no room.
        """
        host = self.host
        assert host is not None  # there is a host tier
        victims: Capsules = []
        free = host.free
        parked = [c for c in self._capsules.values() if c.segment.parked and c.segment.alone]
        for capsule in self._by_use(parked):
            if free >= units(size_bytes):
                break
            victims.append(capsule)
            free += units(capsule.segment.place.size_bytes)
        if free < units(size_bytes):
            raise NoMemoryError(
                f"tier 'host': no room for {size_bytes} bytes: {host.bytes_used} of"
                f" {self.host_bytes_budget} bytes are held; drop some capsules there, move them to"
                " disk, or raise host_store_bytes"
            )
        return victims

    def to_park(self, vacancies: int, depth: int) -> Capsule | None:
        """Returns the capsule that should go to the host so that others find room; None: none.

        The least recently used that is not pinned, as soon as fewer slots than an eighth of those
        for named capsules, or fewer pages than an eighth, are left.

        Args:
            vacancies: Slots that the rollback ring will still take.
            depth: Of the ring.
        """
        if self.host is None:
            return None
        least = max(1, (self.pool.slots - depth) // WATERMARK)
        short = self.pool.free - vacancies < least
        if self.rows is not None:
            short |= self.rows.free < self.rows.pages // WATERMARK
        if not short:
            return None
        capsules = list(self._capsules.values())
        kept = {id(c.segment) for c in capsules if c.pinned or c.automatic}
        for capsule in self._by_use(capsules):
            segment = capsule.segment
            if segment.tier is Tier.DEVICE and not segment.moving and id(segment) not in kept:
                return capsule
        return None

    def _evict(self, victims: Capsules, replacing: Capsule | None = None) -> Capsules:
        """Removes capsules, or lets them be read from their files; returns those removed."""
        if replacing is not None:
            self._remove(replacing)
        gone: Capsules = []
        for victim in victims:
            file = victim.segment.file
            if file is not None and victim.segment.alone:
                victim.segment.go_to(file)
            else:
                self._remove(victim)
                gone.append(victim)
        return gone

    def make_way(self, replacing: Capsule | None = None) -> Capsules:
        """Removes what gives way to one more capsule whose slot is taken already.

        Args:
            replacing: As in ``reserve``.

        Returns:
            The capsules evicted, without ``replacing``.

        Raises:
            NoMemoryError: There are as many as may be, and all are pinned; nothing was changed.
        """
        return self._evict([] if replacing is not None else self._one_too_many(), replacing)

    def close(self) -> None:
        """Forgets all capsules and frees the pools."""
        self._capsules.clear()
        self._id_of_name.clear()
        self._used.clear()
        self.pool.close()
        for pages in (self.rows, self.host):
            if pages is not None:
                pages.close()

    def _named(self) -> int:
        return sum(not capsule.automatic for capsule in self._capsules.values())

    def _victims(self, replacing: Capsule | None, pages: int, named: bool) -> Capsules:
        first = [] if named or replacing is not None else self._one_too_many()
        going = first if replacing is None else [replacing]
        slot = self.pool.free or any(_frees(capsule) for capsule in going)
        if slot and pages <= self.free_pages:
            return first
        gain = _Gain(self.pool.free, self.free_pages)
        for capsule in going:
            gain.add(capsule)
        others = [c for c in self._capsules.values() if c not in going]
        ring = [c for c in others if c.automatic][:-1]
        victims: Capsules = []
        for capsule in (*ring, *self._by_use(others)):
            if gain.suffices(pages):
                break
            if _frees(capsule):
                gain.add(capsule)
                victims.append(capsule)
        if not gain.suffices(pages):
            raise NoMemoryError(self._full(pages))
        for capsule in victims[-2::-1]:
            gain.take_back(capsule)
            if gain.suffices(pages):
                victims.remove(capsule)
            else:
                gain.add(capsule)
        return [*first, *victims]

    def _one_too_many(self) -> Capsules:
        if len(self) < MAX_CAPSULES or self._named() < MAX_CAPSULES:
            return []
        candidates = [
            c
            for c in self._by_use(self._capsules.values())
            if c.segment.file is None
            and not c.segment.moving
            and (c.segment.parked or c.segment.tier is Tier.DEVICE)
        ]
        if not candidates:
            raise NoMemoryError(
                f"all {MAX_CAPSULES} capsules that may be are pinned, or were moved to another"
                " tier; drop some"
            )
        return candidates[:1]

    def _by_use(self, capsules: Iterable[Capsule]) -> Capsules:
        """Named ones that are not pinned, least recently used first."""
        named = [c for c in capsules if not (c.automatic or c.pinned)]
        return sorted(named, key=lambda c: self._used[c.id])

    def _full(self, pages: int) -> str:
        here = [c for c in self._capsules.values() if c.segment.tier is Tier.DEVICE]
        pinned = sum(c.pinned for c in here)
        shared = sum(c.segment.holders > 1 for c in here)
        copied = sum(c.segment.place.holders > 1 for c in here)
        rows, free = "", f"{self.pool.free} of {self.pool.slots} slots are free"
        if self.rows is not None:
            rows = f" and {pages * self.rows.page_bytes} bytes of new rows"
            free += f" and {self.rows.free * self.rows.page_bytes} bytes for rows"
        return (
            f"no room for one more capsule of {self.pool.slot_bytes} bytes{rows}:"
            f" {self.bytes_used} of {self.bytes_budget} bytes are held by {len(here)} capsules,"
            f" of which {pinned} are pinned, {shared} share storage and {copied} are read or moved"
            f" now; {free}; drop some, or raise store_bytes"
        )

    def _remove(self, capsule: Capsule) -> int:
        del self._capsules[capsule.id]
        del self._id_of_name[capsule.name]
        del self._used[capsule.id]
        self.removals += 1
        return capsule.segment.release()


def _frees(capsule: Capsule) -> bool:
    """True if removing it frees a slot."""
    return capsule.segment.alone and capsule.segment.tier is Tier.DEVICE


class _Gain:
    """What would be free if capsules were removed."""

    def __init__(self, slots: int, pages: int) -> None:
        self._slots = slots
        self._pages = pages
        self._what_if = WhatIf()

    def suffices(self, pages: int) -> bool:
        return self._slots > 0 and self._pages + self._what_if.freed >= pages

    def add(self, capsule: Capsule) -> None:
        if _frees(capsule):
            self._slots += 1
            if capsule.segment.rows is not None:
                self._what_if.release(capsule.segment.rows)

    def take_back(self, capsule: Capsule) -> None:
        self._slots -= 1
        if capsule.segment.rows is not None:
            self._what_if.retain(capsule.segment.rows)
