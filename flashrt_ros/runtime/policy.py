"""What the runtime asks of a policy.

Tensor suffixes used in this package: B batch, T rows, H horizon, A action, O observation steps,
D model width, L layer, S observation.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from flashrt_ros.runtime.buffers import BufferSpec

MAX_TASK_CHARACTERS = 4096
"""A task text goes into every record of a control step."""
Buffers = Mapping[str, torch.Tensor]
"""Buffer name to its tensor; the tensors' addresses never change."""


class PlanKind(enum.Enum):
    """What a plan does to the execution state, which decides the thread that may run it."""

    NONE = "none"
    """No plan: ``act`` maps the observation to an action at every control step."""
    BESIDE = "beside"
    """Reads state, writes only outputs: may run beside the control thread; ``adopt`` commits.

    Observations belong to the plan: ``adopt`` reads none, and ``act`` only where the policy says
    ``act_observes``.
    """
    ADVANCES = "advances"
    """Writes state: runs on the control thread, at a boundary."""


@dataclass(frozen=True)
class Port:
    """One observation or the action, as a contract sees it.

    Attributes:
        key: Name in the contract, e.g. ``observation.state`` or ``action``.
        buffer: Name of the input or output buffer that holds it.
        shape: Shape of that buffer.
        names: Names of the elements of a vector, empty where the policy knows none.
        unit: Unit of all elements, empty where mixed.
        required: False where a contract may leave the observation out (the buffer is then zero).
    """

    key: str
    buffer: str
    shape: tuple[int, ...]
    names: tuple[str, ...] = ()
    unit: str = ""
    required: bool = True


@dataclass(frozen=True)
class Ports:
    """All observations that a policy reads, and its action of shape ``(A,)``."""

    observations: tuple[Port, ...]
    action: Port


@dataclass
class HostRecord:
    """Small control-flow values that the host needs; part of every capsule.

    Attributes:
        step: Control steps of the episode so far.
        episode: Episodes since the session began.
        cursor: Rows of the present chunk already taken.
        length: Rows of the present chunk that may be taken; at that ``cursor`` a plan is due.
        chunk: Plans adopted in this episode.
        task: Task text; empty where none was given.
        rows: Committed rows, as ``rows.length`` says; 0 where the policy has none.
    """

    step: int = 0
    episode: int = 0
    cursor: int = 0
    length: int = 0
    chunk: int = 0
    task: str = ""
    rows: int = 0

    def __copy__(self) -> HostRecord:
        """Returns a copy; ``copy.copy`` by itself would take ten times as long."""
        return HostRecord(
            self.step, self.episode, self.cursor, self.length, self.chunk, self.task, self.rows
        )


@dataclass(frozen=True)
class ActShape:
    """An act over another number of tokens, a plan of its own: ``PolicySession.act(shape=)``.

    Attributes:
        name: Dotted lower-case words, e.g. ``prefill.64``.
        rows: Most rows that it appends.
        act: As ``Policy.act``.
    """

    name: str
    rows: int
    act: Callable[[Buffers, Buffers, Buffers], None]


ACT_LEFT = "act.left"
"""Output buffer, ``(1,)`` int64, of a policy whose ``act_replays`` is above 1.

What is left to do for the control step: the runtime replays ``act`` until it is 0.
"""


