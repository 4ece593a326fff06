"""A session driven as the node drives it, with plans that take a number of control periods.

The plan really runs in a thread of its own; that it takes so long is decided by a gate, not by a
clock. It computes only when the gate opens: what it reads must by then still be as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from flashrt_ros.runtime.policy import Action, Buffers, Policy
from flashrt_ros.runtime.session import PolicySession

PATIENCE_S = 20.0


class Gate:
    """Makes the plans of a policy wait until they are let go."""

    def __init__(self, policy: Policy) -> None:
        self.shut = False
        self.entered = threading.Event()
        self._leave = threading.Semaphore(0)
        plan = policy.plan

        def gated(state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
            self.entered.set()
            if self.shut:
                assert self._leave.acquire(timeout=PATIENCE_S)
            plan(state, inputs, outputs)

        policy.plan = gated  # type: ignore[method-assign]

    def let_go(self) -> None:
        """Lets one plan compute."""
        self._leave.release()


class Periods:
    """Control periods, each beginning with the adoption of the plan whose time has come.

    Attributes:
        session: The session.
        missed: Periods without an action, since nothing was left of the chunk.
        refused: Plans that were done and not adopted.
    """

    def __init__(self, policy: Policy, takes: int, plan_ahead: int, **options: Any) -> None:
        self.gate = Gate(policy)
        self.session = PolicySession(policy, **options)
        self.gate.shut = True
        self.missed = self.refused = 0
        self._takes, self._ahead = takes, plan_ahead
        self._age = 0
        self._thread: threading.Thread | None = None
        self._ticket: Any = None

    @property
    def planning(self) -> bool:
        return self._ticket is not None

    def period(self, observations: Mapping[str, Any]) -> Action | None:
        """One control period; None where there is nothing to take."""
        session = self.session
        if self._ticket is not None and self._age >= self._takes:
            self.finish()
        left = session.rows_left
        if left <= self._ahead and self._ticket is None:
            self._begin(observations, min(self._takes, left))
        self._age += 1
        if not left:
            self.missed += 1
            return None
        return session.act(observations if session.policy.act_observes else None)

    def step(self, observations: Mapping[str, Any]) -> Action:
        """Periods until there is an action."""
        while (action := self.period(observations)) is None:
            pass
        return action

    def close(self) -> None:
        """Ends the plan under way and the session."""
        if self._thread is not None:
            self.gate.let_go()
            self._thread.join(PATIENCE_S)
        self.session.close()

    def _begin(self, observations: Mapping[str, Any], delay: int) -> None:
        self.gate.entered.clear()
        self._ticket = self.session.begin_plan(observations, delay)
        self._age = 0
        self._thread = threading.Thread(target=self.session.run_plan, args=(self._ticket,))
        self._thread.start()
        assert self.gate.entered.wait(PATIENCE_S)

    def finish(self) -> bool:
        """The plan under way gets done, and is offered for adoption."""
        assert self._thread is not None
        self.gate.let_go()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        ticket, self._ticket, self._thread = self._ticket, None, None
        adopted = self.session.adopt(ticket)
        self.refused += not adopted
        return adopted


@pytest.fixture
def driven() -> Iterator[Callable[..., Periods]]:
    """Makes ``Periods``, all of which are closed in the end."""
    made: list[Periods] = []

    def make(*arguments: Any, **options: Any) -> Periods:
        made.append(Periods(*arguments, **options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()
