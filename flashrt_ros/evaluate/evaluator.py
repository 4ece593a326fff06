"""Policies, opened once, over one source after another: each begins as if it were the first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from flashrt_ros.contract.contract import Contract
from flashrt_ros.dataset.info import is_dataset
from flashrt_ros.errors import FlashRTError, InvalidArgumentError
from flashrt_ros.evaluate.drive import Driver, Pace
from flashrt_ros.evaluate.elements import elements_of, with_grippers
from flashrt_ros.evaluate.episodes import EpisodeRule
from flashrt_ros.evaluate.keyframes import CAPSULE, Keyframes
from flashrt_ros.evaluate.source import BagSource, Source, open_source
from flashrt_ros.evaluate.timeline import Moment, Setting
from flashrt_ros.evaluate.track import Track
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.engine import complete_layout
from flashrt_ros.runtime.policy import Ports
from flashrt_ros.runtime.session import PolicySession

CAPSULES = 4
"""Whole states that a session's store holds: its beginning, and what others ask for."""
BEGINNING = "beginning"

Progress = Callable[[int], None]
"""Told the recorded time that has been reached."""
ProgressOf = Callable[[Source], Progress | None]
"""Makes one for a source."""


@dataclass(frozen=True)
class Candidate:
    """A policy to evaluate.

    Attributes:
        label: For people; different for each.
        path: As for ``load_policy``.
    """

    label: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Candidate:
        """Reads ``LABEL=DIRECTORY`` or ``DIRECTORY``, whose last part is then the label."""
        if not text.strip():
            raise InvalidArgumentError(f"--policy: expected [LABEL=]DIRECTORY, found {text!r}")
        label, equals, path = text.partition("=")
        if equals and label and path and "/" not in label:
            return cls(label, path)
        return cls(Path(text).name or text, text)


@dataclass(frozen=True)
class Options:
    """All that an evaluation depends on but the sources; plain data that other processes take.

    Attributes:
        candidates: The policies, side by side.
        contract: File; empty for sources that need none.
        steps: See ``Setting``.
        episodes: See ``Setting``.
        remap: See ``Setting``.
        unnamed_commands: See ``Setting``.
        grippers: Names of elements that open and close something, besides those that show it.
        survey: Also decode what the contract does not read, to find defects in it.
        start_s: From the start of a source; what comes before leads up to it and is not reported.
        end_s: The same; None: up to its end.
        seed: Noise key of the first episode.
        task: Text at the start.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        numerics: See ``load_policy``.
        trust: The same.
        pace: Of plans that run beside.
        capsules: Whole states that a session's store holds.
        threads: Of torch in this process; 0: as they are. Another number is other arithmetic.
        keyframes_s: Recorded time between two keyframes that are written; 0: none are.
        keyframe_folder: Where they lie; empty: beside each source.
        enters_keyframes: Begin at one where that leads to the same.
    """

    candidates: tuple[Candidate, ...]
    contract: str = ""
    steps: str = "rate"
    episodes: EpisodeRule | None = None
    remap: Mapping[str, str] = field(default_factory=dict)
    unnamed_commands: bool = False
    grippers: tuple[str, ...] = ()
    survey: bool = False
    start_s: float = 0.0
    end_s: float | None = None
    seed: int = 0
    task: str = ""
    device: str = "cpu"
    numerics: str = "exact"
    trust: bool = False
    pace: Pace = Pace()  # noqa: RUF009  frozen
    capsules: int = CAPSULES
    threads: int = 0
    keyframes_s: float = 0.0
    keyframe_folder: str = ""
    enters_keyframes: bool = True


@dataclass(frozen=True)
class SourceFacts:
    """What a report says of a source.

    Attributes:
        name: Path.
        start_ns: Recorded time of the first message.
        end_ns: Of the last.
        topics: Name, type and messages of each.
        defects: In words.
        notes: What else is worth a word: nothing is amiss.
        error: Why it could not be evaluated; empty where it was.
    """

    name: str
    start_ns: int = 0
    end_ns: int = 0
    topics: tuple[tuple[str, str, int], ...] = ()
    defects: tuple[str, ...] = ()
    error: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: Source) -> SourceFacts:
        """Of a source that has been read."""
        topics = tuple((topic.name, topic.type, topic.count) for topic in source.topics)
        defects = tuple(dict.fromkeys(source.defects))
        notes = tuple(dict.fromkeys(source.notes))
        span = source.start_ns, source.end_ns
        return cls(source.name, *span, topics, defects, notes=notes)


