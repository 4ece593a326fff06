"""A control step that can be taken back: for first commands that turn out to be unsafe.

Whether a first command is safe is known only once the policy has made it. A command that never
left must not have moved the policy's memory either, else a capsule that was restored would be used
up by looking at it. Nothing else is undone: the caller must not have told anybody of the step.
"""

from __future__ import annotations

import copy
from typing import Any

from flashrt_ros.runtime.device import Lane


class Trial:
    """One spare copy of a session's state, allocated once."""

    STATES = 1
    """Copies of the state that it allocates on the device, for the memory forecast."""

    def __init__(self, session: Any) -> None:
        """Allocates the copy; in the control thread."""
        self._session = session
        self._guard = session.device.allocate(session.layout.fixed_bytes)
        self._host = copy.copy(session.host)
        self._tick = session.tick
        self._open = False

    def begin(self) -> None:
        """Remembers the present boundary."""
        session = self._session
        with session.device.bind(Lane.CONTROL):
            session.device.copy_(self._guard, session.arena.fixed)
        self._host = copy.copy(session.host)
        self._tick = session.tick
        self._open = True

    def take_back(self) -> bool:
        """Returns to the boundary that ``begin`` remembered; False if there is none."""
        if not self._open:
            return False
        session = self._session
        with session.device.bind(Lane.CONTROL):
            session.device.copy_(session.arena.fixed, self._guard)
        session.host = copy.copy(self._host)
        session.tick = self._tick
        session.boundary_returned()
        self._open = False
        return True

    def commit(self) -> None:
        """The step stands."""
        self._open = False
