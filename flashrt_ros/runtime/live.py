"""The live execution state of a session, and how it is copied into capsules and back."""

from __future__ import annotations

import copy
import time

import torch

from flashrt_ros.errors import (
    BusyError,
    ExecMismatchError,
    InternalError,
    NotConfiguredError,
    StateMismatchError,
)
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import Arena
from flashrt_ros.runtime.capsule import Capsule, new_id
from flashrt_ros.runtime.capsule_image import CapsuleFacts
from flashrt_ros.runtime.device import LIVE, Device, Lane, StateMemory
from flashrt_ros.runtime.fingerprint import Fingerprint
from flashrt_ros.runtime.live_rows import LiveRows
from flashrt_ros.runtime.policy import HostRecord
from flashrt_ros.runtime.pool import Segment
from flashrt_ros.runtime.ring import RollbackRing
from flashrt_ros.runtime.store import CapsuleStore


class LiveState:
    """State, host record and lineage.

    Attributes:
        device: Where the state lies.
        store: All capsules, rollback boundaries included.
        host: Host record of the live state.
        generation: Raised by every restore, rollback and reset.
        tick: Control steps since the session began; never goes back.
        capsule_id: Named capsule that the live state descends from; empty: a reset.
        seed: Noise key of episode 0.
        state_fingerprint: What must match to restore at all.
        exec_fingerprint: What must match for a bit-equal continuation.
        last_evicted: Names of the capsules that the last verb evicted.
    """

    def __init__(
        self,
        device: Device,
        arena: Arena,
        initial: torch.Tensor,
        store: CapsuleStore,
        ring: RollbackRing,
        fingerprints: tuple[Fingerprint, Fingerprint],
        seed: int,
    ) -> None:
        """Takes over what the session has allocated; ``reset_`` must follow.

        Args:
            device: Where all of it lies.
            arena: Its ``fixed`` section is the live state.
            initial: ``(fixed_bytes,)`` uint8: the state of a new episode, read only.
            store: Empty.
            ring: Empty, on ``store``.
            fingerprints: Of state and of execution.
            seed: Noise key of episode 0.
        """
        self.device = device
        self.store = store
        self.host = HostRecord(episode=-1)
        self.generation = 0
        self.tick = 0
        self.capsule_id = ""
        self.seed = seed
        self.state_fingerprint, self.exec_fingerprint = fingerprints
        self.last_evicted: list[str] = []
        self._arena: Arena | None = arena
        self._initial = initial
        self._ring = ring
        # What the device holds in noise.key, so that nobody has to read it back.
        self._noise_key = seed
        # True once the ring has been offered the present boundary.
        self._offered = False
        self._torn = ""
        # A boundary whose copy is enqueued, but which is not in the ring yet.
        self._unbooked: Segment | None = None
        self._rows: LiveRows | None = None
        if store.rows is not None:
            self._rows = LiveRows(device, store.rows, arena.rows)

    @property
    def state_id(self) -> str:
        """Id of ``state_fingerprint``."""
        return self.state_fingerprint.id

    @property
    def noise_key(self) -> int:
        """Unsigned noise key of the live state."""
        return self._noise_key

    @property
    def exec_id(self) -> str:
        """Id of ``exec_fingerprint``."""
        return self.exec_fingerprint.id

    @property
    def arena(self) -> Arena:
        """All buffers.

        Raises:
            NotConfiguredError: The session is closed.
            BusyError: A branch is in the place of the live state.
            InternalError: Nothing is, since the driver refused to put the live state back.
        """
        self._check_open()
        assert self._arena is not None
        if self._arena.memory.away:
            self._refuse_away(self._arena.memory)
        return self._arena

    @staticmethod
    def _refuse_away(memory: StateMemory) -> None:
        if memory.placed != LIVE:
            raise BusyError(
                f"branch {memory.placed} is in the place of the live state; take it away first"
            )
        raise InternalError(
            f"the live state is not in its place: {memory.lost}; it is whole: a step or a verb"
            " tries to put it back"
        )

    def _check_present(self) -> Arena:
        """On the control thread: puts a live state back that the driver would not put back.

        Returns:
            Its arena, so that nobody has to check again.
        """
        arena = self._arena
        if arena is None:
            raise NotConfiguredError("the session is closed; make a new one")
        if arena.memory.away:
            if arena.memory.placed != LIVE:
                self._refuse_away(arena.memory)
            with self.device.bind(Lane.CONTROL):
                arena.memory.place_live()
        return arena

    def _check_open(self) -> None:
        if self._arena is None:
            raise NotConfiguredError("the session is closed; make a new one")

    def _check_whole(self, verb: str) -> None:
        self._check_present()
        if self._torn:
            raise InternalError(
                f"{verb}: the state is incomplete, since {self._torn}; restore, roll back or reset"
                " first"
            )

    def _check_fit(self, capsule: Capsule | CapsuleFacts, allow_inexact: bool) -> None:
        if capsule.exec_fingerprint is self.exec_fingerprint:
            return  # made here: the state's is part of it
        other = self.state_fingerprint.difference(capsule.state_fingerprint)
        if other is not None:
            raise StateMismatchError(
                f"capsule {capsule.name!r} belongs to another policy, configuration or weights:"
                f" {other[0]}: expected {other[1]}, found {other[2]}"
            )
        other = self.exec_fingerprint.difference(capsule.exec_fingerprint)
        if other is not None and not allow_inexact:
            raise ExecMismatchError(
                f"capsule {capsule.name!r} was made on another device or with other libraries:"
                f" {other[0]}: expected {other[1]}, found {other[2]}; allow an inexact"
                " continuation to restore it all the same"
            )

    def _find(self, source: str | Capsule) -> Capsule:
        self._check_open()
        return self.store.get(source.id if isinstance(source, Capsule) else source)

    def _tear(self, what: str) -> None:
        """Says that the state is no boundary any more, and why."""
        # The boundary before it is one: its copy was enqueued first.
        self._book_boundary()
        self._torn = what
        if self._rows is not None:
            self._rows.forget()

    def _go(self, target: Capsule, key: int) -> None:
        """Makes ``target``, which has been checked, the live state."""
        arena = self._check_present()
        slot = target.segment.slot
        try:
            with self.device.bind(Lane.CONTROL):
                self.device.copy_(arena.fixed, slot.bytes)
                self._noise_key = target.segment.noise_key
                if key != self._noise_key:
                    self._set_key(key)
                if self._rows is not None and slot.rows is not None:
                    self._rows.go(self.host.rows, slot.rows)
        except BaseException as error:
            self._tear(f"a restore failed: {error}")
            raise
        self.host = copy.copy(target.host)
        # A boundary of the ring is nobody's parent: a rollback to the parent would stop at it.
        self.capsule_id = target.parent_id if target.automatic else target.id
        self.store.touch(target)
        self._ring.keep((*target.boundaries, target.id))
        self._overtake()
        self._offered = target.automatic and key == target.key

    def _overtake(self) -> None:
        """Makes all work that is under way pointless."""
        self.generation += 1
        self._torn = ""
        self._offered = False
        self.last_evicted = []

    def _set_key(self, key: int) -> None:
        # A scalar travels in the launch itself: no copy from the host.
        self.arena.state[noise.KEY].fill_(noise.as_signed(key))
        self._noise_key = key

    def _copy_ahead(self) -> Segment | None:
        """Copies the live state into a slot that is free anyway, before a verb is checked.

        If the verb is then refused, the slot is released: nothing has changed. The checks take as
        long as a copy of many megabytes, which so is under way meanwhile.

        Returns:
            None where none is free, or where rows need checks of their own first.
        """
        pool = self.store.pool
        if self._rows is not None or not pool.free:
            return None
        assert self._arena is not None
        place = pool.claim()
        try:
            with self.device.bind(Lane.CONTROL):
                self.device.copy_(place.bytes, self._arena.fixed)
        except BaseException:
            place.release()
            raise
        segment = Segment(place, pool.slot_bytes)
        segment.noise_key = self._noise_key
        return segment

    def _keep(self, replacing: Capsule | None = None, ahead: Segment | None = None) -> Segment:
        """Returns a copy of the live state, for which others may have to give way.

        Args:
            replacing: As in ``CapsuleStore.reserve``.
            ahead: What ``_copy_ahead`` returned.
        """
        if ahead is not None:
            self._evicted(self.store.make_way(replacing))
            return ahead
        if self._rows is None:
            return self._keep_in(*self.store.reserve(replacing))
        with self._rows.guarded(self.host.rows) as pages:
            return self._keep_in(*self.store.reserve(replacing, pages))

    def _keep_in(self, segment: Segment, evicted: list[Capsule]) -> Segment:
        self._evicted(evicted)
        self._fill_or_release(segment)
        return segment

    def _evicted(self, capsules: list[Capsule]) -> None:
        self.last_evicted = [capsule.name for capsule in capsules if not capsule.automatic]

    def _fill_or_release(self, segment: Segment) -> None:
        try:
            with self.device.bind(Lane.CONTROL):
                self._fill(segment)
        except BaseException:
            segment.release()
            raise

    def _fill(self, segment: Segment) -> None:
        """Copies the live state, which is in its place; the control lane must be bound."""
        assert self._arena is not None
        self.device.copy_(segment.slot.bytes, self._arena.fixed)
        segment.noise_key = self._noise_key
        if self._rows is not None:
            segment.rows = self._rows.keep(self.host.rows)

    def boundary_returned(self) -> None:
        """Says that the last step was undone: this boundary has been offered to the ring before.

        Else each step that is taken back would push one more copy of it, and old ones out.
        """
        self._offered = True

    def _offer_boundary(self) -> None:
        """Before anything is done at a boundary: a copy of it for the ring, if its turn has come.

        ``_book_boundary`` must follow before the host record changes.
        """
        if self._offered:
            return
        self._offered = True
        if not self._ring.due(self.host.step) or self._ring.holds(self.host, self._noise_key):
            return
        if self._rows is None:
            self._copy_boundary(self._ring.take())
            return
        with self._rows.guarded(self.host.rows) as pages:
            self._copy_boundary(self._ring.take(pages))

    def _copy_boundary(self, segment: Segment | None) -> None:
        if segment is not None:
            self._fill_or_release(segment)
            self._unbooked = segment

    def _book_boundary(self) -> None:
        """Puts the boundary that was copied into the ring, while the device is busy."""
        segment, self._unbooked = self._unbooked, None
        if segment is not None:
            id_ = new_id()
            self._ring.push(self._describe(id_, f"boundary-{id_}", segment, automatic=True))

    def _describe(
        self,
        id_: str,
        name: str,
        segment: Segment,
        pinned: bool = False,
        automatic: bool = False,
    ) -> Capsule:
        """Returns a capsule of the live state."""
        return Capsule(
            id=id_,
            name=name,
            parent_id=self.capsule_id,
            host=copy.copy(self.host),
            tick=self.tick,
            generation=self.generation,
            created_ns=time.time_ns(),
            state_fingerprint=self.state_fingerprint,
            exec_fingerprint=self.exec_fingerprint,
            size_bytes=segment.size_bytes + self.host.rows * self.arena.layout.row_bytes,
            segment=segment,
            pinned=pinned,
            automatic=automatic,
            boundaries=self._ring.ids(),
        )


class Tearing:
    """Around all that writes state in place: after an error there, no boundary is left."""

    __slots__ = ("_live", "_what")

    def __init__(self, live: LiveState, what: str) -> None:
        self._live = live
        self._what = what

    def __enter__(self) -> None:
        """Nothing is torn yet."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Says what failed; the error goes on."""
        if error is not None:
            self._live._tear(f"{self._what}: {error}")
