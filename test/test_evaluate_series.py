"""Thinning and packing of series: a report of a long recording must not lose what matters in it.

Pinned on random series: smallest and largest value, gaps and ends stay, order stays, and no more
points than were allowed. The control is every n-th point, which loses a spike.
"""

import base64
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.evaluate.page.series import LEAST_POINTS, Pack, bins, packed, share, spans, thin

VALUES = st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=400)


@given(VALUES, st.integers(5, 60))
def test_extremes_gaps_and_ends_stay(values: list[float], most: int) -> None:
    values_T = np.array(values)
    kept = thin(values_T, most)
    assert len(kept) <= most or len(kept) == len(values)
    assert (np.diff(kept) > 0).all()
    assert {0, len(values) - 1} <= set(kept.tolist())
    if np.isfinite(values_T).any():
        assert np.nanmin(values_T[kept]) == np.nanmin(values_T)
        assert np.nanmax(values_T[kept]) == np.nanmax(values_T)
    assert np.isnan(values_T[kept]).any() == np.isnan(values_T).any()


@given(VALUES, st.integers(5, 60), st.data())
def test_extremes_stay_wherever_they_are(values: list[float], most: int, data: st.DataObject):
    """A spike and a gap of one point, in a series that is otherwise flat."""
    values_T = np.zeros(len(values))
    spike = data.draw(st.integers(0, len(values) - 1))
    gap = data.draw(st.integers(0, len(values) - 1).filter(lambda i: i != spike or i == 0))
    values_T[spike] = 1.0
    if gap != spike:
        values_T[gap] = np.nan
    kept = thin(values_T, most)
    assert spike in kept
    assert gap == spike or gap in kept


def test_every_nth_point_would_lose_a_spike() -> None:
    values_T = np.zeros(10_000)
    values_T[4321] = 1.0
    kept = thin(values_T, 200)
    assert values_T[kept].max() == 1.0
    assert values_T[:: 10_000 // len(kept)].max() == 0.0


@given(st.lists(st.booleans(), max_size=50))
def test_spans_are_the_runs_of_true(mask: list[bool]) -> None:
    found = spans(np.array(mask, np.bool_))
    again = np.zeros(len(mask), np.bool_)
    for first, last in found:
        assert again[first : last + 1].any() == np.False_
        again[first : last + 1] = True
    assert again.tolist() == mask
    assert all(b < a - 1 for (_, b), (a, _) in itertools.pairwise(found))


def test_numbers_come_back_from_their_packing() -> None:
    values = np.array([1.5, float("nan"), -2.0])
    again = np.frombuffer(base64.b64decode(packed(values)), "<f4")
    np.testing.assert_array_equal(again, values.astype(np.float32))


def test_series_share_their_times() -> None:
    pack = Pack(most=1000)
    ticks = np.arange(600, dtype=np.int32)
    first, second = pack.series(ticks, np.zeros(600)), pack.series(ticks, np.ones(600))
    third = pack.series(ticks + 1, np.ones(600))
    assert [line["x"] for line in (first, second, third)] == [0, 0, 1]
    assert len(pack.times()) == 2
    assert (pack.given, pack.kept) == (1800, 1800)
    pack.series(np.arange(5000, dtype=np.int32), np.sin(np.arange(5000)))
    assert pack.given == 6800
    assert 1800 + 500 < pack.kept <= 2800


def test_shares_and_bins() -> None:
    assert share(400_000, 40) == 10_000
    assert share(400_000, 10_000) == LEAST_POINTS
    assert share(400_000, 0) == 400_000
    np.testing.assert_array_equal(bins(10, 4), [0, 3, 6, 9])
    np.testing.assert_array_equal(bins(3, 4), [0, 1, 2])
    assert pytest.approx(len(bins(100_000, 4000)), abs=1) == 4000
