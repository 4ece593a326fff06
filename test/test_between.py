"""Samples between commands: within limits and steps, never beyond what was commanded, and cut.

A controller that gets 20 positions a second jerks 20 times a second; one that gets an
extrapolation drives on when the policy has stopped. So the samples are bounded by properties over
random commands at random times, and their latency is what the reference says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from contract_examples import MS, contract_dict
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.contract import Contract
from flashrt_ros.contract.between import LATENCY_PERIODS, Interpolator
from flashrt_ros.contract.pose import angle, from_vector
from flashrt_ros.contract.schema import Output
from flashrt_ros.errors import ContractError

Values = npt.NDArray[np.float64]
PERIOD_NS = 50 * MS
SAMPLE_NS = 5 * MS


def output(interpolation: str = "linear", **changes: Any) -> Output:
    """Commands at 20 Hz, published at 200 Hz."""
    fields = contract_dict(control_rate_hz=20.0)
    fields["actions"][0].update(
        {"publish_rate_hz": 200.0, "interpolation": interpolation, **changes}
    )
    return Contract.from_dict(fields).actions[0]


def interpolator(interpolation: str = "linear", **changes: Any) -> Interpolator:
    return Interpolator(output(interpolation, **changes), PERIOD_NS / 1e9)


def played(ours: Interpolator, commands: list[Values], rest: Values | None = None) -> list[Values]:
    """Every sample while these commands are given one in each period, until silence."""
    found: list[Values] = []
    now_ns = 0
    for k in range(len(commands) + 6):
        if k < len(commands):
            ours.aim(commands[k], now_ns, rest)
        for _ in range(PERIOD_NS // SAMPLE_NS):
            values = ours.sample(now_ns)
            if values is not None:
                found.append(values)
            now_ns += SAMPLE_NS
    return found


STEPS = [np.array(v) for v in ([0.0, 0.0], [0.1, 0.2], [0.2, 0.0], [0.3, 0.1], [0.3, 0.1])]


def test_linear_is_the_straight_line_of_numpy_one_period_later() -> None:
    samples = np.array(played(interpolator(), STEPS, np.zeros(2)))
    times = np.arange(len(samples)) * SAMPLE_NS
    at = (np.arange(len(STEPS)) + LATENCY_PERIODS["linear"]) * PERIOD_NS
    for joint in range(2):
        given_at = np.concatenate([[0], at])
        given = np.concatenate([[0.0], np.array(STEPS)[:, joint]])
        np.testing.assert_allclose(samples[:, joint], np.interp(times, given_at, given), atol=1e-9)


def test_cubic_passes_through_every_command_two_periods_later_and_is_smooth() -> None:
    samples = np.array(played(interpolator("cubic", max_step=1.0), STEPS, np.zeros(2)))
    per = PERIOD_NS // SAMPLE_NS
    for k, command in enumerate(STEPS):
        np.testing.assert_allclose(
            samples[(k + LATENCY_PERIODS["cubic"]) * per], command, atol=1e-9
        )
    assert LATENCY_PERIODS["cubic"] == 2
    # The largest change of velocity from one sample to the next, against that of straight lines.
    bend = np.abs(np.diff(samples, 2, axis=0)).max()
    line = np.array(played(interpolator("linear", max_step=1.0), STEPS, np.zeros(2)))
    assert bend < 0.5 * np.abs(np.diff(line, 2, axis=0)).max()


def test_hold_repeats_the_command() -> None:
    samples = np.array(played(interpolator("hold"), STEPS))
    per = PERIOD_NS // SAMPLE_NS
    for k, command in enumerate(STEPS):
        assert (samples[k * per : (k + 1) * per] == command).all()


@pytest.mark.parametrize("interpolation", ["linear", "cubic", "hold"])
def test_samples_end_when_commands_do(interpolation: str) -> None:
    ours = interpolator(interpolation)
    count = len(played(ours, STEPS, np.zeros(2)))
    per = PERIOD_NS // SAMPLE_NS
    # Until the last command is reached, and one period of jitter more.
    periods = len(STEPS) - 1 + max(LATENCY_PERIODS[interpolation], 1) + 1
    assert count == periods * per + 1
    assert ours.place is not None
    assert ours.place.tolist() == STEPS[-1].tolist()


def test_the_first_way_begins_where_the_arm_is() -> None:
    first = np.array([0.15, 0.1])
    assert played(interpolator(), [first], np.array([0.1, 0.0]))[0].tolist() == [0.1, 0.0]
    unknown = played(interpolator(), [first], np.array([0.1, np.nan]))[0]
    assert unknown.tolist() == [0.1, 0.1], "what nobody knows is no place to begin"
    assert played(interpolator(), [first])[0].tolist() == first.tolist()


def test_a_cut_is_where_the_last_sample_was_and_a_jump_is_at_once() -> None:
    ours = interpolator()
    ours.aim(np.array([0.2, 0.2]), 0, np.zeros(2))
    assert ours.sample(25 * MS) is not None
    place = ours.cut()
    assert place is not None
    np.testing.assert_allclose(place, [0.1, 0.1])
    assert ours.sample(30 * MS) is None
    ours.jump(np.array([0.0, 0.05]), 31 * MS)
    sample = ours.sample(32 * MS)
    assert sample is not None
    assert sample.tolist() == [0.0, 0.05]


COMMANDS = st.lists(
    st.tuples(st.floats(-0.2, 0.2), st.floats(-0.2, 0.2), st.integers(20, 120), st.booleans()),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("interpolation", ["linear", "cubic"])
@given(steps=COMMANDS, start=st.tuples(st.floats(-3, 3), st.floats(-2, 2)))
def test_every_sample_is_between_the_commands_and_within_its_share_of_the_step(
    interpolation: str, steps: list[tuple[float, float, int, bool]], start: tuple[float, float]
) -> None:
    """Commands within max_step of each other, at times that jitter, with gaps and cuts."""
    ours = interpolator(interpolation)
    low, high, most = np.array([-3.0, -2.0]), np.array([3.0, 2.0]), 0.2
    now_ns, command = 0, np.array(start)
    last, last_ns, seen = command, 0, [command]
    for a, b, gap_ms, cut in steps:
        if cut and (place := ours.cut()) is not None:
            np.testing.assert_array_equal(place, last)
            command, seen = place, [place]
        command = np.clip(command + np.array([a, b]), low, high)
        seen.append(command)
        ours.aim(command, now_ns, last)
        until_ns = now_ns + gap_ms * MS
        while now_ns < until_ns:
            sample = ours.sample(now_ns)
            if sample is not None:
                recent = np.array([last, *seen])
                assert (sample >= recent.min(axis=0) - 1e-12).all()
                assert (sample <= recent.max(axis=0) + 1e-12).all()
                assert (sample >= low).all()
                assert (sample <= high).all()
                share = min((now_ns - last_ns) / PERIOD_NS, 1.0)
                assert (np.abs(sample - last) <= most * share + 1e-12).all()
                last, last_ns = sample, now_ns
            now_ns += 4 * MS


def test_control_of_the_above_plain_commands_take_the_whole_step_at_once() -> None:
    samples = np.array(played(interpolator("hold"), STEPS))
    assert np.abs(np.diff(samples, axis=0)).max() == pytest.approx(0.2)
    line = np.array(played(interpolator("linear"), STEPS))
    assert np.abs(np.diff(line, axis=0)).max() <= 0.2 * SAMPLE_NS / PERIOD_NS + 1e-12


def test_poses_go_by_the_line_and_the_shortest_turn() -> None:
    target = {
        "topic": "target_pose",
        "type": "geometry_msgs/msg/PoseStamped",
        "field": "pose",
        "names": ["x", "y", "z", "rx", "ry", "rz"],
        "rotation": "axis_angle",
        "frame_id": "base",
        "max_step": {"x": 0.1, "y": 0.1, "z": 0.1, "rotation": 0.5},
        "publish_rate_hz": 200.0,
    }
    fields = contract_dict(control_rate_hz=20.0, actions=[target], start="unchecked")
    (pose,) = Contract.from_dict(fields).actions
    ours = Interpolator(pose, PERIOD_NS / 1e9)
    here = np.array([0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0])
    there = np.concatenate([[0.1, 0.0, 0.5], from_vector(np.array([0.0, 0.0, 0.4]))])
    ours.aim(there, 0, here)
    for part in (0.2, 0.5, 1.0):
        sample = ours.sample(round(part * PERIOD_NS))
        assert sample is not None
        assert sample[0] == pytest.approx(0.1 * part)
        assert angle(sample[3:], here[3:]) == pytest.approx(0.4 * part)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"publish_rate_hz": 20.0}, "publish_rate_hz: expected a finite number above 20"),
        ({"publish_rate_hz": 2000.0}, "publish_rate_hz: .* up to 1000"),
        ({"interpolation": "spline"}, "interpolation: expected one of linear, cubic, hold"),
    ],
)
def test_wrong_entries_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        output(**changes)


def test_interpolation_needs_a_rate_and_has_a_default_by_kind() -> None:
    fields = contract_dict()
    fields["actions"][0]["interpolation"] = "linear"
    with pytest.raises(ContractError, match="this key only with `publish_rate_hz`"):
        Contract.from_dict(fields)
    fields = contract_dict(start="unchecked")
    del fields["actions"][0]["unit"]
    fields["actions"][0].update({"publish_rate_hz": 200.0})
    assert Contract.from_dict(fields).actions[0].interpolation == "linear"
    assert Contract.from_dict(fields).actions[0].time_from_start_s == 1 / 200
    fields["actions"][0].update({"field": "velocity"})
    assert Contract.from_dict(fields).actions[0].interpolation == "hold"
