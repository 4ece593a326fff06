"""From recorded messages to control steps: the node's sampler, fed with recorded time.

Everything that the node judges by its steady clock (ages, "newer than the reset") is judged here
by the time at which the recorder received a message.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.bag.message import Message
from flashrt_ros.bag.survey import TopicSurvey
from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.conversions import Decoded, decode
from flashrt_ros.contract.frames import FrameInput
from flashrt_ros.contract.sample import Sample
from flashrt_ros.contract.sampler import Heard, Sampler
from flashrt_ros.errors import ContractError
from flashrt_ros.evaluate.commands import RecordedCommands
from flashrt_ros.evaluate.episodes import EpisodeRule, EpisodeTracker, Standing
from flashrt_ros.evaluate.measured import MeasuredState
from flashrt_ros.runtime.policy import Ports

Vector = npt.NDArray[np.float64]

SILENCE_NS = 60_000_000_000
"""Of a longer silence only so much is gone through: no step could be taken in the rest."""
BETWEEN_EPISODES = "between two episodes"


@dataclass(frozen=True)
class Setting:
    """How a source becomes control steps: the same for all policies.

    Attributes:
        contract: Of the robot; None for sources that have frames in place of messages.
        ports: Of the policies.
        steps: ``rate``: at the contract's rate; ``recorded``: whenever a command was recorded.
        episodes: How they are told apart; None: one, or as the source itself says.
        remap: Recorded topic by topic of the contract, where they differ.
        byte_ports: Ports of pictures whose buffers hold bytes; others take 0 to 1.
        unnamed_commands: Recorded commands without names are in the contract's order.
    """

    contract: Contract | None
    ports: Ports
    steps: str = "rate"
    episodes: EpisodeRule | None = None
    remap: Mapping[str, str] = field(default_factory=dict)
    byte_ports: frozenset[str] = frozenset()
    unnamed_commands: bool = False

    def needed(self) -> Contract:
        """The contract, for sources that cannot do without."""
        assert self.contract is not None
        return self.contract


@dataclass(frozen=True, slots=True)
class Moment:
    """One control step of a source.

    Attributes:
        index: Steps since the start of the source; the same wherever reading began.
        time_ns: Recorded time.
        observations: Policy port to array, not to be written; those with a fault are missing.
        faults: Words for each input that hinders; with one no step is made, as on the robot.
        ages_ms: Age of the newest message by ``port (topic)``; NaN without one.
        measured: As ``Sample.measured``, for the check of a first command.
        measured_fault: Why there is none.
        recorded_A: ``(A,)`` float64, the command recorded last, contract units; NaN: none yet.
        state_A: ``(A,)`` float64, where each element is measured to be; NaN: not known.
        task: Text said last; None: none was said.
        episode: From 0; with a new number the policy is reset before this step.
        jump: Words of a jump back in time since the moment before; empty without.
        not_before_ns: Messages recorded before do not count.
        inside: False between two episodes.
    """

    index: int
    time_ns: int
    observations: Mapping[str, npt.NDArray[Any]]
    faults: tuple[str, ...]
    ages_ms: Mapping[str, float]
    recorded_A: Vector
    state_A: Vector
    measured: npt.NDArray[np.float32] | None = None
    measured_fault: str = ""
    task: str | None = None
    episode: int = 0
    jump: str = ""
    not_before_ns: int = 0
    inside: bool = True


@dataclass(frozen=True)
class Entry:
    """Where to begin within a source, so that what follows is as if it had been read whole.

    Attributes:
        index: Of the first moment that is wanted.
        cut_ns: Recorded time up to which messages were taken.
        at_cut: Of those recorded at that very time so many were taken; -1: all.
        now_ns: Recorded time of the last message that was taken.
        not_before_ns: Messages recorded before do not count.
        input_ns: When the last input came; 0: none.
        standing: Episode under way.
        heard: By recorded topic, what the sampler keeps; these messages are read first.
        since_ns: The same of commands and of transforms: from when on they are read.
    """

    index: int
    cut_ns: int = 0
    at_cut: int = -1
    now_ns: int = 0
    not_before_ns: int = 0
    input_ns: int = 0
    standing: Standing = Standing()  # noqa: RUF009  frozen
    heard: Mapping[str, Heard] = field(default_factory=dict)
    since_ns: Mapping[str, int] = field(default_factory=dict)

    def oldest_ns(self) -> dict[str, int]:
        """By recorded topic: from when on its messages are read."""
        found = dict(self.since_ns)
        for topic, heard in self.heard.items():
            found[topic] = min(heard.since_ns, found.get(topic, heard.since_ns))
        return found


@dataclass(frozen=True)
class Topics:
    """Which recorded topics are read, and as what.

    Attributes:
        inputs: Recorded topic to the contract's name of it.
        commands: The same, of the actions.
        marker: Recorded topic that marks episodes; empty: none.
        types: Recorded topic to the type that is read; others under that name are not.
    """

    inputs: Mapping[str, str]
    commands: Mapping[str, str]
    marker: str = ""
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """All recorded topics that are read."""
        return frozenset({*self.inputs, *self.commands} | ({self.marker} - {""}))


class Timeline:
    """Makes moments of the messages of one recording.

    Attributes:
        skipped_s: Length of silences that were not gone through.
        backwards: Messages recorded with a time before the one before them.
        surveys: What the messages of each topic are like.
        faulty: By topic: the first message that could not be used, in words, and how many.
        notices: Peculiarities of messages, in words.
        jumps: Jumps back in time, in words.
    """

    def __init__(
        self, setting: Setting, topics: Topics, start_ns: int, entry: Entry | None = None
    ) -> None:
        """Begins at the start, or behind what ``entry`` stands for.

        Args:
            setting: How to step.
            topics: What is read.
            start_ns: Recorded time of the first message of the recording.
            entry: Where to begin; None: at the start.
        """
        contract = setting.needed()
        self._setting, self._topics, self._start_ns = setting, topics, start_ns
        self._sampler = Sampler(contract, lazy=True)
        size = int(np.prod(setting.ports.action.shape))
        self._commands = RecordedCommands(contract, size, setting.unnamed_commands)
        self._measured = MeasuredState(contract, size)
        self._resets = contract.on_time_jump == "reset"
        self._pace = next(iter(topics.commands), "") if setting.steps == "recorded" else ""
        self._entry, self._sooner = entry, {} if entry is None else entry.oldest_ns()
        begin = entry or Entry(0, cut_ns=-1, now_ns=start_ns)
        standing = None if entry is None else entry.standing
        self._episodes = EpisodeTracker(setting.episodes, start_ns, standing, begin.input_ns)
        self._not_before_ns = begin.not_before_ns
        self._index, self._now_ns = begin.index, begin.now_ns
        self._jump, self._jump_ns = "", start_ns
        self._at_now = 0 if entry is None else max(0, entry.at_cut)
        self.skipped_s = 0.0
        self.backwards = 0
        self.surveys: dict[str, TopicSurvey] = {}
        self.faulty: dict[str, tuple[str, int]] = {}
        self.notices: list[str] = []
        self.jumps: list[str] = []

    def moments(self, messages: Iterable[Message]) -> Iterator[Moment]:
        """Yields a moment for each control step that the messages span.

        Args:
            messages: In order of recorded time, of ``topics.names``.
        """
        messages = iter(messages)
        if self._entry is not None:
            messages = self._repeat(self._entry, messages)
        for message in messages:
            self.backwards += message.time_ns < self._now_ns
            time_ns = max(message.time_ns, self._now_ns)
            if not self._pace:
                yield from self._steps_before(time_ns)
            self._at_now = self._at_now + 1 if time_ns == self._now_ns else 1
            self._now_ns = time_ns
            self._take(message, time_ns)
            if message.topic == self._pace:
                yield self._moment(time_ns)
        if not self._pace:
            yield from self._steps_before(self._now_ns + 1)

    def entry(self, moment: Moment) -> Entry | None:
        """Where to go on behind ``moment``, which was the last one yielded.

        None where a recording that is not in order of time leaves it open.
        """
        if self.backwards:
            return None
        names = {name: topic for topic, name in self._topics.inputs.items()}
        heard = {names[name]: heard for name, heard in self._sampler.heard().items()}
        since_ns = {
            topic: self._commands.since_ns[name]
            for topic, name in self._topics.commands.items()
            if name in self._commands.since_ns
        }
        for part in self._setting.needed().inputs():
            if isinstance(part, FrameInput) and part.topic in names:
                since_ns[names[part.topic]] = self._start_ns if part.static else self._jump_ns
        return Entry(
            index=moment.index + 1,
            cut_ns=moment.time_ns,
            at_cut=self._at_now if self._pace else -1,
            now_ns=self._now_ns,
            not_before_ns=self._not_before_ns,
            input_ns=self._episodes.last_ns,
            standing=self._episodes.standing,
            heard=heard,
            since_ns=since_ns,
        )

    def _repeat(self, entry: Entry, messages: Iterator[Message]) -> Iterator[Message]:
        """Takes what was taken before the entry, as it was; the rest is left."""
        left: list[Message] = []
        taken = 0
        for message in messages:
            taken += message.time_ns == entry.cut_ns
            beyond = 0 <= entry.at_cut < taken
            if message.time_ns > entry.cut_ns or (message.time_ns == entry.cut_ns and beyond):
                left = [message]
                break
            topic = message.topic
            if message.time_ns < self._sooner.get(topic, entry.cut_ns + 1):
                continue
            if (name := self._topics.commands.get(topic)) is not None:
                self._commands.repeat(name, message.type, message.cdr, message.time_ns)
            if (name := self._topics.inputs.get(topic)) is not None:
                self._sampler.put(name, message.cdr, message.time_ns)
        names = self._topics.inputs
        self._sampler.go_on({names[topic]: heard for topic, heard in entry.heard.items()})
        return itertools.chain(left, messages)

    def time_of(self, index: int) -> int:
        """Recorded time of a step at the contract's rate."""
        rate_hz = self._setting.needed().control_rate_hz
        return self._start_ns + round(index * 1e9 / rate_hz)

    def _steps_before(self, time_ns: int) -> Iterator[Moment]:
        """Steps after the last message and before the next one, which comes at ``time_ns``."""
        heard_ns = self._now_ns
        while (now_ns := self.time_of(self._index)) < time_ns:
            if now_ns > heard_ns + SILENCE_NS:
                rate_hz = self._setting.needed().control_rate_hz
                self.skipped_s += (time_ns - now_ns) / 1e9
                self._index = int((time_ns - self._start_ns) * rate_hz / 1e9)
                while self.time_of(self._index) < time_ns:
                    self._index += 1
                return
            yield self._moment(now_ns)

    @property
    def command_faults(self) -> dict[str, tuple[str, int]]:
        """As ``faulty``, of recorded commands, by the contract's name of the topic."""
        return self._commands.faults

    @property
    def partial_commands(self) -> dict[str, int]:
        """Topic to recorded commands with values that are not finite."""
        return self._commands.partial

    def _take(self, message: Message, time_ns: int) -> None:
        """Lets everyone have a message."""
        topic = message.topic
        if topic == self._topics.marker:
            self._episodes.mark(message.type, message.cdr, time_ns)
        decoded, fault = self._decode(message, time_ns)
        if (name := self._topics.commands.get(topic)) is not None:
            if decoded is None:
                self._commands.fault(name, fault)
            else:
                self._commands.put(name, decoded.message, time_ns)
        if (name := self._topics.inputs.get(topic)) is None:
            return
        # The sampler finds the same fault in bytes that cannot be decoded, and keeps it.
        received = self._sampler.put(name, decoded or message.cdr, time_ns)
        self._episodes.heed(time_ns)
        if received.time_jump:
            self._heed_jump(received.time_jump, time_ns)
        if received.fault:
            words, count = self.faulty.get(topic, (received.fault, 0))
            self.faulty[topic] = (words, count + 1)
        self.notices += [words for words in received.notices if words not in self.notices]

    def _decode(self, message: Message, time_ns: int) -> tuple[Decoded | None, str]:
        """What a message holds, or why it cannot be told."""
        survey = self.surveys.get(message.topic)
        if survey is None:
            survey = self.surveys[message.topic] = TopicSurvey(message.type)
        survey.arrived(time_ns)
        try:
            decoded = decode(message.type, message.cdr)
        except ContractError as error:
            survey.undecodable += 1
            return None, str(error)
        survey.look(decoded.message, decoded.trailing_bytes)
        return decoded, ""

    def _heed_jump(self, words: str, time_ns: int) -> None:
        self._jump, self._jump_ns = words, time_ns
        self.jumps.append(words)
        self._not_before_ns = max(self._not_before_ns, time_ns)
        if self._resets:
            self._episodes.jump(time_ns)

    def _moment(self, now_ns: int) -> Moment:
        standing = self._episodes.at(now_ns)
        not_before_ns = self._not_before_ns = max(self._not_before_ns, standing.begin_ns)
        sample = self._sampler.sample(now_ns, not_before_ns)
        task = sample.task.text if sample.task is not None else None
        moment = Moment(
            index=self._index,
            time_ns=now_ns,
            observations=sample.arrays(),
            faults=sample.faults if standing.inside else (BETWEEN_EPISODES,),
            ages_ms=_ages_ms(sample) | self._commands.ages_ms(now_ns),
            recorded_A=self._commands.values(now_ns, not_before_ns),
            state_A=self._measured(sample),
            measured=sample.measured,
            measured_fault=sample.measured_fault,
            task=standing.task or task,
            episode=max(0, standing.number),
            jump=self._jump,
            not_before_ns=not_before_ns,
            inside=standing.inside,
        )
        self._index += 1
        self._jump = ""
        return moment


def _ages_ms(sample: Sample) -> dict[str, float]:
    """Of a history the newest message counts, which is its last one."""
    return {f"{s.observation} ({s.topic})": s.age_ms for s in sample.stamps}
