"""Behaviours that the experiment's trees are built of; they know services, not ROS.

All are asynchronous: a tick never waits. Times are taken from a clock that is handed in, so that
tests need none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from py_trees.behaviour import Behaviour
from py_trees.common import Status

Clock = Callable[[], float]
"""Seconds on a steady clock."""


class Call(Protocol):
    """A service call under way."""

    @property
    def response(self) -> Any:
        """None until it is there."""

    def forget(self) -> None:
        """Nobody waits any longer; the service may yet do what was asked."""


class Services(Protocol):
    """Whoever can call the services that the trees need."""

    def begin(self, verb: str, fields: Mapping[str, object]) -> Call:
        """Sends a request.

        Args:
            verb: Name of the service, e.g. ``snapshot``.
            fields: Fields of the request that differ from their defaults.
        """


class CallService(Behaviour):
    """Calls a service once; FAILURE if it answers ``success=false``, or not in time.

    The answer is kept in ``response``, what was wrong in ``feedback_message``.
    """

    def __init__(
        self,
        verb: str,
        services: Services,
        fields: Mapping[str, object] | Callable[[], Mapping[str, object]] = {},  # noqa: B006
        *,
        clock: Clock,
        timeout_s: float = 5.0,
        then: Callable[[Any], None] | None = None,
        name: str = "",
    ) -> None:
        """Prepares a call; it is sent at the first tick.

        Args:
            verb: Name of the service.
            services: Sends it.
            fields: Fields of the request, or what makes them when the call is sent.
            clock: Steady clock.
            timeout_s: From sending to the answer.
            then: Given the answer of a successful call.
            name: In the tree; the verb if empty.
        """
        super().__init__(name or verb)
        self.verb, self.services, self.fields = verb, services, fields
        self.clock, self.timeout_s, self.then = clock, timeout_s, then
        self.response: Any = None
        self._call: Call | None = None

    def initialise(self) -> None:
        """Sends the request; called at the first tick, and again after each completion."""
        self.response = None
        fields = self.fields() if callable(self.fields) else self.fields
        self._deadline_s = self.clock() + self.timeout_s
        self._call = self.services.begin(self.verb, fields)

    def update(self) -> Status:
        """Looks for the answer; called at each tick."""
        assert self._call is not None
        self.response = self._call.response
        if self.response is None:
            if self.clock() < self._deadline_s:
                return Status.RUNNING
            self.feedback_message = f"{self.verb}: no answer within {self.timeout_s} s"
            return Status.FAILURE
        if not self.response.success:
            code = getattr(self.response, "error_code", None)
            self.feedback_message = f"{self.verb}: error {code}: {self.response.message}"
            return Status.FAILURE
        self.feedback_message = self.response.message
        if self.then is not None:
            self.then(self.response)
        return Status.SUCCESS

    def terminate(self, new_status: Status) -> None:
        """Lets go of a call that was not answered; called at completion and when interrupted."""
        if self._call is not None and self._call.response is None:
            self._call.forget()
        self._call = None


class Do(Behaviour):
    """Does something that takes no time, once; always SUCCESS."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        """Args: see the class."""
        super().__init__(name)
        self.action = action

    def update(self) -> Status:
        """Does it."""
        self.action()
        return Status.SUCCESS


class Wait(Behaviour):
    """RUNNING for a while, then SUCCESS."""

    def __init__(self, name: str, duration_s: float, clock: Clock) -> None:
        """Args: see the class."""
        super().__init__(name)
        self.duration_s, self.clock = duration_s, clock

    def initialise(self) -> None:
        """Looks at the clock; called at the first tick."""
        self._until_s = self.clock() + self.duration_s

    def update(self) -> Status:
        """Looks again; called at each tick."""
        # Half a microsecond of rounding must not cost a tick.
        return Status.RUNNING if self.clock() < self._until_s - 5e-7 else Status.SUCCESS


class Until(Behaviour):
    """RUNNING until a condition holds; FAILURE if that takes too long, or will never be."""

    def __init__(
        self,
        name: str,
        condition: Callable[[], bool],
        timeout_s: float,
        clock: Clock,
        begin: Callable[[], None] | None = None,
        hopeless: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepares the wait.

        Args:
            name: In the tree.
            condition: Asked at each tick.
            timeout_s: From the first tick.
            clock: Steady clock.
            begin: Done before the first question.
            hopeless: Asked where the condition does not hold: whether it never will.
        """
        super().__init__(name)
        self.condition, self.timeout_s, self.clock, self.begin = condition, timeout_s, clock, begin
        self.hopeless = hopeless

    def initialise(self) -> None:
        """Looks at the clock; called at the first tick."""
        self._deadline_s = self.clock() + self.timeout_s
        self.feedback_message = ""
        if self.begin is not None:
            self.begin()

    def update(self) -> Status:
        """Asks; called at each tick."""
        if self.condition():
            return Status.SUCCESS
        if self.hopeless():
            self.feedback_message = f"{self.name}: will not be any more"
            return Status.FAILURE
        if self.clock() < self._deadline_s:
            return Status.RUNNING
        self.feedback_message = f"{self.name}: not within {self.timeout_s} s"
        return Status.FAILURE
