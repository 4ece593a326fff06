"""Capsules out of a session and into one: to the host and back, across processes by files."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from flashrt_ros.errors import CorruptError, UnsupportedError
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.capsule import Capsule, new_id
from flashrt_ros.runtime.capsule_image import CapsuleFacts, CapsuleImage, HostBuffer
from flashrt_ros.runtime.device import Lane
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.verbs import Verbs


@dataclass(frozen=True)
class StagedCapsule:
    """An image that was found to fit a session, laid out as its arena is.

    Attributes:
        facts: Of the image.
        section_N: ``(fixed_bytes,)`` uint8 on the host, pinned on CUDA; padding is zero.
        noise_key: Unsigned key within these bytes.
    """

    facts: CapsuleFacts
    section_N: torch.Tensor
    noise_key: int


class Transfer(Verbs):
    """Export and import; files are the business of others, outside the control thread."""

    policy: Policy

    def export(self, source: str | Capsule) -> CapsuleImage:
        """Returns a copy of a capsule on the host, complete on return: one copy from the device.

        The capsule may be evicted or dropped afterwards; the image stays. Where the control thread
        must not wait for the copy, it calls ``hold`` and another thread ``read``.

        Args:
            source: Name, id or the capsule itself.

        Raises:
            NotConfiguredError: The session is closed.
            NotFoundError: There is no such capsule, or no longer.
            UnsupportedError: It has rows, which files do not hold.
        """
        return self.read(self.hold(source))

    def hold(self, source: str | Capsule) -> Capsule:
        """Returns a capsule whose bytes stay until ``read``, even if it is dropped meanwhile.

        Raises:
            NotConfiguredError: The session is closed.
            NotFoundError: There is no such capsule, or no longer.
            UnsupportedError: It has rows, which files do not hold.
        """
        capsule = self._find(source)
        if capsule.segment.rows is not None:
            raise UnsupportedError(
                f"capsule {capsule.name!r}: the state of policy {self.policy.family!r} grows by"
                f" rows ({', '.join(slot.spec.name for slot in self.arena.layout.rows)}), which"
                " capsule files do not hold; keep the capsule in the store"
            )
        capsule.segment.retain()
        self.device.mark(Lane.CONTROL)
        return capsule

    def read(self, capsule: Capsule) -> CapsuleImage:
        """Copies a capsule that is held to the host and lets go of it.

        From any thread, but only one at a time; control steps go on beside it.

        Raises:
            NotConfiguredError: The session is closed.
        """
        try:
            with self.device.bind(Lane.STORAGE):
                self.device.follow(Lane.CONTROL)
                section_N = self.device.to_host(capsule.segment.bytes)
            layout = self.arena.layout
        finally:
            capsule.segment.release()
        view = section_N.numpy().data
        buffers = tuple(
            HostBuffer(
                slot.spec.name,
                slot.spec.dtype,
                tuple(slot.spec.shape),
                view[slot.offset : slot.offset + slot.size_bytes],
            )
            for slot in layout.state
        )
        facts = CapsuleFacts(
            id=capsule.id,
            name=capsule.name,
            parent_id=capsule.parent_id,
            created_ns=capsule.created_ns,
            tick=capsule.tick,
            generation=capsule.generation,
            noise_key=capsule.noise_key,
            host=copy.copy(capsule.host),
            state_fingerprint=capsule.state_fingerprint,
            exec_fingerprint=capsule.exec_fingerprint,
        )
        return CapsuleImage(facts, buffers)

    def check_facts(self, facts: CapsuleFacts, allow_inexact: bool = False) -> None:
        """Raises if a capsule with these facts may not be imported; from any thread.

        Raises:
            StateMismatchError: It belongs to another policy, configuration, weights or layout.
            ExecMismatchError: It was made on another device, library or kernel choice.
            CorruptError: Its host record is none that this policy can be in.
        """
        self._check_fit(facts, allow_inexact)
        most = self.policy.chunk_size
        if facts.host.length > most:
            raise CorruptError(
                f"capsule {facts.name!r}: host.length: expected at most the chunk size {most},"
                f" found {facts.host.length}"
            )

    def stage(self, image: CapsuleImage, allow_inexact: bool = False) -> StagedCapsule:
        """Checks an image and lays it out for the one copy of ``import_``; from any thread.

        Raises:
            NotConfiguredError: The session is closed.
            StateMismatchError: As ``check_facts``.
            ExecMismatchError: As ``check_facts``.
            CorruptError: As ``check_facts``, or its buffers are not the session's.
        """
        self.check_facts(image.facts, allow_inexact)
        layout = self.arena.layout
        buffers: Mapping[str, HostBuffer] = image.by_name()
        section_N = self.device.allocate_host(layout.fixed_bytes)
        bytes_N = section_N.numpy()
        for slot in layout.state:
            buffer = buffers.get(slot.spec.name)
            size_bytes = -1 if buffer is None else len(buffer.data)
            if buffer is None or size_bytes != slot.size_bytes:
                raise CorruptError(
                    f"buffer {slot.spec.name!r}: expected {slot.size_bytes} bytes, found"
                    f" {'none' if buffer is None else size_bytes}"
                )
            into_N = bytes_N[slot.offset : slot.offset + slot.size_bytes]
            into_N[:] = np.frombuffer(buffer.data, dtype=np.uint8)
        key = int.from_bytes(buffers[noise.KEY].data, "little")
        return StagedCapsule(image.facts, section_N, key)

    def import_(
        self, source: CapsuleImage | StagedCapsule, name: str = "", allow_inexact: bool = False
    ) -> Capsule:
        """Puts a capsule from outside into the store: one copy to the device.

        The live state does not change. The capsule keeps its id, by which others name it as
        their parent, unless a capsule here has it. It is neither pinned nor automatic.

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
            NoMemoryError: No storage is left, and nothing may be evicted.
        """
        self._check_open()
        if isinstance(source, CapsuleImage):
            source = self.stage(source, allow_inexact)
        facts = source.facts
        self.check_facts(facts, allow_inexact)
        name = name or facts.name
        self.store.check_free(name)
        segment, evicted = self.store.reserve()
        self.last_evicted = [capsule.name for capsule in evicted if not capsule.automatic]
        try:
            with self.device.bind(Lane.CONTROL):
                self.device.copy_(segment.bytes, source.section_N)
                # The host's copy may be gone as soon as this returns.
                self.device.synchronize()
        except BaseException:
            segment.release()
            raise
        segment.noise_key = source.noise_key
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
            size_bytes=segment.size_bytes,
            segment=segment,
            noise_key=facts.noise_key,
        )
        self.store.put(capsule)
        return capsule
