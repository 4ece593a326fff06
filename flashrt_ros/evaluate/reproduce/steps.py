"""One control step again: observations from the messages on record, plans where they began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flashrt_ros.contract.message import Array
from flashrt_ros.contract.rebuild import Rebuilder, array_digest
from flashrt_ros.contract.sample import InputStamp
from flashrt_ros.evaluate.reproduce.finding import Input, Lost
from flashrt_ros.evaluate.reproduce.journal import Plan, Run, Step, Vector
from flashrt_ros.evaluate.reproduce.messages import NamedMessages
from flashrt_ros.runtime.policy import Action, PlanKind
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.runtime.ticket import PlanTicket


class MissingError(Exception):
    """What a step needs is not in the recording."""

    def __init__(self, lost: Lost, words: str, inputs: tuple[Input, ...] = ()) -> None:
        super().__init__(words)
        self.lost, self.inputs = lost, inputs


class OtherwiseError(Exception):
    """The session came to another turn than the node's did."""


@dataclass(frozen=True)
class Again:
    """What came of one control step.

    Attributes:
        predicted: ``(A,)`` float64, as the policy gave it.
        observation_digest: Of the arrays that it, or the plan adopted for it, saw; 0: none.
    """

    predicted: Vector
    observation_digest: int


@dataclass(frozen=True)
class _Begun:
    """A plan that was made; its chunk waits for the step that adopts it."""

    plan: Plan
    ticket: PlanTicket | None
    digest: int = 0
    missing: MissingError | None = None


