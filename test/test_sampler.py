"""The as-of sampler: which message counts at a moment, and in which words one does not.

A stale, missing or broken input that passed as an observation would move a robot on a guess.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from contract_examples import MS, cdr, contract_dict, joint_state, point
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.contract import Contract, Sampler, decode
from flashrt_ros.errors import ContractError


@pytest.fixture
def sampler() -> Sampler:
    return Sampler(Contract.from_dict(contract_dict()))


def test_names_decide_where_a_value_goes(sampler: Sampler) -> None:
    message = joint_state(["b", "spare", "a"], [2, 9, 1], [20, 90, 10])
    assert sampler.put("joint_states", message, 0).fault == ""
    sample = sampler.sample(0)
    assert sample.faults == ()
    assert sample.observations["observation.state"].tolist() == [1, 2, 10, 20]
    assert sample.measured is not None
    assert sample.measured.tolist() == [1, 2]
    assert sample.observations["observation.state"].dtype == np.float32


def test_stale_and_missing_are_faults_in_words(sampler: Sampler) -> None:
    assert sampler.sample(0).faults == ("observation.state (joint_states): no message",)
    sampler.put("joint_states", joint_state(["a", "b"], [1, 2], [3, 4]), 0)
    assert sampler.sample(100 * MS).faults == ()
    (fault,) = sampler.sample(153 * MS).faults
    assert fault == "observation.state (joint_states): stale 153 ms > 100 ms"
    assert "observation.state" not in sampler.sample(153 * MS).observations


def test_optional_input_fills_and_flags(sampler: Sampler) -> None:
    sampler.put("joint_states", joint_state(["a", "b"], [1, 2], [3, 4]), 0)
    assert sampler.sample(0).observations["observation.cue"].tolist() == [-1, -1, 0]
    sampler.put("cue", point(5, 6), 10 * MS)
    assert sampler.sample(70 * MS).observations["observation.cue"].tolist() == [5, 6, 1]
    late = sampler.sample(71 * MS)
    assert late.observations["observation.cue"].tolist() == [-1, -1, 0]
    assert late.faults == ()
    assert [stamp.present for stamp in late.stamps] == [True, False]


def test_broken_messages_are_faults_until_a_good_one_comes(sampler: Sampler) -> None:
    good = joint_state(["a", "b"], [1, 2], [3, 4])
    for broken, words in [
        (joint_state(["a", "b"], [1, float("nan")], [3, 4]), "non-finite position of b"),
        (joint_state(["a", "b"], [1, 2], [float("inf"), 4]), "non-finite velocity of a"),
        (joint_state(["a", "b"], [1, 1e300], [3, 4]), "non-finite position of b"),
        (joint_state(["a", "x"], [1, 2], [3, 4]), "expected ['b'], found only ['a', 'x']"),
        (joint_state(["a", "b"], [1, 2, 3], [3, 4]), "expected 2 values in `position`"),
        (cdr(good)[:-9], "sensor_msgs/msg/JointState: expected"),
        (b"", "expected plain CDR"),
        (point(1, 2), "expected a message of type sensor_msgs/msg/JointState, found geometry"),
        (decode("geometry_msgs/msg/PointStamped", point(1, 2)), "expected sensor_msgs/msg/Joint"),
        (None, "found NoneType"),
    ]:
        sampler.put("joint_states", good, 0)
        assert sampler.sample(0).faults == ()
        assert words in sampler.put("joint_states", broken, 0).fault
        sample = sampler.sample(0)
        assert any(words in fault for fault in sample.faults)
        assert "observation.state" not in sample.observations
    assert sampler.put("joint_states", good, 0).fault == ""
    assert sampler.sample(0).faults == ()


def test_a_fault_in_one_field_leaves_the_others_usable(sampler: Sampler) -> None:
    nan = float("nan")
    sampler.put("joint_states", joint_state(["a", "b"], [1, 2], [nan, 4]), 0)
    sample = sampler.sample(0)
    assert sample.faults
    assert sample.measured is not None
    assert sample.measured.tolist() == [1, 2]
    sampler.put("joint_states", joint_state(["a", "b"], [nan, 2], [3, 4]), 0)
    assert sampler.sample(0).measured is None
    assert sampler.sample(0).measured_fault == "non-finite position of a"


def test_a_broken_optional_message_is_a_fault_and_no_absence(sampler: Sampler) -> None:
    sampler.put("joint_states", joint_state(["a", "b"], [1, 2], [3, 4]), 0)
    sampler.put("cue", point(float("nan"), 1), 0)
    assert sampler.sample(0).faults == ("observation.cue (cue): non-finite point of x",)
    assert sampler.sample(61 * MS).faults == ()


def test_what_came_before_a_reset_does_not_count(sampler: Sampler) -> None:
    message = joint_state(["a", "b"], [1, 2], [3, 4])
    sampler.put("joint_states", message, 10 * MS)
    sampler.put("cue", point(5, 6), 10 * MS)
    sample = sampler.sample(20 * MS, not_before_ns=11 * MS)
    assert sample.faults == (
        "observation.state (joint_states): older than the last activate, resume, restore or reset",
    )
    assert sample.measured is None
    assert sample.observations["observation.cue"].tolist() == [-1, -1, 0]
    sampler.put("joint_states", message, 12 * MS)
    assert sampler.sample(20 * MS, not_before_ns=11 * MS).faults == ()
    sampler.clear()
    assert "no message" in sampler.sample(20 * MS).faults[0]


def test_a_moment_in_the_past_sees_what_was_known_then(sampler: Sampler) -> None:
    for number in range(100):
        message = joint_state(["a", "b"], [number, 0], [0, 0], stamp_ns=1 + number)
        sampler.put("joint_states", message, 20 * MS * number)
    for now in (99, 80, 50.5):
        sample = sampler.sample(int(now * 20 * MS))
        assert sample.observations["observation.state"][0] == int(now)
        assert sample.stamps[0].stamp_ns == 1 + int(now)
    assert "no message" in sampler.sample(20 * MS * 10).faults[0]  # beyond the history of 64


def test_the_start_measurement_has_an_age_limit_of_its_own() -> None:
    value = contract_dict()
    value["start"]["max_age_ms"] = 30
    sampler = Sampler(Contract.from_dict(value))
    assert sampler.sample(0).measured_fault == "no message"
    sampler.put("joint_states", joint_state(["a", "b"], [1, 2], [3, 4]), 0)
    assert sampler.sample(30 * MS).measured is not None
    late = sampler.sample(31 * MS)
    assert late.measured is None
    assert late.measured_fault == "stale 31 ms > 30 ms"
    assert late.faults == (), "only a first command needs it"


def test_provenance_passes_through(sampler: Sampler) -> None:
    raw = cdr(joint_state(["a", "b"], [1, 2], [3, 4], stamp_ns=7))
    sampler.put("joint_states", raw, 1 * MS, digest=11)
    sampler.put("joint_states", raw, 2 * MS, digest=(1 << 64) - 1)
    stamp, cue = sampler.sample(5 * MS).stamps
    assert (stamp.observation, stamp.topic) == ("observation.state", "joint_states")
    assert (stamp.stamp_ns, stamp.digest, stamp.sequence) == (7, (1 << 64) - 1, 2)
    assert stamp.age_ms == pytest.approx(3.0)
    assert stamp.present
    assert (cue.sequence, cue.digest, cue.present) == (0, 0, False)
    assert math.isnan(cue.age_ms)
    assert sampler.sample(1 * MS).stamps[0].digest == 11
    sampler.clear()
    sampler.put("joint_states", raw, 6 * MS)
    assert sampler.sample(6 * MS).stamps[0].sequence == 3


def test_a_jump_back_in_time_is_said_once_and_drops_everything(sampler: Sampler) -> None:
    second = 1_000_000_000

    def state(stamp_ns: int, now_ns: int) -> str:
        message = joint_state(["a", "b"], [1, 2], [3, 4], stamp_ns=stamp_ns)
        return sampler.put("joint_states", message, now_ns).time_jump

    assert state(10 * second, 0) == ""
    assert sampler.put("cue", point(1, 2, stamp_ns=10 * second), 0).time_jump == ""
    assert state(10 * second, 1) == ""  # the same stamp again is no jump
    words = state(4 * second, 2)
    assert words == "topic 'joint_states': header stamps went back by 6.000 s"
    sample = sampler.sample(3)
    assert sample.faults == ()
    assert sample.observations["observation.cue"].tolist() == [-1, -1, 0]
    assert sampler.put("cue", point(1, 2, stamp_ns=4 * second), 4).time_jump == ""
    assert state(5 * second, 5) == ""
    assert state(0, 6) == ""  # unstamped: no statement about time
    assert state(4 * second, 7) != ""


def test_small_steps_back_are_jitter_until_they_add_up(sampler: Sampler) -> None:
    jumps = []
    for number in range(12):
        message = joint_state(["a", "b"], [number, 2], [3, 4], stamp_ns=10**9 - number * MS)
        jumps.append(sampler.put("joint_states", message, number).time_jump)
        assert sampler.sample(number).observations["observation.state"][0] == number
    assert [bool(words) for words in jumps] == [False] * 10 + [True, False]


def test_peculiarities_are_said_once_and_do_not_hinder() -> None:
    value = contract_dict()
    for part in (*value["observations"][0]["parts"], value["start"]["measured"]):
        part["positional"] = ["a", "b"]
    sampler = Sampler(Contract.from_dict(value))
    raw = cdr(joint_state([], [1, 2], [3, 4], stamp_ns=0)) + bytes(5)
    notices = sampler.put("joint_states", raw, 0).notices
    assert [words.split(": ")[1] for words in notices] == [
        "unstamped, the receive time is used",
        "no joint names in the message, `positional` is used",
        "5 bytes behind the message",
    ]
    assert sampler.put("joint_states", raw, 0).notices == ()
    sample = sampler.sample(0)
    assert sample.faults == ()
    assert set(sample.notices) == set(notices)
    assert sampler.trailing_bytes() == {"joint_states": 10, "cue": 0}


def test_parts_of_one_observation_from_several_topics() -> None:
    value = contract_dict()
    value["observations"][0]["parts"][1]["topic"] = "other_states"
    sampler = Sampler(Contract.from_dict(value))
    sampler.put("joint_states", joint_state(["a", "b"], [1, 2]), 0)
    assert sampler.sample(0).faults == ("observation.state (other_states): no message",)
    sampler.put("other_states", joint_state(["b", "a"], velocity=[4, 3]), 50 * MS)
    assert sampler.sample(60 * MS).observations["observation.state"].tolist() == [1, 2, 3, 4]
    (fault,) = sampler.sample(120 * MS).faults
    assert fault == "observation.state (joint_states): stale 120 ms > 100 ms"


def test_a_topic_that_is_none_of_the_contract_s(sampler: Sampler) -> None:
    with pytest.raises(
        ContractError, match=r"topic 'joint_state': expected one of .*joint_states"
    ):
        sampler.put("joint_state", b"", 0)


def test_samples_do_not_change_when_later_messages_arrive(sampler: Sampler) -> None:
    raw = bytearray(cdr(joint_state(["a", "b"], [1, 2], [3, 4])))
    sampler.put("joint_states", raw, 0)
    before = sampler.sample(0).observations["observation.state"]
    raw[:] = bytes(len(raw))
    before[:] = 7
    assert sampler.sample(0).observations["observation.state"].tolist() == [1, 2, 3, 4]


@settings(max_examples=150, deadline=None)
@given(
    arrivals=st.lists(st.integers(0, 400), max_size=30).map(sorted),
    now=st.integers(0, 500),
    reset=st.integers(0, 400),
)
def test_freshness_as_a_slow_reference_has_it(arrivals: list[int], now: int, reset: int) -> None:
    sampler = Sampler(Contract.from_dict(contract_dict()))
    for number, arrival in enumerate(arrivals):
        sampler.put("joint_states", joint_state(["a", "b"], [number, 0], [0, 0]), arrival * MS)
    seen = [(arrival, number) for number, arrival in enumerate(arrivals) if arrival <= now]
    sample = sampler.sample(now * MS, reset * MS)
    if not seen:
        assert sample.faults[0].endswith("no message")
    elif seen[-1][0] < reset:
        assert sample.faults[0].endswith("older than the last activate, resume, restore or reset")
    elif now - seen[-1][0] > 100:
        assert "stale" in sample.faults[0]
    else:
        assert sample.faults == ()
        assert sample.observations["observation.state"][0] == seen[-1][1]
