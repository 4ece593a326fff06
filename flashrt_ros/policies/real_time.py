"""The chunk under way as state, for predictors that plan the next one in keeping with it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.guidance import GuidanceConfig, Prefix, prefix_weights
from flashrt_ros.policies.splice import CURSOR
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.engine import DELAY
from flashrt_ros.runtime.policy import Buffers

CHUNK = "rtc.chunk"
LENGTH = "rtc.length"
NEXT = "rtc.next"


class RealTimeChunking:
    """Real-time chunking over named state, for a ``ChunkPredictor`` in a ``ChunkedPolicy``.

    A predictor asks for the ``prefix`` in its plan, gives it to its sampler (see ``guidance``) and
    keeps what comes out with ``keep_``; on adoption it calls ``adopt_``.

    State: ``rtc.chunk`` ``(H, A)`` float32, the chunk under way in the network's range; and
    ``rtc.length`` ``(1,)`` int64, its rows, 0 before the first one. Its cursor is the queue's.
    Input: ``plan.delay``. Output: ``rtc.next`` ``(H, A)``, what was planned.

    Args:
        config: Options.
        chunk_size: H.
        action_size: A.

    Raises:
        InvalidArgumentError: The execution horizon is longer than a chunk.
    """

    def __init__(self, config: GuidanceConfig, chunk_size: int, action_size: int) -> None:
        if config.execution_horizon > chunk_size:
            raise InvalidArgumentError(
                f"execution_horizon: expected at most {chunk_size}, the rows of a chunk, found"
                f" {config.execution_horizon}"
            )
        self.options = config
        self._shape = (chunk_size, action_size)

    def config(self) -> Mapping[str, object]:
        """The options."""
        return dict(vars(self.options))

    def specs(self) -> tuple[BufferSpec, ...]:
        """See the class."""
        return (
            BufferSpec(CHUNK, self._shape, torch.float32, Role.STATE),
            BufferSpec(LENGTH, (1,), torch.int64, Role.STATE, "rows"),
            BufferSpec(DELAY, (1,), torch.int64, Role.INPUT, "control steps"),
            BufferSpec(NEXT, self._shape, torch.float32, Role.OUTPUT),
        )

    def reset_(self, state: Buffers) -> None:
        """Forgets the chunk."""
        state[CHUNK].zero_()
        state[LENGTH].zero_()

    def prefix(
        self, state: Buffers, inputs: Buffers, shift_A: torch.Tensor | None = None
    ) -> Prefix:
        """Rows ``(H, A)`` of the chunk under way, from the present control step on.

        Args:
            state: Read only.
            inputs: Read only.
            shift_A: ``(A,)`` float32, added to each row: where chunks are relative to what the
                robot's state is at their plan, how far that of the last plan lies from the present
                one, in the network's range. None: they are not.
        """
        options, rows = self.options, self._shape[0]
        cursor_1 = state[CURSOR]
        left_1 = (state[LENGTH] - cursor_1).clamp(min=0, max=options.execution_horizon)
        weights_H = prefix_weights(options.prefix_attention_schedule, inputs[DELAY], left_1, rows)
        row_H = torch.arange(rows, device=cursor_1.device) + cursor_1
        rows_HA = state[CHUNK].index_select(0, row_H.clamp(0, rows - 1))
        if shift_A is not None:
            rows_HA = rows_HA + shift_A
        return Prefix(rows_HA, weights_H, options.max_guidance_weight)

    def keep_(self, outputs: Buffers, chunk_HA: torch.Tensor) -> None:
        """Keeps a planned chunk ``(H, A)``, in the network's range, until it is adopted."""
        outputs[NEXT].copy_(chunk_HA)

    def adopt_(self, state: Buffers, outputs: Buffers) -> None:
        """It is the chunk under way."""
        state[CHUNK].copy_(outputs[NEXT])
        state[LENGTH].fill_(self._shape[0])
