"""The best of several branches, judged by what each would do now."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from py_trees.behaviour import Behaviour
from py_trees.common import Status

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.trees.key import Key
from flashrt_ros.trees.script import CallError, Script, Steps
from flashrt_ros.trees.service import TIMEOUT_S


def rows(chunk: Any) -> npt.NDArray[np.float64]:
    """The rows of an ``ActionChunk``, ``(H, A)``, in the units of the contract; a copy."""
    values: npt.NDArray[np.float64] = np.array(chunk.data, dtype=np.float64)
    return values.reshape(chunk.horizon, -1)


class ChooseByPreview(Script, Behaviour):
    """Forks the live state, previews what each branch would do, and restores the best.

    Nothing is commanded meanwhile, and the live state is untouched until the choice is made. A
    branch whose score is minus infinity is not chosen. FAILURE, with everything as it was, if the
    score is not a number or raises, if all are minus infinity, or if a call fails.

    Attributes:
        scores: One a branch, of the last round.
        choice: Index of the branch that was chosen; None without one.
    """

    def __init__(
        self,
        name: str,
        score: Callable[[Any], float],
        *,
        count: int = 4,
        source: str | Key = "",
        seeds: Sequence[int] | Key = (),
        publish: bool = False,
        choice_key: str = "",
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepares it; nothing is asked before the first tick.

        Args:
            name: In the tree.
            score: Given each branch's ``ActionChunk`` within a tick; more is better. ``rows``
                gives its values as an array.
            count: How many branches, at most 64; with ``seeds`` as many as these.
            source: Capsule to branch from; empty: the live state.
            seeds: Noise keys, one a branch; empty: derived from the source.
            publish: False: the chosen branch is on hold until ``Resume``. True: its commands go
                out at once, if the start is safe.
            choice_key: Gets ``choice``.
            policy: Name of the policy node.
            timeout_s: For each call; the preview is asked for again within it while the node is
                too busy for one.

        Raises:
            InvalidArgumentError: ``count`` is not within 1 to 64.
        """
        Behaviour.__init__(self, name)
        if not isinstance(seeds, Key) and len(seeds):
            count = len(seeds)
        if not 1 <= count <= 64:
            raise InvalidArgumentError(f"{name}: count: expected 1 to 64 branches, found {count}")
        self.begin_script(policy, timeout_s, ("fork", "preview", "restore"))
        self.score, self.count, self.source, self.seeds = score, count, source, seeds
        self.publish, self.choice_key = publish, choice_key
        self.scores: list[float] = []
        self.choice: int | None = None
        self._board.reads(source)
        self._board.reads(seeds)
        self._board.writes(choice_key)

    def script(self) -> Steps:
        """See the class."""
        assert self.link is not None
        self.scores, self.choice = [], None
        base = self.link.new_name("option")
        seeds = self._board.values("seeds", self.seeds)
        branches = [f"{base}.{index}" for index in range(len(seeds) or self.count)]
        source = self._board.value("source", self.source)
        self.keep(*branches)
        self.feedback_message = f"previewing {len(branches)} branches"
        yield from self.ask("fork", name=source, names=branches, seeds=seeds)
        answer = yield from self.ask("preview", patient=True, names=branches)
        if len(answer.chunks) != len(branches):
            found = len(answer.chunks)
            raise CallError(f"preview: expected {len(branches)} chunks, found {found}", False)
        for index, chunk in enumerate(answer.chunks):
            self.scores.append(self._score(index, chunk))
        best = max(self.scores)
        if best == -math.inf:
            yield from self.drop()
            self.feedback_message = f"none of {len(branches)} branches is acceptable"
            return Status.FAILURE
        choice = self.scores.index(best)
        yield from self.ask("restore", name=branches[choice], publish=self.publish)
        self.choice = choice
        self._board.write(self.choice_key, choice)
        yield from self.drop()
        shown = ", ".join(f"{score:.4g}" for score in self.scores)
        self.feedback_message = f"branch {choice + 1} of {len(branches)} (scores {shown})"
        return Status.SUCCESS

    def _score(self, index: int, chunk: Any) -> float:
        """The user's function may be wrong, and must not end the tree."""
        try:
            score = float(self.score(chunk))
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
        else:
            if not math.isnan(score):
                return score
            words = "not a number"
        raise CallError(f"score of branch {index + 1}: expected a number, found {words}", False)
