"""Moves between tiers, in three phases, so that no control step waits for a copy or a disk.

The control thread begins a move and takes the storage for it, another thread copies, the control
thread commits: only then are the bytes read from their new place, and only then is the old one
freed. What fails leaves all as it was.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from flashrt_ros.errors import (
    BusyError,
    CorruptError,
    InternalError,
    InvalidArgumentError,
    InvalidNameError,
    NoMemoryError,
    NotFoundError,
    UnsupportedError,
)
from flashrt_ros.runtime.buffers import StateLayout
from flashrt_ros.runtime.capsule import Capsule, new_id
from flashrt_ros.runtime.capsule_folder import SUFFIX, CapsuleFolder
from flashrt_ros.runtime.capsule_image import CapsuleFacts, CapsuleImage
from flashrt_ros.runtime.device import Lane
from flashrt_ros.runtime.live import LiveState
from flashrt_ros.runtime.place import FilePlace, Place, SlotPlace, Tier, pairs
from flashrt_ros.runtime.row_segment import new_span
from flashrt_ros.runtime.staging import HostState, empty_state, image_of, lay_out

_NAME_CHARACTERS = 115
"""Of a capsule's name in the name of its file: the rest makes it the only one."""


@dataclass
class Move:
    """One move under way.

    Attributes:
        capsule: As it was found; all that share its bytes move with it.
        tier: Where to.
        source: Where from, held.
        target: Taken already, or a file that should have the bytes; None: a file, which
            ``carry`` writes, or nothing yet.
        read: What ``fetch`` has read of a file.
        parked: Whether the store does it by itself.
        evicted: Names of the capsules that gave way.
    """

    capsule: Capsule
    tier: Tier
    source: Place
    target: Place | None = None
    read: HostState | None = None
    parked: bool = False
    evicted: list[str] = field(default_factory=list)


