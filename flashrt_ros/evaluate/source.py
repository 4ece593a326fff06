"""What is evaluated: a recording with messages, or another source of control steps."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Protocol

from flashrt_ros.bag.directory import find
from flashrt_ros.bag.message import Message, Topic
from flashrt_ros.bag.reader import BagReader
from flashrt_ros.bag.survey import survey
from flashrt_ros.contract.cdr import typestore
from flashrt_ros.contract.contract import Contract
from flashrt_ros.dataset.info import is_dataset
from flashrt_ros.errors import InvalidArgumentError, NotFoundError
from flashrt_ros.evaluate.elements import Elements, elements_of
from flashrt_ros.evaluate.nearest import did_you_mean, names_of, nearest
from flashrt_ros.evaluate.timeline import Entry, Moment, Setting, Timeline, Topics

STEP = "flashrt_ros/msg/PolicyStep"
POSITIONAL, UNNAMED = "`positional` is used", " with empty names"
"""Of the sampler's words, and of the survey's."""


class Source(Protocol):
    """A recording, or a data set; made of a path, closed after use.

    Attributes:
        name: For people: the path.
        start_ns: Recorded time of the first message or frame.
        end_ns: Of the last.
        topics: What is in it.
    """

    name: str
    start_ns: int
    end_ns: int
    topics: tuple[Topic, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that it is read from, in an order of their own."""

    @property
    def defects(self) -> list[str]:
        """What is amiss, in words; reading may add to it."""

    @property
    def notes(self) -> list[str]:
        """What else is worth a word, though nothing is amiss."""

    def elements(self, setting: Setting) -> Elements:
        """The elements of the recorded action."""

    def moments(self, setting: Setting, entry: Entry | None = None) -> Iterator[Moment]:
        """Yields control steps in order of time.

        Args:
            setting: How to step; the same as in earlier calls.
            entry: Where to begin; None: at the start. The moments that follow are the same,
                to the bit, as if all had been read.

        Raises:
            NotFoundError: The contract needs what is not there.
            InvalidArgumentError: The setting does not fit this source.
        """

    def entry(self, moment: Moment) -> Entry | None:
        """Where to go on behind ``moment``, which ``moments`` has yielded last.

        None where nothing can be said; the caller tries again later.
        """

    def close(self) -> None:
        """Frees files."""


def open_source(path: str | Path) -> Source:
    """Opens what lies at ``path``.

    Raises:
        NotFoundError: There is nothing.
        CorruptError: It cannot be read.
        FlashRTError: It is a data set that cannot be read, see ``DatasetReader``.
    """
    if is_dataset(Path(path)):
        from flashrt_ros.evaluate.dataset_source import DatasetSource

        return DatasetSource(path)
    return BagSource(path)


