"""The verbs: snapshot, restore, fork, rollback, reset and drop.

Each checks all that can fail before it changes anything, then enqueues one contiguous copy, and
the copies of those rows that differ.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace as changed

from flashrt_ros.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    PinnedError,
)
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.capsule import Capsule, check_name, new_id
from flashrt_ros.runtime.device import Lane
from flashrt_ros.runtime.live import Tearing
from flashrt_ros.runtime.moves import Moves
from flashrt_ros.runtime.number import check_int
from flashrt_ros.runtime.place import Tier
from flashrt_ros.runtime.policy import MAX_TASK_CHARACTERS, HostRecord

MAX_BRANCHES = 256
"""Branches that one fork may make: more would take longer than the gap between control steps."""


class Verbs(Moves):
    """What a client does to a live state.

    Noise: a verb that is given a seed sets the noise key and leaves the counter as it is in the
    state restored, so that equal keys give equal continuations; a reset sets the counter to zero.
    """

    _forks: dict[str, int] | None = None

    def reset_(self, task: str | None = None, seed: int | None = None) -> int:
        """Starts a new episode; the rollback ring keeps nothing of the old one.

        Args:
            task: Task text; None: empty.
            seed: Noise key; None: the session's seed in episode 0, derived from it afterwards.

        Returns:
            The new generation.

        Raises:
            NotConfiguredError: The session is closed.
            InvalidArgumentError: The seed is out of range, or the task text too long.
        """
        self._check_present()
        arena = self.arena
        task = self.check_task(task or "")
        episode = self.host.episode + 1
        if seed is not None:
            key = noise.check_seed(seed)
        else:
            key = noise.derive_key(self.seed, episode) if episode else self.seed
        with self.device.bind(Lane.CONTROL), Tearing(self, "a reset failed"):
            self.device.copy_(arena.fixed, self._initial)
            self._set_key(key)
            if self._rows is not None:
                self._rows.forget()
        self.host = HostRecord(episode=episode, task=task)
        self.capsule_id = ""
        self._ring.keep(())
        self._overtake()
        return self.generation

    def check_task(self, task: str) -> str:
        """Returns a text that may become the task.

        Raises:
            InvalidArgumentError: It is too long.
        """
        return check_task(task)

    def snapshot(
        self,
        name: str = "",
        pin: bool = False,
        replace: bool = False,
        tier: Tier = Tier.DEVICE,
    ) -> Capsule:
        """Makes a capsule of the live state, which from now on descends from it.

        Args:
            name: Empty: one is made.
            pin: Protect it from eviction.
            replace: Take the place of an unpinned capsule of that name.
            tier: Move it there, as ``move`` does, and wait for that.

        Raises:
            NotConfiguredError: The session is closed.
            InvalidNameError: The name does not match ``CAPSULE_NAME``.
            AlreadyExistsError: The name is taken, and ``replace`` is not set.
            PinnedError: The capsule to be replaced is pinned.
            NoMemoryError: No storage is left, and nothing may be evicted.
            UnsupportedError: There is no such tier here.
            StorageError: The file could not be written; the capsule is there, on the device.
            InternalError: The last step failed half-way.
        """
        self._check_whole("snapshot")
        if tier is not Tier.DEVICE:
            self.check_room(tier)
        ahead = self._copy_ahead()
        id_ = new_id()
        name = name or f"capsule-{id_}"
        try:
            segment = self._keep(self._check_replaced(name, replace), ahead)
        except BaseException:
            if ahead is not None:
                ahead.release()
            raise
        capsule = self._describe(id_, name, segment, pinned=pin)
        self.store.put(capsule)
        self.capsule_id = capsule.id
        if tier is not Tier.DEVICE:
            evicted = self.last_evicted
            self.move(capsule, tier)
            self.last_evicted = evicted
        return capsule

    def restore(
        self, source: str | Capsule, allow_inexact: bool = False, seed: int | None = None
    ) -> Capsule:
        """Makes a capsule the live state; the tick goes on, the generation rises.

        One that lies in another tier is moved to the device before, and waited for.

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
            NoMemoryError: It lies in another tier, and there is no room for it on the device.
            StorageError: It lies in a file, which cannot be read.
            CorruptError: That file was changed.
        """
        capsule = self.check_restore(source, allow_inexact, seed)
        self._promote(capsule)
        self._go(capsule, capsule.key if seed is None else seed)
        return capsule

    def check_restore(
        self, source: str | Capsule, allow_inexact: bool = False, seed: int | None = None
    ) -> Capsule:
        """Returns the capsule that ``restore`` would make live, having checked all that it checks.

        Raises:
            FlashRTError: As ``restore``, but for what has to do with another tier.
        """
        capsule = self._find(source)
        self._check_fit(capsule, allow_inexact)
        if seed is not None:
            noise.check_seed(seed)
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
        derived from the source's, other ones at each fork of the same source.

        Args:
            source: Name, id or capsule; None: the live state, of which one copy is taken.
            count: Number of branches; 0: as many as seeds or names, or one.
            seeds: One noise key for each branch.
            names: One for each branch; empty: they are made.

        Raises:
            NotConfiguredError: The session is closed.
            InvalidArgumentError: The counts contradict each other, or a seed is out of range.
            InvalidNameError: A name does not match ``CAPSULE_NAME``.
            AlreadyExistsError: A name is taken, or given twice.
            NotFoundError: There is no such capsule.
            NoMemoryError: No storage is left for the live state.
            InternalError: The last step failed half-way, and the live state was to be forked.
        """
        if source is None:
            self._check_whole("fork")
        parent = None if source is None else self._find(source)
        count = _branch_count(count, seeds, names)
        keys = [noise.check_seed(seed) for seed in seeds]
        self._check_names(names)
        self.store.check_room(count)
        self.last_evicted = []
        if parent is None:
            segment = self._keep()
            origin = self._describe("", "", segment)
        else:
            segment = parent.segment.retain()
            # A boundary of the ring soon goes; what it descends from may stay.
            ancestor = parent.parent_id if parent.automatic else parent.id
            origin = changed(parent, parent_id=ancestor, pinned=False, automatic=False)
            self.store.touch(parent)
        if not keys:
            keys = self._derive_keys(parent, origin.key, count)
        branches = []
        for index, key in enumerate(keys):
            id_ = new_id()
            branch = changed(
                origin,
                id=id_,
                name=names[index] if names else f"branch-{id_}",
                host=copy.copy(origin.host),
                generation=self.generation,
                created_ns=time.time_ns(),
                segment=segment.retain(),
                noise_key=key,
            )
            self.store.put(branch)
            branches.append(branch)
        segment.release()  # ours; the branches have their own holds
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
            FlashRTError: As ``restore``, where it lies in another tier.
        """
        step = self.host.step
        target = self.rollback_target(steps)
        self._check_fit(target, allow_inexact=False)
        key = target.key if seed is None else noise.check_seed(seed)
        self._promote(target)
        self._go(target, key)
        return step - target.host.step

    def set_rollback_period(self, steps: int) -> None:
        """Changes the control steps between two boundaries of the ring; those in it stay.

        Raises:
            InvalidArgumentError: Less than one.
        """
        self._ring.period_steps = check_int("rollback_period_steps", steps, 1)

    def rollback_target(self, steps: int = 0) -> Capsule:
        """Returns the capsule or boundary that ``rollback`` would go to now.

        Raises:
            FlashRTError: As ``rollback``.
        """
        self._check_open()
        steps = check_int("steps", steps, 0)
        if steps:
            return self._ring.back(self.host.step, steps)
        if self.capsule_id:
            return self.store.get(self.capsule_id)
        raise NotFoundError(
            "rollback to the parent: the live state descends from a reset, not from a capsule"
        )

    def drop(self, name: str, force: bool = False) -> int:
        """Removes a capsule; its branches and its source keep what they share with it.

        A file that a move has written for it goes with ``remove_files``, ``move`` or ``close``:
        the control thread does not wait for a disk.

        Returns:
            Bytes freed, 0 while other capsules share its storage.

        Raises:
            NotConfiguredError: The session is closed.
            NotFoundError: There is none.
            PinnedError: It is pinned and ``force`` is not set.
        """
        self._check_open()
        freed_bytes = self.store.drop(name, force)
        self.last_evicted = []
        return freed_bytes

    def _check_replaced(self, name: str, replace: bool) -> Capsule | None:
        """Returns the capsule that a new one of this name takes the place of, if any."""
        if not replace or check_name(name) not in self.store:
            self.store.check_free(name)
            return None
        old = self.store.get(name)
        if old.name != name:
            self.store.check_free(name)
        if old.pinned:
            raise PinnedError(f"capsule {name!r} is pinned and cannot be replaced; unpin it first")
        return old

    def _check_names(self, names: Sequence[str]) -> None:
        for index, name in enumerate(names):
            self.store.check_free(name)
            if name in names[:index]:
                raise AlreadyExistsError(
                    f"names: {name!r} is given twice; each branch needs a name of its own"
                )

    def _derive_keys(self, parent: Capsule | None, key: int, count: int) -> list[int]:
        source = parent.id if parent is not None else f"{self.generation}.{self.tick}"
        # Counts of capsules that are gone, and of live states that are past, are of no use.
        forks = {k: n for k, n in (self._forks or {}).items() if k == source or k in self.store}
        first = forks.get(source, 0)
        self._forks = {**forks, source: first + count}
        return [noise.derive_key(key, first + index) for index in range(count)]


def check_task(task: str) -> str:
    """Returns ``task``.

    Raises:
        InvalidArgumentError: It is too long.
    """
    if len(task) > MAX_TASK_CHARACTERS:
        raise InvalidArgumentError(
            f"task: expected at most {MAX_TASK_CHARACTERS} characters, found {len(task)}"
        )
    return task


def _branch_count(count: int, seeds: Sequence[int], names: Sequence[str]) -> int:
    asked = check_int("count", count, 0) or len(seeds) or len(names) or 1
    if asked > MAX_BRANCHES:
        raise InvalidArgumentError(f"count: expected at most {MAX_BRANCHES}, found {asked}")
    for label, given in (("seeds", len(seeds)), ("names", len(names))):
        if given not in (0, asked):
            raise InvalidArgumentError(
                f"{label}: expected {asked}, one for each branch, or none; found {given}"
            )
    return asked
