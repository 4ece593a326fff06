"""Runs a network that predicts chunks of actions: plan, adopt, act.

The queue of actions is state with a cursor, not a Python deque: it is in every capsule, and taking
an action is a gather that can be captured. Whether a plan is due is host control flow and lives in
the ``HostRecord``. How one chunk follows on another is a ``Splice``.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from flashrt_ros.errors import InvalidArgumentError, SpecError
from flashrt_ros.policies.relative import PLANNED, REFERENCE, RelativeActions
from flashrt_ros.policies.splice import ACTIONS, COUNT, CURSOR, ENSEMBLE, Queue, Splice
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.engine import CONSUMED
from flashrt_ros.runtime.policy import Buffers, PlanKind, Policy, Port, Ports

if TYPE_CHECKING:
    from flashrt_ros.policies.fast.deviation import Deviation

STAGING = "chunk.next"
ACTION = "action"
_OWN = (ACTIONS, CURSOR, ENSEMBLE, COUNT, STAGING, ACTION, CONSUMED, REFERENCE, PLANNED)


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
    may_run_plain: bool = False
    """As ``Policy.may_run_plain``."""
    task_observes: bool = False
    """As ``Policy.task_observes``."""
    numerics: str = "exact"
    """As ``Policy.numerics``."""
    remarks: tuple[str, ...] = ()
    """As ``Policy.remarks``."""

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

    def task_inputs(self) -> tuple[str, ...]:
        """As ``Policy.task_inputs``."""
        return ()

    def encode_task(
        self, task: str, observations: Mapping[str, np.ndarray[Any, Any] | None]
    ) -> Mapping[str, torch.Tensor]:
        """As ``Policy.encode_task``."""
        return {}

    def probe(self, device: torch.device) -> None:
        """As ``Policy.probe``."""

    def compare(
        self,
        count: int,
        device: torch.device,
        observations: Iterator[Mapping[str, torch.Tensor]] | None = None,
    ) -> Deviation | None:
        """Holds its chunks against those of the exact arithmetic; None where it is exact.

        Args:
            count: Observations, at most.
            device: Where its module lies.
            observations: Port key to value; None: random ones.
        """
        return None

    @abc.abstractmethod
    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        """Predicts from the observation.

        Args:
            state: State buffers; read only unless ``plan_kind`` is ``ADVANCES``.
            inputs: Input buffers, read only.
            chunk_HA: Written: ``(H, A)`` float32, in the action's units, or in the network's
                range where there is a ``restore``; the first row is the action of the control
                step whose observation is in ``inputs``.
            outputs: Its own scratch buffers.
        """

    def restore(self, actions: torch.Tensor) -> torch.Tensor:
        """Actions ``(..., A)`` as ``predict`` writes them, in the action's units.

        By default they are in these units already.
        """
        return actions

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

    The plan writes to the output ``chunk.next``; ``adopt`` lets the splice join it to its state,
    given the control steps that have passed since; ``act`` takes the next action from there.

    A splice that plans in each control step makes the policy's plan kind ``ADVANCES``: run beside,
    every plan would be late by a control step, in which nothing could be taken. With ``beside``
    plans come when they come instead, and each is joined to what is there.

    Args:
        predictor: The network.
        n_action_steps: Rows taken before the next plan; None takes the whole chunk, or one row if
            the splice plans in each step.
        splice: How chunks are joined; None is a ``Queue``.
        beside: Plans run beside the control steps although the splice would plan in each.
        relative: What makes actions absolute that are relative to the state of the plan.

    Raises:
        InvalidArgumentError: ``n_action_steps``, ``plan_kind`` or ``beside`` is out of range.
        SpecError: The predictor uses names of the wrapper.
    """

    def __init__(
        self,
        predictor: ChunkPredictor,
        n_action_steps: int | None = None,
        splice: Splice | None = None,
        beside: bool = False,
        relative: RelativeActions | None = None,
    ) -> None:
        splice = splice or Queue()
        if beside and predictor.plan_kind is not PlanKind.BESIDE:
            raise InvalidArgumentError(
                "beside: expected a predictor whose plans only read state, found plan kind"
                f" {predictor.plan_kind.value!r}"
            )
        each_step = splice.plans_each_step and not beside
        if each_step:
            if n_action_steps not in (None, 1):
                raise InvalidArgumentError(
                    "n_action_steps: expected 1, since a chunk is planned in each control step,"
                    f" found {n_action_steps}"
                )
            n_action_steps = 1
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
        self._splice = splice
        self._relative = relative
        self.plan_kind = PlanKind.ADVANCES if each_step else predictor.plan_kind
        self.act_observes = predictor.observes
        self.may_run_plain = predictor.may_run_plain
        self.task_observes = predictor.task_observes
        self.numerics = predictor.numerics
        self.chunk_size = predictor.chunk_size
        self.n_action_steps = steps
        self._module: nn.Module = predictor.module()
        constants = {
            "splice": splice.module(),
            "relative": None if relative is None else relative.module(),
        }
        parts = {name: part for name, part in constants.items() if part is not None}
        if parts:
            self._module = nn.ModuleDict({"predictor": self._module, **parts})

    @property
    def family(self) -> str:  # type: ignore[override]
        """The predictor's family, in this wrapper."""
        return f"chunked.{self._predictor.family}"

    def config(self) -> Mapping[str, object]:
        """The predictor's configuration, the splice's and ``n_action_steps``."""
        return {
            "type": "chunked",
            "n_action_steps": self.n_action_steps,
            **self._splice.config(),
            **({} if self._relative is None else {"relative": dict(self._relative.config())}),
            "predictor": dict(self._predictor.config()),
        }

    def module(self) -> nn.Module:
        """The predictor's module, and the splice's constants where it has some."""
        return self._module

    def layout(self) -> tuple[BufferSpec, ...]:
        """See the class."""
        action = self._predictor.action()
        chunk = (self.chunk_size, action.shape[0])
        unit = "" if self._splice.normalised else action.unit
        return (
            *self._predictor.layout(),
            *self._splice.layout(chunk, action.unit),
            *(() if self._relative is None else self._relative.layout()),
            BufferSpec(CONSUMED, (1,), torch.int64, Role.INPUT, "rows"),
            BufferSpec(STAGING, chunk, torch.float32, Role.OUTPUT, unit),
            BufferSpec(ACTION, action.shape, torch.float32, Role.OUTPUT, action.unit),
        )

    def ports(self) -> Ports:
        """The predictor's."""
        return Ports(self._predictor.observations(), self._predictor.action())

    def task_inputs(self) -> tuple[str, ...]:
        """The predictor's."""
        return self._predictor.task_inputs()

    def encode_task(
        self, task: str, observations: Mapping[str, np.ndarray[Any, Any] | None]
    ) -> Mapping[str, torch.Tensor]:
        """The predictor's."""
        return self._predictor.encode_task(task, observations)

    def probe(self, device: torch.device) -> None:
        """The predictor's."""
        self._predictor.probe(device)
        self.remarks = self._predictor.remarks

    def compare(
        self,
        count: int,
        device: torch.device,
        observations: Iterator[Mapping[str, torch.Tensor]] | None = None,
    ) -> Deviation | None:
        """The predictor's."""
        return self._predictor.compare(count, device, observations)

    def reset_(self, state: Buffers) -> None:
        """Empties the queue and resets the predictor."""
        self._splice.reset_(state)
        if self._relative is not None:
            self._relative.reset_(state)
        self._predictor.reset_(state)

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Predicts the next chunk; see ``Policy.plan``."""
        chunk_HA = outputs[STAGING]
        self._predictor.predict(state, inputs, chunk_HA, outputs)
        if self._relative is not None:
            self._relative.take_in_(inputs, outputs)
        if not self._splice.normalised:
            restored_HA = self._restore(chunk_HA, outputs, PLANNED)
            if restored_HA is not chunk_HA:
                chunk_HA.copy_(restored_HA)

    def adopt(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Joins the planned chunk to the present one; see ``Splice.join_``."""
        self._splice.join_(state, outputs[STAGING], inputs[CONSUMED])
        if self._relative is not None:
            self._relative.adopt_(state, outputs)
        self._predictor.adopt_(state, outputs)

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Takes the next action; a predictor with a history then takes the observation."""
        taken_A = self._splice.take_(state)
        if self._splice.normalised:
            taken_A = self._restore(taken_A, state, REFERENCE)
        outputs[ACTION].copy_(taken_A)
        if self.act_observes:
            self._predictor.observe_(state, inputs)

    def _restore(self, actions: torch.Tensor, buffers: Buffers, reference: str) -> torch.Tensor:
        """Actions ``(..., A)`` in the network's range, in the units of the port and absolute."""
        restored = self._predictor.restore(actions)
        if self._relative is None:
            return restored
        return self._relative.absolute(restored, buffers[reference])