class BagSource:
    """A recording of ROS messages; see ``Source``."""

    def __init__(self, path: str | Path) -> None:
        """Opens it.

        Args:
            path: A recording's folder, or one of its files; see ``BagReader``.

        Raises:
            NotFoundError: There is no such recording.
            CorruptError: None of its files can be read.
        """
        self._reader = BagReader(path)
        self.name = str(path)
        self.topics = self._reader.topics
        self.start_ns, self.end_ns = self._reader.span_ns
        self._own: list[str] = []
        self._named: list[str] = []
        self._inputs: dict[str, str] = {}
        self._unread: list[str] = []
        self._timeline: Timeline | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """Its storage files."""
        return tuple(find(Path(self.name)).files)

    @property
    def defects(self) -> list[str]:
        """What is amiss, in words: with files, with what the contract reads, with the rest."""
        files = self._reader.file_defects
        found = list(self._own)
        if self._timeline is not None:
            found += _words(self._timeline)
        found += [each for each in self._reader.defects if each not in files] + self._unread
        first = tuple(f"{name}: " for name in self._named)
        notes = self.notes
        found = [words for words in found if words not in notes]
        return files + sorted(found, key=lambda words: not words.startswith(first))

    @property
    def notes(self) -> list[str]:
        """See ``Source.notes``."""
        found = [
            f"{topic.name}: recorded by a node of ours. Its verbs (snapshot, restore, reset, ...) "
            "are not replayed here; --reproduce computes exactly what it did"
            for topic in self.topics
            if topic.type == STEP and topic.count
        ]
        if self._timeline is None:
            return found
        # The contract asks for it, so messages without names are as they should be.
        found += [words for words in self._timeline.notices if POSITIONAL in words]
        for topic, seen in self._timeline.surveys.items():
            if any(f"topic {name!r}:" in words for words in found for name in self._of(topic)):
                found += [f"{topic}: {words}" for words in seen.words() if UNNAMED in words]
        return found

    def _of(self, topic: str) -> tuple[str, str]:
        """The names of a recorded topic: its own, and that of the contract."""
        return topic, self._inputs.get(topic, topic)

    def elements(self, setting: Setting) -> Elements:
        """The action as contract and policy have it."""
        return elements_of(_contract(setting, self.name), setting.ports)

    def moments(self, setting: Setting, entry: Entry | None = None) -> Iterator[Moment]:
        """See ``Source.moments``."""
        contract = _contract(setting, self.name)
        topics = self._find(setting, contract)
        if setting.steps == "recorded" and not topics.commands:
            raise InvalidArgumentError(
                f"{self.name}: --steps recorded: expected recorded commands on "
                f"{contract.actions[0].topic}, found none"
            )
        self._timeline = Timeline(setting, topics, self.start_ns, entry)
        if entry is None:
            return self._timeline.moments(self._messages(topics, topics.names))
        return self._timeline.moments(self._from(topics, entry))

    def entry(self, moment: Moment) -> Entry | None:
        """See ``Source.entry``."""
        return None if self._timeline is None else self._timeline.entry(moment)

    def close(self) -> None:
        """Closes the files."""
        self._reader.close()

    def survey(self) -> None:
        """Decodes what is not read as well, to find defects in it; takes as long as that takes."""
        read = self._timeline.surveys if self._timeline is not None else {}
        unread = {topic.name for topic in self.topics} - set(read)
        _, words = survey(self._reader, unread)
        self._unread = [each for each in words if each not in self._reader.defects]

    def _from(self, topics: Topics, entry: Entry) -> Iterator[Message]:
        """The messages that an entry needs first, then all from its time on."""
        earlier = [
            self._between(topics, topic, time_ns, entry.cut_ns)
            for topic, time_ns in entry.oldest_ns().items()
            if time_ns < entry.cut_ns
        ]
        first = heapq.merge(*earlier, key=lambda message: message.time_ns)
        return itertools.chain(first, self._messages(topics, topics.names, entry.cut_ns))

    def _between(
        self, topics: Topics, topic: str, begin_ns: int, end_ns: int
    ) -> Iterator[Message]:
        messages = self._messages(topics, {topic}, begin_ns)
        return itertools.takewhile(lambda message: message.time_ns < end_ns, messages)

    def _messages(
        self, topics: Topics, names: Collection[str], begin_ns: int | None = None
    ) -> Iterator[Message]:
        """Of these topics what the node would have had: a subscription has one type."""
        types = topics.types
        for message in self._reader.messages(names, begin_ns):
            if types.get(message.topic, message.type) == message.type:
                yield message

    def _find(self, setting: Setting, contract: Contract) -> Topics:
        """Recorded topics for those of the contract; says which are missing."""
        recorded: dict[str, list[Topic]] = {}
        for topic in self.topics:
            recorded.setdefault(topic.name.strip("/"), []).append(topic)
        self._own = []
        self._check_remap(setting, recorded)

        def find(name: str, type_name: str) -> str:
            called = setting.remap.get(name, name).replace("~/", "").strip("/")
            there = [topic for topic in recorded.get(called, ()) if topic.count]
            for topic in there:
                if topic.type != type_name:
                    self._own.append(
                        f"{topic.name}: recorded as {topic.type or 'nothing that is named'}, the "
                        f"contract expects {type_name}; not read"
                    )
            return next((topic.name for topic in there if topic.type == type_name), "")

        inputs, types = {}, {}
        missing = []
        for name, type_name, _ in contract.topics():
            if found := find(name, type_name):
                inputs[found], types[found] = name, type_name
            elif name in contract.needed_topics():
                missing.append(name)
            else:
                self._own.append(f"{name}: an optional input without messages")
        if missing:
            kinds = {name: type_name for name, type_name, _ in contract.topics()}
            first, kind = missing[0], kinds[missing[0]]
            raise NotFoundError(
                f"{self.name}: expected messages on {', '.join(missing)}, which the contract "
                f"needs, found none{did_you_mean(first, self.topics, kind) or '.'} It has "
                f"{names_of(nearest(first, self.topics, kind))}"
                + "".join(f"; {words}" for words in self._own)
            )
        commands = {}
        for output in contract.actions:
            if found := find(output.topic, output.type):
                commands[found], types[found] = output.topic, output.type
            else:
                self._own.append(
                    f"{output.topic}: no recorded commands to compare with, so errors have no "
                    f"value{did_you_mean(output.topic, self.topics, output.type)}"
                )
        known = typestore().types.keys() | self._reader.definitions.keys()
        self._own += [
            f"{topic.name}: {topic.count} messages of {topic.type}, which has no definition here; "
            "not looked at"
            for topic in self.topics
            if topic.count and topic.type not in known and not topic.is_service_event
        ]
        self._inputs = inputs
        self._named = [*inputs, *commands, *contract.needed_topics(), *commands.values()]
        marker = ""
        if setting.episodes is not None and setting.episodes.topic:
            marks = recorded.get(setting.episodes.topic.strip("/"))
            if not marks:
                raise NotFoundError(
                    f"{self.name}: no topic {setting.episodes.topic} that could mark episodes; "
                    f"it has {', '.join(t.name for t in self.topics)}"
                )
            marker = marks[0].name
        return Topics(inputs, commands, marker, types)

    def _check_remap(self, setting: Setting, recorded: Collection[str]) -> None:
        for name, called in setting.remap.items():
            if called.replace("~/", "").strip("/") not in recorded:
                raise NotFoundError(
                    f"{self.name}: --remap {name}:={called}: no topic {called}; it has, those of "
                    f"the nearest names first, {names_of(nearest(called, self.topics))}"
                )


