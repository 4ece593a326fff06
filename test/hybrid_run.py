"""A hybrid model over buffers of its own, without a session: prefill and decode by hand."""

from __future__ import annotations

import torch

from flashrt_ros.policies.hybrid.decode import ACCEPTED, LAST, Decoder
from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.runtime.buffers import ROWS_LENGTH, ROWS_SPEC, Arena, StateLayout
from flashrt_ros.runtime.device import open_device


class Run:
    """State of one sequence; what is behind its rows is no number.

    Args:
        model: It.
        drafts: Of each round.
        capacity: Rows.
        sizes: Shapes of prefill passes, the smallest is the chunk.
    """

    def __init__(
        self, model: HybridModel, drafts: int = 0, capacity: int = 256,
        sizes: tuple[int, ...] = (16,),
    ) -> None:  # fmt: skip
        self.model, self.sizes = model, sizes
        self.decoder = Decoder(model, drafts)
        layout = StateLayout((*self.decoder.layout(capacity), ROWS_SPEC))
        self.arena = Arena(layout, open_device("cpu"))
        self.arena.rows.fill_(255)  # of which floats and bfloat16 make NaN
        self.state = self.arena.state
        self.decoder.reset_(self.state)
        self.logits = torch.empty(0)
        self.all_logits: list[torch.Tensor] = []

    @property
    def length(self) -> int:
        return int(self.state[ROWS_LENGTH])

    @property
    def last(self) -> int:
        return int(self.state[LAST])

    @property
    def accepted(self) -> list[int]:
        return self.state[ACCEPTED].tolist()

    def choose(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        self.logits = self.model.logits(hidden_TD)
        self.all_logits.append(self.logits)
        return self.logits.argmax(-1)

    @torch.no_grad()
    def prefill(self, tokens: list[int]) -> int:
        """Commits tokens in passes that end at multiples of the chunk; returns the next token."""
        chunk = self.sizes[0]
        while tokens:
            count = min(len(tokens), chunk - self.length % chunk)
            ids_T = torch.tensor(tokens[:count] + [0] * (chunk - count))
            count_1 = torch.tensor([count])
            self.decoder.prefill_(self.state, self.model.embed(ids_T), self.choose, chunk, count_1)
            tokens = tokens[count:]
        return self.last

    @torch.no_grad()
    def decode(self, count: int) -> list[int]:
        """Chooses ``count`` more tokens."""
        found: list[int] = []
        while len(found) < count:
            limit_1 = torch.tensor([count - len(found)])
            made = self.decoder.round_(self.state, self.choose, limit_1)
            found += made.chosen_T[: int(made.count_1)].tolist()
        return found

    def save(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.arena.fixed.clone(), self.arena.rows[: self.length].clone()

    def load(self, saved: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.arena.fixed.copy_(saved[0])
        self.arena.rows.fill_(255)
        self.arena.rows[: self.length].copy_(saved[1])

    def buffers(self) -> dict[str, torch.Tensor]:
        """Copies of all state; of rows, the committed ones."""
        rows = {slot.spec.name for slot in self.arena.layout.rows}
        return {
            name: (tensor[: self.length] if name in rows else tensor).clone()
            for name, tensor in self.state.items()
        }
