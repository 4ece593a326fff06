"""The rollback ring: automatic capsules of the last boundaries of the live lineage."""

from __future__ import annotations

from collections.abc import Collection

from flashrt_ros.errors import NotFoundError
from flashrt_ros.runtime.capsule import Capsule
from flashrt_ros.runtime.policy import HostRecord
from flashrt_ros.runtime.pool import Segment
from flashrt_ros.runtime.store import CapsuleStore


class RollbackRing:
    """Boundaries on the way to the live state, oldest first; they live in the store.

    The ring reuses its own storage and never evicts a named capsule. The store may evict from it,
    so it can hold fewer boundaries than ``depth``.

    Attributes:
        depth: Boundaries kept at most; 0: none.
        period_steps: Control steps between boundaries.
    """

    def __init__(self, store: CapsuleStore, depth: int, period_steps: int) -> None:
        self.depth = depth
        self.period_steps = period_steps
        self._store = store
        self._ids: list[str] = []
        self._seen_removals = store.removals

    def boundaries(self) -> list[Capsule]:
        """Returns the boundaries that are still there, oldest first."""
        return [self._store.get(id_) for id_ in self.ids()]

    def ids(self) -> tuple[str, ...]:
        """Returns the ids of ``boundaries()``."""
        self._refresh()
        return tuple(self._ids)

    @property
    def vacancies(self) -> int:
        """Slots that the ring will take as it grows."""
        return max(0, self.depth - len(self.ids()))

    def due(self, step: int) -> bool:
        """True if the boundary after ``step`` control steps belongs into the ring."""
        return self.depth > 0 and step % self.period_steps == 0

    def holds(self, host: HostRecord, key: int) -> bool:
        """True if the newest boundary is this one: a capsule of it was restored."""
        ids = self.ids()
        newest = self._store.get(ids[-1]) if ids else None
        return newest is not None and newest.host == host and newest.key == key

    def take(self, pages: int = 0) -> Segment | None:
        """Returns a slot for the next boundary; what is too old goes at ``push`` where it can.

        Args:
            pages: Pages for its rows that must be free. The ring drops nothing for them: what its
                boundaries hold, the live lineage needs.

        Returns:
            None if all storage is held by capsules that are not the ring's.
        """
        self._refresh()
        pool = self._store.pool
        while self._ids and (not pool.free or (pages and len(self._ids) >= self.depth)):
            self._drop_oldest()
        if pages and pages > self._store.free_pages:
            return None
        return pool.take() if pool.free else None

    def push(self, capsule: Capsule) -> None:
        """Makes ``capsule``, whose slot came from ``take``, the newest boundary."""
        self._store.put(capsule)
        self._ids.append(capsule.id)
        while len(self._ids) > self.depth:
            self._drop_oldest()

    def keep(self, ids: Collection[str]) -> None:
        """Drops every boundary but those in ``ids``: the others no longer lead to the state."""
        kept = set(ids)
        for id_ in self.ids():
            if id_ not in kept:
                self._store.drop(id_)
        self._refresh()

    def back(self, step: int, steps: int) -> Capsule:
        """Returns the newest boundary at least ``steps`` back.

        Args:
            step: Control step of the live state.
            steps: At least 1.

        Raises:
            NotFoundError: The ring does not reach that far.
        """
        found = "the ring holds no boundary"
        for id_ in reversed(self.ids()):
            boundary = self._store.get(id_)
            if boundary.host.step <= step - steps:
                return boundary
            found = f"the oldest boundary lies {step - boundary.host.step} steps back"
        raise NotFoundError(
            f"rollback by {steps} steps from step {step}: {found} (rollback_depth {self.depth},"
            f" rollback_period_steps {self.period_steps})"
        )

    def _drop_oldest(self) -> None:
        self._store.drop(self._ids.pop(0))
        self._seen_removals = self._store.removals

    def _refresh(self) -> None:
        # Looked up only if something was removed: this runs at every control step.
        if self._seen_removals != self._store.removals:
            self._ids = [id_ for id_ in self._ids if id_ in self._store]
            self._seen_removals = self._store.removals