class Steps:
    """Does the steps of one session; verbs between them are the business of others."""

    def __init__(
        self, session: PolicySession, rebuilder: Rebuilder, messages: NamedMessages
    ) -> None:
        """Takes over a session."""
        self._session = session
        self._rebuilder = rebuilder
        self._messages = messages
        self._beside = session.policy.plan_kind is PlanKind.BESIDE
        self._observes = self._beside and session.policy.act_observes
        self._begun: _Begun | None = None
        self._since = 0

    def samples(self, step: Step) -> list[tuple[InputStamp, ...]]:
        """What a step, or the plan adopted for it, is computed from: to be asked for once each."""
        return samples_of(step, self._beside, self._observes)

    def step(self, step: Step, run: Run) -> Again:
        """Does it.

        Raises:
            MissingError: The recording lacks a message.
            OtherwiseError: What is on record cannot be done with the state as it is.
            FlashRTError: The policy or the contract refuses what is on record.
        """
        session = self._session
        if not self._beside:
            action, digest = self._on_this_thread(step)
        else:
            digest = self._adopt(step)
            later = run.begins.get(step.where.tick)
            if later is not None:
                self._begin(later, step.where.time_ns)
            session.host.task = step.task
            observations = None
            if self._observes:
                observations = self._observations(step.act_stamps, step.where.time_ns)
            if session.plan_due:
                raise OtherwiseError("the chunk is used up here, and was not on the robot")
            action = session.act(observations)
        self._check(action, step)
        return Again(action.values.numpy().astype(np.float64), digest)

    def pass_over(self, step: Step) -> None:
        """A step that cannot be done: nothing waits for its messages any more."""
        plan, begun = step.plan, self._begun
        mine = plan is not None and begun is not None and begun.plan.tick == plan.tick
        for stamps in self.samples(step):
            if mine and plan is not None and stamps is plan.stamps:
                self._begun = None  # they were asked for when it began
                continue
            self._skip(stamps)

    def _skip(self, stamps: Sequence[InputStamp]) -> None:
        for key in self._rebuilder.needed(stamps):
            self._messages.skip(key)

    def forget(self, tick: int) -> None:
        """The state is another one from this control step on; a plan begun before is lost."""
        self._since = tick
        if self._begun is not None:
            self._begun = replace(self._begun, ticket=None)

    def _on_this_thread(self, step: Step) -> tuple[Action, int]:
        session = self._session
        observations = self._observations(step.stamps, step.where.time_ns)
        session.host.task = step.task
        if step.plan is not None:
            session.host.cursor = session.host.length  # the robot may have dropped what was left
        elif session.plan_due:
            raise OtherwiseError("a chunk is planned here, and was not on the robot")
        return session.step(observations), array_digest(observations)

    def _adopt(self, step: Step) -> int:
        plan = step.plan
        if plan is None:
            return 0
        if plan.tick == step.where.tick:
            self._begin(plan, step.where.time_ns)
        begun, self._begun = self._begun, None
        if begun is None or begun.plan.tick != plan.tick:
            self._skip(plan.stamps)
            if plan.tick < self._since:
                words = f"a plan that began before tick {plan.tick}, when no state was known"
                raise MissingError(Lost.START, words)
            raise OtherwiseError(f"a plan from before tick {plan.tick} is adopted, none began")
        if begun.missing is not None:
            raise begun.missing
        session = self._session
        if begun.ticket is None or not session.adopt(begun.ticket):
            raise OtherwiseError("a plan was adopted that cannot be adopted here")
        if session.host.cursor != plan.consumed:
            raise OtherwiseError(
                f"{plan.consumed} rows of a chunk were skipped, here {session.host.cursor}"
            )
        return begun.digest

    def _begin(self, plan: Plan, time_ns: int) -> None:
        """Makes a plan at the boundary where it began; what it saw is asked for only now."""
        session = self._session
        try:
            observations = self._observations(plan.stamps, time_ns)
        except MissingError as error:
            # Until it is adopted nothing depends on it.
            self._begun = _Begun(plan, None, missing=error)
            return
        session.host.task = plan.task
        ticket = session.begin_plan(observations, plan.delay)
        session.run_plan(ticket)
        self._begun = _Begun(plan, ticket, array_digest(observations))

    def _observations(self, stamps: Sequence[InputStamp], time_ns: int) -> dict[str, Array]:
        needed = self._rebuilder.needed(stamps)
        found = {key: self._messages.find(key, time_ns) for key in needed}
        if missing := {key for key, prepared in found.items() if prepared is None}:
            inputs = inputs_of([s for s in stamps if (s.topic, s.digest) in missing], False)
            words = "; ".join(self._words(one) for one in inputs)
            raise MissingError(Lost.INPUT, words, inputs)
        there = {key: prepared for key, prepared in found.items() if prepared is not None}
        return self._rebuilder.observations(stamps, there)

    def _words(self, one: Input) -> str:
        words = f"{one.topic}: message {one.sequence} with xxh3 {one.digest}"
        other = self._messages.instead(one.topic, one.stamp_ns)
        if other is None:
            return f"{words} is not there"
        return f"{words} was changed: the one with its header stamp has xxh3 {other.digest:016x}"

    @staticmethod
    def _check(action: Action, step: Step) -> None:
        pairs = (
            ("step", step.where.step, action.step),
            ("chunk", step.chunk_id, action.chunk),
            ("row", step.chunk_index, action.index),
        )
        for name, recorded, here in pairs:
            if recorded != here:
                raise OtherwiseError(f"{name} {recorded} on the robot, {here} here")


def samples_of(step: Step, beside: bool, observes: bool) -> list[tuple[InputStamp, ...]]:
    """What a step, or the plan adopted for it, is computed from.

    Args:
        step: On record.
        beside: Whether the policy's plans run beside.
        observes: Whether its acts then take observations in.
    """
    if not beside:
        return [step.stamps]
    found = [step.plan.stamps] if step.plan is not None else []
    return [*found, step.act_stamps] if observes else found


def inputs_of(stamps: Sequence[InputStamp], found: bool = True) -> tuple[Input, ...]:
    """Messages that a sample names."""
    return tuple(
        Input(s.topic, f"{s.digest:016x}", s.sequence, s.stamp_ns, found)
        for s in stamps
        if s.present and s.sequence
    )
