"""The benchmark of tiers: each way beside its own floor, and a loop that moves go on beside.

No time is asserted. What is pinned is that all bytes of a state are counted, that a way is held
against the right floor, and that the moves of the loop really took place.
"""

import contextlib
from collections.abc import Iterator

import pytest
from separate_host import separate_host

from flashrt_ros.bench import moves, tiers
from flashrt_ros.bench.harness import Options

KINDS = ["cpu", "separate", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(name="kind", params=KINDS)
def _kind(request: pytest.FixtureRequest) -> Iterator[str]:
    apart = request.param == "separate"
    with separate_host() if apart else contextlib.nullcontext():
        yield request.param


def test_each_way_has_its_floor(kind: str) -> None:
    result = tiers.run(Options("cuda" if kind == "cuda" else "cpu", quick=True))
    rows = {row.case: row for row in result.rows}
    assert len(rows) == len(result.rows)
    ways = {"device to disk": moves.WRITTEN, "disk to device": moves.READ}
    if kind != "cpu":
        ways |= {"device to host": moves.TO_PINNED, "host to device": moves.FROM_PINNED}
    sizes = {
        "1 MiB": 1 << 20,
        "16 MiB" if kind == "cuda" else "4 MiB": (16 if kind == "cuda" else 4) << 20,
    }
    for size, size_bytes in sizes.items():
        for way, floor in ways.items():
            row = rows[f"{size}: {way}, wall"]
            assert row.floor == f"{size}: {floor}, wall"
            assert row.size_bytes == rows[row.floor].size_bytes >= size_bytes
            assert row.gb_per_s
            assert row.point is not None
            assert (row.point.curve, row.point.x) == (moves.CURVE, size_bytes)
    assert [curve.title for curve in result.curves] == [moves.CURVE]


def test_the_loop_runs_beside_moves_that_took_place(kind: str) -> None:
    result = tiers.run(Options("cuda" if kind == "cuda" else "cpu", quick=True))
    others = ["disk"] if kind == "cpu" else ["host", "disk"]
    for label in ("late", "step", "period"):
        cases = [row.case for row in result.rows if row.case.startswith(f"{label} ")]
        assert cases == [
            f"{label} alone",
            *(f"{label} beside moves to {tier} and back" for tier in others),
        ]
    moved = [note for note in result.notes if " moves of " in note]
    assert [note.partition(":")[0] for note in moved] == others
    assert all(int(note.split()[1]) >= 1 for note in moved)
    assert any("no host tier" in note for note in result.notes) == (kind == "cpu")
