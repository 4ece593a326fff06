"""How a planned chunk joins the one under way, and which action is taken next: named state.

A chunk is planned from an observation; its first row belongs to the control step of that
observation. When it is adopted, ``consumed`` control steps have passed since. Each way of joining
is one class here; ``ChunkedPolicy`` runs it between plan and act.

Tensor suffixes: H horizon (rows of a chunk), A action.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers

ACTIONS = "chunk.actions"
CURSOR = "chunk.cursor"
ENSEMBLE = "ensemble.actions"
COUNT = "ensemble.count"


class Splice(abc.ABC):
    """What ``ChunkedPolicy`` needs of a way of joining chunks.

    The rules of ``Policy`` hold: in place, no host synchronisation, nothing kept elsewhere.
    """

    plans_each_step: ClassVar[bool] = False
    """Whether a chunk is planned in every control step, before the action is taken."""
    normalised: ClassVar[bool] = False
    """Whether it keeps actions in the network's range, to be restored as they are taken."""

    @abc.abstractmethod
    def config(self) -> Mapping[str, object]:
        """What shapes the computation, as JSON values."""

    @abc.abstractmethod
    def module(self) -> nn.Module | None:
        """Holds its constants; None without any."""

    @abc.abstractmethod
    def layout(self, chunk: tuple[int, int], unit: str) -> tuple[BufferSpec, ...]:
        """Its state, for chunks of shape ``(H, A)`` in ``unit``."""

    @abc.abstractmethod
    def reset_(self, state: Buffers) -> None:
        """Writes the state of a new episode."""

    @abc.abstractmethod
    def join_(self, state: Buffers, planned_HA: torch.Tensor, consumed_1: torch.Tensor) -> None:
        """Commits a planned chunk.

        Args:
            state: Its state, written.
            planned_HA: ``(H, A)`` float32, read only.
            consumed_1: ``(1,)`` int64, control steps since the observation of the plan.
        """

    @abc.abstractmethod
    def take_(self, state: Buffers) -> torch.Tensor:
        """Returns the next action ``(A,)`` and moves on by one control step."""


class Queue(Splice):
    """The new chunk replaces the old one, from the row whose time has come.

    State: ``chunk.actions`` ``(H, A)`` float32, ``chunk.cursor`` ``(1,)`` int64, the next row.
    """

    def config(self) -> Mapping[str, object]:
        """Nothing to say."""
        return {}

    def module(self) -> nn.Module | None:
        """No constants."""
        return None

    def layout(self, chunk: tuple[int, int], unit: str) -> tuple[BufferSpec, ...]:
        """See the class."""
        return (
            BufferSpec(ACTIONS, chunk, torch.float32, Role.STATE, unit),
            BufferSpec(CURSOR, (1,), torch.int64, Role.STATE, "rows"),
        )

    def reset_(self, state: Buffers) -> None:
        """Empties the queue."""
        state[ACTIONS].zero_()
        state[CURSOR].zero_()

    def join_(self, state: Buffers, planned_HA: torch.Tensor, consumed_1: torch.Tensor) -> None:
        """Takes over the whole chunk; rows of the time that has passed are skipped."""
        state[ACTIONS].copy_(planned_HA)
        state[CURSOR].copy_(consumed_1)

    def take_(self, state: Buffers) -> torch.Tensor:
        """The next row; the last one again when the chunk is used up."""
        return _take_row(state[ACTIONS], state[CURSOR])


