"""What the node wrote about itself, read from a recording: steps, verbs, and what computed.

A recording is gone through twice: once to learn where plans began that were adopted later, which
states verbs come back to, and which messages are asked for; then step by step.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.bag.reader import BagReader
from flashrt_ros.bag.survey import decode, typestore
from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.definitions import require_type
from flashrt_ros.contract.definitions import typestore as installed
from flashrt_ros.contract.sample import InputStamp
from flashrt_ros.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from flashrt_ros.evaluate.reproduce.finding import Where

Vector = npt.NDArray[np.float64]

STEP, EVENT, PROVENANCE = (
    f"flashrt_ros/msg/{name}" for name in ("PolicyStep", "CapsuleEvent", "Provenance")
)
KINDS = {
    1: "snapshot",
    2: "restore",
    3: "fork",
    4: "rollback",
    5: "reset",
    6: "drop",
    7: "evict",
    8: "save",
    9: "load",
    10: "move",
}
"""Values of ``kind`` in ``CapsuleEvent``."""
AT_A_BOUNDARY = frozenset({"snapshot", "fork", "restore", "rollback", "reset"})
"""Verbs that belong between two control steps; files are written and moved meanwhile."""
CHANGING = frozenset({"restore", "rollback", "reset"})
"""Verbs after which the live state is another one; each raises the generation."""


@dataclass(frozen=True)
class Plan:
    """A plan that was adopted.

    Attributes:
        tick: Control step before which it began.
        consumed: Control steps from then to its adoption.
        delay: That it was told.
        task: That it saw.
        stamps: Of what it saw.
    """

    tick: int
    consumed: int
    delay: int
    task: str
    stamps: tuple[InputStamp, ...]


@dataclass(frozen=True)
class Step:
    """One ``PolicyStep``; fields of the same name mean the same."""

    where: Where
    generation: int
    capsule: str
    task: str
    chunk_id: int
    chunk_index: int
    names: tuple[str, ...]
    action: Vector
    predicted: Vector
    published: bool
    dry_run: bool
    ramp_share: float
    ramp_from: Vector
    limited_from: Vector
    stamps: tuple[InputStamp, ...]
    act_stamps: tuple[InputStamp, ...]
    observation_digest: int
    noise_key: int
    state_digest: str
    plan: Plan | None

    @property
    def begins_episode(self) -> bool:
        """Whether the state before it is that of a reset, whatever came before."""
        return self.where.step == 0 and not self.capsule


@dataclass(frozen=True)
class Event:
    """One ``CapsuleEvent``; fields of the same name mean the same."""

    kind: str
    where: Where
    sequence: int
    generation: int
    id: str
    name: str
    task: str
    source_id: str
    source_tick: int
    source_automatic: bool
    noise_key: int
    file: str


@dataclass
class Run:
    """What was recorded of one configure.

    Attributes:
        id: Of it.
        events: In order of their numbers.
        provenance: Fields of the message; None: it was not recorded.
        begins: By the tick before which a plan began: the plans that were adopted later.
        uses: By id of a capsule, how often its state is taken by a later verb.
        boundaries: By tick, how often a verb goes back to the boundary before it.
        steps: On record.
    """

    id: str
    events: list[Event] = field(default_factory=list)
    provenance: Mapping[str, Any] | None = None
    begins: dict[int, Plan] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)
    boundaries: Counter[int] = field(default_factory=Counter)
    steps: int = 0


class Journal:
    """The node's own topics in one recording.

    Attributes:
        node: Full name of the node.
        topic: Of its control steps.
        runs: By id, in order of appearance.
        defects: In words.
    """

    def __init__(self, reader: BagReader, node: str = "") -> None:
        """Finds the topics.

        Args:
            reader: Of the recording.
            node: Full name of the node; empty: the only one.

        Raises:
            NotFoundError: There is no such node in the recording.
            InvalidArgumentError: There are several, and none is named.
            UnsupportedError: The recording was made before steps were recorded in full.
        """
        self._reader = reader
        self.topic = _find(reader, node)
        self.node = self.topic.rpartition("/")[0]
        there = {topic.name: topic.type for topic in reader.topics if topic.count}
        wanted = {STEP: "policy_step", EVENT: "capsule_event", PROVENANCE: "provenance"}
        self._topics = {
            name: kind
            for kind, last in wanted.items()
            if there.get(name := f"{self.node}/{last}") == kind
        }
        store, self.defects = typestore(reader, list(self._topics))
        missing = [kind for kind in self._topics.values() if kind not in store.fielddefs]
        for kind in missing:
            require_type(kind)
        self._store = installed() if missing else store
        fields = {name for name, _ in self._store.fielddefs[STEP][1]}
        if "predicted" not in fields:
            raise UnsupportedError(
                f"{reader.path}: {self.topic}: expected steps with what it takes to do them again"
                " (field predicted and others), found those of an older node; record anew"
            )
        self.runs: dict[str, Run] = {}

    def contract(self) -> Contract:
        """The contract on record.

        Raises:
            NotFoundError: There is none.
            ContractError: It is not valid here.
        """
        for topic, kind in self._topics.items():
            if kind != PROVENANCE:
                continue
            for _, _, message in self._messages({topic}):
                facts = self._provenance(message)
                if facts is not None:
                    return Contract.from_dict(facts["contract"], message.contract_source)
        raise NotFoundError(
            f"{self._reader.path}: no contract on record ({self.node}/provenance): expected"
            " --contract FILE"
        )

    def learn(self, look: Callable[[Step], None]) -> None:
        """Goes through all once, and shows every step."""
        numbers: dict[str, list[Event]] = defaultdict(list)
        for time_ns, kind, message in self._messages(set(self._topics)):
            run = self.runs.setdefault(message.run, Run(message.run))
            if kind == PROVENANCE:
                run.provenance = self._provenance(message) or run.provenance
            elif kind == EVENT:
                numbers[message.run].append(_event(message, time_ns))
            else:
                step = _step(message, time_ns)
                run.steps += 1
                if step.plan is not None and step.plan.tick < step.where.tick:
                    run.begins[step.plan.tick] = step.plan
                look(step)
        for id_, events in numbers.items():
            run = self.runs[id_]
            run.events = _linked(sorted(events, key=lambda event: event.sequence))
            for event in run.events:
                if event.source_automatic:
                    run.boundaries[event.source_tick] += 1
                elif event.source_id:
                    run.uses[event.source_id] += 1

    def steps(self) -> Iterator[Step]:
        """All steps in order of recorded time."""
        for time_ns, _, message in self._messages({self.topic}):
            yield _step(message, time_ns)

    def _provenance(self, message: Any) -> dict[str, Any] | None:
        """Its fields; None, with a word, where a document among them is damaged."""
        found = {name: getattr(message, name) for name in ("policy", "device", "noise_key")}
        try:
            for name in ("state_facts", "exec_facts", "contract", "versions"):
                found[name] = json.loads(getattr(message, name) or "{}")
                if not isinstance(found[name], dict):
                    raise ValueError("it is no object")
        except ValueError as error:
            words = f"{self.node}/provenance: {name} is damaged ({error}); not used"
            if words not in self.defects:
                self.defects.append(words)
            return None
        return found

    def _messages(self, topics: set[str]) -> Iterator[tuple[int, str, Any]]:
        faulty: Counter[str] = Counter()
        twice: Counter[str] = Counter()
        before: dict[str, bytes] = {}
        for message in self._reader.messages(topics):
            kind = self._topics[message.topic]
            # Each has a number: the same bytes again are of a second recorder.
            if message.cdr == before.get(message.topic):
                twice[message.topic] += 1
                continue
            before[message.topic] = message.cdr
            try:
                found, _ = decode(message.cdr, kind, self._store)
            except Exception:  # generated code promises nothing about what it raises
                faulty[message.topic] += 1
                continue
            yield message.time_ns, kind, found
        told = [f"{topic}: {count} messages cannot be read" for topic, count in faulty.items()]
        told += [f"{topic}: {count} messages are there twice" for topic, count in twice.items()]
        for words in told:
            if words not in self.defects:
                self.defects.append(words)


def _linked(events: list[Event]) -> list[Event]:
    """A load names the capsule that was saved under that name before, if one was."""
    saved: dict[str, str] = {}
    found = []
    for event in events:
        if event.kind == "save":
            saved[event.file] = event.id
        linked = event.kind == "load" and event.file in saved
        found.append(replace(event, source_id=saved[event.file]) if linked else event)
    return found


def _find(reader: BagReader, node: str) -> str:
    found = [topic.name for topic in reader.topics if topic.type == STEP and topic.count]
    if node:
        name = f"/{node.strip('/')}/policy_step"
        if name not in found:
            raise NotFoundError(
                f"{reader.path}: no {name}: expected control steps of the node {node!r}, found "
                f"those of {', '.join(t.rpartition('/')[0] for t in found) or 'none'}"
            )
        return name
    if not found:
        raise NotFoundError(
            f"{reader.path}: no topic of type {STEP}: expected a recording of our node with "
            "~/policy_step (record:=true records what is needed), found "
            f"{', '.join(topic.name for topic in reader.topics) or 'nothing'}"
        )
    if len(found) > 1:
        nodes = ", ".join(topic.rpartition("/")[0] for topic in found)
        raise InvalidArgumentError(
            f"{reader.path}: expected the control steps of one node, found those of {nodes}; say "
            "--node NAME"
        )
    return found[0]


def _where(message: Any, time_ns: int) -> Where:
    return Where(message.run, int(message.tick), int(message.episode), int(message.step), time_ns)


def _event(message: Any, time_ns: int) -> Event:
    return Event(
        kind=KINDS.get(int(message.kind), str(message.kind)),
        where=_where(message, time_ns),
        sequence=int(message.sequence),
        generation=int(message.generation),
        id=message.id,
        name=message.name,
        task=message.task,
        source_id=message.source_id,
        source_tick=int(message.source_tick),
        source_automatic=bool(message.source_automatic),
        noise_key=int(message.noise_key),
        file=message.file,
    )


def _step(message: Any, time_ns: int) -> Step:
    stamps = _stamps(message.observations)
    plan = None
    if message.adopted:
        plan = Plan(
            int(message.plan_tick),
            int(message.plan_consumed),
            int(message.plan_delay),
            message.plan_task,
            stamps,
        )
    return Step(
        where=_where(message, time_ns),
        generation=int(message.generation),
        capsule=message.capsule,
        task=message.task,
        chunk_id=int(message.chunk_id),
        chunk_index=int(message.chunk_index),
        names=tuple(message.names),
        action=message.action,
        predicted=message.predicted,
        published=bool(message.published),
        dry_run=bool(message.dry_run),
        ramp_share=float(message.ramp_share),
        ramp_from=message.ramp_from,
        limited_from=message.limited_from,
        stamps=stamps,
        act_stamps=_stamps(message.act_observations),
        observation_digest=int(message.observation_digest),
        noise_key=int(message.noise_key),
        state_digest=message.state_digest,
        plan=plan,
    )


def _stamps(messages: Any) -> tuple[InputStamp, ...]:
    return tuple(
        InputStamp(
            observation=stamp.observation,
            topic=stamp.topic,
            stamp_ns=int(stamp.stamp.sec) * 1_000_000_000 + int(stamp.stamp.nanosec),
            age_ms=float(stamp.age_ms),
            digest=int(stamp.digest),
            sequence=int(stamp.sequence),
            present=bool(stamp.present),
        )
        for stamp in messages
    )
