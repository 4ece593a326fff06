"""Pins which control steps evaluation makes of a recording, and with which observations.

A figure about a policy is worth nothing if the policy was shown something that the robot would
not have shown it, or if it depends on where reading began.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from bag_files import START_NS, write_mcap
from evaluate_bags import PERIOD_NS, arm_rows, load_contract, wave, write_arm

from flashrt_ros.errors import NotFoundError
from flashrt_ros.evaluate.episodes import EpisodeRule
from flashrt_ros.evaluate.source import BagSource
from flashrt_ros.evaluate.timeline import SILENCE_NS, Entry, Moment, Setting
from flashrt_ros.policies.hold import HoldPolicy

PORTS = HoldPolicy(2).ports()


def setting(**changes: object) -> Setting:
    return Setting(load_contract(), PORTS, **changes)  # type: ignore[arg-type]


def moments(path: Path, given: Setting, entry: Entry | None = None) -> list[Moment]:
    source = BagSource(path)
    found = list(source.moments(given, entry))
    source.close()
    return found


def entry_behind(path: Path, given: Setting, count: int) -> Entry:
    """Where to go on behind the first ``count`` moments."""
    source = BagSource(path)
    *_, last = itertools.islice(source.moments(given), count)
    entry = source.entry(last)
    source.close()
    assert entry is not None
    return entry


def same(one: Moment, other: Moment) -> bool:
    return (
        (one.index, one.time_ns, one.faults, one.episode, one.task)
        == (other.index, other.time_ns, other.faults, other.episode, other.task)
        and one.observations.keys() == other.observations.keys()
        and all(np.array_equal(v, other.observations[k]) for k, v in one.observations.items())
        and np.array_equal(one.recorded_A, other.recorded_A, equal_nan=True)
        and np.array_equal(one.state_A, other.state_A, equal_nan=True)
    )


def test_steps_stand_on_the_grid_of_the_rate_and_see_what_came_by_then(tmp_path: Path) -> None:
    found = moments(write_arm(tmp_path / "arm.mcap", 10), setting())
    assert [moment.index for moment in found] == list(range(10))
    assert [moment.time_ns - START_NS for moment in found] == [i * PERIOD_NS for i in range(10)]
    for step, moment in enumerate(found):
        assert moment.faults == ()
        wanted = np.array(wave(step), np.float32)
        assert np.array_equal(moment.observations["observation.state"], wanted)
        assert np.array_equal(moment.recorded_A, wave(step))
        assert np.array_equal(moment.state_A, wanted)


@pytest.mark.parametrize("rule", [None, EpisodeRule(gap_s=0.15)])
def test_entering_in_the_middle_gives_the_same_moments(
    tmp_path: Path, rule: EpisodeRule | None
) -> None:
    rows = arm_rows(60, wave, wave)
    # Commands are rare, so that the last one lies far before the entry; a gap in between.
    rows = [
        row
        for row in rows
        if not START_NS + 20 * PERIOD_NS <= row[2] < START_NS + 32 * PERIOD_NS
        and (row[0] != "/joint_command" or (row[2] - START_NS) % (25 * PERIOD_NS) == 0)
    ]
    path = write_mcap(tmp_path / "arm.mcap", rows, chunk_size=512)
    given = setting(episodes=rule)
    whole = moments(path, given)
    assert any(moment.faults for moment in whole), "the gap is one"
    for cut in (1, 10, 25, 33, 45, 58):
        rest = moments(path, given, entry_behind(path, given, cut + 1))
        assert len(rest) == len(whole) - cut - 1
        assert all(map(same, rest, whole[cut + 1 :])), cut
    # The control: an entry that knows nothing of what came before sees no command.
    blind = moments(path, given, Entry(46, whole[45].time_ns, now_ns=whole[45].time_ns))
    assert not same(blind[0], whole[46])


def test_steps_at_recorded_commands(tmp_path: Path) -> None:
    rows = arm_rows(30, wave, wave)
    rows = [row for n, row in enumerate(rows) if row[0] != "/joint_command" or n % 7 == 0]
    times = [row[2] for row in rows if row[0] == "/joint_command"]
    path = write_mcap(tmp_path / "arm.mcap", rows)
    found = moments(path, setting(steps="recorded"))
    assert [moment.time_ns for moment in found] == times
    given = setting(steps="recorded")
    rest = moments(path, given, entry_behind(path, given, 2))
    assert all(map(same, rest, found[2:]))
    assert len(rest) == len(found) - 2


def test_a_stale_input_makes_no_step_and_says_so(tmp_path: Path) -> None:
    rows = arm_rows(10, wave, wave) + arm_rows(5, wave, wave, START_NS + 20 * PERIOD_NS)
    found = moments(write_mcap(tmp_path / "arm.mcap", rows), setting())
    # max_age_ms is 100: a state of 9 * 20 ms is too old from 300 ms on.
    assert [m.index for m in found if m.faults] == [15, 16, 17, 18, 19]
    assert found[16].faults == ("observation.state (joint_states): stale 140 ms > 100 ms",)
    assert not found[16].observations


def test_of_a_long_silence_only_the_beginning_is_gone_through(tmp_path: Path) -> None:
    later_ns = START_NS + 10 * SILENCE_NS
    rows = arm_rows(3, wave, wave) + arm_rows(3, wave, wave, later_ns)
    path = write_mcap(tmp_path / "arm.mcap", rows)
    source = BagSource(path)
    found = list(source.moments(setting()))
    assert len(found) < SILENCE_NS / PERIOD_NS + 10
    assert [m.time_ns for m in found[-3:]] == [later_ns + i * PERIOD_NS for i in range(3)]
    assert found[-1].index == (later_ns - START_NS) // PERIOD_NS + 2
    assert any("silences of 539.9 s" in words for words in source.defects)
    source.close()


def test_what_the_contract_needs_and_is_not_there_is_named(tmp_path: Path) -> None:
    rows = [row for row in arm_rows(3, wave, wave) if row[0] == "/joint_command"]
    path = write_mcap(tmp_path / "arm.mcap", rows)
    with pytest.raises(NotFoundError, match="joint_states, which the contract needs, found none"):
        moments(path, setting())
