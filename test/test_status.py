"""What the node's log says of its mode, and how often."""

from __future__ import annotations

from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.records import StatusRecord
from flashrt_ros.ros.status import ModeLog


def test_a_mode_is_logged_when_it_or_its_reason_changes() -> None:
    log = ModeLog()
    assert log.news(StatusRecord()) is None
    stale = StatusRecord(mode=Mode.HOLDING, reason="state (joints): stale 153 ms > 100 ms")
    assert log.news(stale) == ("warn", "HOLDING: state (joints): stale 153 ms > 100 ms")
    older = StatusRecord(mode=Mode.HOLDING, reason="state (joints): stale 1153 ms > 100 ms")
    assert log.news(older) is None, "a growing age is no news"
    other = StatusRecord(mode=Mode.HOLDING, reason="state (joints): no message")
    assert log.news(other) is not None
    assert log.news(StatusRecord(mode=Mode.RUNNING)) == ("info", "RUNNING")
    assert log.news(StatusRecord(mode=Mode.RUNNING, step=7)) is None
