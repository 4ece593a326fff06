"""Services whose work takes long: files, and moves between tiers.

Each is a ``Task``, of which the copying and the disk are the storage thread's. While that is under
way the control thread steps and carries out other verbs, so each part looks anew at what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from flashrt_ros.errors import (
    DeadlineError,
    FlashRTError,
    InvalidArgumentError,
    NoMemoryError,
    NotFoundError,
)
from flashrt_ros.ros.records import EventKind
from flashrt_ros.ros.status import capsule_record
from flashrt_ros.ros.stepper import Stepper
from flashrt_ros.ros.storage import Task, Where
from flashrt_ros.ros.verbs import Answer, Verb, done
from flashrt_ros.runtime.capsule_folder import file_name
from flashrt_ros.runtime.place import Tier


def tier_of(word: str) -> Tier:
    """Returns the tier of that name.

    Raises:
        InvalidArgumentError: There is none.
    """
    try:
        return Tier(word)
    except ValueError:
        names = ", ".join(repr(tier.value) for tier in Tier)
        raise InvalidArgumentError(f"tier: expected one of {names}, found {word!r}") from None


class TierHandlers:
    """The part of ``Handlers`` that goes on in the storage thread."""

    def __init__(self, stepper: Stepper) -> None:
        """Takes the session and its surroundings from ``stepper``."""
        self._stepper = stepper
        self._session = stepper.session
        self._motion = stepper.motion
        self._parking = False
        # What a task held may have been dropped meanwhile, or its move have failed.
        stepper.storage.afterwards = self._remove_gone

    # Files

    def save_capsule(self, request: Any, verb: Verb) -> None:
        """See SaveCapsule.srv; answered by the storage thread, when the file is on the disk."""
        storage, session = self._stepper.storage, self._session
        folder = storage.require_folder()
        storage.require_room()
        if request.file:
            file_name(request.file)
        begun_ns = self._stepper.clock_ns()
        held = session.hold(request.name)
        event = self._stepper.event_record(
            EventKind.SAVE, begun_ns, **self._fields(verb, held.capsule)
        )

        def save() -> Task:
            yield Where.STORAGE
            saved = folder.save(session.read(held), request.file, request.replace)
            self._stepper.outlet.event(replace(event, file=saved.path.name))
            return done(
                f"capsule {held.capsule.name!r} is in {saved.path}",
                path=str(saved.path),
                size_bytes=saved.size_bytes,
            )

        storage.run(verb, save())

    def load_capsule(self, request: Any, verb: Verb) -> None:
        """See LoadCapsule.srv; answered when its bytes are on the device."""
        storage, session = self._stepper.storage, self._session
        folder = storage.require_folder()
        storage.require_room()
        file_name(request.file)
        if request.name:
            session.store.check_free(request.name)

        def load() -> Task:
            yield Where.STORAGE
            image = folder.load(
                request.file, lambda facts: session.check_facts(facts, request.allow_inexact)
            )
            staged = session.stage(image, request.allow_inexact)
            del image
            yield Where.CONTROL
            begun_ns = self._stepper.clock_ns()
            arrival = session.begin_import(staged, request.name, request.allow_inexact)
            evicted = self._evictions(begun_ns)
            try:
                yield Where.STORAGE
                session.carry_import(arrival)
                yield Where.CONTROL
                capsule = session.commit_import(arrival)
            except BaseException:
                session.give_back_import(arrival)
                raise
            file = file_name(request.file)
            self._event(EventKind.LOAD, begun_ns, verb, capsule, file=file)
            self.tidy()
            return done(
                f"capsule {capsule.name!r} holds the state before step {capsule.host.step} of "
                f"episode {capsule.host.episode}{_gone(evicted)}",
                capsule=capsule_record(session, capsule),
            )

        storage.run(verb, load())

    # Tiers

    def move_capsule(self, request: Any, verb: Verb) -> None:
        """See MoveCapsule.srv; answered when the capsule lies there."""
        tier = tier_of(request.tier)
        self._stepper.storage.require_room()
        self._stepper.storage.run(verb, self._move(request.name, tier, verb))

    def _move(self, name: str, tier: Tier, verb: Verb) -> Task:
        capsule = self._session.store.get(name)
        if capsule.segment.tier is tier and not capsule.segment.moving:
            words, evicted = f"capsule {capsule.name!r} lies in tier {tier.value!r} already", []
        else:
            evicted = yield from self._moved(capsule, tier, verb)
            words = f"capsule {capsule.name!r} lies in tier {tier.value!r}{_gone(evicted)}"
            self.tidy()
        capsule = self._session.store.get(capsule.id)  # it may be pinned by now
        path = self._session.path_of(capsule)
        return done(
            words,
            capsule=capsule_record(self._session, capsule),
            path="" if path is None else str(path),
            evicted=evicted,
        )

    def _moved(
        self, capsule: Any, tier: Tier, verb: Verb, parked: bool = False
    ) -> Generator[Where, None, list[str]]:
        """Moves a capsule; begins and ends on the control thread. Returns who was evicted."""
        session, begun_ns = self._session, self._stepper.clock_ns()
        move = session.begin_move(capsule, tier, parked)
        evicted: list[str] = []
        if move is not None:
            with session.giving_back(move):
                if session.must_fetch(move):
                    yield Where.STORAGE
                    session.fetch(move)
                    yield Where.CONTROL
                    session.take(move)
                evicted = move.evicted
                self._report(evicted, begun_ns)
                yield Where.STORAGE
                session.carry(move)
                yield Where.CONTROL
                session.commit_move(move)
        self._event(EventKind.MOVE, begun_ns, verb, capsule, tier=tier.value)
        return evicted

    def moved_snapshot(self, answer: Answer, tier: Tier, verb: Verb) -> Task:
        """Moves the capsule of a snapshot, of which ``answer`` tells."""
        name = answer.fields["capsule"].id
        capsule = self._session.store.get(name)
        try:
            # Room is made only afterwards: else this one might be taken for the one to park.
            evicted = yield from self._moved(capsule, tier, verb)
        except FlashRTError as error:
            raise type(error)(
                f"capsule {capsule.name!r} was made and lies on the device: {error}"
            ) from error
        self.tidy()
        capsule = self._session.store.get(capsule.id)
        fields = {
            **answer.fields,
            "capsule": capsule_record(self._session, capsule),
            "evicted": [*answer.fields["evicted"], *evicted],
        }
        words = f"{answer.message}; it lies in tier {tier.value!r}"
        return replace(answer, message=words, fields=fields)

    def on_device(
        self, targets: Callable[[], list[Any]], then: Callable[[], Answer | None], verb: Verb
    ) -> Answer | None:
        """Carries out ``then`` once the capsules that ``targets`` finds lie on the device.

        Returns:
            The answer; None if it comes later.
        """
        if not _away(targets()):
            return then()
        self._stepper.storage.require_room()
        self._stepper.storage.run(verb, self._promoted(targets, then, verb))
        return None

    def _promoted(
        self, targets: Callable[[], list[Any]], then: Callable[[], Answer | None], verb: Verb
    ) -> Task:
        evicted: list[str] = []
        moved: list[str] = []
        held: dict[str, Any] = {}
        try:
            # Looked for anew: meanwhile they may have been dropped, or the live state gone on.
            while away := _away(found := targets()):
                capsule = away[0]
                if capsule.id in moved:
                    raise NoMemoryError(
                        f"{verb.name}: capsule {capsule.name!r} had to leave the device again for"
                        " another one that is wanted there; pin fewer capsules, or raise"
                        " store_bytes"
                    )
                moved.append(capsule.id)
                for other in found:
                    # One that is wanted must not give way to another.
                    if other.segment.tier is Tier.DEVICE and other.id not in held:
                        held[other.id] = self._session.hold(other)
                evicted += yield from self._moved(capsule, Tier.DEVICE, verb)
            return self._carried_out(then, evicted, verb)
        finally:
            for one in held.values():
                one.release()

    def _carried_out(
        self, then: Callable[[], Answer | None], evicted: list[str], verb: Verb
    ) -> Answer | None:
        if verb.result is not None:
            # Nobody waits any more, and a robot must not jump back out of the blue.
            raise DeadlineError(
                f"{verb.name}: what it needs lies on the device now, but its time was up before;"
                " repeat it"
            )
        answer = then()
        self.tidy()
        if answer is None:
            return None
        return replace(answer, message=f"{answer.message}{_gone(evicted)}")

    # What the store does by itself

    def tidy(self) -> None:
        """Begins to make room on the device where it is short, and to remove files of the gone."""
        self._remove_gone()
        if self._parking or (capsule := self._session.to_park()) is None:
            return
        self._parking = True
        verb = _nobodys("park")
        self._stepper.storage.run(verb, self._park(capsule, verb), background=True)

    def _remove_gone(self) -> None:
        if self._session.files_to_remove:
            task = self.removed_files(done(""))
            self._stepper.storage.run(_nobodys("remove files"), task, background=True)

    def _park(self, capsule: Any, verb: Verb) -> Task:
        try:
            yield from self._moved(capsule, Tier.HOST, verb, parked=True)
        except NotFoundError:
            pass  # dropped meanwhile, which makes room as well
        except FlashRTError as error:
            self._stepper.outlet.log("warn", f"could not move to tier 'host': {error}")
            return done("")
        finally:
            self._parking = False
        self.tidy()
        return done("")

    def removed_files(self, answer: Answer) -> Task:
        """Removes the files of capsules that are gone, then returns ``answer``."""
        yield Where.STORAGE
        words = self._session.remove_files()
        for word in words:
            self._stepper.outlet.log("warn", word)
        return replace(answer, message="; ".join((answer.message, *words)))

    # Events

    def _evictions(self, begun_ns: int) -> list[str]:
        evicted = list(self._session.last_evicted)
        self._report(evicted, begun_ns)
        return evicted

    def _report(self, evicted: list[str], begun_ns: int) -> None:
        for name in evicted:
            self._stepper.event(EventKind.EVICT, begun_ns, name=name)

    def _event(
        self,
        kind: EventKind,
        begun_ns: int,
        verb: Verb,
        capsule: Any = None,
        seed: int | None = None,
        **fields: Any,
    ) -> None:
        if capsule is not None:
            fields = {**self._fields(verb, capsule), **fields}
        fields["request_id"] = verb.request_id
        self._stepper.event(kind, begun_ns, seed=seed, **fields)

    @staticmethod
    def _fields(verb: Verb, capsule: Any) -> dict[str, Any]:
        return {
            "id": capsule.id,
            "name": capsule.name,
            "parent_id": capsule.parent_id,
            "size_bytes": capsule.size_bytes,
            "request_id": verb.request_id,
            "noise_key": capsule.key,
            "source_tick": capsule.tick,
        }


def _away(capsules: list[Any]) -> list[Any]:
    return [capsule for capsule in capsules if capsule.segment.tier is not Tier.DEVICE]


def _gone(evicted: list[str]) -> str:
    return f"; evicted for it: {', '.join(evicted)}" if evicted else ""


def _nobodys(name: str) -> Verb:
    return Verb(name, lambda handlers, verb: None, 0, 2**63 - 1)
