"""Tokens in, tokens out: a hybrid language model as a policy, and a stream of tokens through it.

For benchmarks and comparisons; a robot takes ``policy``. Each act commits tokens: a shape
``prefill.N`` up to N given ones, the plain act one round of greedy decoding.

Tensor suffixes: T tokens of a pass, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.hybrid.decode import Decoder
from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import ActShape, Buffers, Policy, Port, Ports
from flashrt_ros.runtime.session import PolicySession

TOKENS, COUNT, LIMIT = "tokens", "tokens.count", "decode.limit"
CHOSEN = "chosen"


class TokenPolicy(Policy):
    """Runs a hybrid language model, one pass an act.

    Inputs, which the caller leaves out where they do not matter: ``tokens`` ``(T,)`` int64 and
    ``tokens.count`` ``(1,)``, how many of them a prefill commits; ``decode.limit`` ``(1,)``, how
    many the round may commit. Output ``chosen`` ``(k + 2,)`` float32: how many tokens were chosen,
    then these.

    Args:
        model: It.
        capacity: Tokens that a sequence may have. A pass needs room for its whole shape.
        drafts: k, drafted tokens of a round.
        sizes: Shapes of prefill, each a multiple of the first, which is the chunk of the delta
            rule.

    Raises:
        InvalidArgumentError: An argument is out of range.
    """

    family: ClassVar[str] = "hybrid.tokens"

    def __init__(
        self,
        model: HybridModel,
        capacity: int = 4096,
        drafts: int = 0,
        sizes: Sequence[int] = (64, 256),
    ) -> None:
        sizes = tuple(sorted(set(sizes)))
        if not sizes or sizes[0] < 1 or any(size % sizes[0] for size in sizes):
            raise InvalidArgumentError(
                f"sizes: expected numbers of tokens that are multiples of the least, found {sizes}"
            )
        if capacity < max(sizes[-1], drafts + 1):
            raise InvalidArgumentError(
                f"capacity: expected at least {max(sizes[-1], drafts + 1)}, found {capacity}"
            )
        if model.config.vocab_size > 1 << 24:
            raise InvalidArgumentError(
                "vocab_size: expected at most 2^24, beyond which float32 holds not every token;"
                f" found {model.config.vocab_size}"
            )
        self.model = model
        self.sizes = sizes
        self.capacity = capacity
        self.decoder = Decoder(model, drafts)
        self.rows_per_act = drafts + 1

    def config(self) -> Mapping[str, object]:
        """Sizes of the model, and the number of drafts."""
        config = self.model.config.to_dict()
        return {"type": self.family, "model": config, "drafts": self.decoder.drafts}

    def module(self) -> HybridModel:
        """The model."""
        return self.model

    def layout(self) -> tuple[BufferSpec, ...]:
        """See the class, and ``Decoder``."""
        return (
            *self.decoder.layout(self.capacity),
            BufferSpec(TOKENS, (self.sizes[-1],), torch.int64, Role.INPUT),
            BufferSpec(COUNT, (1,), torch.int64, Role.INPUT),
            BufferSpec(LIMIT, (1,), torch.int64, Role.INPUT),
            BufferSpec(CHOSEN, (self.decoder.drafts + 2,), torch.float32, Role.OUTPUT),
        )

    def ports(self) -> Ports:
        """The inputs, and ``chosen`` in the place of an action."""
        inputs = ((TOKENS, self.sizes[-1]), (COUNT, 1), (LIMIT, 1))
        ports = tuple(Port(name, name, (size,), required=False) for name, size in inputs)
        return Ports(ports, Port("action", CHOSEN, (self.decoder.drafts + 2,)))

    def reset_(self, state: Buffers) -> None:
        """Zeroes everything; ``token.last`` is token 0."""
        self.decoder.reset_(state)

    def choose(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """The likeliest token behind each, ``(T,)`` int64."""
        return self.model.logits(hidden_TD).argmax(-1)

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """One round of decoding."""
        limit_1 = inputs[LIMIT].clamp(0, self.rows_per_act)
        made = self.decoder.round_(state, self.choose, limit_1)
        outputs[CHOSEN].copy_(torch.cat((made.count_1, made.chosen_T)))

    def prefill(self, size: int, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """Commits up to ``size`` given tokens, and chooses the one that follows."""
        tokens_T = inputs[TOKENS][:size].clamp(0, self.model.config.vocab_size - 1)
        count_1 = inputs[COUNT].clamp(0, size)
        embedded_TD = self.model.embed(tokens_T)
        chunk = self.sizes[0]
        last_1 = self.decoder.prefill_(state, embedded_TD, self.choose, chunk, count_1)
        outputs[CHOSEN].zero_()
        outputs[CHOSEN][:1].fill_(1.0)
        outputs[CHOSEN][1:2].copy_(last_1)

    def act_shapes(self) -> tuple[ActShape, ...]:
        """One of each size."""
        return tuple(
            ActShape(f"prefill.{size}", size, partial(self.prefill, size)) for size in self.sizes
        )


class TokenStream:
    """Tokens of one sequence through a session; its verbs work between any two calls.

    Prefill is cut by absolute position: every pass begins at a multiple of its size, as the
    largest that is not longer than what is left, and only a tail, or what leads up to the next
    multiple of the least size, is padded. So a suffix that is appended at a multiple of the
    largest size gives the bits of a cold run over all tokens; elsewhere the numbers agree but for
    rounding.

    Args:
        session: Of a ``TokenPolicy``.

    Raises:
        InvalidArgumentError: It runs another policy.
    """

    def __init__(self, session: PolicySession) -> None:
        policy = session.policy
        if not isinstance(policy, TokenPolicy):
            raise InvalidArgumentError(
                f"session: expected one of a TokenPolicy, found {type(policy).__name__}"
            )
        self.session = session
        self._policy = policy

    def prefill(self, tokens: Sequence[int]) -> int:
        """Commits tokens behind those that are, in as many passes as needed.

        A token that was chosen but not committed is dropped, unless it is the first of them.

        Args:
            tokens: At least one.

        Returns:
            The token that follows.

        Raises:
            InvalidArgumentError: There are none, or one is not in the vocabulary; nothing was run.
            NoMemoryError: The capacity is used up; the passes before have been committed.
        """
        vocab = self._policy.model.config.vocab_size
        given_T = np.asarray(tokens)
        wrong = given_T[(given_T < 0) | (given_T >= vocab)][:3].tolist()
        if wrong or not len(tokens):
            raise InvalidArgumentError(
                f"tokens: expected at least one, each from 0 to {vocab - 1}, found {wrong}"
                f" among {len(tokens)}"
            )
        # The session takes an array as it is, where a list of the largest size takes it as long
        # as all else that it does.
        padded_T = np.zeros(self._policy.sizes[-1], given_T.dtype)
        done, chosen = 0, 0
        while done < len(given_T):
            size, count = self.piece(self.session.host.rows, len(given_T) - done)
            padded_T[:count], padded_T[count:] = given_T[done : done + count], 0
            values = self.session.act({TOKENS: padded_T, COUNT: [count]}, f"prefill.{size}").values
            chosen, done = int(values[1]), done + count
        return chosen

    def decode(self, count: int) -> list[int]:
        """Chooses ``count`` tokens behind the one that was chosen last, and commits that one.

        Afterwards the last of them is chosen but not committed.

        Args:
            count: At least 1.

        Returns:
            The tokens.

        Raises:
            NoMemoryError: The capacity is used up.
        """
        found: list[int] = []
        while len(found) < count:
            values = self.session.act({LIMIT: [count - len(found)]}).values.tolist()
            found += [int(token) for token in values[1 : 1 + int(values[0])]]
        return found

    def piece(self, position: int, left: int) -> tuple[int, int]:
        """Returns the size of the next pass and how many tokens it takes.

        Args:
            position: Where it begins: tokens committed.
            left: Tokens that are still to come.
        """
        sizes = self._policy.sizes
        whole = [size for size in sizes if position % size == 0 and size <= left]
        if whole:
            return whole[-1], whole[-1]
        return sizes[0], min(left, sizes[0] - position % sizes[0])
