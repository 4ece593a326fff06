"""Random lists of verbs for ``rows_model.Pair``, and what makes a failing one short."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from rows_model import Pair, Verb

KINDS = (
    *["step"] * 8, "trial", "snapshot", "snapshot", "restore", "restore", "fork", "fork_live",
    "rollback", "parent", "drop", "drop", "pin", "reset",
)  # fmt: skip


def draw(seed: int, count: int, more: Sequence[str] = ()) -> list[Verb]:
    """Returns ``count`` verbs, the same for the same seed; also those named in ``more``."""
    choose = random.Random(seed)
    # Some sequences seldom restore and get long, some seldom step.
    kinds = [*KINDS, *more, *["step"] * choose.choice((0, 0, 8, 30))]
    return [
        (choose.choice(kinds), choose.randrange(1000), choose.randrange(1000))
        for _ in range(count)
    ]


def failure(verbs: Sequence[Verb], make: Callable[[], Pair]) -> tuple[int, BaseException] | None:
    """Runs verbs; the index of the one that fails and its error, None if none does."""
    pair = make()
    try:
        for index, verb in enumerate(verbs):
            try:
                pair.do(verb)
            except Exception as error:
                return index, error
    finally:
        pair.session.close()
    return None


def shrink(verbs: Sequence[Verb], make: Callable[[], Pair]) -> list[Verb]:
    """Leaves verbs out as long as the rest still fails; halves first, then fewer, then one."""
    found = failure(verbs, make)
    assert found is not None
    kept = list(verbs[: found[0] + 1])
    size = max(1, len(kept) // 2)
    while True:
        start, shorter = 0, False
        while start < len(kept):
            attempt = kept[:start] + kept[start + size :]
            again = failure(attempt, make)
            if again is None:
                start += size
            else:
                kept, shorter = attempt[: again[0] + 1], True
        if size == 1 and not shorter:
            return kept
        size = max(1, size // 2)
