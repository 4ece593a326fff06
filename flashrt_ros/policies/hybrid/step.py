"""What every layer is told of one pass, and what a layer of the delta rule leaves to be committed.

Tensor suffixes: those of ``ops``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from flashrt_ros.policies.hybrid.ops import Ops


@dataclass(frozen=True)
class Step:
    """What all layers are told of one pass.

    Attributes:
        ops: Operations of the device.
        positions_T: int64, row of each token: absolute positions.
        count_1: How many are tokens, ``(1,)`` int64; the pads behind them leave no trace in any
            state. None: all are.
        chunk: Tokens of a chunk of the delta rule; 0 goes token by token.
        keeps: Any number of tokens may be committed afterwards, so the state after each is kept.
            Otherwise ``count_1`` are, without exception.
    """

    ops: Ops
    positions_T: torch.Tensor
    count_1: torch.Tensor | None = None
    chunk: int = 0
    keeps: bool = False

    @cached_property
    def pad_T(self) -> torch.Tensor | None:
        """True for tokens that are none; None: all are tokens."""
        if self.count_1 is None:
            return None
        index_T = torch.arange(self.positions_T.shape[0], device=self.positions_T.device)
        return index_T >= self.count_1


@dataclass(frozen=True)
class Advance:
    """What a delta-rule layer would leave behind, for any number of tokens that are committed.

    Attributes:
        conv: ``(W - 1, C)``, state, written by ``Ops.commit_``.
        recurrent: ``(H, K, V)`` float32, state, written by ``Ops.commit_``.
        inputs_TC: Inputs of the convolution.
        states: ``(T + 1, H, K, V)`` after each number of tokens; or ``(H, K, V)`` after all that
            are no pads, where the number is known beforehand.
    """

    conv: torch.Tensor
    recurrent: torch.Tensor
    inputs_TC: torch.Tensor
    states: torch.Tensor
