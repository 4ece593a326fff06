"""What a restore is worth that leaves something out: where actions first diverge, for each buffer.

At random cut points of an episode the session is snapshotted and runs on; another episode is put
in its place, and the restore is made again: whole, which must give the same bytes, and wrong in
one way each time. What is left out of a restore keeps its value from that other episode.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from flashrt_ros.errors import FlashRTError, InvalidArgumentError
from flashrt_ros.policies.hybrid.decode import ACCEPTED, LAST
from flashrt_ros.runtime.buffers import ROWS_LENGTH, RowSlot, Slot
from flashrt_ros.runtime.device import Lane, open_device
from flashrt_ros.runtime.engine import complete_layout
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing.drive import Drive, Episode, drive, room

FULL, NOTHING, ROWS_ALONE = "full restore", "no restore", "rows alone"
CONTROL, TOGETHER, SINGLE = "control", "together", "left out"
_KNOWN_WITHOUT = (ROWS_LENGTH, LAST)
"""What a server that restores keys and values alone knows all the same: the tokens."""

_LONGER = 3
"""Control steps by which the other episode is longer, so that counters differ too."""

Slots = Sequence[Slot | RowSlot]


@dataclass(frozen=True)
class Divergence:
    """Where an action first differs.

    Attributes:
        cut: Control steps before the cut.
        step: Control steps from the cut to the action, from 0.
        element: Index in the action; of tokens, in the order chosen.
        expected: Its value in the first run.
        found: Its value now.
    """

    cut: int
    step: int
    element: int
    expected: float
    found: float


@dataclass
class Finding:
    """What one kind of restore did, at all cuts.

    Attributes:
        name: Of the buffer, or of the restore.
        kind: ``control``, ``together`` (several buffers) or ``left out`` (one).
        cuts: How often it was tried.
        differs: Cuts after which anything was otherwise.
        alike: Cuts at which what was left out had the same value anyway.
        actions: Cuts after which an action differed.
        accepted: Cuts after which drafts were accepted as often as before no longer.
        state: Cuts after which another buffer differed.
        refused: Cuts after which the policy could not go on.
        first: The earliest difference of an action, counted from the cut; None: there was none.
        words: What the last refusal said.
    """

    name: str
    kind: str
    cuts: int = 0
    differs: int = 0
    alike: int = 0
    actions: int = 0
    accepted: int = 0
    state: int = 0
    refused: int = 0
    first: Divergence | None = None
    words: str = ""

    @property
    def verdict(self) -> str:
        """In a few words."""
        if self.kind == CONTROL and not self.differs:
            return "equal"
        if self.first is not None:
            return "diverges"
        if self.refused:
            return "refused"
        if self.accepted:
            return "acceptance changes"
        if self.state:
            return "state only"
        return "same value" if self.alike == self.cuts else "inert"


@dataclass
class Ablation:
    """All findings on one policy.

    Attributes:
        family: Of the policy.
        device: Its name.
        unit: What the numbers of an action are: ``token`` or ``element``.
        cuts: Control steps before each cut.
        latest: The cuts are drawn from so many first control steps; fewer than asked for where
            rows do not last.
        steps: Control steps compared after each.
        findings: Controls first.
    """

    family: str
    device: str
    unit: str
    cuts: list[int]
    latest: int
    steps: int
    findings: list[Finding] = field(default_factory=list)

    def find(self, name: str) -> Finding:
        """The finding of that name."""
        return next(finding for finding in self.findings if finding.name == name)

    @property
    def ok(self) -> bool:
        """Whether the full restore was equal everywhere."""
        return not self.find(FULL).differs

    @property
    def has_force(self) -> bool:
        """Whether the same comparison without a restore differed somewhere."""
        return self.find(NOTHING).differs > 0

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        found = [{**asdict(item), "verdict": item.verdict} for item in self.findings]
        return {**asdict(self), "findings": found, "ok": self.ok, "has_force": self.has_force}


@dataclass(frozen=True)
class _State:
    """Fixed section and committed rows, copies on the device."""

    fixed: torch.Tensor
    rows: torch.Tensor


class _Cut:
    """One cut point: the run that is expected behind it, and others held against that."""

    def __init__(self, lead: Drive, cut: int, steps: int, before: int) -> None:
        """Leads both episodes to the cut, from the one ``before``; 0: from their begin."""
        self._lead, self.cut, self._steps = lead, cut, steps
        self._session = lead.session
        self._go("other", 1, before and before + _LONGER, cut + _LONGER)
        self._other = self._save()
        self._go("cut", 0, before, cut)
        self._start = self._save()
        self._actions, self._states = [], []
        for n in range(steps):
            self._actions.append(lead.step(cut + n))
            self._states.append(self._save())

    def _go(self, name: str, episode: int, done: int, steps: int) -> None:
        if done:
            self._session.restore(name)
        else:
            self._lead.begin(episode)
        for index in range(done, steps):
            self._lead.lead(episode, index)
        self._session.snapshot(name, replace=True)

    def _save(self) -> _State:
        session = self._session
        with session.device.bind(Lane.CONTROL):
            rows = session.arena.rows[: session.host.rows].clone()
            saved = _State(session.arena.fixed.clone(), rows)
            session.device.synchronize()
        return saved

    def compare(self, finding: Finding, left_out: Slots, restores: bool) -> None:
        """Runs once more and adds what differs to ``finding``."""
        session = self._session
        # Of another lineage, so that the restore copies every row.
        session.restore("other")
        finding.cuts += 1
        unlike = True
        if restores:
            session.restore("cut")
            if left_out:
                unlike = (
                    sum(self._leave_out(slot) for slot in left_out) > 0
                )  # each of them is left out
        finding.alike += not unlike
        if not unlike:
            return
        try:
            finding.differs += self._differs(finding, left_out)
        except FlashRTError as error:
            finding.differs += 1
            finding.refused += 1
            finding.words = str(error)
            # A step that failed half-way leaves no state to go on from.
            session.reset_()

    def _leave_out(self, slot: Slot | RowSlot) -> bool:
        """Puts the other episode's value of a buffer into the live state; whether it differs."""
        with self._session.device.bind(Lane.CONTROL):
            if isinstance(slot, RowSlot):
                count = min(len(self._other.rows), len(self._start.rows))
                place = self._session.arena.rows[:count]
                value, before = self._other.rows[:count], self._start.rows[:count]
            else:
                place = self._session.arena.fixed
                value, before = self._other.fixed, self._start.fixed
            _part(place, slot).copy_(_part(value, slot))
            differs = not torch.equal(_part(value, slot), _part(before, slot))
            self._session.device.synchronize()
        return differs

    def _differs(self, finding: Finding, left_out: Slots) -> bool:
        """Whether anything was otherwise; what, is added to ``finding``."""
        accepted = state = action = False
        # Rounds are counted from here, whatever the counters were left at.
        start, first = self._counts(self._start), self._counts(self._save())
        for n in range(self._steps):
            found = self._lead.step(self.cut + n)
            now, then = self._save(), self._states[n]
            rounds = [one - other for one, other in zip(self._counts(now), first, strict=True)]
            before = [one - other for one, other in zip(self._counts(then), start, strict=True)]
            accepted = accepted or rounds != before
            state = state or self._changed(now, then, left_out)
            if found != self._actions[n]:
                pairs = enumerate(zip(self._actions[n], found, strict=True))
                at, (one, other) = next((k, pair) for k, pair in pairs if pair[0] != pair[1])
                here = Divergence(self.cut, n, at, one, other)
                if finding.first is None or (n, at) < (finding.first.step, finding.first.element):
                    finding.first = here
                action = True
                break
        finding.actions += action
        finding.accepted += accepted
        finding.state += state
        return action or accepted or state

    def _counts(self, saved: _State) -> list[int]:
        """Rounds by the number of drafts that were accepted; empty where nothing is drafted."""
        slots = {slot.spec.name: slot for slot in self._session.layout.state}
        if ACCEPTED not in slots:
            return []
        raw = _part(saved.fixed, slots[ACCEPTED]).clone().view(torch.int64)
        counts: list[int] = raw.tolist()
        return counts

    def _changed(self, now: _State, then: _State, left_out: Slots) -> bool:
        """Whether bytes differ that do not belong to what was left out.

        Of rows those appended since the cut are looked at: the others never change.
        """
        fixed = now.fixed != then.fixed
        ours = [slot for slot in left_out if not isinstance(slot, RowSlot)]
        for slot in ours:
            _part(fixed, slot).zero_()
        if bool(fixed.any()) or len(now.rows) != len(then.rows):
            return True
        rows = now.rows[len(self._start.rows) :] != then.rows[len(self._start.rows) :]
        return bool(rows.any())


