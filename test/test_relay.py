"""Publishing between control steps: at its rate, under the same rules, cut at once.

What leaves here goes to motors as directly as a command does, from another thread.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from contract_examples import MS, contract_dict
from control_rig import PERIOD_NS, Lists, Rig

from flashrt_ros.contract import Contract
from flashrt_ros.contract.stop import StopInput
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.relay import Relay
from flashrt_ros.ros.stop_guard import StopGuard

SAMPLE_NS = 5 * MS


def rig(on_miss: str = "hold", **changes: Any) -> Rig:
    fields = contract_dict()
    fields["actions"][0].update({"publish_rate_hz": 200.0, "on_miss": on_miss, **changes})
    return Rig(actions=fields["actions"], on_miss=on_miss)


def relay(ours: Rig, count: int) -> list[list[float]]:
    """Samples of so many deadlines from now on, as the thread would publish them."""
    before = len(ours.out.sent)
    for _ in range(count):
        ours.commander.publish_between(["joint_command"], ours.now_ns)
        ours.now_ns += SAMPLE_NS
    return [list(command.fields["position"]) for command in ours.out.sent[before:]]


def period(ours: Rig, *position: float) -> list[list[float]]:
    """One control period with its samples; the clock ends where the next one begins."""
    ours.hear(*position)
    ours.stepper.tick(ours.now_ns)
    return relay(ours, PERIOD_NS // SAMPLE_NS)


def test_a_control_step_sends_nothing_itself_and_its_samples_follow() -> None:
    ours = rig()
    ours.hear()
    ours.stepper.tick(ours.now_ns)
    assert ours.out.sent == []
    assert ours.motion.mode is Mode.RUNNING
    assert ours.out.steps[-1].published, "it was handed on"
    first = relay(ours, 4)
    np.testing.assert_allclose(first, [[0.1, 0.2]] * 4, atol=1e-6)
    second = period(ours)  # the policy commands 0.01 rad more in each step
    np.testing.assert_allclose(np.array(second)[:, 0], 0.1 + 0.01 * np.arange(4) / 4, atol=1e-6)


def test_a_stop_cuts_at_the_last_sample() -> None:
    ours = rig()
    for _ in range(3):
        samples = period(ours)
    ours.commander.halt()
    ours.motion.stop()
    stop = ours.out.sent[-1].fields
    assert stop["velocity"] == [0.0, 0.0]
    assert list(stop["position"]) == samples[-1], "not on to the command that was under way"
    sent = len(ours.out.sent)
    assert relay(ours, 8) == []
    assert len(ours.out.sent) == sent


def test_on_miss_hold_ends_at_the_last_command_and_then_by_the_stop_message() -> None:
    ours = rig(on_miss="hold")
    period(ours)
    period(ours)
    held: list[list[float]] = []
    for _ in range(2):
        ours.now_ns += 101 * MS  # the input is stale now
        ours.stepper.tick(ours.now_ns)
        held += relay(ours, 4)
    assert held[-1] == pytest.approx([0.11, 0.21], abs=1e-6)
    ours.now_ns += 600 * MS  # miss_limit_s
    ours.stepper.tick(ours.now_ns)
    assert ours.out.sent[-1].fields["velocity"] == [0.0, 0.0]
    assert relay(ours, 8) == []


def test_on_miss_stop_stops_where_the_arm_was_sent_last() -> None:
    ours = rig(on_miss="stop")
    period(ours)
    samples = period(ours)
    ours.now_ns += 101 * MS
    ours.stepper.tick(ours.now_ns)
    stop = ours.out.sent[-1].fields
    assert stop["velocity"] == [0.0, 0.0]
    assert list(stop["position"]) == samples[-1]
    assert samples[-1][0] < 0.11 - 1e-4, "control: the command itself lay farther"
    assert relay(ours, 8) == []


def test_on_miss_zeros_is_at_once() -> None:
    fields = contract_dict()
    fields["actions"][0].update(
        {"publish_rate_hz": 200.0, "interpolation": "linear", "field": "velocity"}
    )
    del fields["actions"][0]["unit"]
    ours = Rig(actions=fields["actions"], on_miss="zeros", start="unchecked")

    def velocities(count: int) -> list[list[float]]:
        before = len(ours.out.sent)
        relay(ours, count)
        return [list(c.fields["velocity"]) for c in ours.out.sent[before:]]

    ours.hear()
    ours.stepper.tick(ours.now_ns)
    assert velocities(4)[-1][0] > 0.05
    ours.now_ns += 101 * MS
    ours.stepper.tick(ours.now_ns)
    assert velocities(2) == [[0.0, 0.0]] * 2


def test_a_control_thread_that_hangs_is_silence_not_a_repeated_command() -> None:
    ours = rig()
    period(ours)
    period(ours)
    assert len(relay(ours, 100)) <= 2 * PERIOD_NS // SAMPLE_NS


def test_the_stop_input_is_asked_before_each_sample() -> None:
    ours = rig()
    guard = StopGuard(
        StopInput("enable", "dead_man", 30.0),
        ours.motion,
        ours.commander,
        ours.out,
        lambda reason: None,
        lambda: ours.now_ns,
    )
    guard.receive(True)
    ours.motion.resume(ours.now_ns)
    period(ours)
    guard.receive(True)
    ours.hear()
    ours.stepper.tick(ours.now_ns)
    assert len(relay(ours, 7)) == 7, "the last one 30 ms after the message"
    assert ours.out.sent[-1].fields["velocity"] == []
    assert len(relay(ours, 3)) == 1
    assert ours.out.sent[-1].fields["velocity"] == [0.0, 0.0]
    assert ours.motion.mode is Mode.HOLDING


def test_dry_run_and_pause_publish_no_samples() -> None:
    fields = contract_dict()
    fields["actions"][0]["publish_rate_hz"] = 200.0
    dry = Rig(actions=fields["actions"], dry_run=True)
    assert period(dry) == []
    ours = rig()
    period(ours)
    ours.motion.pause()
    assert relay(ours, 4) == []


def thread(calls: list[tuple[list[str], int]], moving: bool = True) -> Relay:
    """A relay of two outputs whose samples are only noted."""
    fields = contract_dict(start="unchecked")
    first = {**fields["actions"][0], "publish_rate_hz": 200.0}
    second = {**first, "topic": "other", "index": [2, 3], "publish_rate_hz": 100.0}
    outputs = Contract.from_dict({**fields, "actions": [first, second]}).actions

    def publish(topics: Any, now_ns: int) -> int:
        calls.append((list(topics), now_ns))
        return len(topics)

    return Relay(outputs, publish, lambda: moving, lambda words: None, Lists())


def test_each_output_has_its_own_deadlines_and_what_is_missed_is_counted() -> None:
    calls: list[tuple[list[str], int]] = []
    ours = thread(calls)
    now_ns, end_ns = 0, 100 * MS
    while now_ns < end_ns:
        now_ns = ours.turn(now_ns)
    topics = [topic for due, _ in calls for topic in due]
    assert topics.count("joint_command") == 20
    assert topics.count("other") == 10
    assert (ours.missed, ours.samples) == (0, 30)
    ours.turn(now_ns + 22 * MS)
    # Of 200 Hz four more deadlines had passed, of 100 Hz two.
    assert ours.missed == 6
    assert ours.late_ms.percentiles(100) == (22.0,)
    assert ours.samples == 32, "and are not made up for"


def test_a_failure_ends_motion_and_the_thread_goes_on() -> None:
    failed = threading.Event()
    words: list[str] = []
    out = Lists()

    def fail(reason: str) -> None:
        words.append(reason)
        failed.set()

    def publish(topics: Any, now_ns: int) -> int:
        raise RuntimeError("no such publisher")

    fields = contract_dict()
    fields["actions"][0]["publish_rate_hz"] = 200.0
    ours = Relay(
        Contract.from_dict(fields).actions, publish, lambda: not failed.is_set(), fail, out
    )
    ours.start()
    ours.wake()
    assert failed.wait(30.0)
    assert ours.close(30.0)
    assert "no such publisher" in words[0]
    assert "RuntimeError" in out.words[0]
