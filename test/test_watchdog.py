"""A control thread that hangs: on_miss all the same, then the stop message, and words for it.

The arm follows what was sent last while a policy hangs, so nothing here may need the thread that
does. Times are numbers of the test.
"""

from __future__ import annotations

from typing import Any

import pytest
from control_rig import PERIOD_NS, Rig

from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.watchdog import Watchdog

PERIODS = 5


class Ticks:
    """The control thread as the watchdog sees it: the rig's last period."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    @property
    def last_tick_ns(self) -> int:
        return self._rig.stepper.timing.last_tick_ns


def watched(miss_limit_s: float = 0.3, **changes: Any) -> tuple[Rig, Watchdog, list[Mode]]:
    """A rig that has commanded three times, its watchdog, and the modes that this told."""
    rig = Rig(miss_limit_s=miss_limit_s, **changes)
    told: list[Mode] = []
    watchdog = Watchdog(
        rig.commander,
        rig.motion,
        rig.out,
        Ticks(rig),
        lambda: told.append(rig.motion.mode),
        lambda: rig.now_ns,
    )
    watchdog.heed({"watchdog_periods": PERIODS, "miss_limit_s": miss_limit_s})
    rig.tick(3)
    assert len(rig.out.sent) == 3
    return rig, watchdog, told


def hang(rig: Rig, watchdog: Watchdog, periods: int) -> int:
    """So many control periods without a step; how many messages left meanwhile."""
    before = len(rig.out.sent)
    for _ in range(periods):
        rig.now_ns += PERIOD_NS
        watchdog.check(rig.now_ns)
    return len(rig.out.sent) - before


def test_a_thread_that_keeps_its_period_is_left_alone() -> None:
    rig, watchdog, told = watched()
    for _ in range(10):
        rig.tick()
        watchdog.check(rig.now_ns)
        watchdog.check(rig.now_ns + PERIOD_NS - 1)
    assert len(rig.out.sent) == 13
    assert (watchdog.barks, told, rig.motion.mode) == (0, [], Mode.RUNNING)


def test_hold_is_repeated_each_period_and_ends_by_the_stop_message() -> None:
    rig, watchdog, told = watched(on_miss="hold")
    assert hang(rig, watchdog, PERIODS) == 0
    assert hang(rig, watchdog, 1) == 1, "the sixth period since the last step began"
    assert rig.out.sent[-1].repeat
    assert (rig.motion.mode, told) == (Mode.HOLDING, [Mode.HOLDING])
    assert "the control step is late" in rig.motion.standing.reason
    assert rig.out.faults == 1
    hang(rig, watchdog, 20)
    stop = rig.out.sent[-1]
    assert stop.fields["velocity"] == [0.0, 0.0]
    assert list(stop.values) == list(rig.out.sent[2].values), "where the arm was sent last"
    # 0.3 s late is the 17th period; until then it was repeated in each from the sixth on.
    assert len(rig.out.sent) == 3 + 11 + 1
    assert sum("no control step for 0.32 s" in words for words in rig.out.words) == 1
    assert sum("is late by" in words for words in rig.out.words) == 1
    assert watchdog.barks == 1
    assert told == [Mode.HOLDING, Mode.WAITING]
    assert "the control step is late" in rig.motion.standing.reason


def test_stop_is_said_once_and_the_late_command_is_a_first_one() -> None:
    rig, watchdog, told = watched(on_miss="stop")
    assert hang(rig, watchdog, 15) == 1
    assert rig.out.sent[-1].fields["velocity"] == [0.0, 0.0]
    assert rig.motion.starting
    assert told == [Mode.WAITING]
    rig.tick(1, position=(0.9, 0.9))  # the policy adds 0.03 to what it sees
    assert rig.motion.mode is Mode.RUNNING, "checked against the position measured now"
    assert rig.motion.standing.reason == ""
    assert len(rig.out.sent) == 5


def test_it_goes_on_by_itself_after_a_hold() -> None:
    rig, watchdog, _ = watched(on_miss="hold")
    assert hang(rig, watchdog, 7) == 2
    rig.tick(2)
    assert rig.motion.mode is Mode.RUNNING
    assert hang(rig, watchdog, PERIODS + 1) == 1
    assert watchdog.barks == 2


def test_nothing_is_done_where_nothing_moves() -> None:
    rig, watchdog, told = watched()
    rig.motion.pause()
    rig.commander.halt()
    sent = len(rig.out.sent)
    assert hang(rig, watchdog, 50) == 0
    assert len(rig.out.sent) == sent
    rig.stepper.timing.last_tick_ns = 0  # inactive
    watchdog.check(rig.now_ns)
    assert (watchdog.barks, told) == (0, [])


def test_a_limit_below_a_period_is_a_period() -> None:
    rig, watchdog, _ = watched(miss_limit_s=0.0)
    assert hang(rig, watchdog, 2) == 0, "one period late is within what a thread may be"
    assert hang(rig, watchdog, 1) == 1
    assert rig.out.sent[-1].fields["velocity"] == [0.0, 0.0]


@pytest.mark.parametrize("periods", [1, 3])
def test_the_thread_looks_and_ends(periods: int) -> None:
    rig, watchdog, _ = watched()
    watchdog.start({"watchdog_periods": PERIODS, "miss_limit_s": 0.3})
    assert watchdog.close()
    hang(rig, watchdog, periods)
    assert watchdog.barks == 0
