"""The figures of a fan, against what can be counted by hand.

Pinned: spread, time of divergence and distance on rows written out here, branches of different
length, and that what goes into the report is JSON without NaN.
"""

import json

import numpy as np
import pytest

from flashrt_ros.evaluate.fan import Branch, Fan

NAN = float("nan")


def make(actions_BHA: list[list[list[float]]], recorded_HA: list[list[float]]) -> Fan:
    count, elements = len(actions_BHA), len(recorded_HA[0])
    return Fan(
        policy="act",
        source="run_0",
        index=100,
        time_ns=5_000_000_000,
        period_s=0.1,
        names=tuple(f"q{i}" for i in range(elements)),
        units=("rad",) * elements,
        branches=tuple(Branch(f"seed {i}", "act", i, "") for i in range(count)),
        actions_BHA=np.array(actions_BHA),
        recorded_HA=np.array(recorded_HA),
    )


def example() -> Fan:
    return make(
        [
            [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]],
            [[1.0, 0.0], [2.5, 0.0], [NAN, NAN]],
            [[1.0, 0.0], [1.0, 0.0], [5.0, 0.0]],
        ],
        [[1.0, 0.5], [2.0, NAN], [NAN, NAN]],
    )


def test_spread_is_over_the_branches_that_go_on() -> None:
    np.testing.assert_array_equal(example().spread_HA(), [[0, 0], [1.5, 0], [2.0, 0]])
    ended = make([[[1.0], [NAN]], [[2.0], [NAN]]], [[0.0], [0.0]])
    np.testing.assert_array_equal(ended.spread_HA(), [[1.0], [NAN]])


def test_divergence_is_the_first_row_above_the_tolerance() -> None:
    assert example().diverges_at() == [1, None]
    assert example().diverges_at(1.5) == [2, None]
    assert example().diverges_at(2.0) == [None, None]


def test_distance_is_to_the_recorded_rows_only() -> None:
    distance_BA = example().distance_BA()
    np.testing.assert_allclose(distance_BA[:, 0], [0, np.sqrt(0.125), np.sqrt(0.5)])
    np.testing.assert_allclose(distance_BA[:, 1], [0.5] * 3)
    assert np.isnan(make([[[1.0]]], [[NAN]]).distance_BA()).all()


def test_the_report_gets_json() -> None:
    found = json.loads(json.dumps(example().as_json(), allow_nan=False))
    assert [branch["steps"] for branch in found["branches"]] == [3, 2, 3]
    assert found["joints"][0] == {
        "name": "q0",
        "unit": "rad",
        "diverges_step": 1,
        "diverges_s": pytest.approx(0.1),
        "spread_max": 2.0,
        "spread_end": 2.0,
    }
    assert found["joints"][1]["diverges_step"] is None
    ended = make([[[1.0], [NAN]], [[4.0], [NAN]]], [[0.0], [0.0]]).as_json()
    assert ended["joints"][0]["spread_end"] == 3.0
    assert make([[[1.0]]], [[NAN]]).as_json()["branches"][0]["distance"] == [None]


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(AssertionError):
        make([[[1.0, 2.0]]], [[1.0]])
