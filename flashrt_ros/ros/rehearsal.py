"""Goes through the motions of a command while a device computes the action.

The wait takes milliseconds, in which other work pushes code and data of the control thread out of
the processor's caches; what follows then takes many times as long as it does when it is warm.
"""

from __future__ import annotations

from flashrt_ros.ros.commander import Commander
from flashrt_ros.runtime.session import PolicySession

WORTH_NS = 1_000_000
"""Waits that are shorter leave no time for it."""


class Rehearsal:
    """Called in each act of a session, once everything is enqueued on the device."""

    def __init__(self, session: PolicySession, commander: Commander) -> None:
        """Knows who waits, and what comes then."""
        self._session, self._commander = session, commander

    def __call__(self) -> None:
        """Rehearses a command if the last act was waited for long enough."""
        if self._session.waited_ns > WORTH_NS:
            self._commander.rehearse()
