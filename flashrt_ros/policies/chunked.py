"""Runs a network that predicts chunks of actions: plan, adopt, act.

The queue of actions is a state buffer with a cursor, not a Python deque: it is in every capsule,
and taking an action is a gather that can be captured. Whether a plan is due is host control flow
and lives in the ``HostRecord``.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from flashrt_ros.errors import InvalidArgumentError, SpecError
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.engine import CONSUMED
from flashrt_ros.runtime.policy import Buffers, PlanKind, Policy, Port, Ports

ACTIONS = "chunk.actions"
CURSOR = "chunk.cursor"
STAGING = "chunk.next"
ACTION = "action"
_OWN = (ACTIONS, CURSOR, STAGING, ACTION, CONSUMED)


class ChunkPredictor(abc.ABC):
    """What ``ChunkedPolicy`` needs of a network.

    The rules of ``Policy`` hold: in place, no host synchronisation, nothing kept elsewhere.
    """

    family: ClassVar[str]
    """Name of the family, part of the state id."""
    chunk_size: int
    """H: rows that are predicted."""
    plan_kind: PlanKind = PlanKind.BESIDE
    """``BESIDE`` if ``predict`` only reads state, ``ADVANCES`` if it writes some."""
    observes: bool = False
    """Whether it keeps a history of observations: ``observe_`` is called in every control step."""

    @abc.abstractmethod
    def config(self) -> Mapping[str, object]:
        """All that shapes the computation besides the weights, as JSON values."""

    @abc.abstractmethod
    def module(self) -> nn.Module:
        """The module that holds every weight and constant."""

    @abc.abstractmethod
    def layout(self) -> tuple[BufferSpec, ...]:
        """Inputs, and state and scratch of its own; none of the wrapper's names."""

    @abc.abstractmethod
    def observations(self) -> tuple[Port, ...]:
        """What it reads."""

    @abc.abstractmethod
    def action(self) -> Port:
        """The action, of shape ``(A,)``; its buffer is ``action`` and belongs to the wrapper."""

    def reset_(self, state: Buffers) -> None:
        """Writes the state of a new episode into its own state buffers."""

    @abc.abstractmethod
    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        """Predicts from the observation.

        Args:
            state: State buffers; read only unless ``plan_kind`` is ``ADVANCES``.
            inputs: Input buffers, read only.
            chunk_HA: Written: ``(H, A)`` float32, in the action's units; the first row is the
                action of the control step whose observation is in ``inputs``.
            outputs: Its own scratch buffers.
        """

    def observe_(self, state: Buffers, inputs: Buffers) -> None:
        """Takes the observation of a control step into its own state, if it ``observes``.

        Called at every control step, after the plan that may have been due: the history in a
        plan's state ends with the observation of the control step before.

        Args:
            state: State buffers; only its own are written.
            inputs: Input buffers, read only.
        """

    def adopt_(self, state: Buffers, outputs: Buffers) -> None:
        """Writes to its own state when its chunk is adopted; nothing by default.

        For what ``predict`` may not do beside: noise is drawn there with ``advance=False``, and
        ``noise.advance_`` is called here.

        Args:
            state: State buffers; only its own are written.
            outputs: Its own outputs, as ``predict`` left them; scratch is garbage.
        """


class ChunkedPolicy(Policy):
    """A chunk predictor as a policy.

    State: ``chunk.actions`` ``(H, A)`` float32 and ``chunk.cursor`` ``(1,)`` int64, beside the
    predictor's own. The plan writes to the output ``chunk.next``; ``adopt`` copies it to state and
    sets the cursor to the rows that time has passed over; ``act`` takes the row under the cursor.

    Args:
        predictor: The network.
        n_action_steps: Rows taken before the next plan; None takes the whole chunk.

    Raises:
        InvalidArgumentError: ``n_action_steps`` or ``plan_kind`` is out of range.
        SpecError: The predictor uses names of the wrapper.
    """

    def __init__(self, predictor: ChunkPredictor, n_action_steps: int | None = None) -> None:
        steps = predictor.chunk_size if n_action_steps is None else n_action_steps
        if not 1 <= steps <= predictor.chunk_size:
            raise InvalidArgumentError(
                f"n_action_steps: expected 1 to chunk_size ({predictor.chunk_size}), found {steps}"
            )
        if predictor.plan_kind is PlanKind.NONE:
            raise InvalidArgumentError(
                "plan_kind of a chunk predictor: expected BESIDE or ADVANCES, found NONE"
            )
        taken = sorted({spec.name for spec in predictor.layout()} & set(_OWN))
        if taken:
            raise SpecError(f"chunk predictor: buffers {taken} belong to the wrapper; rename them")
        if predictor.action().buffer != ACTION or len(predictor.action().shape) != 1:
            raise SpecError(
                f"chunk predictor: expected an action port on buffer {ACTION!r} of shape (A,), "
                f"found {predictor.action()}"
            )
        self._predictor = predictor
        self.plan_kind = predictor.plan_kind
        self.act_observes = predictor.observes
        self.chunk_size = predictor.chunk_size
        self.n_action_steps = steps

    @property
    def family(self) -> str:  # type: ignore[override]
        """The predictor's family, in this wrapper."""
        return f"chunked.{self._predictor.family}"

    def config(self) -> Mapping[str, object]:
        """The predictor's configuration and ``n_action_steps``."""
        return {
            "type": "chunked",
            "n_action_steps": self.n_action_steps,
            "predictor": dict(self._predictor.config()),
        }

    def module(self) -> nn.Module:
        """The predictor's module."""
        return self._predictor.module()

    def layout(self) -> tuple[BufferSpec, ...]:
        """See the class."""
        action = self._predictor.action()
        chunk = (self.chunk_size, *action.shape)
        return (
            *self._predictor.layout(),
            BufferSpec(ACTIONS, chunk, torch.float32, Role.STATE, action.unit),
            BufferSpec(CURSOR, (1,), torch.int64, Role.STATE, "rows"),
            BufferSpec(CONSUMED, (1,), torch.int64, Role.INPUT, "rows"),
            BufferSpec(STAGING, chunk, torch.float32, Role.OUTPUT, action.unit),
            BufferSpec(ACTION, action.shape, torch.float32, Role.OUTPUT, action.unit),
        )

    def ports(self) -> Ports:
        """The predictor's."""
        return Ports(self._predictor.observations(), self._predictor.action())

    def reset_(self, state: Buffers) -> None:
        """Empties the queue and resets the predictor."""
        state[ACTIONS].zero_()
        state[CURSOR].zero_()
        self._predictor.reset_(state)

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Predicts the next chunk; see ``Policy.plan``."""
        self._predictor.predict(state, inputs, outputs[STAGING], outputs)

    def adopt(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Makes the planned chunk the present one, from the row whose time has come.

        While a plan ran beside, control steps took rows of the old chunk; so many rows of the new
        one are in the past.
        """
        state[ACTIONS].copy_(outputs[STAGING])
        state[CURSOR].copy_(inputs[CONSUMED])
        self._predictor.adopt_(state, outputs)

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Takes the next row; the last one again when the chunk is used up.

        A predictor with a history then takes the observation.
        """
        row_1 = state[CURSOR].clamp(0, self.chunk_size - 1)
        outputs[ACTION].copy_(state[ACTIONS].index_select(0, row_1)[0])
        state[CURSOR].add_(1)
        if self.act_observes:
            self._predictor.observe_(state, inputs)
