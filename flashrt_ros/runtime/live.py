"""The live execution state of a session, and the verbs that name, replace and branch it."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace as changed

import torch

from flashrt_ros.errors import (
    AlreadyExistsError,
    ExecMismatchError,
    InternalError,
    InvalidArgumentError,
    NotConfiguredError,
    NotFoundError,
    PinnedError,
    StateMismatchError,
)
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import Arena
from flashrt_ros.runtime.capsule import Capsule, check_name, new_id
from flashrt_ros.runtime.device import Device, Lane
from flashrt_ros.runtime.fingerprint import Fingerprint
from flashrt_ros.runtime.policy import HostRecord
from flashrt_ros.runtime.pool import Segment
from flashrt_ros.runtime.ring import RollbackRing
from flashrt_ros.runtime.store import CapsuleStore

MAX_BRANCHES = 4096
"""Branches that one fork may make."""


class LiveState:
    """State, host record and lineage; every verb checks all that can fail, then enqueues.

    Noise: a verb that is given a seed sets the noise key and leaves the counter as it is in the
    state restored; a reset sets the counter to zero.

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
        self._noise_key = seed
        self._torn = ""
        self._forks: dict[str, int] = {}

    @property
    def state_id(self) -> str:
        """Id of ``state_fingerprint``."""
        return self.state_fingerprint.id

    @property
    def exec_id(self) -> str:
        """Id of ``exec_fingerprint``."""
        return self.exec_fingerprint.id

    @property
    def arena(self) -> Arena:
        """All buffers.

        Raises:
            NotConfiguredError: The session is closed.
        """
        self._check_open()
        assert self._arena is not None
        return self._arena

    def reset_(self, task: str | None = None, seed: int | None = None) -> int:
        """Starts a new episode; the rollback ring keeps nothing of the old one.

        Args:
            task: Task text; None: empty.
            seed: Noise key; None: the session's seed in episode 0, derived from it afterwards.

        Returns:
            The new generation.

        Raises:
            NotConfiguredError: The session is closed.
            InvalidArgumentError: The seed is out of range.
        """
        arena = self.arena
        episode = self.host.episode + 1
        if seed is not None:
            key = noise.check_seed(seed)
        else:
            key = noise.derive_key(self.seed, episode) if episode else self.seed
        with self.device.bind(Lane.CONTROL):
            self.device.copy_(arena.fixed, self._initial)
            self._set_key(key)
        self.host = HostRecord(episode=episode, task=task or "")
        self.capsule_id = ""
        self._overtake()
        self._ring.keep(())
        self._keep_boundary()
        return self.generation

    def snapshot(self, name: str = "", pin: bool = False, replace: bool = False) -> Capsule:
        """Makes a capsule of the live state, which from now on descends from it.

        Args:
            name: Empty: one is made.
            pin: Protect it from eviction.
            replace: Take the place of an unpinned capsule of that name.

        Raises:
            NotConfiguredError: The session is closed.
            InvalidNameError: The name does not match ``CAPSULE_NAME``.
            AlreadyExistsError: The name is taken, and ``replace`` is not set.
            PinnedError: The capsule to be replaced is pinned.
            NoMemoryError: No storage is left, and nothing may be evicted.
            InternalError: The last step failed half-way.
        """
        self._check_whole("snapshot")
        id_ = new_id()
        name = name or f"capsule-{id_}"
        old = None
        if replace and check_name(name) in self.store:
            old = self.store.get(name)
            if old.pinned:
                raise PinnedError(f"capsule {old.name!r} is pinned and cannot be replaced")
        else:
            self.store.check_free(name)
        segment = self._reserve(old)
        self._fill(segment)
        capsule = self._describe(id_, name, segment, pinned=pin)
        self.store.put(capsule)
        self.capsule_id = capsule.id
        newest = self._ring.newest()
        if newest is not None and newest.host == self.host and newest.tick == self.tick:
            # The same boundary: a rollback to it is a return to this capsule.
            self.store.amend(changed(newest, parent_id=capsule.id))
        return capsule

    def restore(
        self, source: str | Capsule, allow_inexact: bool = False, seed: int | None = None
    ) -> Capsule:
        """Makes a capsule the live state; the tick goes on, the generation rises.

        Args:
            source: Name, id or the capsule itself.
            allow_inexact: Accept another exec id; the last bits may then differ.
            seed: New noise key; None: the capsule's goes on.

        Raises:
            NotConfiguredError: The session is closed.
            NotFoundError: There is no such capsule, or no longer.
            StateMismatchError: It belongs to another policy, configuration, weights or layout.
            ExecMismatchError: It was made on another device, library or kernel choice.
            InvalidArgumentError: The seed is out of range.
        """
        capsule = self._find(source)
        self._check_fit(capsule, allow_inexact)
        key = capsule.key if seed is None else noise.check_seed(seed)
        self._go(capsule, key)
        return capsule

    def fork(
        self,
        source: str | Capsule | None = None,
        count: int = 0,
        seeds: Sequence[int] = (),
        names: Sequence[str] = (),
    ) -> list[Capsule]:
        """Makes branches of a capsule or of the live state; nothing is copied per branch.

        A branch differs from its source by its noise key alone. Without seeds, the keys are
        derived from the source's, each time others.

        Args:
            source: Name, id or capsule; None: the live state, of which one copy is taken.
            count: Number of branches; 0: as many as seeds or names, or one.
            seeds: One noise key for each branch.
            names: One for each branch; empty: they are made.

        Raises:
            NotConfiguredError: The session is closed.
            InvalidArgumentError: The counts contradict each other, or are out of range.
            InvalidNameError: A name does not match ``CAPSULE_NAME``.
            AlreadyExistsError: A name is taken, or given twice.
            NotFoundError: There is no such capsule.
            NoMemoryError: No storage is left for the live state.
            InternalError: The last step failed half-way, and the live state was to be forked.
        """
        if source is None:
            self._check_whole("fork")
        capsule = None if source is None else self._find(source)
        count = _branch_count(count, seeds, names)
        keys = [noise.check_seed(seed) for seed in seeds]
        for number, name in enumerate(names):
            self.store.check_free(name)
            if name in names[:number]:
                _refuse_twice(name)
        self.last_evicted = []
        if capsule is None:
            segment = self._reserve(None)
            self._fill(segment)
            origin = self._describe(new_id(), "", segment)
            nonce = f"{self.generation}.{self.tick}"
            # Counts of capsules that are gone, and of live states that are past, are of no use.
            self._forks = {k: n for k, n in self._forks.items() if k == nonce or k in self.store}
        else:
            segment = capsule.segment
            origin = changed(capsule, parent_id=capsule.id, automatic=False, pinned=False)
            nonce = capsule.id
            self.store.touch(capsule)
        if not keys:
            first = self._forks.get(nonce, 0)
            keys = [noise.derive_key(origin.key, first + index) for index in range(count)]
            self._forks[nonce] = first + count
        branches = []
        for index, key in enumerate(keys):
            id_ = new_id()
            if capsule is not None or index:
                segment.retain()
            branch = changed(
                origin,
                id=id_,
                name=names[index] if names else f"branch-{id_}",
                host=copy.copy(origin.host),
                generation=self.generation,
                created_ns=time.time_ns(),
                noise_key=key,
            )
            self.store.put(branch)
            branches.append(branch)
        return branches

    def rollback(self, steps: int = 0, seed: int | None = None) -> int:
        """Returns to an earlier boundary of the live lineage.

        Args:
            steps: Control steps back, to the newest boundary of the ring that lies at least so far
                back; 0: to the capsule that the live state descends from.
            seed: New noise key; None: that of the boundary goes on.

        Returns:
            Control steps really gone back.

        Raises:
            NotConfiguredError: The session is closed.
            InvalidArgumentError: ``steps`` is negative, or the seed out of range.
            NotFoundError: The ring does not reach that far, or there is no parent any more.
        """
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise InvalidArgumentError(f"steps: expected at least 0, found {steps!r}")
        self._check_open()
        step = self.host.step
        if steps:
            target = self._ring.back(step, steps)
        elif not self.capsule_id:
            raise NotFoundError(
                "rollback to the parent: the live state descends from a reset, not from a capsule"
            )
        else:
            target = self.store.get(self.capsule_id)
        self._check_fit(target, allow_inexact=False)
        self._go(target, target.key if seed is None else noise.check_seed(seed))
        return step - target.host.step

    def drop(self, name: str, force: bool = False) -> int:
        """Removes a capsule; see ``CapsuleStore.drop``."""
        self._check_open()
        self.last_evicted = []
        return self.store.drop(name, force)

    def _check_open(self) -> None:
        if self._arena is None:
            raise NotConfiguredError("the session is closed; make a new one")

    def _find(self, source: str | Capsule) -> Capsule:
        self._check_open()
        return self.store.get(source.id if isinstance(source, Capsule) else source)

    def _check_whole(self, verb: str) -> None:
        self._check_open()
        if self._torn:
            raise InternalError(
                f"{verb}: the state is incomplete, since {self._torn}; restore, roll back or reset"
                " first"
            )

    @contextlib.contextmanager
    def _tearing(self, what: str) -> Iterator[None]:
        """Around all that writes state in place: after an error there, no boundary is left."""
        try:
            yield
        except BaseException as error:
            self._torn = f"{what}: {error}"
            raise

    def _check_fit(self, capsule: Capsule, allow_inexact: bool) -> None:
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

    def _go(self, target: Capsule, key: int) -> None:
        with self.device.bind(Lane.CONTROL):
            self.device.copy_(self.arena.fixed, target.segment.bytes)
            self._noise_key = target.segment.noise_key
            if key != self._noise_key:
                self._set_key(key, reset_counter=False)
        self.host = copy.copy(target.host)
        # A boundary of the ring is nobody's parent: a rollback to the parent would stop at it.
        self.capsule_id = target.parent_id if target.automatic else target.id
        self.store.touch(target)
        self._overtake()
        self._ring.keep({*target.boundaries, target.id})
        if self._ring.depth and not (target.automatic and key == target.key):
            newest = self._ring.newest()
            if newest is None or newest.host != self.host or newest.key != key:
                self._push_boundary(target.segment.retain(), key)

    def _overtake(self) -> None:
        self.generation += 1
        self._torn = ""
        self.last_evicted = []

    def _set_key(self, key: int, reset_counter: bool = True) -> None:
        # A scalar travels in the launch itself: no copy from the host.
        self.arena.state[noise.KEY].fill_(noise.as_signed(key))
        if reset_counter:
            self.arena.state[noise.COUNTER].zero_()
        self._noise_key = key

    def _reserve(self, replacing: Capsule | None) -> Segment:
        segment, evicted = self.store.reserve(replacing)
        self.last_evicted = [capsule.name for capsule in evicted if not capsule.automatic]
        return segment

    def _fill(self, segment: Segment) -> None:
        with self.device.bind(Lane.CONTROL):
            self.device.copy_(segment.bytes, self.arena.fixed)
        segment.noise_key = self._noise_key

    def _keep_boundary(self) -> None:
        """Puts the live state into the ring if its turn has come and storage allows."""
        if self._ring.due(self.host.step):
            segment = self._ring.take()
            if segment is not None:
                self._fill(segment)
                self._push_boundary(segment, self._noise_key)

    def _push_boundary(self, segment: Segment, key: int) -> None:
        id_ = new_id()
        override = None if key == segment.noise_key else key
        self._ring.push(
            self._describe(id_, f"boundary-{id_}", segment, noise_key=override, automatic=True)
        )

    def _describe(
        self,
        id_: str,
        name: str,
        segment: Segment,
        noise_key: int | None = None,
        pinned: bool = False,
        automatic: bool = False,
    ) -> Capsule:
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
            size_bytes=segment.size_bytes,
            segment=segment,
            noise_key=noise_key,
            pinned=pinned,
            automatic=automatic,
            boundaries=self._ring.ids(),
        )


def _branch_count(count: int, seeds: Sequence[int], names: Sequence[str]) -> int:
    asked = count or len(seeds) or len(names) or 1
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < asked <= MAX_BRANCHES:
        raise InvalidArgumentError(
            f"count: expected 0 to {MAX_BRANCHES} branches, found {count!r}"
        )
    for label, given in (("seeds", len(seeds)), ("names", len(names))):
        if given not in (0, asked):
            raise InvalidArgumentError(
                f"{label}: expected {asked}, one for each branch, or none; found {given}"
            )
    return asked


def _refuse_twice(name: str) -> None:
    raise AlreadyExistsError(f"names: {name!r} is given twice; branches need names of their own")