class Policy(abc.ABC):
    """A learned policy over a closed set of named static buffers.

    The runtime calls ``reset_``, ``plan``, ``adopt`` and ``act`` under ``torch.no_grad``; on CUDA
    the last three are captured once and replayed. They write only into the tensors that they are
    given, in place; they neither synchronise with the host nor keep anything elsewhere.
    The buffers ``noise.key`` and ``noise.counter`` (see ``flashrt_ros.runtime.noise``) are always
    part of the state; the runtime sets them at reset.

    Buffers with a ``capacity`` grow by rows, one a token. New rows are written behind the
    ``rows.length`` committed ones, then ``rows.length`` is raised in place; committed rows are
    only read. Rows behind them hold garbage, which may be no number: mask it, do not multiply it
    by zero.
    """

    family: ClassVar[str]
    """Name of the policy family, part of the state id."""
    plan_kind: PlanKind = PlanKind.NONE
    chunk_size: int = 1
    """H: rows that a plan predicts."""
    n_action_steps: int = 1
    """Rows that are taken before the next plan, at most ``chunk_size``."""
    act_observes: bool = False
    """Whether ``act`` reads the observation though plans run beside, e.g. to keep a history.

    A plan that runs beside then reads a copy that was taken when it began. Of no meaning for
    policies of another plan kind, whose ``act`` may always read.
    """
    rows_per_plan: int = 0
    """Most rows that one plan and its adoption append to the buffers that grow."""
    rows_per_act: int = 0
    """Most rows that one act appends, all its replays together. Where there is no room for them,
    nothing is run."""
    room_words: str = "give the policy's buffers a larger capacity"
    """What to do for longer episodes, where there is no room for more rows."""
    act_replays: int = 1
    """Most replays of ``act`` for one control step. Above 1, ``act`` writes ``act.left``, which
    the runtime reads after each: so the device decides how much work a step is, and waits for
    nothing. The action is that of the last replay."""
    may_run_plain: bool = False
    """Whether ``plan`` may be called instead of replayed where it cannot be captured.

    Such a call keeps to the lane and its order of execution, but may wait for the device, and
    takes the host's time. ``adopt`` and ``act`` are always captured.
    """
    numerics: str = "exact"
    """How it calculates, in words; part of the exec id, not of the state id. Anything but
    ``exact`` is another arithmetic of the same weights, which rounds otherwise."""
    origin: tuple[str, ...] = ()
    """What of where it comes from is worth a line in the log, such as settings changed."""
    remarks: tuple[str, ...] = ()
    """What is worth a line in the log once it was probed."""
    task_observes: bool = False
    """Whether ``encode_task`` reads observations, so that it is called at each of them."""

    @abc.abstractmethod
    def config(self) -> Mapping[str, object]:
        """All that shapes the computation besides the weights, as JSON values."""

    @abc.abstractmethod
    def module(self) -> nn.Module:
        """The module that holds every weight and constant; moved to the device at configure."""

    @abc.abstractmethod
    def layout(self) -> tuple[BufferSpec, ...]:
        """Declares every buffer, before anything is allocated."""

    @abc.abstractmethod
    def ports(self) -> Ports:
        """Observations in, action out."""

    @abc.abstractmethod
    def reset_(self, state: Buffers) -> None:
        """Writes the state of a new episode into every state buffer but ``noise.*`` and rows."""

    @abc.abstractmethod
    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Takes one control step: writes the action output, advances the state.

        Args:
            state: Buffers of role state, read and written.
            inputs: Buffers of role input, read only.
            outputs: Buffers of role output and scratch, written; their old content is garbage.
        """

    def act_shapes(self) -> tuple[ActShape, ...]:
        """Returns further acts, each captured; none by default."""
        return ()

    def task_inputs(self) -> tuple[str, ...]:
        """Input buffers that hold the task text as ``encode_task`` gives it; none by default.

        The runtime writes them with the observation, from the host record's task: another task
        needs no capture, and a capsule brings its own back.
        """
        return ()

    def encode_task(
        self, task: str, observations: Mapping[str, np.ndarray[Any, Any] | None]
    ) -> Mapping[str, torch.Tensor]:
        """Returns what each of ``task_inputs`` holds for a task; runs on the host.

        Args:
            task: The text, empty where none was given.
            observations: Port key to its value, None for one that is left out; empty where only
                the text is to be judged. To be read only with ``task_observes``.

        Returns:
            Buffer name to a tensor of its shape and dtype, on the CPU.

        Raises:
            InvalidArgumentError: The policy cannot take this text.
        """
        return {}

    def probe(self, device: torch.device) -> None:
        """Called once before anything is captured, with the module on its device; may refuse.

        Raises:
            FlashRTError: The policy is not what it says.
        """

    def plan(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Predicts a chunk from the observation into an output buffer; see ``PlanKind``."""

    def adopt(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Commits the planned chunk from outputs into state, on the control thread."""


@dataclass(frozen=True)
class Action:
    """What one control step produced.

    Attributes:
        values: ``(A,)`` float32 on the host, a copy.
        step: Control step of the episode that it belongs to, from 0.
        chunk: Plan that it came from, counted per episode from 1; 0 without plans.
        index: Row of the chunk.
        generation: Generation under which it was computed.
    """

    values: torch.Tensor
    step: int
    chunk: int
    index: int
    generation: int
    task: str = field(default="")
