"""Preview: the chunk that a branch would produce on an observation, without making it live."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from flashrt_ros.errors import (
    BusyError,
    InternalError,
    InvalidArgumentError,
    NoMemoryError,
    SupersededError,
    UnsupportedError,
)
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import ROWS_LENGTH
from flashrt_ros.runtime.capsule import Capsule
from flashrt_ros.runtime.device import Lane
from flashrt_ros.runtime.engine import Engine
from flashrt_ros.runtime.live_rows import SpareRows
from flashrt_ros.runtime.observation import Checked
from flashrt_ros.runtime.place import SlotPlace, Tier
from flashrt_ros.runtime.policy import Buffers, HostRecord, PlanKind
from flashrt_ros.runtime.ticket import PlanTicket
from flashrt_ros.runtime.transfer import Transfer

CHUNK = "chunk.actions"
"""State buffer ``(H, A)`` in which a policy that plans keeps its chunk."""
MAX_PREVIEWS = 64
"""Branches of one preview."""


@dataclass(frozen=True)
class Branch:
    """A state that was written into a spare set.

    Attributes:
        number: Of the set.
        capsule: Where it comes from; None: the live state.
        host: Its host record.
        kept_bytes: Rows up to there are those of the live state, and were not copied.
        generation: Of the live state with which it shares them.
    """

    number: int
    capsule: Capsule | None
    host: HostRecord
    kept_bytes: int
    generation: int


@dataclass(frozen=True)
class BranchChunk:
    """What a branch would do.

    Attributes:
        name: Of its capsule; empty: the live state.
        capsule_id: Of its capsule; empty: the live state.
        chunk: Number that the chunk would have in its episode.
        actions_HA: ``(H, A)`` float32 on the host: the chunk that the branch would plan; of a
            policy that plans no chunk, the one action that it would take.
    """

    name: str
    capsule_id: str
    chunk: int
    actions_HA: torch.Tensor


class Preview(Transfer):
    """Runs branches in spare sets; see ``StateMemory``."""

    _engine: Engine
    # Of each spare set.
    _noise_keys: tuple[torch.Tensor, ...] = ()
    _spare_rows: tuple[SpareRows, ...] = ()
    # Counts plans beside; what was begun last.
    _tickets = 0
    _begun: PlanTicket | None = None

    def preview(
        self, sources: Sequence[str | Capsule], observations: Mapping[str, object]
    ) -> list[BranchChunk]:
        """Returns the chunks that branches would plan on the observations.

        A capsule in another tier is moved to the device before, and waited for.
        Each branch plans at once, whether or not it has rows of its chunk left. The live state,
        its host record, generation, tick, lineage and rollback ring stay as they are.

        Args:
            sources: Names, ids or capsules; empty: the live state alone.
            observations: As in ``step``.

        Raises:
            NotConfiguredError: The session is closed.
            UnsupportedError: The session has no spare sets.
            InvalidArgumentError: A capsule is given twice, or there are too many.
            NotFoundError: There is no such capsule, or no longer.
            StateMismatchError: It belongs to another policy, configuration, weights or layout.
            ExecMismatchError: It was made on another device, library or kernel choice.
            SpecError: As in ``step``.
            NoMemoryError: There is no room for the rows that a plan may append to a branch.
            BusyError: A plan that runs beside is under way.
            InternalError: The last step failed half-way, or the driver refused the exchange.
        """
        run = self.begin_preview(sources, observations)
        try:
            return [run.run_next() for _ in range(run.left)]
        finally:
            run.close()

    def begin_preview(
        self, sources: Sequence[str | Capsule], observations: Mapping[str, object]
    ) -> PreviewRun:
        """Checks a preview and holds its capsules, to be run branch by branch.

        Raises:
            FlashRTError: As ``preview``, but for BusyError.
        """
        capsules = self.check_preview(sources)
        checked = self._engine.check(observations)
        held: dict[str, SlotPlace] = {}
        try:
            # Those that are on the device first, and each at once: else it might give way to
            # the next.
            for capsule in sorted(capsules, key=lambda c: c.segment.tier is not Tier.DEVICE):
                self._promote(capsule)
                place = capsule.segment.slot
                place.retain()
                held[capsule.id] = place
        except BaseException:
            for place in held.values():
                place.release()
            raise
        return PreviewRun(self, capsules, [held[capsule.id] for capsule in capsules], checked)

    def check_preview(self, sources: Sequence[str | Capsule]) -> list[Capsule]:
        """Returns the capsules of a preview, if nothing but the observations can stand in its way.

        Raises:
            FlashRTError: As ``preview``, but for SpecError and BusyError.
        """
        self._check_whole("preview")
        if not self.arena.memory.sets:
            raise UnsupportedError(
                "preview: expected at least one spare state, found preview_sets 0; make the"
                " session with preview_sets 1 (a parameter of the node as well)"
            )
        if len(sources) > MAX_PREVIEWS:
            raise InvalidArgumentError(
                f"preview: expected at most {MAX_PREVIEWS} branches, found {len(sources)}"
            )
        capsules: list[Capsule] = []
        for source in sources:
            capsule = self._find(source)
            if any(other.id == capsule.id for other in capsules):
                raise InvalidArgumentError(f"preview: capsule {capsule.name!r} is given twice")
            self._check_fit(capsule, allow_inexact=False)
            self._check_branch_room(f"branch {capsule.name!r}", capsule.host)
            capsules.append(capsule)
        if not capsules:
            self._check_branch_room("the live state", self.host)
        return capsules

    def _check_branch_room(self, what: str, host: HostRecord) -> None:
        capacity = self.arena.layout.capacity
        if host.rows + self._most_rows > capacity:
            raise NoMemoryError(
                f"preview of {what}: expected room for {self._most_rows} more rows, found"
                f" {host.rows} of {capacity} in use; nothing was run"
            )

    @property
    def _most_rows(self) -> int:
        """Rows that a branch may append."""
        per_act = 0 if self._plans_chunk else self.policy.rows_per_act
        return self.policy.rows_per_plan + per_act

    @property
    def _plans_chunk(self) -> bool:
        assert self._arena is not None
        return self.policy.plan_kind is not PlanKind.NONE and CHUNK in self._arena.state

    def materialise(self, source: str | Capsule | None = None, number: int = 0) -> Branch:
        """Writes a branch into a spare set: enqueues copies of its fixed part and of its own rows.

        Args:
            source: Name, id or capsule; None: the live state.
            number: Of the set.

        Raises:
            NotConfiguredError: The session is closed.
            NotFoundError: There is no such capsule, or no longer.
            StateMismatchError: As ``preview``.
            ExecMismatchError: As ``preview``.
            BusyError: A branch is in place.
            InternalError: The last step failed half-way, or there is no such set.
        """
        self._check_whole("materialise")
        capsule = None if source is None else self._find(source)
        if capsule is not None:
            self._check_fit(capsule, allow_inexact=False)
            self._promote(capsule)
        return self._materialise(
            capsule, None if capsule is None else capsule.segment.slot, number
        )

    def _materialise(
        self, capsule: Capsule | None, place: SlotPlace | None, number: int
    ) -> Branch:
        arena, row_bytes, rows = self.arena, self.arena.layout.row_bytes, self.host.rows
        if not 0 <= number < len(arena.memory.sets):
            raise InternalError(f"spare set {number}: expected one of {len(arena.memory.sets)}")
        spare = arena.memory.sets[number]
        shared = rows
        if place is not None and self._rows is not None and place.rows is not None:
            shared = self._rows.shared(rows, place.rows)
        kept_bytes = arena.memory.kept(shared * row_bytes)
        # A row that is cut by the end of what is kept is written as a whole.
        first = kept_bytes // row_bytes if row_bytes else 0
        with self.device.bind(Lane.CONTROL):
            if capsule is None or place is None:
                self.device.copy_(spare.fixed, arena.fixed)
                if self._rows is not None:
                    self._spare_rows[number].take_live(self._rows, rows, first)
            else:
                self.device.copy_(spare.fixed, place.bytes)
                if capsule.key != capsule.segment.noise_key:
                    self._noise_keys[number].fill_(noise.as_signed(capsule.key))
                if place.rows is not None:
                    self._spare_rows[number].take(place.rows, first)
        host = copy.copy(self.host if capsule is None else capsule.host)
        return Branch(number, capsule, host, kept_bytes, self.generation)

    @contextlib.contextmanager
    def placed(self, *branches: Branch) -> Iterator[None]:
        """Puts branches into the place of the live state, one after another, then takes them away.

        Within, the last one is under the addresses that the graphs know, and no verb and no step
        is possible.

        Args:
            branches: In order; to measure what an exchange takes, several.

        Raises:
            SupersededError: The live state is another one since a branch was materialised.
            BusyError: A branch is in place.
            NoMemoryError: As ``StateMemory.place``.
            InternalError: As ``StateMemory.place``.
        """
        self._check_whole("placing a branch")
        memory, row_bytes = self.arena.memory, self.arena.layout.row_bytes
        for branch in branches:
            if branch.generation != self.generation:
                raise SupersededError("the branch was materialised beside another live state")
        with self.device.bind(Lane.CONTROL):
            try:
                for branch in branches:
                    rows = max(branch.host.rows + self._most_rows, self.host.rows)
                    memory.place(branch.number, branch.kept_bytes, rows * row_bytes)
                yield
            finally:
                memory.place_live()

    def run_branch(self, branch: Branch, checked: Checked) -> BranchChunk:
        """Places a branch, runs its plan, and takes it away again; see ``preview``.

        Args:
            branch: Fresh: what a set has computed once it does not compute again.
            checked: Observations, checked by the engine.

        Raises:
            BusyError: A plan that runs beside is under way, or has not been adopted.
            NoMemoryError: There is no room for the rows that its plan may append; or as
                ``placed``.
            FlashRTError: As ``placed``.
        """
        self._check_no_plan()
        # Again: the live state has grown since the preview was begun, and nothing in a captured
        # graph keeps a row from being written behind the end.
        what = "the live state" if branch.capsule is None else f"branch {branch.capsule.name!r}"
        self._check_branch_room(what, branch.host)
        # Not the property: it refuses while the live state is away.
        arena = self._arena
        assert arena is not None
        with self._engine.alone(), self.placed(branch):
            task, self._engine.inputs.task = self._engine.inputs.task, lambda: branch.host.task
            try:
                actions_HA = self._predict(arena.state, checked)
            finally:
                self._engine.inputs.task = task
            rows = self._engine.read_rows()
        if not 0 <= rows - branch.host.rows <= self._most_rows:
            raise InternalError(
                f"policy {self.policy.family!r}: expected {ROWS_LENGTH!r} to rise by 0 to"
                f" {self._most_rows} rows, found {branch.host.rows} before and {rows} after"
            )
        name, id_ = "", ""
        if branch.capsule is not None:
            name, id_ = branch.capsule.name, branch.capsule.id
        return BranchChunk(name, id_, branch.host.chunk + 1, actions_HA)

    def _check_no_plan(self) -> None:
        if self.planning:
            raise BusyError(
                "preview: a plan that runs beside is under way; expected none; adopt or withdraw"
                " it first"
            )

    def _predict(self, state: Buffers, checked: Checked) -> torch.Tensor:
        engine = self._engine
        engine.write_inputs(checked)
        if self.policy.plan_kind is not PlanKind.NONE:
            if engine.beside:
                engine.begin_plan()
            engine.run_plan()
            engine.adopt(0)
        if not self._plans_chunk:
            return engine.act(_nothing).view(1, -1)
        return self.device.to_host(state[CHUNK]).to(torch.float32)

    @property
    def planning(self) -> bool:
        """True while a plan beside was begun and neither adopted, overtaken nor withdrawn."""
        return self._begun is not None and self._stands(self._begun)

    @property
    def plan_number(self) -> int:
        """Tells plans beside apart: of the one that was begun last; 0 before the first."""
        return 0 if self._begun is None else self._begun.number

    def withdraw_plan(self) -> None:
        """Gives up the plan that runs beside: what comes of it will not be adopted."""
        if self.planning:
            self._tickets += 1

    def _stands(self, ticket: PlanTicket) -> bool:
        return ticket.generation == self.generation and ticket.number == self._tickets


def _nothing() -> None:
    pass


class PreviewRun:
    """A preview, branch by branch, so that control steps can be taken between.

    Its capsules are held until ``close``, even if they are dropped or moved meanwhile.

    Attributes:
        left: Branches still to be run.
    """

    def __init__(
        self,
        session: Preview,
        capsules: Sequence[Capsule],
        held: Sequence[SlotPlace],
        checked: Checked,
    ) -> None:
        self._session = session
        self._held = list(held)
        self._waiting: list[tuple[Capsule | None, SlotPlace | None]] = [(None, None)]
        if capsules:
            self._waiting = list(zip(capsules, self._held, strict=True))
        self._checked = checked
        self._generation = session.generation

    @property
    def left(self) -> int:
        """Branches still to be run."""
        return len(self._waiting)

    def run_next(self) -> BranchChunk:
        """Runs the next branch.

        Raises:
            SupersededError: A restore, rollback or reset came between.
            BusyError: A plan that runs beside is under way; the branch is still to be run.
            FlashRTError: As ``Preview.preview``.
        """
        session = self._session
        session._check_whole("preview")
        if session.generation != self._generation:
            raise SupersededError(
                "preview: a restore, rollback or reset came between; ask again, with what is live"
                " now"
            )
        # Before anything is copied: who waits for a plan asks again and again.
        session._check_no_plan()
        branch = session._materialise(*self._waiting[0], 0)
        chunk = session.run_branch(branch, self._checked)
        self._waiting.pop(0)
        return chunk

    def close(self) -> None:
        """Lets go of the capsules. May be repeated."""
        held, self._held = self._held, []
        for place in held:
            place.release()
