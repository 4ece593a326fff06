"""The capsule: an immutable, named, complete execution state at a boundary."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from flashrt_ros.errors import InvalidNameError
from flashrt_ros.runtime.fingerprint import Fingerprint
from flashrt_ros.runtime.policy import HostRecord
from flashrt_ros.runtime.pool import Segment

CAPSULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def check_name(name: str) -> str:
    """Returns ``name``.

    Raises:
        InvalidNameError: It does not match ``CAPSULE_NAME``.
    """
    if not isinstance(name, str) or not CAPSULE_NAME.fullmatch(name):
        raise InvalidNameError(
            f"capsule name {name!r}: expected 1 to 128 letters, digits, '_', '.' or '-', the first"
            " a letter or digit"
        )
    return name


def new_id() -> str:
    """Returns 12 random hex digits."""
    return secrets.token_hex(6)


@dataclass(frozen=True)
class Capsule:
    """One state of one policy; the bytes are in ``segment``, which branches share.

    Attributes:
        id: 12 hex digits, never used twice.
        name: Unique in its store.
        parent_id: Capsule that the state descends from; empty: a reset.
        host: Host record at the boundary; not to be written.
        tick: Control steps of the session at the boundary.
        generation: Generation under which it was made.
        created_ns: System clock.
        state_fingerprint: What must match to restore at all.
        exec_fingerprint: What must match for a bit-equal continuation.
        size_bytes: State that it stands for, rows included.
        segment: Its bytes and rows, shared by reference count.
        noise_key: Unsigned key that a restore sets; None: the key in the segment goes on. The
            noise counter always goes on from the segment.
        pinned: Never evicted, and dropped only by force.
        automatic: Made by the rollback ring.
        boundaries: Ids of the ring's boundaries on the way to this state, oldest first.
    """

    id: str
    name: str
    parent_id: str
    host: HostRecord
    tick: int
    generation: int
    created_ns: int
    state_fingerprint: Fingerprint
    exec_fingerprint: Fingerprint
    size_bytes: int
    segment: Segment
    noise_key: int | None = None
    pinned: bool = False
    automatic: bool = False
    boundaries: tuple[str, ...] = ()

    @property
    def state_id(self) -> str:
        """Id of ``state_fingerprint``."""
        return self.state_fingerprint.id

    @property
    def exec_id(self) -> str:
        """Id of ``exec_fingerprint``."""
        return self.exec_fingerprint.id

    @property
    def key(self) -> int:
        """Unsigned noise key that is live after a restore of this capsule."""
        return self.segment.noise_key if self.noise_key is None else self.noise_key