class Moves(LiveState):
    """Where capsules lie, and how they get elsewhere.

    Attributes:
        folder: Of the disk tier; None: there is none.
        layout: Of the state.
    """

    folder: CapsuleFolder | None
    layout: StateLayout
    _doomed: list[str]
    _storage: threading.Lock

    def move(self, source: str | Capsule, tier: Tier) -> Capsule:
        """Moves a capsule and waits for it; all that share its bytes move with it.

        Where the control thread must not wait it calls ``begin_move`` and ``commit_move``, and
        another thread ``carry`` in between. Before that, if ``must_fetch`` says so, the other
        thread calls ``fetch`` and the control thread ``take``.

        Raises:
            NotConfiguredError: The session is closed.
            NotFoundError: There is no such capsule, or no longer.
            InvalidArgumentError: It is a boundary of the rollback ring.
            UnsupportedError: There is no such tier here.
            BusyError: It is being moved already.
            NoMemoryError: The tier is full.
            StorageError: The file could not be written or read.
            CorruptError: The file was changed.
        """
        move = self.begin_move(source, tier)
        if move is not None:
            try:
                with self.giving_back(move):
                    if self.must_fetch(move):
                        self.fetch(move)
                        self.take(move)
                    self.carry(move)
                    self.commit_move(move)
            finally:
                self.remove_files()
        return self._find(source)

    def begin_move(self, source: str | Capsule, tier: Tier, parked: bool = False) -> Move | None:
        """Takes the storage for a move; ``carry``, and ``commit_move`` or ``give_back``, follow.

        Args:
            source: Name, id or the capsule itself.
            tier: Where to.
            parked: Whether the store does it by itself.

        Returns:
            None if it is there already.

        Raises:
            FlashRTError: As ``move``; nothing was changed.
        """
        capsule = self._find(source)
        segment = capsule.segment
        self.last_evicted = []
        if segment.tier is tier and not segment.moving:
            return None
        if capsule.automatic and tier is not Tier.DEVICE:
            raise InvalidArgumentError(
                f"capsule {capsule.name!r} belongs to the rollback ring, which reuses its storage;"
                " restore it and take a snapshot to move it"
            )
        self.check_tier(tier)
        if segment.moving:
            raise BusyError(
                f"capsule {capsule.name!r}, or a branch with the same bytes, is being moved"
                " already; repeat it later"
            )
        move = Move(capsule, tier, segment.place, parked=parked)
        # Before anything is taken: else it might give way to itself.
        segment.place.retain()
        segment.moving = True
        with self.giving_back(move):
            if tier is Tier.DISK and segment.file is not None:
                segment.file.retain()
                move.target = segment.file
            elif not self.must_fetch(move):
                self.take(move)
        return move

    @staticmethod
    def must_fetch(move: Move) -> bool:
        """True if a file is still to be read, and verified, before anybody gives way to it."""
        return isinstance(move.source, FilePlace) and move.target is None

    def fetch(self, move: Move) -> None:
        """Reads a file; from any thread.

        Raises:
            NotConfiguredError: The session is closed.
            NotFoundError: It is gone.
            StorageError: It cannot be read.
            CorruptError: It was changed.
        """
        self._check_open()
        assert isinstance(move.source, FilePlace)  # as ``must_fetch`` said
        move.read = self._read(move.capsule, move.source)

    def take(self, move: Move) -> None:
        """Takes the storage that a move goes to.

        Raises:
            NotConfiguredError: The session is closed.
            NotFoundError: The capsule was dropped meanwhile; nothing was changed.
            NoMemoryError: The tier is full; nothing was changed.
        """
        self._check_held(move)
        if move.tier is Tier.HOST:
            move.target, evicted = self.store.reserve_block(self._size(move.capsule))
            move.evicted = self._named(evicted)
        elif move.tier is Tier.DEVICE:
            move.target = self._reserve(move.capsule.host.rows, named=True)
            move.evicted = list(self.last_evicted)
        self.device.mark(Lane.CONTROL)

    def carry(self, move: Move) -> None:
        """Copies; from any thread, and control steps go on beside it. Complete on return.

        Raises:
            NotConfiguredError: The session is closed.
            StorageError: The file could not be written.
        """
        self._check_open()
        if move.tier is Tier.DISK:
            known, move.target = move.target, None
            if known is not None:
                if isinstance(known, FilePlace) and self._is_whole(known):
                    move.target = known
                    return
                known.release()
            move.target = self._write(move)
            return
        if move.target is None:
            raise InternalError("a move out of a file: expected fetch and take before carry")
        read, move.read = move.read, None
        self._carry(move.target.views(), move.source.views() if read is None else read.views())

    def commit_move(self, move: Move) -> None:
        """Lets the capsule be read from its new place and frees the old one.

        Raises:
            NotConfiguredError: The session is closed.
            NotFoundError: It was dropped meanwhile.
        """
        self._check_held(move)
        segment, target = move.capsule.segment, move.target
        assert target is not None  # as ``carry`` returned
        segment.moving = False
        move.source.release()
        known = segment.file
        if known is not None and move.tier is Tier.DISK:
            known.release()  # the move's hold, or the segment's where another was written
            if target is not known:
                segment.file = None
        segment.go_to(target)
        segment.parked = move.parked
        if not move.parked and move.capsule.id in self.store:
            self.store.touch(move.capsule)

    def _check_held(self, move: Move) -> None:
        self._check_open()
        if not move.capsule.segment.holders:
            raise NotFoundError(f"capsule {move.capsule.name!r} was dropped while it was moved")

    def give_back(self, move: Move) -> None:
        """Ends a move that failed; from any thread."""
        move.capsule.segment.moving = False
        move.source.release()
        if move.target is not None:
            move.target.release()

    @contextmanager
    def giving_back(self, move: Move) -> Iterator[None]:
        """Gives back what a move took if something is raised."""
        try:
            yield
        except BaseException:
            self.give_back(move)
            raise

    def to_park(self) -> Capsule | None:
        """Returns the capsule that should go to the host so that others find room; None: none."""
        capsule = self.store.to_park(self._ring.vacancies, self._ring.depth)
        if capsule is None:
            return None
        try:
            self.store.block_victims(self._size(capsule))
        except NoMemoryError:
            return None  # then they are evicted when their turn comes, as without a host tier
        return capsule

    def remove_files(self) -> list[str]:
        """Removes the files of capsules that are gone; from any thread.

        Returns:
            Words for each that could not be removed.
        """
        words = []
        while True:
            try:
                name = self._doomed.pop()
            except IndexError:
                break  # of an empty list: another thread may have taken the last one
            try:
                if self.folder is not None:
                    self.folder.remove(name)
            except NotFoundError:
                pass  # as was wanted
            except Exception as error:
                words.append(str(error))
        return words

    @property
    def files_to_remove(self) -> bool:
        """True if ``remove_files`` has something to do."""
        return bool(self._doomed)

    def check_tier(self, tier: Tier) -> None:
        """Raises if there is no such tier.

        Raises:
            UnsupportedError: Says why, and what to do.
        """
        if tier is Tier.HOST and self.store.host is None:
            raise UnsupportedError(f"tier 'host': {self.host_reason}")
        if tier is Tier.DISK and self.folder is None:
            raise UnsupportedError(
                "tier 'disk': expected a folder for capsule files, found none; set capsule_dir"
            )

    def check_room(self, tier: Tier) -> None:
        """Raises if the live state would not fit into a tier, were it a capsule.

        Raises:
            UnsupportedError: There is no such tier.
            NoMemoryError: It is full.
        """
        self.check_tier(tier)
        if tier is Tier.HOST:
            size_bytes = self.layout.fixed_bytes
            self.store.block_victims(size_bytes + self.host.rows * self.layout.row_bytes)

    @property
    def host_reason(self) -> str:
        """Why there is no host tier."""
        if self.device.memory().shared:
            return (
                f"on {self.device.name} host and device are one memory, so a move would free"
                " nothing; raise store_bytes, or use tier 'disk'"
            )
        return "parameter host_store_bytes: expected more than 0, found 0"

    def _promote(self, capsule: Capsule) -> None:
        if not isinstance(capsule.segment.place, SlotPlace):
            self.move(capsule, Tier.DEVICE)

    def _size(self, capsule: Capsule) -> int:
        layout = self.layout
        return layout.fixed_bytes + capsule.host.rows * layout.row_bytes

    def _reserve(self, rows: int, named: bool = False) -> SlotPlace:
        """Takes a slot and pages for a state that comes from elsewhere, evicting for it.

        Args:
            rows: Of the state.
            named: Whether its capsules are in the store already.
        """
        store = self.store
        if store.rows is None:
            segment, evicted = store.reserve(named=named)
        else:
            # Between the eviction and the taking nobody else may take the pages.
            with store.rows.lock:
                pages = -(-rows // store.rows.page_rows)
                segment, evicted = store.reserve(pages=pages, named=named)
                segment.rows = new_span(store.rows, rows)
        self.last_evicted = self._named(evicted)
        assert isinstance(segment.place, SlotPlace)
        return segment.place

    @staticmethod
    def _named(evicted: Sequence[Capsule]) -> list[str]:
        return [capsule.name for capsule in evicted if not capsule.automatic]

    # From any thread

    def _carry(self, into: Sequence[torch.Tensor], out_of: Sequence[torch.Tensor]) -> None:
        with self._storage, self.device.bind(Lane.STORAGE):
            self.device.follow(Lane.CONTROL)
            self.device.carry(pairs(into, out_of))

    def _gather(self, capsule: Capsule, place: Place) -> HostState:
        """Returns a copy of a capsule's bytes, wherever they lie."""
        if isinstance(place, FilePlace):
            return self._read(capsule, place)
        layout = self.layout
        state = empty_state(layout, capsule.host.rows)
        self._carry(state.views(), place.views())
        return state

    def _image(self, capsule: Capsule, place: Place) -> CapsuleImage:
        facts = CapsuleFacts(
            id=capsule.id,
            name=capsule.name,
            parent_id=capsule.parent_id,
            created_ns=capsule.created_ns,
            tick=capsule.tick,
            generation=capsule.generation,
            noise_key=capsule.noise_key,
            host=copy.copy(capsule.host),
            state_fingerprint=capsule.state_fingerprint,
            exec_fingerprint=capsule.exec_fingerprint,
        )
        return image_of(self.layout, facts, self._gather(capsule, place))

    def _write(self, move: Move) -> FilePlace:
        assert self.folder is not None  # as ``check_tier`` found
        capsule = move.capsule
        # Not by the capsule's id: another process may have loaded the same capsule, and moves it.
        file = f"{capsule.name[:_NAME_CHARACTERS]}.{new_id()}{SUFFIX}"
        saved = self.folder.save(self._image(capsule, move.source), file)
        size_bytes = saved.size_bytes
        return FilePlace(self.store.pool.lock, file, capsule.id, size_bytes, self._doomed)

    def _is_whole(self, file: FilePlace) -> bool:
        """True if a file is there, and as long as it was written."""
        assert self.folder is not None
        try:
            return self.folder.size_bytes(file.name) == file.size_bytes
        except (NotFoundError, InvalidNameError):
            return False

    def _read(self, capsule: Capsule, file: FilePlace) -> HostState:
        assert self.folder is not None
        cure = f"capsule {capsule.name!r} lies in this file only: bring it back, or drop it"

        def check(facts: CapsuleFacts) -> None:
            if facts.id != file.capsule_id:
                raise CorruptError(
                    f"expected capsule {file.capsule_id}, which was moved here, found {facts.id}"
                )

        try:
            return lay_out(self.layout, self.folder.load(file.name, check))
        except (NotFoundError, CorruptError) as error:
            raise type(error)(f"{error}; {cure}") from error

    def path_of(self, capsule: Capsule) -> Path | None:
        """Returns the file that has a capsule's bytes; None: no move has written one."""
        segment = capsule.segment
        file = segment.place if isinstance(segment.place, FilePlace) else segment.file
        return None if file is None or self.folder is None else self.folder.path / file.name
