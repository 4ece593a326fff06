"""Tiers against a reference that keeps full copies: random verbs with moves and loads among them.

As ``test_rows_random.py``, whose reference this extends: every byte in every tier, every page,
every unit of host memory and every file, after each verb; and mistakes made on purpose that must
be found.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rows_model import Verb
from tiers_model import MOVES, TierPair
from verb_sequences import draw, failure, shrink

from flashrt_ros.runtime import moves, place, row_pool, row_segment
from flashrt_ros.runtime.device.base import Device
from flashrt_ros.runtime.pool import Segment

VERBS = int(os.environ.get("FLASHRT_ROS_TIER_VERBS", "15000"))
EACH = 500
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"width": 124, "host_bytes": 40000},
    {"width": 60, "capacity": 90, "slots": 16, "host_bytes": 200_000},
)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_pool, "PAGE_ROWS", 4)


def first_failure(
    sequences: int, folder: Path, **more: Any
) -> tuple[list[Verb], Callable[[], TierPair]] | None:
    for seed in range(sequences):
        options = {**OPTIONS[seed % len(OPTIONS)], **more}

        def make(options: dict[str, Any] = options) -> TierPair:
            shutil.rmtree(folder, ignore_errors=True)
            return TierPair(folder, **options)

        verbs = draw(seed, EACH, MOVES)
        if failure(verbs, make) is not None:
            return verbs, make
    return None


def check(sequences: int, folder: Path, **more: Any) -> None:
    found = first_failure(sequences, folder, **more)
    if found is None:
        return
    verbs = shrink(*found)
    again = failure(verbs, found[1])
    assert again is not None
    raise AssertionError(f"{len(verbs)} verbs: {verbs}") from again[1]


def test_random_verbs_leave_what_full_copies_would(tmp_path: Path) -> None:
    check(-(-VERBS // EACH), tmp_path / "files")


@pytest.mark.cuda
def test_random_verbs_on_a_gpu(tmp_path: Path) -> None:
    check(4, tmp_path / "files", device="cuda")


def _carries_too_little(self: Device, many: Any) -> None:
    CARRY(self, list(many)[:-1])


def _forgets_the_rows(targets: Any, sources: Any) -> Any:
    return PAIRS(targets[:1], sources[:1])


def _keeps_the_old(self: Segment, new: place.Place) -> None:
    self.place = new


def _drops_its_file(self: Segment, new: place.Place) -> None:
    file = self.place if isinstance(self.place, place.FilePlace) else None
    GO_TO(self, new)
    if file is not None:
        self.file = None


def _moves_alone(self: moves.Moves, move: moves.Move) -> None:
    move.capsule.segment.retain()
    COMMIT(self, move)


def _one_row_less(pool: Any, rows: int) -> Any:
    return NEW_SPAN(pool, max(0, rows - 1))


CARRY, PAIRS, GO_TO = Device.carry, place.pairs, Segment.go_to
COMMIT, NEW_SPAN = moves.Moves.commit_move, row_segment.new_span
MISTAKES: tuple[tuple[object, str, object], ...] = (
    (Device, "carry", _carries_too_little),
    (moves, "pairs", _forgets_the_rows),
    (Segment, "go_to", _keeps_the_old),
    (Segment, "go_to", _drops_its_file),
    (moves.Moves, "commit_move", _moves_alone),
    (moves, "new_span", _one_row_less),
)


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_found(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    owner, name, wrong = MISTAKES[number]
    monkeypatch.setattr(owner, name, wrong)
    found = first_failure(3, tmp_path / "files")
    assert found is not None, f"{name} is wrong, and nothing showed it"
    assert len(shrink(*found)) <= 30
