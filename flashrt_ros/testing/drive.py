"""Drives a policy from a cut point, control step by control step, and tells what it chose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from flashrt_ros.policies.hybrid.policy import TOKENS
from flashrt_ros.policies.hybrid.tokens import TokenPolicy, TokenStream
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing.episode import Episodes, Observation

TOKENS_OF_A_STEP = 8
"""That are decoded."""
TOKENS_SEEN = 8
"""That are given in a step before the cut, as observations are. A random model that decodes alone
soon says the same again and again, and cuts in that would all be one."""
PROMPT = 64

Episode = Callable[[int, int], Sequence[Observation]]
"""Number of an episode, from 0, and of control steps, to observations; the same ones each time."""


class Drive(Protocol):
    """Whoever can lead a session through an episode.

    Attributes:
        session: It.
        unit: What the numbers of a step are.
    """

    session: PolicySession
    unit: str

    def begin(self, episode: int) -> None:
        """Resets, and stands before the first step of an episode."""

    def lead(self, episode: int, index: int) -> None:
        """Takes step ``index`` of an episode, from behind the step before."""

    def step(self, index: int) -> list[float]:
        """Takes step ``index`` of episode 0 behind the cut, from any state; what was chosen."""


class RobotDrive:
    """Control steps over the observations of an episode.

    Args:
        session: Of any policy that observes.
        episode: See ``Episode``; None: random walks, as in ``check_policy``.
        steps: The longest episode that will be asked for.
    """

    def __init__(self, session: PolicySession, episode: Episode | None, steps: int) -> None:
        self.session = session
        if episode is None:
            ports, layout = session.policy.ports(), session.layout
            dtypes = {port.key: layout.find(port.buffer).dtype for port in ports.observations}
            episode = Episodes(ports, dtypes, None).make
        self._episodes = [episode(index, steps) for index in (0, 1)]
        # Bins say more than the numbers that they stand for.
        self._tokens = TOKENS if TOKENS in session.arena.state else ""
        self.unit = "token" if self._tokens else "element"

    def begin(self, episode: int) -> None:
        """See ``Drive``."""
        self.session.reset_(seed=7 + episode)

    def lead(self, episode: int, index: int) -> None:
        """See ``Drive``."""
        self.session.step(self._episodes[episode][index])

    def step(self, index: int) -> list[float]:
        """See ``Drive``."""
        values_A = self.session.step(self._episodes[0][index]).values
        # The action has been waited for, so the state is there.
        tokens_A = self.session.arena.state[self._tokens] if self._tokens else values_A
        found: list[float] = tokens_A.tolist()
        return found


class TokenDrive:
    """A random prompt and steps in which random tokens come; behind a cut, greedy decoding alone.

    Args:
        session: Of a ``TokenPolicy``.
    """

    unit = "token"

    def __init__(self, session: PolicySession) -> None:
        assert isinstance(session.policy, TokenPolicy)
        self.session, self._stream = session, TokenStream(session)
        self._vocab = session.policy.model.config.vocab_size

    def begin(self, episode: int) -> None:
        """See ``Drive``."""
        self.session.reset_(seed=7 + episode)
        self._give(PROMPT, 2 * self._vocab + episode)

    def lead(self, episode: int, index: int) -> None:
        """See ``Drive``."""
        self._give(TOKENS_SEEN, 2 * index + episode)
        self.step(index)

    def step(self, index: int) -> list[float]:
        """See ``Drive``."""
        return [float(token) for token in self._stream.decode(TOKENS_OF_A_STEP)]

    def _give(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._stream.prefill(torch.randint(self._vocab, (count,), generator=generator).tolist())


def drive(session: PolicySession, episode: Episode | None, steps: int) -> Drive:
    """Returns what can lead this session through episodes of so many steps."""
    if isinstance(session.policy, TokenPolicy):
        return TokenDrive(session)
    return RobotDrive(session, episode, steps)


def room(policy: Policy, capacity: int) -> int:
    """Control steps of an episode for which there are rows; many where none grow."""
    if not capacity:
        return 1 << 20
    if isinstance(policy, TokenPolicy):
        rows = capacity - PROMPT - policy.rows_per_act
        return rows // (TOKENS_SEEN + TOKENS_OF_A_STEP)
    return capacity // max(1, policy.rows_per_plan + policy.rows_per_act)
