"""Rows against a reference that keeps full copies: random verbs, every byte, every page.

A lineage that takes a row for its own which another one wrote is a robot that remembers what
never happened, and shows only much later. So 10^5 verbs are compared whole, and mistakes made on
purpose show that the comparison finds them. More verbs:

    FLASHRT_ROS_ROW_VERBS=1000000 python -m pytest test/test_rows_random.py -k random
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from rows_model import Pair, Verb
from verb_sequences import draw, failure, shrink

from flashrt_ros.runtime import live_rows, row_pool, row_segment
from flashrt_ros.runtime.live_rows import LiveRows
from flashrt_ros.runtime.row_pool import RowPool
from flashrt_ros.runtime.row_segment import RowSegment, RowSpan

VERBS = int(os.environ.get("FLASHRT_ROS_ROW_VERBS", "100000"))
EACH = 500
MAKES: tuple[Callable[[], Pair], ...] = (
    Pair,  # slots run out first
    lambda: Pair(width=124),  # pages do
    lambda: Pair(width=60, capacity=90, slots=16),  # longer lineages
)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of four rows, so that short lineages have many."""
    monkeypatch.setattr(row_pool, "PAGE_ROWS", 4)


def first_failure(sequences: int) -> tuple[list[Verb], Callable[[], Pair]] | None:
    for seed in range(sequences):
        verbs, make = draw(seed, EACH), MAKES[seed % len(MAKES)]
        if failure(verbs, make) is not None:
            return verbs, make
    return None


def test_random_verbs_leave_what_full_copies_would() -> None:
    found = first_failure(-(-VERBS // EACH))
    if found is None:
        return
    verbs = shrink(*found)
    again = failure(verbs, found[1])
    assert again is not None
    raise AssertionError(f"{len(verbs)} verbs of {MAKES.index(found[1])}: {verbs}") from again[1]


@pytest.mark.cuda
@pytest.mark.parametrize("seed", range(6))
def test_random_verbs_on_a_gpu(seed: int) -> None:
    verbs = draw(seed, EACH)

    def make() -> Pair:
        return Pair(width=(3, 124, 60)[seed % 3], capacity=90, slots=16, device="cuda")

    found = failure(verbs, make)
    if found is not None:
        raise AssertionError(f"verb {found[0]} of seed {seed}: {verbs[found[0]]}") from found[1]


def _one_more(real: Callable[..., int]) -> Callable[..., int]:
    return lambda *args: (lambda end: end + 1 if end else 0)(real(*args))


def _ignores_what_is_gone(self: LiveRows, rows: int) -> None:
    self._stored = min(self._stored, rows)


def _ignores_trimming(self: LiveRows, rows: int) -> None:
    tail, stored = self._tail, min(self._stored, rows)
    while tail is not None and (not tail.pages or stored <= tail.first):
        stored, tail = min(stored, tail.first), tail.parent
    self._tail, self._stored = tail, 0 if tail is None else stored


def _overwrites(self: LiveRows, rows: int) -> RowSegment | None:
    if self._tail is not None and rows <= self._tail.limit:
        return self._tail
    return STORE(self, rows)


def _copies_all(self: LiveRows, rows: int, target: RowSpan) -> None:
    self.forget()
    GO(self, rows, target)


def _keeps_its_provenance(self: LiveRows, rows: int, target: RowSpan) -> None:
    tail, stored = self._tail, self._stored
    GO(self, rows, target)
    self._tail, self._stored = tail, stored


def _never_trims(self: RowSegment, end: int) -> int:
    if len(self.holders) > 1 and self.holders[end] == 1:
        del self.holders[end]
        return 0
    return RELEASE(self, end)


def _holds_no_parent(self: RowSegment, *args: object) -> None:
    INIT(self, *args)  # type: ignore[arg-type]
    if self.parent is not None:
        self.parent.holders[self.first] -= 1


def _joins_nothing(self: RowPool, page: int, pages: int) -> None:
    GIVE_BACK(self, page, pages - 1 if pages > 1 else pages)


STORE, GO, RELEASE = LiveRows._store, LiveRows.go, RowSegment.release
INIT, GIVE_BACK = RowSegment.__init__, RowPool.give_back
MISTAKES: tuple[tuple[object, str, object], ...] = (
    (live_rows, "common_end", _one_more(row_segment.common_end)),
    (live_rows, "common_end", lambda one, end, other, other_end: min(end, other_end)),
    (LiveRows, "_resolve", _ignores_what_is_gone),
    (LiveRows, "_resolve", _ignores_trimming),
    (LiveRows, "_store", _overwrites),
    (LiveRows, "go", _copies_all),
    (LiveRows, "go", _keeps_its_provenance),
    (RowSegment, "release", _never_trims),
    (RowSegment, "__init__", _holds_no_parent),
    (RowPool, "give_back", _joins_nothing),
)


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_found(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong = MISTAKES[number]
    monkeypatch.setattr(owner, name, wrong)
    found = first_failure(12)
    assert found is not None, f"{name} is wrong, and nothing showed it"
    verbs = shrink(*found)
    assert len(verbs) <= 30, verbs
