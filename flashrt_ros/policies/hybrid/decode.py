"""Prefill, and greedy decoding with drafts that the model verifies, over named state.

Between two calls the state is that of all committed tokens; one more is *chosen* but not yet
committed: ``token.last``. A round of decoding drafts up to k tokens behind it with the MTP head,
runs them all through the model in one pass, and commits ``token.last`` and those drafts that the
model itself would have chosen. How many, only the device knows, so every layer keeps its state
after each token of the pass, and a gather takes the right one. Rejected tokens leave no trace:
their rows lie behind ``rows.length``. (Leviathan et al., "Fast Inference from Transformers via
Speculative Decoding", arXiv 2211.17192, with greedy choice.)

Tensor suffixes: T tokens of a pass, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.policies.hybrid.mtp import HIDDEN
from flashrt_ros.policies.hybrid.step import Advance
from flashrt_ros.runtime.buffers import ROWS_LENGTH, BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers

LAST = "token.last"
ACCEPTED = "mtp.accepted"
MOST_DRAFTS = 15

Choose = Callable[[torch.Tensor], torch.Tensor]
"""Hidden values ``(T, D)`` to the token that follows each, ``(T,)`` int64."""


@dataclass(frozen=True)
class Round:
    """What one round of decoding has chosen.

    Attributes:
        chosen_T: ``(k + 1,)`` int64; the first ``count_1`` count.
        count_1: ``(1,)`` int64: tokens committed, and as many chosen.
    """

    chosen_T: torch.Tensor
    count_1: torch.Tensor


class Decoder:
    """Commits tokens to the state of a model.

    State besides the model's: ``token.last`` ``(1,)`` int64; with drafts ``mtp.accepted``
    ``(k + 1,)`` int64: rounds by the number of drafts that were accepted.

    Args:
        model: It.
        drafts: k, drafted tokens of a round; 0 decodes plainly and needs no MTP head.

    Raises:
        InvalidArgumentError: ``drafts`` is out of range, or there is no head to draft with.
    """

    def __init__(self, model: HybridModel, drafts: int = 0) -> None:
        if not 0 <= drafts <= MOST_DRAFTS:
            raise InvalidArgumentError(f"drafts: expected 0 to {MOST_DRAFTS}, found {drafts}")
        if drafts and model.mtp is None:
            raise InvalidArgumentError(
                f"drafts: expected 0, since the model has no MTP head, found {drafts}"
            )
        self.model = model
        self.drafts = drafts

    def layout(self, capacity: int) -> tuple[BufferSpec, ...]:
        """State buffers, the model's included; without drafts those of its head are left out."""
        specs = self.model.layout(capacity)
        if not self.drafts:
            specs = tuple(spec for spec in specs if not spec.name.startswith("mtp."))
        specs = (*specs, BufferSpec(LAST, (1,), torch.int64, Role.STATE))
        if self.drafts:
            accepted = BufferSpec(ACCEPTED, (self.drafts + 1,), torch.int64, Role.STATE, "rounds")
            specs = (*specs, accepted)
        return specs

    def reset_(self, state: Buffers, first_token: int = 0) -> None:
        """Writes the state of a new episode.

        Args:
            state: All of ``layout`` but rows.
            first_token: What ``token.last`` becomes.
        """
        for spec in self.layout(1):
            if not spec.capacity:
                state[spec.name].zero_()
        state[LAST].fill_(first_token)

    def prefill_(
        self,
        state: Buffers,
        embedded_TD: torch.Tensor,
        choose: Choose,
        chunk: int,
        count_1: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Commits tokens that are given, and chooses the one that follows.

        Args:
            state: Read and written; ``token.last`` is not among the tokens unless given.
            embedded_TD: Their embeddings.
            choose: See ``Choose``.
            chunk: Tokens of a chunk of the delta rule; T is a multiple of it.
            count_1: How many they are, ``(1,)`` int64; the rest are pads. At 0 nothing changes.
                None: all.

        Returns:
            ``token.last``.
        """
        tokens = embedded_TD.shape[0]
        hidden_TD, advances = self.model.run_(embedded_TD, state, chunk, count_1)
        if count_1 is None:
            count_1 = torch.full_like(state[ROWS_LENGTH], tokens)
        self._commit_(state, embedded_TD, hidden_TD, advances, count_1)
        chosen_1 = choose(hidden_TD.index_select(0, (count_1 - 1).clamp(min=0)))
        state[LAST].copy_(torch.where(count_1 > 0, chosen_1, state[LAST]))
        return state[LAST]

    def round_(
        self, state: Buffers, choose: Choose, limit_1: torch.Tensor, embed: Choose | None = None
    ) -> Round:
        """Commits ``token.last`` and what the model accepts of the drafts behind it.

        Args:
            state: Read and written.
            choose: See ``Choose``.
            limit_1: Most tokens to commit, ``(1,)`` int64 on the device; at 0 nothing changes.
            embed: Tokens ``(T,)`` to embeddings; None takes the model's.
        """
        embed = embed or self.model.embed
        window_T = self.draft_(state, choose, embed)
        return self.verify_(state, choose, limit_1, window_T, embed(window_T))

    def draft_(self, state: Buffers, choose: Choose, embed: Choose) -> torch.Tensor:
        """Returns ``token.last`` and k drafted tokens behind it, ``(k + 1,)`` int64."""
        model, tokens = self.model, [state[LAST]]
        if self.drafts:
            assert model.mtp is not None
            hidden_1D, periods = state[HIDDEN], model.get_buffer("periods")
            for k in range(self.drafts):
                step = model.step(1, state[ROWS_LENGTH] + k)
                hidden_1D = model.mtp.draft_(hidden_1D, embed(tokens[-1]), state, step, periods)
                tokens.append(choose(hidden_1D))
        return torch.cat(tokens)

    def verify_(
        self, state: Buffers, choose: Choose, limit_1: torch.Tensor, window_T: torch.Tensor,
        embedded_TD: torch.Tensor,
    ) -> Round:  # fmt: skip
        """Runs the drafts through the model and commits those that it would have chosen.

        Args:
            state: Read and written.
            choose: See ``Choose``.
            limit_1: See ``round_``.
            window_T: ``token.last`` and the drafts.
            embedded_TD: Their embeddings.
        """
        known_1 = None if self.drafts else limit_1.clamp(max=1)
        hidden_TD, advances = self.model.run_(embedded_TD, state, 0, known_1, self.drafts > 0)
        chosen_T = choose(hidden_TD)
        if known_1 is None:
            right_T = (window_T[1:] == chosen_T[:-1]).to(torch.int64)
            count_1 = torch.minimum(right_T.cumprod(0).sum().view(1) + 1, limit_1)
        else:
            count_1 = known_1
        self._commit_(state, embedded_TD, hidden_TD, advances, count_1)
        chosen_before = torch.cat((state[LAST], chosen_T))
        state[LAST].copy_(chosen_before.index_select(0, count_1))
        if self.drafts:
            rounds_1 = (count_1 > 0).to(torch.int64)
            state[ACCEPTED].index_add_(0, (count_1 - 1).clamp(min=0), rounds_1)
        return Round(chosen_T, count_1)

    def _commit_(
        self, state: Buffers, embedded_TD: torch.Tensor, hidden_TD: torch.Tensor,
        advances: list[Advance], count_1: torch.Tensor,
    ) -> None:  # fmt: skip
        model, length_1 = self.model, state[ROWS_LENGTH]
        for advance in advances:
            model.ops().commit_(advance, count_1)
        if self.drafts:
            assert model.mtp is not None
            known_TD = torch.cat((state[HIDDEN], hidden_TD))
            step = model.step(embedded_TD.shape[0], length_1)
            periods = model.get_buffer("periods")
            model.mtp.catch_up_(known_TD[:-1], embedded_TD, state, step, periods)
            state[HIDDEN].copy_(known_TD.index_select(0, count_1))
        length_1.add_(count_1)
