"""Behaviours that the experiment's trees have besides those of ``flashrt_ros.trees``.

All are asynchronous: a tick never waits. Times are taken from a clock that is handed in, so that
tests need none.
"""

from __future__ import annotations

from collections.abc import Callable

from py_trees.behaviour import Behaviour
from py_trees.common import Status
from std_srvs.srv import Trigger

from flashrt_ros.trees import ServiceBehaviour

ARM = "arm"
"""Name of the arm's node."""
Clock = Callable[[], float]
"""Seconds on a steady clock."""


class Home(ServiceBehaviour):
    """Sends the arm home; SUCCESS when it has heard."""

    verb, kind = "home", Trigger

    def __init__(self) -> None:
        """The same for every arm."""
        super().__init__(policy=ARM)


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


class Until(Behaviour):
    """RUNNING until a condition holds; FAILURE if that takes too long, or will never be.

    Attributes:
        overdue: Whether it failed since that took too long.
    """

    def __init__(
        self,
        name: str,
        condition: Callable[[], bool],
        timeout_s: float,
        clock: Clock,
        begin: Callable[[], None] | None = None,
        hopeless: Callable[[], bool] = lambda: False,
        found: Callable[[], str] = lambda: "",
    ) -> None:
        """Prepares the wait.

        Args:
            name: In the tree.
            condition: Asked at each tick.
            timeout_s: From the first tick.
            clock: Steady clock.
            begin: Done before the first question.
            hopeless: Asked where the condition does not hold: whether it never will.
            found: How far it had come when it took too long, in words.
        """
        super().__init__(name)
        self.condition, self.timeout_s, self.clock, self.begin = condition, timeout_s, clock, begin
        self.hopeless, self.found = hopeless, found
        self.overdue = False

    def initialise(self) -> None:
        """Looks at the clock; called at the first tick."""
        self._deadline_s = self.clock() + self.timeout_s
        self.feedback_message, self.overdue = "", False
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
        self.overdue = True
        words = [f"{self.name}: not within {self.timeout_s} s", self.found()]
        self.feedback_message = ", ".join(filter(None, words))
        return Status.FAILURE
