"""What a reproduction found: plain data, in words, and as the report's part ``reproduction``."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any

MOST_GAPS = 50
"""Gaps that are listed one by one; all are counted."""


class Verdict(enum.Enum):
    """How a recording and what was computed again compare."""

    REPRODUCED = "reproduced"
    """Every action that is on record, bit for bit."""
    DIFFERS = "differs"
    """At least one differs."""
    INCOMPLETE = "incomplete"
    """None differs, but not all could be computed: the recording lacks what they came from."""


class Lost(enum.Enum):
    """What a recording lacks."""

    INPUT = "input not in the bag"
    STEP = "policy_step lost"
    EVENT = "capsule_event lost"
    CAPSULE = "capsule not in the bag"
    START = "state at the start unknown"


@dataclass(frozen=True)
class Where:
    """One control step of a recording.

    Attributes:
        run: Id of the configure.
        tick: Control steps since then.
        episode: Of the session.
        step: Of the episode.
        time_ns: Recorded time, system clock of the recorder.
    """

    run: str
    tick: int
    episode: int
    step: int
    time_ns: int

    def words(self) -> str:
        """Such as ``tick 7 (episode 1, step 3)``."""
        return f"tick {self.tick} (episode {self.episode}, step {self.step})"


@dataclass(frozen=True)
class Input:
    """A message that a step was computed from.

    Attributes:
        topic: As recorded.
        digest: xxh3_64 of its bytes, in hex.
        sequence: Messages on the topic since configure, this one included.
        stamp_ns: Header stamp.
        found: Whether the recording has it.
    """

    topic: str
    digest: str
    sequence: int
    stamp_ns: int
    found: bool = True


@dataclass
class Gap:
    """Control steps that could not be computed.

    Attributes:
        where: The first of them.
        lost: What is missing.
        words: What exactly, and where that is known what is there instead.
        inputs: Messages that are missing.
        steps: How many steps are not compared because of it.
    """

    where: Where
    lost: Lost
    words: str
    inputs: tuple[Input, ...] = ()
    steps: int = 0


@dataclass(frozen=True)
class Difference:
    """A step that came out otherwise.

    Attributes:
        where: Which.
        what: ``predicted``, ``action``, ``state_digest``, ``observation_digest``, ``control flow``
            or ``capsule``.
        words: Which element by how much, or what else.
        recorded: As the recording has it.
        computed: As it came out here.
        inputs: Every message behind the step.
    """

    where: Where
    what: str
    words: str
    recorded: tuple[float, ...] = ()
    computed: tuple[float, ...] = ()
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True)
class Change:
    """A fact that was another one when the recording was made.

    Attributes:
        what: Such as ``weights``, ``torch.version`` or ``contract: control_rate_hz``.
        recorded: Then.
        here: Now.
    """

    what: str
    recorded: str
    here: str


@dataclass
class Reproduction:
    """What came of computing a recording again.

    Attributes:
        source: Path of the recording.
        topic: Of its control steps.
        policy: Label or path of the policy.
        steps: Control steps on record.
        reproduced: Of these, equal bit for bit.
        differing: Of these, not equal.
        verbs: Verbs that were applied again, by kind.
        capsules: Saved capsules that were compared with the state computed, and were equal.
        first: The first difference.
        gaps: Steps that were not compared, by cause.
        changes: What is another one here than when the recording was made.
        remarks: What else is worth a word.
        contract: Where the contract came from that was used.
        computed: The policy as the report's ``policies`` have it, path and label apart.
    """

    source: str
    topic: str
    policy: str
    steps: int = 0
    reproduced: int = 0
    differing: int = 0
    verbs: dict[str, int] = field(default_factory=dict)
    capsules: int = 0
    first: Difference | None = None
    gaps: list[Gap] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    contract: str = ""
    computed: dict[str, str] = field(default_factory=dict)

    @property
    def skipped(self) -> int:
        """Steps that were not compared."""
        return self.steps - self.reproduced - self.differing

    @property
    def verdict(self) -> Verdict:
        """In one word."""
        if self.first is not None:
            return Verdict.DIFFERS
        if self.gaps or self.skipped or not self.steps:
            return Verdict.INCOMPLETE
        return Verdict.REPRODUCED

    def to_dict(self) -> dict[str, Any]:
        """The report's part ``reproduction``: JSON values."""
        return {
            "source": self.source,
            "topic": self.topic,
            "policy": self.policy,
            "verdict": self.verdict.value,
            "steps": self.steps,
            "reproduced": self.reproduced,
            "differing": self.differing,
            "skipped": self.skipped,
            "verbs": dict(sorted(self.verbs.items())),
            "capsules": self.capsules,
            "first": None if self.first is None else _plain(self.first),
            "gaps": [_plain(gap) for gap in self.gaps[:MOST_GAPS]],
            "changes": [asdict(change) for change in self.changes],
            "remarks": list(self.remarks),
        }

    def text(self) -> str:
        """For a terminal."""
        share = 100.0 * self.reproduced / self.steps if self.steps else 0.0
        lines = [
            f"{self.verdict.value.upper()}: {self.reproduced} of {self.steps} actions"
            f" ({share:.4g} %) bit for bit, {self.differing} differ, {self.skipped} not compared"
        ]
        if self.verbs:
            verbs = ", ".join(f"{count} {kind}" for kind, count in sorted(self.verbs.items()))
            lines.append(f"  applied again: {verbs}")
        if self.capsules:
            lines.append(f"  {self.capsules} saved capsules hold the state computed here")
        if self.first is not None:
            first = self.first
            lines.append(f"  first difference: {first.where.words()}: {first.what}: {first.words}")
            lines += [f"    from {_input_words(each)}" for each in first.inputs]
        for gap in self.gaps[:MOST_GAPS]:
            lines.append(
                f"  {gap.lost.value}: {gap.where.words()}, {gap.steps} steps: {gap.words}"
            )
            lines += [f"    {_input_words(each)}" for each in gap.inputs if not each.found]
        if len(self.gaps) > MOST_GAPS:
            lines.append(f"  and {len(self.gaps) - MOST_GAPS} gaps more")
        for change in self.changes:
            lines.append(
                f"  changed: {change.what}: recorded {change.recorded}, here {change.here}"
            )
        lines += [f"  {words}" for words in self.remarks]
        return "\n".join(lines)


def _input_words(one: Input) -> str:
    missing = "" if one.found else ", not in the recording"
    return f"{one.topic} message {one.sequence}, xxh3 {one.digest}{missing}"


def _plain(value: object) -> dict[str, Any]:
    found = asdict(value)  # type: ignore[call-overload]
    for name, each in found.items():
        if isinstance(each, enum.Enum):
            found[name] = each.value
        elif name in ("recorded", "computed"):
            # JSON knows no NaN.
            found[name] = [number if number == number else None for number in each]
    return dict(found)
