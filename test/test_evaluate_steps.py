"""Pins what the driver does between and in control steps: chunks, delays, episodes, jumps, tasks.

An evaluation that resets too late, splices a chunk one row off, or lets a chunk outlive a jump in
time reports the errors of a policy that nobody runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from toy_policies import ToyChunk, ToyRecurrent, observations

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.evaluate.columns import Chunks
from flashrt_ros.evaluate.drive import Driver, Pace
from flashrt_ros.evaluate.elements import Elements
from flashrt_ros.evaluate.timeline import Moment
from flashrt_ros.evaluate.track import Track
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession

SIZE = ToyChunk().ports().action.shape[0]
ELEMENTS = Elements(tuple("abcdefgh"[:SIZE]), ("rad",) * SIZE, (False,) * SIZE, 0.02)
NOTHING = np.full(SIZE, np.nan)


def session_of(policy: Policy) -> PolicySession:
    return PolicySession(policy, rollback_depth=0, preview_sets=0)


def moment(index: int, **changes: Any) -> Moment:
    seen = {key: np.array(value, np.float32) for key, value in observations(index).items()}
    plain = Moment(index, index * 20_000_000, seen, (), {"x (/x)": 1.0}, NOTHING, NOTHING)
    return dataclasses.replace(plain, **changes)


def drive(
    policy: Policy, moments: Iterable[Moment], pace: Pace | None = None
) -> tuple[Track, PolicySession]:
    session = session_of(policy)
    driver = Driver("p", "s", session, ELEMENTS, None, pace or Pace())
    for each in moments:
        driver.take(each)
    return driver.finish(), session


def reference(policy: Policy, take: Callable[[PolicySession], Iterable[Any]]) -> np.ndarray:
    return np.array([action.values.numpy() for action in take(session_of(policy))])


@pytest.mark.parametrize("pace", [Pace(), Pace(1), Pace(2), Pace(2, 3), Pace(0, 2)])
def test_plans_are_delayed_as_the_session_delays_them(pace: Pace) -> None:
    track, _ = drive(ToyChunk(splices=True), map(moment, range(40)), pace)
    expected = reference(
        ToyChunk(splices=True),
        lambda session: [
            session.step(moment(i).observations, pace.delay, pace.plan_ahead) for i in range(40)
        ],
    )
    assert np.array_equal(track.predicted_TA, expected)
    other, _ = drive(ToyChunk(splices=True), map(moment, range(40)), Pace(3))
    assert not np.array_equal(other.predicted_TA, expected), "the control"


@pytest.mark.parametrize("pace", [Pace(), Pace(1), Pace(2, 3), Pace(0, 2)])
def test_row_zero_of_a_chunk_belongs_to_the_moment_that_its_plan_saw(pace: Pace) -> None:
    track, _ = drive(ToyChunk(splices=True), map(moment, range(60)), pace)
    assert track.chunks == len(track.chunk_start_C) > 8
    ends = [*track.chunk_adopted_C[1:].tolist(), 60]
    for start, adopted, end, rows_HA in zip(
        track.chunk_start_C.tolist(),
        track.chunk_adopted_C.tolist(),
        ends,
        track.chunks_CHA,
        strict=True,
    ):
        for index in range(adopted, end):
            assert np.array_equal(track.predicted_TA[index], rows_HA[index - start])
    late = (track.chunk_adopted_C - track.chunk_start_C)[1:]
    assert set(late.tolist()) == {pace.delay}
    # A plan that sees what the step before it saw gives the same rows: they are of one moment.
    for index, splice_A in zip(track.splice_index_S.tolist(), track.splice_SA, strict=True):
        place = int(np.searchsorted(track.chunk_adopted_C, index))
        before = track.chunks_CHA[place - 1][index - track.chunk_start_C[place - 1]]
        assert np.array_equal(splice_A, track.predicted_TA[index] - before)
    assert len(track.splice_index_S) == track.chunks - 1


def test_a_delay_that_a_policy_cannot_take_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="none can be spliced"):
        drive(ToyChunk(), [moment(0)], Pace(1))


def test_a_new_episode_is_a_reset_with_the_next_noise() -> None:
    def take(session: PolicySession) -> Iterable[Any]:
        found = [session.step(moment(i).observations) for i in range(5)]
        session.reset_("", None)
        return found + [session.step(moment(i).observations) for i in range(5, 12)]

    moments = [moment(i, episode=int(i >= 5)) for i in range(12)]
    for policy in (ToyRecurrent, ToyChunk):
        track, session = drive(policy(), moments)
        assert np.array_equal(track.predicted_TA, reference(policy(), take))
        assert session.host.episode == 1
        flat, _ = drive(policy(), map(moment, range(12)))
        assert not np.array_equal(flat.predicted_TA, track.predicted_TA), "the control"
        assert track.episode_T.tolist() == [0] * 5 + [1] * 7


def test_the_first_episode_of_a_recording_is_that_of_the_session() -> None:
    track, session = drive(ToyRecurrent(), [moment(i, episode=4) for i in range(6)])
    flat, _ = drive(ToyRecurrent(), map(moment, range(6)))
    assert session.host.episode == 0
    assert np.array_equal(track.predicted_TA, flat.predicted_TA)


def test_a_jump_in_time_drops_the_chunk_and_keeps_the_memory() -> None:
    def take(session: PolicySession) -> Iterable[Any]:
        found = [session.step(moment(i).observations) for i in range(6)]
        session.host.cursor = session.host.length
        return found + [session.step(moment(i).observations) for i in range(6, 12)]

    jumped = [moment(i, jump="back by 5 s" if i == 6 else "") for i in range(12)]
    track, session = drive(ToyChunk(), jumped)
    assert np.array_equal(track.predicted_TA, reference(ToyChunk(), take))
    assert session.host.episode == 0
    assert 6 in track.chunk_adopted_C
    assert 6 not in track.splice_index_S, "the chunk before was of another time"


def test_a_fault_ends_a_plan_under_way_and_not_the_chunk() -> None:
    def take(session: PolicySession) -> Iterable[Any]:
        found = []
        for i in range(20):
            if i in (3, 4):
                session.withdraw_plan()
            else:
                found.append(session.step(moment(i).observations, 1))
        return found

    moments = [
        moment(i, faults=("x (/x): stale 153 ms > 100 ms",) * (i in (3, 4))) for i in range(20)
    ]
    track, _ = drive(ToyChunk(splices=True), moments, Pace(1))
    expected = reference(ToyChunk(splices=True), take)
    assert np.array_equal(track.predicted_TA[track.stepped_T], expected)
    assert np.isnan(track.predicted_TA[[3, 4]]).all()
    assert track.fault_T[3] == "x (/x): stale, older than 100 ms"
    assert track.stepped_T.sum() == 18


def test_a_task_replans_and_one_that_is_refused_leaves_the_other() -> None:
    def take(session: PolicySession) -> Iterable[Any]:
        found = [session.step(moment(i).observations) for i in range(6)]
        session.host.cursor = session.host.length
        return found + [session.step(moment(i).observations) for i in range(6, 12)]

    said = ["pick"] * 6 + ["place"] * 3 + ["x" * 5000] * 3
    moments = [moment(i, task=said[i]) for i in range(12)]
    track, session = drive(ToyChunk(), moments)
    assert session.host.task == "place"
    assert any("1 task texts were refused" in words for words in track.remarks)
    # The first text comes before anything was planned.
    assert np.array_equal(track.predicted_TA, reference(ToyChunk(), take))


def test_many_chunks_are_thinned_evenly() -> None:
    chunks = Chunks((2, 1), size_bytes=4 * 2 * 10)
    for number in range(1000):
        chunks.add(number, number, np.full((2, 1), number, np.float32))
    starts = chunks.starts()
    assert chunks.count == 1000
    assert 5 <= len(starts) <= 10
    assert len(set(np.diff(starts).tolist())) == 1
    assert np.array_equal(chunks.rows()[:, 0, 0], starts.astype(np.float32))