class TemporalEnsemble(Splice):
    """Averages all predictions made for a control step, with weights ``exp(-coefficient * i)``.

    ``i`` is 0 for the oldest prediction (Zhao et al., "Learning Fine-Grained Bimanual Manipulation
    with Low-Cost Hardware", RSS 2023, algorithm 2). The average is kept up to date online, in the
    network's range and with the arithmetic of ``huggingface/lerobot:
    src/lerobot/policies/act/modeling_act.py:ACTTemporalEnsembler``. Differences: its tensors that
    shrink, and are None at first, are rows with a count here, 0 where there is no prediction yet;
    and a chunk may be late.

    State: ``ensemble.actions`` ``(H, A)`` float32; ``ensemble.count`` ``(H,)`` int64, predictions
    in each row; ``chunk.cursor`` ``(1,)`` int64, the next row.

    Args:
        coefficient: 0 weighs all alike, above 0 old predictions more, below 0 new ones.
        chunk_size: H.

    Raises:
        InvalidArgumentError: The coefficient is so large that weights overflow or vanish.
    """

    plans_each_step = True
    normalised = True

    def __init__(self, coefficient: float, chunk_size: int) -> None:
        weights_H = torch.exp(-coefficient * torch.arange(chunk_size))
        sums_H = torch.cumsum(weights_H, dim=0)
        if not bool(torch.isfinite(sums_H).all()):
            raise InvalidArgumentError(
                f"temporal_ensemble_coeff: expected one whose weights exp(-coefficient * i) for i "
                f"below {chunk_size} have a finite sum, found {coefficient}"
            )
        self._coefficient = coefficient
        self._chunk_size = chunk_size
        self._module = nn.Module()
        self._module.register_buffer("weights", weights_H)
        self._module.register_buffer("sums", sums_H)
        self._module.register_buffer("rows", torch.arange(chunk_size))

    def config(self) -> Mapping[str, object]:
        """The coefficient."""
        return {"temporal_ensemble_coeff": self._coefficient}

    def module(self) -> nn.Module | None:
        """Weights and their sums."""
        return self._module

    def layout(self, chunk: tuple[int, int], unit: str) -> tuple[BufferSpec, ...]:
        """See the class."""
        return (
            BufferSpec(ENSEMBLE, chunk, torch.float32, Role.STATE),
            BufferSpec(COUNT, chunk[:1], torch.int64, Role.STATE, "predictions"),
            BufferSpec(CURSOR, (1,), torch.int64, Role.STATE, "rows"),
        )

    def reset_(self, state: Buffers) -> None:
        """Forgets all predictions."""
        for name in (ENSEMBLE, COUNT, CURSOR):
            state[name].zero_()

    def join_(self, state: Buffers, planned_HA: torch.Tensor, consumed_1: torch.Tensor) -> None:
        """Folds a chunk into the average of each row's control step."""
        last = self._chunk_size - 1
        weights_H, sums_H = self._module.get_buffer("weights"), self._module.get_buffer("sums")
        # The planned chunk began `consumed` steps ago, when the old cursor stood so much lower.
        from_H = self._module.get_buffer("rows") + (state[CURSOR] - consumed_1)
        there_H = (from_H >= 0) & (from_H <= last)
        from_H = from_H.clamp(0, last)
        count_H = state[COUNT].index_select(0, from_H).masked_fill(~there_H, 0)
        old_HA = state[ENSEMBLE].index_select(0, from_H)

        def of(table_H: torch.Tensor, index_H: torch.Tensor) -> torch.Tensor:
            return table_H.index_select(0, index_H.clamp(0, last)).unsqueeze(-1)

        mean_HA = old_HA * of(sums_H, count_H - 1) + planned_HA * of(weights_H, count_H)
        mean_HA = mean_HA / of(sums_H, count_H)
        first_H1 = (count_H == 0).unsqueeze(-1)
        state[ENSEMBLE].copy_(torch.where(first_H1, planned_HA, mean_HA))
        state[COUNT].copy_((count_H + 1).clamp(max=self._chunk_size))
        state[CURSOR].copy_(consumed_1)

    def take_(self, state: Buffers) -> torch.Tensor:
        """The average of the present control step."""
        return _take_row(state[ENSEMBLE], state[CURSOR])


def _take_row(rows_HA: torch.Tensor, cursor_1: torch.Tensor) -> torch.Tensor:
    """The row under a cursor, the last one if it is past the end; moves the cursor on."""
    taken_A = rows_HA.index_select(0, cursor_1.clamp(0, rows_HA.shape[0] - 1))[0]
    cursor_1.add_(1)
    return taken_A
