"""The behaviour that calls one service of a policy node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from py_trees.common import Status

from flashrt_ros.errors import FlashRTError
from flashrt_ros.trees.call import Call
from flashrt_ros.trees.key import Board
from flashrt_ros.trees.linked import Linked

TIMEOUT_S = 5.0


class ServiceBehaviour(Linked):
    """Calls a service once: RUNNING until it answers, SUCCESS or FAILURE by what it answers.

    FAILURE also without an answer in time, without the service, or where an argument is not to be
    had; ``feedback_message`` says which, with the name of the error code and the node's words.

    A service of the robot's own becomes a behaviour as well, if its response has ``success`` and
    ``message``; ``policy`` is then the name of its node:

        class Home(ServiceBehaviour):
            verb, kind = "home", Trigger

    Interrupted, it lets go of the call; the node may yet carry it out. Ticked again directly after
    a time-out, it asks with the same ``request_id``, so that nothing is done twice.

    Attributes:
        argument_of: By field of the request, the argument of the constructor, if named otherwise.
        response: The last answer, whatever it says; None without one.
        took_ms: Steady clock, from sending to the answer; NaN without one.
    """

    verb = ""
    argument_of: Mapping[str, str] = MappingProxyType({"name": "capsule"})

    def __init__(
        self,
        name: str = "",
        arguments: Mapping[str, Any] | None = None,
        results: Mapping[str, Callable[[Any], Any]] | None = None,
        *,
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
        response_key: str = "",
    ) -> None:
        """Prepares the call; it is sent at the first tick.

        Args:
            name: In the tree; that of the service if empty.
            arguments: Fields of the request, values or ``Key``.
            results: By key of the blackboard, what of the response is written there.
            policy: Name of the policy node.
            timeout_s: From the first tick to the answer, waiting for the service included.
            response_key: Gets the whole response of a success.
        """
        super().__init__(name or self.verb)
        self.policy, self.timeout_s = policy, timeout_s
        self.services = (self.verb,)
        self.response: Any = None
        self.took_ms = float("nan")
        self._arguments = dict(arguments or {})
        self._results = {key: take for key, take in (results or {}).items() if key}
        if response_key:
            self._results[response_key] = lambda response: response
        self._board = Board(self)
        for value in self._arguments.values():
            self._board.reads(value)
        for key in self._results:
            self._board.writes(key)
        self._call: Call | None = None
        self._problem = ""

    def initialise(self) -> None:
        """Sends the request; called at the first tick, and again after each completion."""
        self.response, self.took_ms, self._problem = None, float("nan"), ""
        before, self._call = self._call, None
        if self.link is None:
            self._problem = self.not_set_up()
            return
        try:
            fields = {
                field: self._board.value(self.argument_of.get(field, field), value)
                for field, value in self._arguments.items()
            }
            self._call = self.link.begin(
                self.verb, fields, self.timeout_s, before, argument_of=self.argument_of
            )
        except FlashRTError as error:
            self._problem = f"{self.name}: {error}"

    def update(self) -> Status:
        """Looks for the answer; called at each tick, and never waits."""
        if self._problem:
            self.feedback_message = self._problem
            return Status.FAILURE
        assert self._call is not None
        assert self.link is not None
        if not self._call.poll():
            absent = self._call.waits_for
            self.feedback_message = f"waits for service {absent}" if absent else ""
            return Status.RUNNING
        self.response, self.took_ms = self._call.response, self._call.took_ms
        if self._call.problem:
            self.feedback_message = self._call.problem
            return Status.FAILURE
        self.link.heard(self.response)
        for key, take in self._results.items():
            self._board.write(key, take(self.response))
        self.feedback_message = self.response.message
        return Status.SUCCESS

    def terminate(self, new_status: Status) -> None:
        """Lets go of an unanswered call; called at completion and when interrupted."""
        # One that may yet be done is kept: the next may be the same again, with the same id.
        if self._call is not None and not self._call.unknown:
            self._call.let_go()
            self._call = None
