"""A session brought to where the node's session stood before each step: verbs at their tick.

Nothing is decided here. Which boundary a rollback found, which key a branch got, which capsule
came from which file: all that is on record.
"""

from __future__ import annotations

from collections import Counter, deque

from flashrt_ros.errors import FlashRTError
from flashrt_ros.evaluate.reproduce.finding import Difference, Gap, Input, Lost, Where
from flashrt_ros.evaluate.reproduce.journal import AT_A_BOUNDARY, CHANGING, Event, Run, Step
from flashrt_ros.evaluate.reproduce.shelf import Shelf
from flashrt_ros.runtime.capsule_diff import difference
from flashrt_ros.runtime.capsule_image import CapsuleImage
from flashrt_ros.runtime.session import PolicySession


class Verbs:
    """One session through the runs of a recording.

    Attributes:
        session: Driven by nobody else.
        known: Whether its state is the one that the node's session had.
        gap: Why it is not; None: it has gone astray, which was said as a difference.
        gaps: All so far.
        verbs: Verbs applied, by kind.
        compared: Saved capsules that equal what was computed here.
        odd: The first saved capsule that does not.
    """

    def __init__(self, session: PolicySession, shelf: Shelf) -> None:
        """Takes over a session; ``begin`` must follow."""
        self.session = session
        self.known = False
        self.gap: Gap | None = None
        self.gaps: list[Gap] = []
        self.verbs: Counter[str] = Counter()
        self.compared = 0
        self.odd: Difference | None = None
        self._shelf = shelf
        self._events: deque[Event] = deque()
        # Numbers of the last event, of the step that is due and of the live state; None and 0:
        # not known.
        self._sequence: int | None = None
        self._tick: int | None = None
        self._generation = 0
        self._seed: int | None = None
        self._images = 0
        self._astray = False

    def begin(self, run: Run) -> None:
        """Another configure: nothing is known of its state."""
        self._events = deque(run.events)
        self._shelf.begin(run.uses, run.boundaries)
        self._sequence = self._tick = None
        self._generation = 0
        self._seed = None if run.provenance is None else int(run.provenance["noise_key"])
        self.known, self.gap, self._astray = False, None, False

    def catch_up(self, step: Step) -> None:
        """Applies the verbs before a step; ``known`` says whether it can be done."""
        tick = step.where.tick
        while self._events and self._events[0].where.tick <= tick:
            self._apply(self._events.popleft())
        self._stand_before(step.where)
        if self._generation and step.generation != self._generation:
            words = f"a verb that led from generation {self._generation} to {step.generation}"
            self.lose(step.where, Lost.EVENT, words)
        self._generation = step.generation
        if not self.known:
            self._anchor(step)
        if self.known and self._shelf.wants(tick):
            self.session.host.task = step.task
            self._shelf.put(tick, self._image(), step.noise_key)

    def passed(self) -> None:
        """The step is done, or given up."""
        assert self._tick is not None
        self._tick += 1

    def finish(self) -> None:
        """Applies what comes after the last step of a run, for the sake of saved capsules."""
        while self._events:
            self._apply(self._events.popleft())

    def lose(self, where: Where, lost: Lost, words: str, inputs: tuple[Input, ...] = ()) -> None:
        """From here on the state is not known."""
        self.gap = Gap(where, lost, words, inputs)
        self.gaps.append(self.gap)
        self.known = False

    def stray(self) -> None:
        """The session came to another turn than the node's: what follows would mean nothing."""
        self.known, self.gap, self._astray = False, None, True

    # Verbs

    def _stand_before(self, where: Where) -> None:
        """The next thing happened at the boundary before this step."""
        if self._tick is None and where.tick == 0 and self._seed is not None:
            self._start("", self._seed, 0)
            self._sequence, self._generation = 0, 1
        if self._tick is not None and where.tick != self._tick:
            self.lose(where, Lost.STEP, _steps_between(self._tick, where.tick))
        self._tick = where.tick

    def _apply(self, event: Event) -> None:
        if event.kind in AT_A_BOUNDARY:
            self._stand_before(event.where)
        expected = event.sequence if self._sequence is None else self._sequence + 1
        if event.sequence > expected:
            last = event.sequence - 1
            which = f"{expected}" if last == expected else f"{expected} to {last}"
            # Whether it changed the state is seen by the generation.
            self.gaps.append(Gap(event.where, Lost.EVENT, f"message {which} of the topic"))
        self._sequence = event.sequence
        if event.kind in CHANGING:
            if self._generation and event.generation != self._generation + 1:
                words = (
                    f"a verb that led from generation {self._generation} to {event.generation - 1}"
                )
                self.lose(event.where, Lost.EVENT, words)
            self._generation = event.generation
        work = getattr(self, f"_{event.kind}", None)
        if work is None:
            return
        try:
            work(event)
        except FlashRTError as error:
            words = f"{event.kind} of {event.name or event.id!r}: {error}"
            self.lose(event.where, Lost.CAPSULE, words)

    def _reset(self, event: Event) -> None:
        self._start(event.task, event.noise_key, event.where.episode)
        self.verbs["reset"] += 1

    def _snapshot(self, event: Event) -> None:
        saved = self._shelf.file(event.id)
        if not self.known:
            if saved is None:
                return
            self._go(saved, event.noise_key)
        self.session.host.task = event.task
        if saved is not None or self._shelf.wants(event.id):
            image = self._image()
            self._shelf.put(event.id, image, event.noise_key)
            if saved is not None:
                self._compare(event, image, saved)
        self.verbs["snapshot"] += 1

    def _fork(self, event: Event) -> None:
        image: CapsuleImage | None = None
        if event.source_automatic:
            image = self._boundary(event.source_tick)
        elif event.source_id:
            image = self._shelf.take(event.source_id)
        elif self.known and self._shelf.wants(event.id):
            self.session.host.task = event.task
            image = self._image()
        if image is not None:
            self._shelf.put(event.id, image, event.noise_key)
        self.verbs["fork"] += 1

    def _load(self, event: Event) -> None:
        image = self._shelf.take(event.source_id) if event.source_id else None
        if image is None:
            image = self._shelf.load(event.file, event.source_tick)
        if image is not None:
            self._shelf.put(event.id, image, event.noise_key)
        self.verbs["load"] += 1

    def _restore(self, event: Event) -> None:
        if event.source_automatic:
            image = self._boundary(event.source_tick)
            what = f"the boundary before tick {event.source_tick}"
        else:
            image = self._shelf.take(event.source_id)
            what = " ".join(filter(None, ("capsule", event.source_id, event.name)))
        if image is None:
            words = f"{event.kind} to {what}, which was neither computed here nor is in a file"
            self.lose(event.where, Lost.CAPSULE, words)
            return
        self._go(image, event.noise_key)
        self.session.host.task = event.task
        self.verbs[event.kind] += 1

    _rollback = _restore

    def _boundary(self, tick: int) -> CapsuleImage | None:
        image = self._shelf.take(tick)
        if image is None and self.known and tick == self._tick:
            return self._image()  # the last step was taken back, so it is not on record
        return image

    def _compare(self, event: Event, image: CapsuleImage, saved: CapsuleImage) -> None:
        """A saved capsule against the live state, of which it is a copy."""
        found = difference(saved, image)
        words = [f"{b.elements} of {b.of} elements of {b.name}" for b in found.buffers]
        words += [f"{r.rows} of {r.of} rows of {r.buffer.name}" for r in found.rows]
        if not words:
            self.compared += 1
        elif self.odd is None:
            self.odd = Difference(event.where, "capsule", f"{event.name}: {', '.join(words)}")

    # What is known

    def _anchor(self, step: Step) -> None:
        """Goes on from this step, if the state before it is known whatever came before."""
        if step.begins_episode:
            self._start(step.task, step.noise_key, step.where.episode)
            return
        facts = self._shelf.facts(step.capsule)
        if facts is not None and facts.tick == step.where.tick:
            try:
                if (image := self._shelf.file(step.capsule)) is not None:
                    self._go(image, step.noise_key)
                    return
            except FlashRTError as error:
                self.lose(step.where, Lost.CAPSULE, str(error))
        if self.gap is None and not self._astray:
            words = (
                "the recording begins within an episode; begin before a reset, or save a capsule"
                " of the state that it begins with (--capsule-folder)"
            )
            self.lose(step.where, Lost.START, words)

    def _start(self, task: str, noise_key: int, episode: int) -> None:
        self.session.withdraw_plan()
        self.session.reset_(task, noise_key)
        self.session.host.episode = episode
        self._found()

    def _go(self, image: CapsuleImage, noise_key: int) -> None:
        session = self.session
        session.withdraw_plan()
        capsule = session.import_(image, self._name(), allow_inexact=True)
        try:
            session.restore(capsule, allow_inexact=True, seed=noise_key)
        finally:
            session.drop(capsule.id)
        self._found()

    def _found(self) -> None:
        self.known, self.gap, self._astray = True, None, False

    def _image(self) -> CapsuleImage:
        """A copy of the live state; the session does not keep it."""
        capsule = self.session.snapshot(self._name())
        try:
            return self.session.export(capsule)
        finally:
            self.session.drop(capsule.id)

    def _name(self) -> str:
        self._images += 1
        return f"again-{self._images}"


def _steps_between(expected: int, tick: int) -> str:
    if tick < expected:
        return f"tick {tick} comes after tick {expected - 1}"
    return f"tick {expected}" if tick == expected + 1 else f"ticks {expected} to {tick - 1}"
