"""Benchmarks that draw curves: by size, by context length, by segments, in bytes.

No time is asserted. What is pinned is that every point has its curve and its floor, that what is
counted in bytes is right to the byte, and that a prediction follows from its formula alone.
"""

from pathlib import Path

import pytest

from flashrt_ros import cli
from flashrt_ros.bench import branches, copies, memory, predict, rows, segments, verbs
from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.report import Result, Row
from flashrt_ros.bench.roofline import copy_us, gb_per_s, in_words

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def check_points(result: Result) -> None:
    """Every curve has points, every point a curve; no two lie at one place of one line."""
    cases = [row.case for row in result.rows]
    assert len(set(cases)) == len(cases)
    assert all(not row.floor or row.floor in cases for row in result.rows)
    points = [row.point for row in result.rows if row.point is not None]
    assert len(set(points)) == len(points)
    assert {point.curve for point in points} == {curve.title for curve in result.curves}
    assert all(point.x > 0 for point in points)


def series(result: Result, curve: str, name: str) -> list[Row]:
    return [
        row
        for row in result.rows
        if row.point is not None and (row.point.curve, row.point.series) == (curve, name)
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_copies(device: str) -> None:
    result = copies.run(Options(device, quick=True))
    check_points(result)
    name = "host" if device == "cpu" else "device to host"
    found = series(result, "one copy by size, wall time", name)
    assert [row.size_bytes for row in found] == [4096, 16384, 65536]
    assert all(row.gb_per_s for row in found)
    assert len(result.curves) == (1 if device == "cpu" else 2)


@pytest.mark.parametrize("device", DEVICES)
def test_verbs_by_size(device: str) -> None:
    result = verbs.run(Options(device, quick=True))
    check_points(result)
    for verb in verbs.COPYING:
        found = series(result, verbs.CURVES["wall"], verb)
        assert [row.point.x for row in found if row.point] == [65536, 1 << 20]
        assert all(row.floor for row in found)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_by_length_and_by_new_rows(device: str) -> None:
    result = rows.run(Options(device, quick=True))
    check_points(result)
    for verb in ("rollback", "snapshot of all rows", "restore of all rows"):
        found = series(result, "verbs by context length, wall time", verb)
        assert [row.point.x for row in found if row.point] == [256, 2048]
    moved = [
        row.size_bytes for row in series(result, "snapshot by new rows, wall time", "snapshot")
    ]
    assert moved == sorted(moved)
    # What is counted is promised: the fixed part and the new rows, to the byte.
    assert len(result.counts) == 5
    assert all(count.met for count in result.counts)


@pytest.mark.parametrize("device", DEVICES)
def test_segments(device: str) -> None:
    result = segments.run(Options(device, quick=True))
    check_points(result)
    curve = "verbs by segments of the context, wall time"
    for verb in ("restore of a foreign capsule", "snapshot", "rollback"):
        found = [row.point.x for row in series(result, curve, verb) if row.point]
        assert len(found) == 3
        assert found[0] == 1
        assert found == sorted(set(found))


@pytest.mark.parametrize("device", DEVICES)
def test_branches(device: str) -> None:
    result = branches.run(Options(device, quick=True))
    check_points(result)
    sizes = [row.point.x for row in series(result, branches.BY_SIZE, branches.SWITCH) if row.point]
    assert len(sizes) == 2
    for name in ("materialise", branches.BEHIND):
        found = series(result, branches.BY_SIZE, name)
        assert [row.point.x for row in found if row.point] == sizes
        assert all(row.floor for row in found)
    previews = series(result, branches.BY_BRANCHES, "preview")
    assert [row.point.x for row in previews if row.point] == [1, 4, 16]
    assert all(row.floor for row in previews)
    assert any("spare states are" in note for note in result.notes)


@pytest.mark.parametrize("device", DEVICES)
def test_memory_is_counted_to_the_byte(device: str) -> None:
    result = memory.run(Options(device, quick=True))
    check_points(result)
    assert all(count.met for count in result.counts)
    row_bytes = (4 if device == "cpu" else 16) << 10
    page_bytes = 64 << 10
    page_rows = page_bytes // row_bytes
    fixed = 1024
    firsts = series(result, memory.FIRST, "taken")
    assert [row.p50 for row in firsts] == [
        fixed + rows * row_bytes for rows in (256, 512, 1024, 2048)
    ]
    nexts = series(result, memory.AGAIN, "taken")
    assert [row.p50 for row in nexts] == [
        fixed + -(-new // page_rows) * page_bytes for new in memory.NEW_ROWS
    ]
    assert all(row.p50 == 0 for row in series(result, memory.FORK, "taken by a fork"))
    for row in series(result, memory.FORK, "taken once they have run"):
        assert row.point is not None
        pages = -(-memory.RUN_ROWS // page_rows)
        assert row.p50 == row.point.x * (fixed + pages * page_bytes)
        assert row.ratio is not None
        assert row.ratio < 0.2


def test_a_prediction_is_its_formula() -> None:
    result = predict.run(273.0)
    check_points(result)
    copied = series(result, predict.CURVE, "snapshot, restore")
    assert [row.size_bytes for row in copied] == list(predict.SIZES)
    for row in copied:
        expected_us = predict.START_US + 2 * row.size_bytes / (0.85 * 273e9) * 1e6
        assert row.p50 == pytest.approx(expected_us)
    rolled = series(result, predict.CURVE, "rollback, 1 MiB fixed")
    assert len({row.p50 for row in rolled}) == 1  # whatever the rows
    half = series(predict.run(273.0 / 2), predict.CURVE, "full bandwidth")
    for slow, fast in zip(half, series(result, predict.CURVE, "full bandwidth"), strict=True):
        assert slow.p50 == pytest.approx(2 * fast.p50)
        assert fast.gb_per_s == pytest.approx(273.0)


def test_a_prediction_says_that_nothing_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "predict", "--bandwidth-gbs", "273"]) == 0
    text = capsys.readouterr().out
    assert "predicted, nothing was measured" in text
    line = next(line for line in text.splitlines() if line.startswith("1 GiB: snapshot"))
    assert line.split()[4:7] == ["-", "9258", "us"]


def test_the_page_for_thor_holds_what_the_command_prints() -> None:
    page = (Path(__file__).parents[1] / "docs/thor.md").read_text(encoding="utf-8")
    assert "bench predict --bandwidth-gbs 273" in page
    result = predict.run(273.0)
    columns = (
        "full bandwidth",
        "snapshot, restore",
        "rollback, 1 MiB fixed",
        "switch of one piece",
    )
    table = [series(result, predict.CURVE, name) for name in columns]
    for index, size_bytes in enumerate(predict.SIZES):
        cells = [words_us(column[index].p50) for column in table]
        assert f"| {in_words(size_bytes)} | {' | '.join(cells)} |" in page


def words_us(us: float) -> str:
    if us >= 1000:
        return f"{us / 1000:.2f} ms"
    return f"{us:.0f} us" if us >= 10 else f"{us:.1f} us"


def test_bytes_are_counted_both_ways() -> None:
    assert gb_per_s(500, 1.0) == pytest.approx(1.0)  # 500 B read, 500 B written in 1 us
    assert copy_us(500, 1.0) == pytest.approx(1.0)
    assert [in_words(size) for size in (512, 1536, 65536, 3 << 20, 1 << 30)] == [
        "512 B",
        "1536 B",
        "64 KiB",
        "3 MiB",
        "1 GiB",
    ]
