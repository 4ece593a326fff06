"""Histories: which messages stand for which moments, against a plain reference.

A policy that sees one moment twice, or moments at another distance than it was trained with,
believes the arm to stand still or to move at another speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract_examples import JOINTS, MS, contract_dict, joint_state
from hypothesis import given, settings
from hypothesis import strategies as st
from image_messages import noise, rgb_image

from flashrt_ros.contract import Contract, Sampler
from flashrt_ros.contract.history import SLACK
from flashrt_ros.errors import ContractError
from flashrt_ros.runtime.policy import Port, Ports

HISTORY = {"steps": 3, "period_ms": 100, "before": "repeat"}


def contract(**keys: Any) -> Contract:
    observation = {
        "key": "o",
        "max_age_ms": 150,
        "parts": [{**JOINTS, "names": ["a"]}],
        "history": HISTORY,
        **keys,
    }
    return Contract.from_dict(contract_dict(observations=[observation], start="unchecked"))


def put(sampler: Sampler, value: float, received_ms: float, stamp_ms: float | None = None) -> None:
    """``stamp_ms`` None: as received, on a clock that is 1 s ahead."""
    stamp_ns = round((received_ms + 1000 if stamp_ms is None else stamp_ms) * MS)
    message = joint_state(["a"], [value], stamp_ns=stamp_ns)
    assert sampler.put("joint_states", message, round(received_ms * MS)).fault == ""


def seen(sampler: Sampler, now_ms: float, not_before_ms: float = 0) -> list[float] | str:
    sample = sampler.sample(round(now_ms * MS), round(not_before_ms * MS))
    if sample.faults:
        return sample.faults[0]
    found = sample.observations["o"]
    assert found.dtype == np.float32
    return found.reshape(found.shape[0], -1)[:, 0].tolist()


def test_moments_are_a_period_apart_whatever_the_rate() -> None:
    sampler = Sampler(contract())
    for number in range(60):
        put(sampler, number, 20 * number)
    assert seen(sampler, 1180) == [49.0, 54.0, 59.0]
    assert sampler.sample(1180 * MS).observations["o"].shape == (3, 1)
    stamps = [stamp.stamp_ns // MS - 1000 for stamp in sampler.sample(1180 * MS).stamps]
    assert stamps == [980, 1080, 1180], "the record names every message"


def test_a_little_jitter_takes_no_older_message_and_much_does() -> None:
    for late, wanted in ((9.0, 1.0), (11.0, 0.0)):
        sampler = Sampler(contract(history={**HISTORY, "steps": 2}))
        put(sampler, 0, 0)
        put(sampler, 1, 50 + late)
        put(sampler, 2, 150)
        assert seen(sampler, 150) == [wanted, 2.0]


def test_a_message_that_is_broken_for_one_part_stands_for_no_moment_of_any() -> None:
    """Else an observation would mix moments, and its record could not say of what it was made."""
    fields = ({}, {"field": "velocity"})
    parts = [{**JOINTS, **field, "names": ["a"]} for field in fields]
    sampler = Sampler(contract(parts=parts, history={**HISTORY, "steps": 2}))
    for number, velocity in enumerate((0.0, 1.0, float("nan"), 3.0)):
        message = joint_state(["a"], [number], [velocity], stamp_ns=(1000 + 50 * number) * MS)
        sampler.put("joint_states", message, 50 * number * MS)
    sample = sampler.sample(150 * MS)
    assert sample.observations["o"].tolist() == [[1.0, 1.0], [3.0, 3.0]]
    assert [stamp.sequence for stamp in sample.stamps] == [2, 4]


def test_while_there_are_too_few_the_oldest_repeats_or_no_step_is_taken() -> None:
    repeat, wait = Sampler(contract()), Sampler(contract(history={**HISTORY, "before": "wait"}))
    for sampler in (repeat, wait):
        put(sampler, 1, 0)
        put(sampler, 2, 100)
    assert seen(repeat, 100) == [1.0, 1.0, 2.0]
    assert seen(wait, 100) == (
        "o (joint_states): history: expected 3 steps of 100 ms, found 2 so far"
    )
    put(wait, 3, 200)
    assert seen(wait, 200) == [1.0, 2.0, 3.0]


def test_nothing_from_before_a_reset_is_in_it() -> None:
    sampler = Sampler(contract())
    for number in range(10):
        put(sampler, number, 50 * number)
    assert seen(sampler, 450) == [5.0, 7.0, 9.0]
    assert seen(sampler, 450, not_before_ms=380) == [8.0, 8.0, 9.0]
    sampler.clear()
    put(sampler, 20, 500)
    assert seen(sampler, 500) == [20.0, 20.0, 20.0]


def test_a_hole_is_a_fault_and_a_broken_message_is_passed_over() -> None:
    sampler = Sampler(contract())
    put(sampler, 1, 0)
    put(sampler, 2, 400)
    assert seen(sampler, 400) == (
        "o (joint_states): history: expected a message at most 150 ms before step -1, found one "
        "300 ms before it"
    )
    holed = Sampler(contract())
    for number in range(5):
        put(holed, number, 50 * number)
    bad = joint_state(["a"], [float("nan")], stamp_ns=1310 * MS)
    assert holed.put("joint_states", bad, 310 * MS).fault
    assert "non-finite" in str(seen(holed, 310))
    put(holed, 9, 400)
    assert seen(holed, 400) == [4.0, 4.0, 9.0]


def test_without_stamps_the_time_of_reception_counts() -> None:
    sampler = Sampler(contract())
    for number in range(8):
        put(sampler, number, 50 * number, stamp_ms=0)
    assert seen(sampler, 350) == [3.0, 5.0, 7.0]


def test_enough_is_kept_at_any_rate_and_no_more() -> None:
    sampler = Sampler(contract())
    for number in range(3000):
        put(sampler, number, number)
    assert seen(sampler, 2999) == [2809.0, 2909.0, 2999.0]
    kept = len(sampler._topics["joint_states"].messages)
    assert 200 <= kept <= 460, "the span, a period and the age"


def test_images_have_histories() -> None:
    image = {"topic": "camera", "type": "sensor_msgs/msg/Image", "size": [2, 2], "range": "byte"}
    observation = {"key": "o", "max_age_ms": 150, "image": image, "history": HISTORY}
    fields = contract_dict(observations=[observation], start="unchecked")
    sampler = Sampler(Contract.from_dict(fields))
    frames = [noise(2, 2, 3, seed=number) for number in range(8)]
    for number, frame in enumerate(frames):
        sampler.put("camera", rgb_image(frame, stamp_ns=(1 + 50 * number) * MS), 50 * number * MS)
    found = sampler.sample(350 * MS).observations["o"]
    wanted = [np.moveaxis(frames[number], 2, 0) for number in (3, 5, 7)]
    assert np.array_equal(found, np.stack(wanted))


def test_optional_ones_fill_every_moment() -> None:
    sampler = Sampler(contract(optional=True, fill=-2.0))
    assert seen(sampler, 0) == [-2.0, -2.0, -2.0]


def test_the_port_has_the_moments_in_front() -> None:
    action = Port("action", "action", (2,))
    contract().check(Ports((Port("o", "o", (3, 1)),), action))
    for shape in ((2, 1), (3,), (1, 3)):
        with pytest.raises(ContractError, match=r"found \(3, 1\) \(steps of the history, elem"):
            contract().check(Ports((Port("o", "o", shape),), action))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"history": {**HISTORY, "steps": 1}}, "history.steps: expected a whole number from 2"),
        ({"history": {**HISTORY, "period_ms": 0}}, "history.period_ms: expected a finite number"),
        ({"history": {"steps": 2, "period_ms": 5}}, "history.before: expected one of repeat, wa"),
        ({"history": {**HISTORY, "n": 1}}, "history.n: unknown key"),
        ({"optional": True, "present_flag": True}, "present_flag: expected no such key beside"),
    ],
)
def test_wrong_files(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        contract(**keys)


@settings(max_examples=150, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 120), min_size=1, max_size=40),
    steps=st.integers(2, 5),
    period=st.integers(10, 90),
    reset=st.integers(0, 1000),
)
def test_as_a_slow_reference_has_it(gaps: list[int], steps: int, period: int, reset: int) -> None:
    history = {"steps": steps, "period_ms": period, "before": "repeat"}
    sampler = Sampler(contract(history=history))
    times = np.cumsum(gaps).tolist()
    for number, time in enumerate(times):
        put(sampler, number, time)
    usable = [(time, number) for number, time in enumerate(times) if time >= reset]
    found = seen(sampler, times[-1], not_before_ms=reset)
    if not usable:
        assert "older than" in str(found)
        return
    wanted = [usable[-1][1]]
    for step in range(1, steps):
        moment = times[-1] - step * period
        near = [(time, number) for time, number in usable if time <= moment + SLACK * period]
        if near and moment - near[-1][0] > 150:
            assert "ms before step" in str(found)
            return
        wanted.insert(0, (near[-1] if near else usable[0])[1])
    assert found == wanted
