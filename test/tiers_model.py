"""``rows_model.Pair`` with tiers: the reference knows where each capsule lies and what fits.

What comes back to the device is a lineage of its own there, which shares rows with nobody: the
reference gives its rows new identities.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from capsule_images import content_of
from expected_error import expected
from rows_model import Pair
from separate_host import separate_host

from flashrt_ros.errors import InvalidArgumentError, NoMemoryError
from flashrt_ros.runtime.capsule import Capsule
from flashrt_ros.runtime.capsule_file import decode
from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.file_system import FileSystem
from flashrt_ros.runtime.place import FilePlace, Place, Tier

MOVES = ("move", "move", "move", "load")
TIERS = (Tier.HOST, Tier.DISK, Tier.DEVICE, Tier.HOST)
UNIT = 256


class Unsynced(FileSystem):
    """A disk that need not outlive a power cut."""

    def fsync(self, file: int) -> None:
        pass


class TierPair(Pair):
    """The session with all tiers and its reference."""

    def __init__(self, folder: Path, host_bytes: int = 9000, **options: Any) -> None:
        with separate_host():
            files = CapsuleFolder(folder, Unsynced())
            super().__init__(host_store_bytes=host_bytes, folder=files, **options)
        self.fresh = itertools.count(1 << 40)
        self.loads = itertools.count()
        self.verified: dict[int, tuple[Place, tuple[bytes, bytes]]] = {}
        self.promoting: Capsule | None = None

    # Verbs

    def _move(self, a: int, b: int) -> None:
        target, tier, session = self._pick(a), TIERS[b % len(TIERS)], self.session
        if target is None:
            return
        segment = target.segment
        was = segment.tier
        if was is tier:
            session.move(target, tier)
            return
        if target.automatic and tier is not Tier.DEVICE:
            with expected(InvalidArgumentError, "belongs to the rollback ring"):
                session.move(target, tier)
            return
        victims: list[Capsule] | None = []
        if tier is Tier.DEVICE:
            victims = self._foresee(None, len(self.kept[target.id].rows))[0]
        elif tier is Tier.HOST and self._units(target) > self._free_units():
            victims = None
        if victims is None:
            with expected(NoMemoryError, "no room for"):
                session.move(target, tier)
            assert segment.tier is was
            return
        session.move(target, tier)
        assert segment.tier is tier
        assert self.copied == 0
        self._gone(victims)
        if tier is Tier.DEVICE:
            self._arrived(target)

    def _load(self, a: int, b: int) -> None:
        """Out of the session into bytes of a file, and back as another capsule."""
        source, session = self._pick(a), self.session
        if source is None or len(self.kept) > 40:
            return
        image = decode(content_of(session.export(source)), "file")
        victims = self._foresee(None, len(self.kept[source.id].rows))[0]
        name = f"loaded-{next(self.loads)}"
        if victims is None:
            with expected(NoMemoryError, "no room for one more"):
                session.import_(image, name)
            return
        kept = self.kept[source.id]
        made = session.import_(image, name)
        self._gone(victims)
        self.kept[made.id] = kept.twin()
        self._arrived(made)

    def _restore(self, a: int, b: int) -> None:
        target = self._pick(a)
        if target is None or self._promotable(target):
            super()._restore(a, b)
            return
        with expected(NoMemoryError, "no room for one more"):
            self.session.restore(target)

    def _rollback(self, a: int, b: int) -> None:
        steps = 1 + a % 5
        step = self.live.host.step
        ring = [c for c in self.session.store.list() if c.automatic]
        targets = [c for c in ring if c.host.step <= step - steps]
        if not targets or self._promotable(targets[-1]):
            super()._rollback(a, b)
            return
        with expected(NoMemoryError, "no room for one more"):
            self.session.rollback(steps)

    def _parent(self, a: int, b: int) -> None:
        parent = self.session.capsule_id
        if parent not in self.session.store or self._promotable(self.session.store.get(parent)):
            super()._parent(a, b)
            return
        with expected(NoMemoryError, "no room for one more"):
            self.session.rollback()

    # The reference

    def _promotable(self, target: Capsule) -> bool:
        """False if there is no room for it on the device, and it is not there yet."""
        self.promoting = None
        if target.segment.tier is Tier.DEVICE:
            return True
        victims = self._foresee(None, len(self.kept[target.id].rows))[0]
        self.promoting = target if victims is not None else None
        return victims is not None

    def _went(self, target: Capsule, seed: int | None) -> None:
        if self.promoting is not None:
            self._arrived(target)
            self.promoting = None
        super()._went(target, seed)

    def _arrived(self, capsule: Capsule) -> None:
        kept = self.kept[capsule.id]
        ids = [next(self.fresh) for _ in kept.ids]
        for other in self.session.store.list():
            if other.segment is capsule.segment:
                self.kept[other.id].ids = list(ids)

    def _units(self, capsule: Capsule) -> int:
        layout = self.session.layout
        size = layout.fixed_bytes + len(self.kept[capsule.id].rows) * layout.row_bytes
        return -(-size // UNIT)

    def _free_units(self) -> int:
        host = {
            id(c.segment): self._units(c)
            for c in self.session.store.list()
            if c.segment.tier is Tier.HOST
        }
        return self.session.store.host_bytes_budget // UNIT - sum(host.values())

    def _found(self, capsule: Capsule, memory: Any) -> tuple[bytes, bytes]:
        place, fixed = capsule.segment.place, self.session.layout.fixed_bytes
        if place.tier is Tier.DEVICE:
            return super()._found(capsule, memory)
        if isinstance(place, FilePlace):
            # Files are immutable: read once.
            if id(place) not in self.verified:
                state = self.session._read(capsule, place)
                pair = state.section_N.numpy().tobytes(), state.rows_N.numpy().tobytes()
                self.verified[id(place)] = place, pair
            return self.verified[id(place)][1]
        whole = b"".join(view_N.numpy().tobytes() for view_N in place.views())
        return whole[:fixed], whole[fixed:]

    def _audit(self, capsules: list[Capsule]) -> None:
        super()._audit(capsules)
        store = self.session.store
        assert store.host is not None
        assert store.host.free == self._free_units()
        places = {id(c.segment): c.segment for c in capsules}.values()
        files = {s.place.name for s in places if isinstance(s.place, FilePlace)}
        files |= {s.file.name for s in places if s.file is not None}
        folder = self.session.folder
        assert folder is not None
        self.session.remove_files()
        if files or folder.path.exists():
            assert set(folder.files()) == files
        assert all(s.place.holders == 1 and not s.moving for s in places)