def _contract(setting: Setting, name: str) -> Contract:
    if setting.contract is None:
        raise InvalidArgumentError(f"{name}: a recording of messages needs --contract FILE")
    return setting.contract


def _words(timeline: Timeline) -> list[str]:
    """What reading has found, in words."""
    found = list(timeline.notices)
    for topic, seen in timeline.surveys.items():
        found += [f"{topic}: {words}" for words in seen.words()]
        if gaps := seen.gaps:
            found.append(
                f"{topic}: {gaps} gaps, the longest of {seen.longest_gap_ns / 1e9:.2f} s, where "
                f"messages usually come every {seen.usual_ns / 1e6:.3g} ms"
            )
    for topic, (words, count) in {**timeline.faulty, **timeline.command_faults}.items():
        found.append(f"{topic}: {count} messages could not be used, the first: {words}")
    for topic, count in timeline.partial_commands.items():
        found.append(
            f"{topic}: {count} commands hold values that are not finite: they count as none"
        )
    if timeline.jumps:
        found.append(f"{len(timeline.jumps)} jumps back in time, the first: {timeline.jumps[0]}")
    if timeline.backwards:
        found.append(f"{timeline.backwards} messages recorded before the one before them")
    if timeline.skipped_s:
        found.append(f"silences of {timeline.skipped_s:.1f} s in all were not gone through")
    return found
