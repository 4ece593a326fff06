"""Behaviours that call several services and tick children in between, written as one generator."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from hashlib import sha256
from typing import Any

from py_trees.behaviour import Behaviour
from py_trees.common import Status

from flashrt_ros.errors import ErrorCode, FlashRTError
from flashrt_ros.trees.call import Call
from flashrt_ros.trees.key import Board
from flashrt_ros.trees.linked import Linked
from flashrt_ros.trees.service import TIMEOUT_S

Steps = Generator[Behaviour | None, None, Any]
"""Yields each behaviour that was visited, and None where a tick ends and the next one goes on."""
BUSY_S = 0.02
"""Pause before a request is repeated that was refused as BUSY."""


class CallError(Exception):
    """A call of a script was refused or lost; the words say which and why."""

    def __init__(self, words: str, lost: bool) -> None:
        """Args: see the class; ``lost``: it is not known whether the work was done."""
        super().__init__(words)
        self.lost = lost


class Script(Linked):
    """A behaviour whose ticks are the steps of ``script``; to be mixed in before its kind.

    Whatever ends it, no call of its stays under way and no child stays running; the capsules that
    it has named with ``keep`` are dropped.

    Attributes:
        timeout_s: For each of its calls.
    """

    timeout_s = TIMEOUT_S
    status: Status

    def begin_script(self, policy: str, timeout_s: float, services: Sequence[str]) -> None:
        """What a constructor has to set, after that of the behaviour's kind.

        Args:
            policy: Name of the policy node.
            timeout_s: For each call.
            services: Those that the script calls besides ``drop_capsule``.
        """
        self.policy, self.timeout_s = policy, timeout_s
        self.services = (*services, "drop_capsule")
        self._steps: Steps | None = None
        self._calls: list[Call] = []
        self._kept: list[str] = []
        self._board = Board(self)

    def script(self) -> Steps:
        """The steps of one round.

        Returns:
            The status in which it ends.
        """
        raise NotImplementedError

    # Steps, to be used with ``yield from``

    def ask(self, service: str, patient: bool = False, **fields: Any) -> Steps:
        """Calls a service.

        Args:
            service: Its name.
            patient: Ask again where it is refused as BUSY, until the time is up.
            **fields: Of the request.

        Returns:
            The response, one of success.

        Raises:
            CallError: Refused, or lost.
        """
        assert self.link is not None
        end_s = self.link.clock() + self.timeout_s
        while True:
            call = self._begin(service, fields)
            yield from self._until_over(call)
            again = patient and call.code == ErrorCode.BUSY and self.link.clock() < end_s
            if not again:
                break
            rest_s = self.link.clock() + BUSY_S
            while self.link.clock() < rest_s:
                yield None
        if call.problem:
            raise CallError(call.problem, call.code is ErrorCode.TIMEOUT)
        self.link.heard(call.response)
        return call.response

    def run(self, child: Behaviour) -> Steps:
        """Ticks a child until it is done.

        Returns:
            Its status.
        """
        while True:
            yield from child.tick()
            if child.status is not Status.RUNNING:
                return child.status
            yield None

    def drop(self, spare: str = "") -> Steps:
        """Drops what ``keep`` has named; what cannot be dropped is left to the node.

        Args:
            spare: The one that stays.
        """
        assert self.link is not None
        names = [name for name in self._kept if name != spare]
        self._kept.clear()
        calls = [self.link.drop(name, self.timeout_s) for name in names]
        self._calls += calls
        for call in calls:
            yield from self._until_over(call)

    def keep(self, *names: str) -> None:
        """Has capsules dropped when the script is interrupted; before they are made."""
        self._kept += names

    def _begin(self, service: str, fields: dict[str, Any]) -> Call:
        assert self.link is not None
        try:
            call = self.link.begin(service, fields, self.timeout_s)
        except FlashRTError as error:
            raise CallError(f"{service}: {error}", lost=False) from None
        self._calls.append(call)
        return call

    def _until_over(self, call: Call) -> Steps:
        while not call.poll():
            yield None
        self._calls.remove(call)

    # Called by py_trees

    def tick(self) -> Iterator[Behaviour]:
        """Goes on with the script until it waits or ends; called at each tick."""
        if self.status is not Status.RUNNING:
            for child in self.children:
                if child.status is not Status.INVALID:
                    child.stop(Status.INVALID)
            self.feedback_message = ""
            self.initialise()
            self._steps = self._whole()
        assert self._steps is not None
        status = Status.RUNNING
        try:
            while (visited := next(self._steps)) is not None:
                yield visited
        except StopIteration as end:
            status = end.value
        except Exception:
            self.stop(Status.INVALID)  # a child raised: what it began ends all the same
            raise
        if status is Status.RUNNING:
            self.status = status
        else:
            self.stop(status)
        yield self

    def update(self) -> Status:
        """Of no use here: ``tick`` does all."""
        return self.status

    def terminate(self, new_status: Status) -> None:
        """Lets go of what is under way; called at completion and when interrupted."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()
        drops = [call for call in self._calls if call.verb == "drop_capsule"]
        for call in self._calls:
            if call not in drops or self.link is None:
                call.let_go()
        self._calls.clear()
        names, self._kept = self._kept, []
        if self.link is not None:
            self.link.see_off(drops)
            self.link.farewell(names)

    def _whole(self) -> Steps:
        if self.link is None:
            self.feedback_message = self.not_set_up()
            return Status.FAILURE
        try:
            return (yield from self.script())
        except (CallError, FlashRTError) as error:
            self.feedback_message = f"{self.name}: {error}"
            return Status.FAILURE


def words_of(child: Behaviour) -> str:
    """Why a child failed: the words of the deepest behaviour that says something."""
    tip = child.tip()
    found = [node.feedback_message for node in (tip, child) if node is not None]
    return f"{child.name}: {next(filter(None, found), 'failed')}"


def seed_from(text: str) -> int:
    """A noise key that depends on the text alone, ``0 <= seed < 2**63``."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "little") >> 1