def _part(section: torch.Tensor, slot: Slot | RowSlot) -> torch.Tensor:
    return section[..., slot.offset : slot.offset + slot.size_bytes]


def ablate(
    policy: Policy,
    device: str = "cpu",
    cuts: int = 4,
    steps: int = 16,
    episode: Episode | None = None,
    seed: int = 0,
    latest: int = 40,
    controls_alone: bool = False,
) -> Ablation:
    """Leaves out of a restore each buffer in turn, and says what that changes.

    Args:
        policy: Any; its module is moved to the device.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        cuts: Random cut points, all of them different; at most one behind each control step.
        steps: Control steps that are compared behind each.
        episode: Observations; None: random walks.
        seed: Of the cut points.
        latest: Most control steps before a cut; as many as rows last for, if that is fewer.
        controls_alone: Try the full restore and none only, and leave nothing out.

    Returns:
        The findings.

    Raises:
        InvalidArgumentError: A number is below 1, or rows do not suffice for so many steps.
        UnsupportedError: There is no such device here.
    """
    for name, value in (("cuts", cuts), ("steps", steps), ("latest", latest)):
        if value < 1:
            raise InvalidArgumentError(f"{name}: expected at least 1, found {value}")
    layout, opened = complete_layout(policy), open_device(device)
    most = min(latest, room(policy, layout.capacity) - steps - _LONGER)
    if most < 1:
        raise InvalidArgumentError(
            f"steps: expected at most {steps + most - 1}, for which there are rows, found {steps}"
        )
    cuts = min(cuts, most)
    rows_bytes = layout.capacity * layout.row_bytes
    session = PolicySession(
        policy,
        opened.name,
        rollback_depth=0,
        # Both capsules, and both again while one takes the place of another.
        store_bytes=max(1 << 20, 6 * (layout.fixed_bytes + 4096) + 5 * rows_bytes),
        preview_sets=0,
    )
    lead = drive(session, episode, most + max(steps, _LONGER))
    draw = random.Random(seed)
    points = sorted(draw.sample(range(1, most + 1), cuts))
    report = Ablation(policy.family, opened.name, lead.unit, points, most, steps)
    cases = _cases(session)[: 2 if controls_alone else None]
    report.findings = [finding for finding, _, _ in cases]
    for cut, before in zip(report.cuts, [0, *report.cuts], strict=False):
        here = _Cut(lead, cut, steps, before)
        for finding, slots, restores in cases:
            here.compare(finding, slots, restores)
    session.close()
    return report


def _cases(session: PolicySession) -> list[tuple[Finding, Slots, bool]]:
    """Each way to restore: what it is called, what it leaves out, whether it restores at all."""
    layout = session.layout
    slots: list[Slot | RowSlot] = [*layout.state, *layout.rows]
    cases: list[tuple[Finding, Slots, bool]] = [
        (Finding(FULL, CONTROL), (), True),
        (Finding(NOTHING, CONTROL), (), False),
    ]
    if layout.rows:
        rest = [slot for slot in layout.state if slot.spec.name not in _KNOWN_WITHOUT]
        cases.append((Finding(ROWS_ALONE, TOGETHER), rest, True))
    kinds: dict[str, list[Slot | RowSlot]] = {}
    for slot in slots:
        name = slot.spec.name
        kinds.setdefault(re.sub(r"\d+", "*", name), []).append(slot)
        if "." in name:
            kinds.setdefault(name.partition(".")[0] + ".*", []).append(slot)
    if layout.rows:
        kinds["all rows"] = [*layout.rows]
    for name, members in kinds.items():
        if len(members) > 1:
            cases.append((Finding(name, TOGETHER), members, True))
    return cases + [(Finding(slot.spec.name, SINGLE), (slot,), True) for slot in slots]
