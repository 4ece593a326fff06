"""What the node's status and its log say of the mode, and how often."""

from __future__ import annotations

from flashrt_ros.contract.observing import TOO_EARLY
from flashrt_ros.ros.motion import NOTHING_FRESH, Mode, Motion
from flashrt_ros.ros.records import StatusRecord
from flashrt_ros.ros.status import ModeLog, tell


def test_a_mode_is_logged_when_it_or_its_reason_changes() -> None:
    log = ModeLog()
    assert log.news(StatusRecord(), "") is None
    stale = StatusRecord(mode=Mode.HOLDING, reason="state (joints): stale 153 ms > 100 ms")
    assert log.news(stale, "") == ("warn", "HOLDING: state (joints): stale 153 ms > 100 ms")
    older = StatusRecord(mode=Mode.HOLDING, reason="state (joints): stale 1153 ms > 100 ms")
    assert log.news(older, "") is None, "a growing age is no news"
    other = StatusRecord(mode=Mode.HOLDING, reason="state (joints): no message")
    assert log.news(other, "") is not None
    assert log.news(StatusRecord(mode=Mode.RUNNING), "") == ("info", "RUNNING")
    assert log.news(StatusRecord(mode=Mode.RUNNING, step=7), "") is None


def test_a_sensor_lost_in_motion_is_a_warning_and_a_wait_that_a_verb_began_is_not() -> None:
    for before in (Mode.RUNNING, Mode.HOLDING):
        for reason, level in (
            ("state (joints): stale 612 ms > 100 ms", "warn"),
            (f"state (joints): {TOO_EARLY}", "info"),
            (NOTHING_FRESH, "info"),
        ):
            log = ModeLog()
            log.news(StatusRecord(mode=before), "")
            news = log.news(StatusRecord(mode=Mode.WAITING, reason=reason), "")
            assert news == (level, f"WAITING: {reason}")


def test_a_reason_that_was_logged_as_an_error_is_not_said_again() -> None:
    log = ModeLog()
    held = StatusRecord(mode=Mode.HOLDING, reason="unsafe start: a is 0.9 rad off")
    assert log.news(held, "holding: unsafe start: a is 0.9 rad off") is None
    assert log.news(StatusRecord(mode=Mode.RUNNING), "holding: unsafe start: a is 0.9 rad off")
    other = StatusRecord(mode=Mode.HOLDING, reason="by restore: call ~/resume")
    assert log.news(other, "holding: unsafe start: a is 0.9 rad off") is not None


def test_no_reason_begins_with_the_word_of_its_mode() -> None:
    motion = Motion()
    standings = []

    def note() -> None:
        standings.append(motion.standing)

    motion.configure(hold=True)
    motion.activate(1)
    note()
    motion.resume(2)
    note()
    motion.pause()
    note()
    motion.stop()
    note()
    motion.clear_stop()
    note()
    modes = [standing.mode for standing in standings]
    assert modes == [Mode.HOLDING, Mode.WAITING, Mode.PAUSED, Mode.STOPPED, Mode.HOLDING]
    for mode, reason in ((s.mode, s.reason) for s in standings):
        assert reason
        assert not reason.lower().startswith(mode.name[:4].lower()), "the log would say it twice"


def test_a_status_that_another_one_overtakes_while_it_is_published_is_not_the_last() -> None:
    running, held = (
        StatusRecord(mode=Mode.RUNNING),
        StatusRecord(mode=Mode.HOLDING, reason="by us"),
    )
    found = [running]
    published: list[StatusRecord] = []

    def publish(status: StatusRecord) -> None:
        if not published:  # meanwhile, in the control thread
            published.append(held)
            found.append(held)
        published.append(status)

    assert tell(lambda: found[-1], publish) == held
    assert published == [held, running, held]
    # Control: once, where nothing but counters has changed.
    steps = iter(range(9))
    tell(lambda: StatusRecord(mode=Mode.RUNNING, tick=next(steps)), published.append)
    assert [status.tick for status in published[3:]] == [0]
