"""Capsules out of a session and into one: to the host and back, across processes by files."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from flashrt_ros.errors import CorruptError
from flashrt_ros.runtime.capsule import Capsule, new_id
from flashrt_ros.runtime.capsule_image import CapsuleFacts, CapsuleImage
from flashrt_ros.runtime.device import Lane
from flashrt_ros.runtime.place import Place, SlotPlace
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.pool import Segment
from flashrt_ros.runtime.staging import HostState, check_rows, lay_out, noise_key_of
from flashrt_ros.runtime.verbs import Verbs


@dataclass(frozen=True)
class Held:
    """A capsule whose bytes stay until ``read``, whatever becomes of it."""

    capsule: Capsule
    place: Place

    def release(self) -> None:
        """Lets go of it; from any thread."""
        self.place.release()


@dataclass(frozen=True)
class StagedCapsule:
    """An image that was found to fit a session, laid out as its arena is.

    Attributes:
        facts: Of the image.
        state: Its bytes.
        noise_key: Unsigned key within these bytes.
    """

    facts: CapsuleFacts
    state: HostState
    noise_key: int


@dataclass(frozen=True)
class Arrival:
    """A capsule on its way into the store.

    Attributes:
        staged: Where from.
        name: That it will have.
        place: Where to; taken already.
        evicted: Names of the capsules that gave way.
    """

    staged: StagedCapsule
    name: str
    place: SlotPlace
    evicted: list[str] = field(default_factory=list)


class Transfer(Verbs):
    """Export and import; files are the business of others, outside the control thread."""

    policy: Policy

    def export(self, source: str | Capsule) -> CapsuleImage:
        """Returns a copy of a capsule on the host, complete on return.

        The capsule may be evicted or dropped afterwards; the image stays. Where the control thread
        must not wait for the copy, it calls ``hold`` and another thread ``read``.

        Args:
            source: Name, id or the capsule itself.

        Raises:
            NotConfiguredError: The session is closed.
            NotFoundError: There is no such capsule, or no longer.
            StorageError: It lies in a file, which cannot be read.
            CorruptError: That file was changed.
        """
        return self.read(self.hold(source))

    def hold(self, source: str | Capsule) -> Held:
        """Returns a capsule whose bytes stay until ``read``, even if it is dropped or moved.

        Who does not read it calls ``Held.release``.

        Raises:
            NotConfiguredError: The session is closed.
            NotFoundError: There is no such capsule, or no longer.
        """
        capsule = self._find(source)
        place = capsule.segment.place
        place.retain()
        self.device.mark(Lane.CONTROL)
        return Held(capsule, place)

    def read(self, held: Held) -> CapsuleImage:
        """Copies a capsule that is held to the host and lets go of it.

        From any thread; control steps go on beside it.

        Raises:
            NotConfiguredError: The session is closed.
            StorageError: It lies in a file, which cannot be read.
            CorruptError: That file was changed.
        """
        try:
            self._check_open()
            return self._image(held.capsule, held.place)
        finally:
            held.release()

    def check_facts(self, facts: CapsuleFacts, allow_inexact: bool = False) -> None:
        """Raises if a capsule with these facts may not be imported; from any thread.

        Raises:
            StateMismatchError: It belongs to another policy, configuration, weights or layout.
            ExecMismatchError: It was made on another device, library or kernel choice, or with
                another capacity of rows.
            NoMemoryError: It has more rows than there is room for.
            CorruptError: Its host record is none that this policy can be in.
        """
        self._check_open()
        self._check_fit(facts, allow_inexact)
        most = self.policy.chunk_size
        if facts.host.length > most:
            raise CorruptError(
                f"capsule {facts.name!r}: host.length: expected at most the chunk size {most},"
                f" found {facts.host.length}"
            )
        check_rows(self.layout, facts)

    def stage(self, image: CapsuleImage, allow_inexact: bool = False) -> StagedCapsule:
        """Checks an image and lays it out for the copy to the device; from any thread.

        Raises:
            NotConfiguredError: The session is closed.
            StateMismatchError: As ``check_facts``.
            ExecMismatchError: As ``check_facts``.
            NoMemoryError: As ``check_facts``.
            CorruptError: As ``check_facts``, or its buffers are not the session's.
        """
        self.check_facts(image.facts, allow_inexact)
        state = lay_out(self.layout, image)
        return StagedCapsule(image.facts, state, noise_key_of(image))

    def import_(
        self, source: CapsuleImage | StagedCapsule, name: str = "", allow_inexact: bool = False
    ) -> Capsule:
        """Puts a capsule from outside into the store and waits for the copy to the device.

        The live state does not change. The capsule keeps its id, by which others name it as
        their parent, unless a capsule here has it. It is neither pinned nor automatic. Where the
        control thread must not wait it calls ``begin_import`` and ``commit_import``, and another
        thread ``carry_import`` in between.

        Args:
            source: An image, or what ``stage`` made of it.
            name: Empty: the one that it brings.
            allow_inexact: Accept another exec id; a restore must accept it, too.

        Raises:
            NotConfiguredError: The session is closed.
            StateMismatchError: As ``check_facts``.
            ExecMismatchError: As ``check_facts``.
            CorruptError: As ``stage``.
            InvalidNameError: The name does not match ``CAPSULE_NAME``.
            AlreadyExistsError: The name is taken.
            NoMemoryError: As ``check_facts``, or no storage is left, and nothing may be evicted.
        """
        self._check_open()
        if isinstance(source, CapsuleImage):
            source = self.stage(source, allow_inexact)
        arrival = self.begin_import(source, name, allow_inexact)
        try:
            self.carry_import(arrival)
            return self.commit_import(arrival)
        except BaseException:
            self.give_back_import(arrival)
            raise

    def begin_import(
        self, staged: StagedCapsule, name: str = "", allow_inexact: bool = False
    ) -> Arrival:
        """Takes the storage for a capsule; the others must follow.

        Raises:
            FlashRTError: As ``import_``; nothing was changed.
        """
        self._check_open()
        self.check_facts(staged.facts, allow_inexact)
        name = name or staged.facts.name
        self.store.check_free(name)
        place = self._reserve(staged.facts.host.rows)
        self.device.mark(Lane.CONTROL)
        return Arrival(staged, name, place, list(self.last_evicted))

    def carry_import(self, arrival: Arrival) -> None:
        """Copies to the device; from any thread, and control steps go on beside it.

        Raises:
            NotConfiguredError: The session is closed.
        """
        self._carry(arrival.place.views(), arrival.staged.state.views())

    def commit_import(self, arrival: Arrival) -> Capsule:
        """Puts the capsule into the store, its bytes being there.

        Raises:
            NotConfiguredError: The session is closed.
            AlreadyExistsError: The name was taken meanwhile.
        """
        self._check_open()
        facts, name = arrival.staged.facts, arrival.name
        self.store.check_free(name)
        layout = self.layout
        segment = Segment(arrival.place, layout.fixed_bytes)
        segment.noise_key = arrival.staged.noise_key
        capsule = Capsule(
            id=new_id() if facts.id in self.store or facts.id == name else facts.id,
            name=name,
            parent_id=facts.parent_id,
            host=copy.copy(facts.host),
            tick=facts.tick,
            generation=facts.generation,
            created_ns=facts.created_ns,
            state_fingerprint=facts.state_fingerprint,
            exec_fingerprint=facts.exec_fingerprint,
            size_bytes=layout.fixed_bytes + facts.host.rows * layout.row_bytes,
            segment=segment,
            noise_key=facts.noise_key,
        )
        self.store.put(capsule)
        return capsule

    def give_back_import(self, arrival: Arrival) -> None:
        """Ends a load that failed; from any thread."""
        arrival.place.release()
