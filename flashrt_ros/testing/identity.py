"""Checks that the declared state is the state: left out, restored, forked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashrt_ros.policies.walk import tensor_digest
from flashrt_ros.runtime.buffers import RowSlot, Slot
from flashrt_ros.runtime.noise import KEY, as_signed
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing.episode import Observation
from flashrt_ros.testing.rig import ACTION, Moment, Rig, Saved, difference, digests, part
from flashrt_ros.testing.subject import Subject

_CUTS = 6
_DONORS = 4
_PLANS = 2


def leave_one_out(subject: Subject) -> list[str]:
    """Puts one buffer's value from another episode in, for each buffer, at several boundaries.

    A buffer matters if an action or *another* buffer differs within the steps that follow. One
    that never does is inert, and is listed with the reason.
    """
    rig, steps = subject.rig, subject.steps
    rig.reset(key=2)
    donors: list[Saved] = []
    # One step more than there are cuts, so that a counter can differ at each of them.
    for observation in subject.episode(1, steps + 1):
        rig.step(observation)
        donors.append(rig.save())
    rig.reset(key=1)
    track = _Track(subject.episode(0, 2 * steps), [], [])
    for observation in track.observations:
        track.boundaries.append(rig.save())
        track.moments.extend(rig.run([observation]))
    subject.inert = {}
    slots: tuple[Slot | RowSlot, ...] = (*rig.layout.state, *rig.layout.rows)
    for slot in slots:
        reason = _inert(subject, slot, donors, track)
        if reason:
            subject.inert[slot.spec.name] = reason
    return []


@dataclass(frozen=True)
class _Track:
    """An episode: what was observed, state and cursor before each step, moment after it."""

    observations: list[Observation]
    boundaries: list[Saved]
    moments: list[Moment]

    def due(self, subject: Subject) -> list[int]:
        """The first boundaries at which a plan is due, but the reset."""
        rows = subject.policy.n_action_steps
        found = [step for step, saved in enumerate(self.boundaries) if saved.cursor >= rows]
        return [step for step in found if 0 < step < subject.steps][:_PLANS]


def _inert(subject: Subject, slot: Slot | RowSlot, donors: list[Saved], track: _Track) -> str:
    rig, name = subject.rig, slot.spec.name
    tried = False
    # From the reset on: a latch that closes at the first step only differs there. And where a plan
    # is due: what the plan reads may be overwritten between any other boundary and the next plan.
    for cut in dict.fromkeys((0, *track.due(subject), *subject.cuts(_CUTS))):
        mixtures = (_mixture(track.boundaries[cut], donor, slot) for donor in _near(donors, cut))
        others = [mixture for mixture in mixtures if mixture is not None]
        for mixture in others[:_DONORS]:
            tried = True
            rig.load(mixture)
            for step in range(cut, cut + subject.steps):
                (moment,) = rig.run([track.observations[step]])
                if {**moment, name: ""} != {**track.moments[step], name: ""}:
                    return ""
    if name.startswith("noise.") and not subject.declares_noise:
        return "the policy draws no noise"
    if not tried:
        return "has the same value in every episode that was tried"
    return "its value from another episode changed no action and no other buffer"


def _mixture(boundary: Saved, donor: Saved, slot: Slot | RowSlot) -> Saved | None:
    """A boundary with one buffer of another; None if that changes nothing.

    Of a buffer that grows, as many rows are taken as both have.
    """
    rows = min(len(boundary.rows), len(donor.rows)) if isinstance(slot, RowSlot) else None
    mixed = Saved(boundary.fixed.clone(), boundary.rows.clone(), boundary.cursor)
    if part(mixed, slot)[:rows].equal(part(donor, slot)[:rows]):
        return None
    part(mixed, slot)[:rows].copy_(part(donor, slot)[:rows])
    return mixed


def _near(donors: list[Saved], cut: int) -> list[Saved]:
    """Donors by how near their step is to the cut, the cut's own first."""
    order = sorted(range(len(donors)), key=lambda index: abs(index + 1 - cut))
    return [donors[index] for index in order]


def restore(subject: Subject) -> list[str]:
    """In a real session: snapshot, k steps, another episode, restore, the same k steps."""
    session, problems = subject.session, []
    observations = subject.episode()
    matters = set(session.arena.state) - set(subject.inert)
    for cut in subject.cuts(4):
        session.reset_(seed=1)
        _drive(session, observations[:cut])
        capsule = session.snapshot(f"cut_{cut}", replace=True)
        expected = _drive(session, observations[cut:])
        session.reset_(seed=2)
        _drive(session, subject.episode(1)[: cut + 1])
        control = _drive(session, observations[cut:])
        differs = ""
        # With other numbers of steps in between, which no period of a hidden counter divides all.
        for extra in (0, 1, 2):
            _drive(session, observations[:extra])
            session.restore(capsule)
            differs = differs or difference(expected, _drive(session, observations[cut:]))
        session.drop(capsule.name, force=True)
        if differs:
            problems.append(
                f"after a restore at step {cut} the run differs, {differs}; "
                "something that is no state buffer has a memory"
            )
        elif matters and not difference(expected, control):
            problems.append(
                f"at step {cut} the run is the same without the restore, though "
                f"{sorted(matters)} should matter: the check has no force"
            )
    return problems


def forks(subject: Subject) -> list[str]:
    """In a real session: two branches run one after the other, and the first one again."""
    session = subject.session
    observations, cut = subject.episode(), subject.cuts(3)[1]
    rest = observations[cut:]
    session.reset_(seed=1)
    _drive(session, observations[:cut])
    # Read after a step, which has waited for the device.
    key = int(session.arena.state[KEY].item())
    trunk = session.snapshot("trunk", replace=True)
    branches = session.fork(trunk, seeds=(11, 12))
    problems, runs = [], []
    for branch in (*branches, branches[0], trunk):
        session.restore(branch)
        runs.append(_drive(session, rest))
    differs = difference(runs[0], runs[2])
    if differs:
        problems.append(f"running another branch in between changes a branch, {differs}")
    rig = Rig(subject.policy, subject.device)
    for branch, run in zip((*branches, trunk), (*runs[:2], runs[3]), strict=True):
        rig.reset(key)
        rig.run(observations[:cut])
        if branch.noise_key is not None:
            rig.state[KEY].fill_(as_signed(branch.noise_key))
        differs = difference(rig.run(rest), run)
        if differs:
            problems.append(f"{branch.name!r} differs from its own cold run, {differs}")
    for capsule in (*branches, trunk):
        session.drop(capsule.name, force=True)
    return problems


def _drive(session: PolicySession, observations: Sequence[Observation]) -> list[Moment]:
    moments = []
    for observation in observations:
        action = session.step(observation)
        state = digests(session.layout, session.arena.state)
        moments.append({ACTION: tensor_digest(action.values), **state})
    return moments
