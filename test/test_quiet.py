"""A line that repeats is logged once a second with a count; different lines are all logged."""

from __future__ import annotations

from flashrt_ros.ros.quiet import KNOWN, QUIET_S, Quiet


def test_the_same_line_is_kept_for_a_while_and_counted() -> None:
    now_s = 10.0
    quiet = Quiet(lambda: now_s)
    assert [quiet.heed("a camera is odd") for _ in range(4)] == ["a camera is odd", "", "", ""]
    now_s += QUIET_S
    assert quiet.heed("a camera is odd") == "a camera is odd (and 3 times more before)"
    now_s += QUIET_S
    assert quiet.heed("a camera is odd") == "a camera is odd"


def test_lines_that_differ_are_never_kept() -> None:
    quiet = Quiet(lambda: 0.0)
    lines = [f"camera {number}" for number in range(3 * KNOWN)]
    assert [quiet.heed(line) for line in lines] == lines
