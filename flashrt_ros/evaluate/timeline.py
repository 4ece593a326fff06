"""From recorded messages to control steps: the node's sampler, fed with recorded time.

Everything that the node judges by its steady clock (ages, "newer than the reset") is judged here
by the time at which the recorder received a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.bag.message import Message
from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.sample import Sample
from flashrt_ros.contract.sampler import Sampler
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
    """

    contract: Contract | None
    ports: Ports
    steps: str = "rate"
    episodes: EpisodeRule | None = None
    remap: Mapping[str, str] = field(default_factory=dict)
    byte_ports: frozenset[str] = frozenset()

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
        newest_ns: Recorded time of the newest message that counts, by recorded topic.
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
    newest_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """Where to begin within a source, so that what follows is as if it had been read whole.

    Attributes:
        index: Of the first moment that is wanted.
        cut_ns: Recorded time of the moment before it: messages up to there were seen before.
        episode: As of the moment before.
        not_before_ns: The same.
        inside: The same.
        newest_ns: The same; these messages are read first.
    """

    index: int
    cut_ns: int
    episode: int
    not_before_ns: int
    inside: bool = True
    newest_ns: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def after(cls, moment: Moment) -> Entry:
        """The one that goes on behind ``moment``."""
        return cls(
            moment.index + 1,
            moment.time_ns,
            moment.episode,
            moment.not_before_ns,
            moment.inside,
            moment.newest_ns,
        )


@dataclass(frozen=True)
class Topics:
    """Which recorded topics are read, and as what.

    Attributes:
        inputs: Recorded topic to the contract's name of it.
        commands: The same, of the actions.
        marker: Recorded topic that marks episodes; empty: none.
    """

    inputs: Mapping[str, str]
    commands: Mapping[str, str]
    marker: str = ""

    @property
    def names(self) -> frozenset[str]:
        """All recorded topics that are read."""
        return frozenset({*self.inputs, *self.commands} | ({self.marker} - {""}))


class Timeline:
    """Makes moments of the messages of one recording.

    Attributes:
        skipped_s: Length of silences that were not gone through.
        backwards: Messages recorded with a time before the one before them.
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
        self._commands = RecordedCommands(contract, size)
        self._measured = MeasuredState(contract, size)
        self._resets = contract.on_time_jump == "reset"
        self._pace = next(iter(topics.commands), "") if setting.steps == "recorded" else ""
        standing = None
        if entry is not None:
            standing = Standing(entry.episode, 0, entry.inside)
        self._episodes = EpisodeTracker(setting.episodes, start_ns, standing)
        self._cut_ns = entry.cut_ns if entry is not None else -1
        self._not_before_ns = entry.not_before_ns if entry is not None else 0
        self._index = entry.index if entry is not None else 0
        self._now_ns = max(start_ns, self._cut_ns)
        self._jump = ""
        self._newest_ns: dict[str, int] = {}
        self.skipped_s = 0.0
        self.backwards = 0
        self.faulty: dict[str, tuple[str, int]] = {}
        self.notices: list[str] = []
        self.jumps: list[str] = []

    def moments(self, messages: Iterable[Message]) -> Iterator[Moment]:
        """Yields a moment for each control step that the messages span.

        Args:
            messages: In order of recorded time, of ``topics.names``.
        """
        for message in messages:
            if message.time_ns <= self._cut_ns:
                self._take(message, message.time_ns, seen=True)
                continue
            self.backwards += message.time_ns < self._now_ns
            time_ns = max(message.time_ns, self._now_ns)
            if not self._pace:
                yield from self._steps_before(time_ns)
            self._now_ns = time_ns
            self._take(message, time_ns)
            if message.topic == self._pace:
                yield self._moment(time_ns)
        if not self._pace:
            yield from self._steps_before(self._now_ns + 1)

    @property
    def command_faults(self) -> dict[str, tuple[str, int]]:
        """As ``faulty``, of recorded commands, by the contract's name of the topic."""
        return self._commands.faults

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

    def _take(self, message: Message, time_ns: int, seen: bool = False) -> None:
        """Lets everyone have a message; ``seen``: only what it leaves behind counts."""
        topic = message.topic
        if seen:
            self._episodes.pass_by(time_ns)
        elif topic == self._topics.marker:
            self._episodes.mark(message.type, message.cdr, time_ns)
        if (name := self._topics.commands.get(topic)) is not None:
            self._commands.put(name, message.cdr, time_ns)
        if (name := self._topics.inputs.get(topic)) is not None:
            received = self._sampler.put(name, message.cdr, time_ns)
            if not seen:
                self._episodes.heed(time_ns)
                if received.time_jump:
                    self._heed_jump(received.time_jump, time_ns)
                if received.fault:
                    words, count = self.faulty.get(topic, (received.fault, 0))
                    self.faulty[topic] = (words, count + 1)
                self.notices += [w for w in received.notices if w not in self.notices]
        self._newest_ns[topic] = time_ns

    def _heed_jump(self, words: str, time_ns: int) -> None:
        self._jump = words
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
            observations=sample.observations,
            faults=sample.faults if standing.inside else (BETWEEN_EPISODES,),
            ages_ms=_ages_ms(sample) | self._commands.ages_ms(now_ns),
            recorded_A=self._commands.values(not_before_ns),
            state_A=self._measured(sample),
            measured=sample.measured,
            measured_fault=sample.measured_fault,
            task=standing.task or task,
            episode=max(0, standing.number),
            jump=self._jump,
            not_before_ns=not_before_ns,
            inside=standing.inside,
            newest_ns=dict(self._newest_ns),
        )
        self._index += 1
        self._jump = ""
        return moment


def _ages_ms(sample: Sample) -> dict[str, float]:
    """Of a history the newest message counts, which is its last one."""
    return {f"{s.observation} ({s.topic})": s.age_ms for s in sample.stamps}