@dataclass(frozen=True)
class PolicyFacts:
    """What a report says of a policy.

    Attributes:
        label: Its label.
        path: Where it came from.
        family: Its family.
        state_id: Which policy, configuration and weights.
        exec_id: On which arithmetic.
        device: Where it ran.
    """

    label: str
    path: str
    family: str
    state_id: str
    exec_id: str
    device: str


@dataclass(frozen=True)
class Result:
    """One source, evaluated.

    Attributes:
        source: What it is.
        tracks: One for each policy.
    """

    source: SourceFacts
    tracks: tuple[Track, ...]


class Evaluator:
    """Opens contract and policies once; ``run`` each source.

    Attributes:
        options: As given.
        contract: None where there is none.
        ports: Of the policies.
        sessions: By label.
    """

    def __init__(self, options: Options) -> None:
        """Loads everything.

        Raises:
            FlashRTError: A policy, the contract or the device do not fit; says what was expected.
        """
        labels = [candidate.label for candidate in options.candidates]
        twice = {label for label in labels if labels.count(label) > 1}
        if twice or not labels:
            raise InvalidArgumentError(
                "--policy: expected policies with different labels, found "
                f"{', '.join(sorted(twice)) or 'none'}; write LABEL=DIRECTORY"
            )
        if options.end_s is not None and options.end_s <= options.start_s:
            raise InvalidArgumentError(
                f"--to {options.end_s:g} s: expected a time after --from {options.start_s:g} s"
            )
        if options.threads:
            torch.set_num_threads(options.threads)
        self.options = options
        self.contract = Contract.load(options.contract) if options.contract else None
        self._remap = _remap(options.remap, self.contract)
        self.sessions: dict[str, PolicySession] = {}
        try:
            for candidate in options.candidates:
                self.sessions[candidate.label] = self._open(candidate)
        except BaseException:
            self.close()
            raise
        self.ports: Ports = next(iter(self.sessions.values())).policy.ports()
        self._keyframes: Keyframes | None = None
        self._paths = {candidate.label: candidate.path for candidate in options.candidates}

    def policies(self) -> list[PolicyFacts]:
        """What the policies are."""
        return [
            PolicyFacts(
                label,
                self._paths[label],
                session.policy.family,
                session.state_id,
                session.exec_id,
                session.device.name,
            )
            for label, session in self.sessions.items()
        ]

    def setting(self) -> Setting:
        """How sources are stepped."""
        options = self.options
        session = next(iter(self.sessions.values()))
        byte_ports = frozenset(
            port.key
            for port in self.ports.observations
            if session.layout.find(port.buffer).dtype is torch.uint8
        )
        return Setting(
            self.contract,
            self.ports,
            options.steps,
            options.episodes,
            self._remap,
            byte_ports,
            options.unnamed_commands,
        )

    def names_over(self, paths: Sequence[str]) -> list[str]:
        """Names of the action's elements over these sources; those that cannot be opened apart."""
        names: dict[str, None] = {}
        for path in paths:
            if self.contract is not None and not is_dataset(Path(path)):
                # As in every recording: it need not be opened.
                names.update(dict.fromkeys(elements_of(self.contract, self.ports).names))
                continue
            try:
                source = open_source(path)
            except FlashRTError:
                continue
            try:
                names.update(dict.fromkeys(source.elements(self.setting()).names))
            except FlashRTError:
                continue
            finally:
                source.close()
        return list(names)

    def run(self, path: str | Path, progress: ProgressOf | None = None) -> Result:
        """Drives all policies over one source, from their beginning.

        Args:
            path: Of the source.
            progress: Makes of an open source what is told how far it is.

        Raises:
            FlashRTError: The source cannot be read, or lacks what the contract needs.
        """
        source = open_source(path)
        try:
            return self._run(source, progress)
        finally:
            source.close()

    def try_(self, path: str | Path, progress: ProgressOf | None = None) -> Result:
        """As ``run``, but a source that cannot be evaluated is a result, too: of many, one."""
        try:
            source = open_source(path)
        except FlashRTError as error:
            return Result(SourceFacts(str(path), error=str(error)), ())
        try:
            return self._run(source, progress)
        except FlashRTError as error:
            return Result(dataclasses.replace(SourceFacts.of(source), error=str(error)), ())
        finally:
            source.close()

    def _run(self, source: Source, progress: ProgressOf | None) -> Result:
        tracks = self.drive(source, progress(source) if progress is not None else None)
        if self.options.survey and isinstance(source, BagSource):
            source.survey()
        facts = SourceFacts.of(source)
        if self._keyframes is not None:
            facts = dataclasses.replace(
                facts,
                defects=(*facts.defects, *self._keyframes.notices),
                notes=(*facts.notes, *self._keyframes.entered),
            )
        return Result(facts, tuple(tracks))

    def drive(self, source: Source, progress: Progress | None = None) -> list[Track]:
        """As ``run``, of an open source."""
        options = self.options
        begin_ns = source.start_ns + round(options.start_s * 1e9)
        end_ns = None if options.end_s is None else source.start_ns + round(options.end_s * 1e9)
        if begin_ns > source.end_ns:
            length_s = (source.end_ns - source.start_ns) / 1e9
            raise InvalidArgumentError(
                f"{source.name}: --from: expected a time within its {length_s:.3f} s, found "
                f"{options.start_s:g} s"
            )
        drivers, moments = self.enter(source, begin_ns)
        for moment in moments:
            if end_ns is not None and moment.time_ns >= end_ns:
                break
            for driver in drivers:
                driver.take(moment, moment.time_ns >= begin_ns)
            if self._keyframes is not None:
                self._keyframes.offer(moment, drivers)
            if progress is not None:
                progress(moment.time_ns)
        return [driver.finish() for driver in drivers]

    def enter(self, source: Source, begin_ns: int) -> tuple[list[Driver], Iterator[Moment]]:
        """Drivers of all policies, and the moments that they are to take next.

        The first of them is that of a keyframe where there is one before ``begin_ns``, else the
        first of the source; what is said of keyframes becomes a defect of the source.

        Args:
            source: Open.
            begin_ns: Recorded time from which moments are wanted.
        """
        drivers, setting = self.drivers(source), self.setting()
        self._keyframes = Keyframes.of(source, self.sessions, self.options, setting)
        if self._keyframes is None or begin_ns <= source.start_ns:
            return drivers, source.moments(setting)
        found = self._keyframes.newest(begin_ns)
        if found is None:
            return drivers, source.moments(setting)
        for driver in drivers:
            keyframe, image = found.states[driver.label]
            driver.session.import_(image, CAPSULE)
            driver.session.restore(CAPSULE)
            driver.session.drop(CAPSULE)
            driver.go_on(keyframe.driver)
        return drivers, source.moments(setting, found.entry)

    def drivers(self, source: Source) -> list[Driver]:
        """A driver for each policy, whose session stands at its beginning."""
        elements = with_grippers(source.elements(self.setting()), self.options.grippers)
        found = []
        for label, session in self.sessions.items():
            session.withdraw_plan()
            session.restore(BEGINNING)
            found.append(
                Driver(label, source.name, session, elements, self.contract, self.options.pace)
            )
        return found

    def close(self) -> None:
        """Frees the sessions."""
        for session in self.sessions.values():
            session.close()

    def _open(self, candidate: Candidate) -> PolicySession:
        options = self.options
        policy = load_policy(candidate.path, options.trust, options.numerics)
        if self.contract is not None:
            self.contract.check(policy.ports(), policy.layout())
        layout = complete_layout(policy)
        whole_bytes = layout.fixed_bytes + 4096 + layout.capacity * layout.row_bytes
        session = PolicySession(
            policy,
            device=options.device,
            seed=options.seed,
            store_bytes=max(1 << 20, 2 * options.capsules * whole_bytes),
            rollback_depth=0,
            preview_sets=0,
        )
        session.host.task = session.check_task(options.task)
        session.snapshot(BEGINNING, pin=True)
        return session


def _remap(given: Mapping[str, str], contract: Contract | None) -> dict[str, str]:
    """By the contract's own names of its topics; with or without a slash in front is the same.

    Raises:
        InvalidArgumentError: The contract has no such topic.
    """
    if contract is None:
        return dict(given)
    names = [name for name, _, _ in contract.topics()] + [o.topic for o in contract.actions]
    known = {name.strip("/"): name for name in names}
    for name in given:
        if name.strip("/") not in known:
            raise InvalidArgumentError(
                f"--remap {name}: expected a topic of the contract, it has {', '.join(names)}"
            )
    return {known[name.strip("/")]: recorded for name, recorded in given.items()}
