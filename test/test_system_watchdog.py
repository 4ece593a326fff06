"""A policy that hangs at the running node, clocks that jump, and what the figures say.

While one thread hangs all the others must know it: the arm, the status, the diagnostics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from builtin_interfaces.msg import Time
from flashrt_ros.msg import PolicyStatus
from held import held
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from stage import Stage, arm_contract

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("watchdog")) as stage:
        yield stage


def rests(message: JointState) -> bool:
    return list(message.velocity) == [0.0, 0.0]


def test_a_policy_that_hangs_leads_to_on_miss_and_a_status_that_says_so(stage: Stage) -> None:
    stage.run(contract=arm_contract(on_miss="stop"), watchdog_periods=10)
    stage.wait_steps(3)
    with held(stage):
        stage.peer.wait(lambda: stage.commands and rests(stage.commands[-1]), "the stop message")
        late = stage.wait_status(PolicyStatus.WAITING, "the control step is late")
        assert "no control step for" not in stage.process.output(), "miss_limit_s is far away"
        stage.wait_diagnostic("motion", "the control step is late", level=1)

    def goes_on() -> bool:
        status = stage.statuses[-1]
        return status.mode == PolicyStatus.RUNNING and status.tick > late.tick

    stage.peer.wait(goes_on, "motion, and more ticks", seen=lambda: stage.statuses[-1:])
    stage.peer.wait(
        lambda: stage.values("watchdog").get("late control steps", "0") != "0",
        "the watchdog in /diagnostics",
    )


def test_control_of_the_above_without_the_watchdog_the_arm_follows_on(stage: Stage) -> None:
    stage.run(contract=arm_contract(on_miss="stop"))
    stage.wait_steps(3)
    with held(stage):
        begun = stage.robot.count()
        stage.peer.wait(lambda: stage.robot.count() > begun + 50, "a second of the robot")
    stage.peer.wait(lambda: any(s.latency_ms > 1000 for s in stage.steps), "its end")
    assert not any(map(rests, stage.commands))


def test_the_age_of_an_observation_is_counted_to_the_command(stage: Stage) -> None:
    stage.run("puppet:Planner")
    stage.wait_steps(20)

    def rows() -> list[Any]:
        """Those of the chunk that most control steps have taken one from."""
        by_chunk: dict[int, list[Any]] = {}
        for step in list(stage.steps):
            by_chunk.setdefault(step.chunk_id, []).append(step)
        return max(by_chunk.values(), key=len)

    # While the machine is busy, plans may come so late that each has one row left.
    stage.peer.wait(lambda: len(rows()) > 1, "two rows of a chunk")
    steps = list(stage.steps)
    for step in steps:
        received = max(o.age_ms for o in step.observations)
        # From the plan that saw it on: later rows of a chunk act on older observations.
        assert step.observation_age_ms >= received
        assert step.observation_age_ms >= step.latency_ms
    ages = [step.observation_age_ms for step in sorted(rows(), key=lambda s: s.chunk_index)]
    assert ages == sorted(ages)
    names = ("measured period_ms p1 p50 p99", "observation_age_ms p50 p99 max", "jitter_ms p99")

    def figures() -> list[float]:
        found = stage.values("control period")
        return [float(word) for name in names for word in found.get(name, "nan").split()]

    # Diagnostics that came at activation have none yet.
    stage.peer.wait(lambda: not any(map(math.isnan, figures())), "figures", seen=figures)
    assert all(figure > 0 for figure in figures()[:-1])


def test_what_a_restore_brought_back_has_no_age(stage: Stage) -> None:
    stage.run("puppet:Planner")
    stage.do("snapshot", name="here")
    stage.clear()
    stage.do("restore", name="here", publish=True)
    stage.peer.wait(lambda: any(step.capsule for step in stage.steps), "a step after it")
    after = [step for step in stage.steps if step.capsule]
    for step in after:
        assert math.isnan(step.observation_age_ms) == (not step.observations)


def test_a_clock_that_stands_still_or_leaps_ahead_changes_stamps_alone(stage: Stage) -> None:
    publisher = stage.peer.node.create_publisher(Clock, "/clock", QoSProfile(depth=10))

    def told(second: int) -> bool:
        publisher.publish(Clock(clock=Time(sec=second)))
        return bool(stage.commands) and stage.commands[-1].header.stamp.sec == second

    stage.run(use_sim_time=True)
    try:
        stage.peer.wait(lambda: told(50), "a command at the simulated time")
        stage.clear()
        stage.wait_steps(10)
        stage.peer.wait(lambda: len(stage.commands) >= 10, "commands")
        assert {command.header.stamp.sec for command in list(stage.commands)[1:]} == {50}
        stage.peer.wait(lambda: stage.diagnostics, "diagnostics while the clock stands still")
        episode = stage.steps[-1].episode
        stage.peer.wait(lambda: told(5000), "a command after a leap")
        stage.wait_steps(10)
        assert stage.steps[-1].episode == episode
        stage.wait_running()
        assert "went back" not in stage.process.output()
    finally:
        assert stage.set(use_sim_time=False).successful
        stage.peer.node.destroy_publisher(publisher)
