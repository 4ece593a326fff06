"""Gaps and losses of a topic: what is counted, and what must not be taken for a loss.

A camera that drops every third frame still looks fresh; these counts are what shows it.
"""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.contract.cdr import peek_stamp
from flashrt_ros.ros.arrivals import Arrivals

MS = 1_000_000


def steady(count: int = 32, period_ms: int = 20) -> Arrivals:
    arrivals = Arrivals()
    for number in range(1, count + 1):
        arrivals.note(number * period_ms * MS, number * period_ms * MS)
    return arrivals


def test_a_steady_topic_has_no_gap() -> None:
    arrivals = steady()
    assert (arrivals.received, arrivals.gaps, arrivals.skipped) == (32, 0, 0)
    assert arrivals.interval_ms.percentiles(50) == (20.0,)


def test_a_message_that_is_late_is_told_from_those_that_are_missing() -> None:
    late, missing = steady(), steady()
    late.note((32 * 20 + 70) * MS, 33 * 20 * MS)  # held up: all are there
    missing.note(36 * 20 * MS, 36 * 20 * MS)
    assert (late.gaps, late.skipped, late.longest_gap_ms) == (1, 0, 70.0)
    assert (missing.gaps, missing.skipped, missing.longest_gap_ms) == (1, 3, 80.0)


def test_topics_are_told_apart_by_their_clocks() -> None:
    one, other = Arrivals(), Arrivals()
    assert math.isnan(one.behind_ms)
    for number in range(1, 9):
        one.note(number * 20 * MS, number * 20 * MS - 3 * MS)
        other.note(number * 20 * MS, number * 20 * MS + 2000 * MS)
    assert one.behind_ms - other.behind_ms == 2003.0


def test_stamps_that_jump_back_or_are_zero_count_as_nothing() -> None:
    arrivals = steady()
    for number, stamp in enumerate((0, 5, 0, 0, 7 * MS)):
        arrivals.note((33 + number) * 20 * MS, stamp)
    assert (arrivals.gaps, arrivals.skipped) == (0, 0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_missing_messages_add_up_while_most_arrive(steps: list[int]) -> None:
    arrivals, stamp = steady(64), 64
    for step in steps:
        for ahead in (*[1] * 20, step):
            stamp += ahead
            arrivals.note(stamp * 20 * MS, stamp * 20 * MS)
    assert arrivals.skipped == sum(step - 1 for step in steps)


def test_the_stamp_is_found_without_decoding() -> None:
    assert peek_stamp(b"\0\1\0\0" + (7).to_bytes(4, "little") + (9).to_bytes(4, "little")) == (
        7_000_000_009
    )
    assert peek_stamp(b"\0\0\0\0" + (7).to_bytes(4, "big") + (9).to_bytes(4, "big")) == (
        7_000_000_009
    )
    assert peek_stamp(b"\0\1\0\0abc") == 0
    assert peek_stamp(b"nonsense of some length") == 0
    assert peek_stamp(b"") == 0
