"""The arm's node over real DDS: what it publishes, what it follows, what it refuses.

Pinned because the experiment is only as honest as its arm: a cue is on the topic only while it is
shown, joints are taken by name, the last command is held, and `home` brings it there.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from default_context import default_context

from flashrt_ros.demo.arm import tip_of
from flashrt_ros.demo.task import HOME_RAD, RING_CENTRE_M

rclpy = pytest.importorskip("rclpy")
pytestmark = pytest.mark.ros


class Bench:
    """An arm and somebody who looks at it, in one executor."""

    def __init__(self) -> None:
        from geometry_msgs.msg import PointStamped, Vector3Stamped
        from rclpy.executors import SingleThreadedExecutor
        from sensor_msgs.msg import JointState
        from std_srvs.srv import Trigger

        from flashrt_ros.demo.arm_node import ArmNode

        self.arm = ArmNode()
        self.node = rclpy.create_node("onlooker")
        self.states: list[Any] = []
        self.cues: list[Any] = []
        self.node.create_subscription(JointState, "joint_states", self.states.append, 10)
        self.node.create_subscription(PointStamped, "cue", self.cues.append, 10)
        self.command = self.node.create_publisher(JointState, "joint_command", 10)
        self.cue = self.node.create_publisher(PointStamped, "arm/show_cue", 10)
        self.bump = self.node.create_publisher(Vector3Stamped, "arm/bump", 10)
        self.home = self.node.create_client(Trigger, "arm/home")
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.arm)
        self.executor.add_node(self.node)

    def until(self, condition: Callable[[], Any], limit_s: float = 20.0) -> None:
        deadline_s = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline_s, "not within the limit"
            self.executor.spin_once(timeout_sec=0.1)

    def steps(self, count: int) -> None:
        end = len(self.states) + count
        self.until(lambda: len(self.states) >= end)

    def send(self, **positions: float) -> None:
        from sensor_msgs.msg import JointState

        names, values = list(positions), list(positions.values())
        self.command.publish(JointState(name=names, position=values))

    def close(self) -> None:
        self.executor.shutdown()
        self.arm.destroy_node()
        self.node.destroy_node()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with default_context(tmp_path):
        bench = Bench()
        try:
            bench.until(lambda: bench.states and bench.home.service_is_ready())
            bench.until(lambda: bench.command.get_subscription_count())
            bench.until(lambda: bench.cue.get_subscription_count())
            bench.until(lambda: bench.bump.get_subscription_count())
            yield bench
        finally:
            bench.close()


def test_states_have_names_stamps_and_little_noise(bench: Bench) -> None:
    bench.steps(20)
    state = bench.states[-1]
    assert list(state.name) == ["joint1", "joint2"]
    stamps = [s.header.stamp.sec * 10**9 + s.header.stamp.nanosec for s in bench.states]
    assert all(a < b for a, b in itertools.pairwise(stamps))
    np.testing.assert_allclose(state.position, HOME_RAD, atol=5e-3)
    assert bench.states[-1].position != bench.states[-2].position
    assert not bench.cues


def test_commands_go_by_name_and_the_last_is_held(bench: Bench) -> None:
    goal = HOME_RAD + np.array((0.2, -0.2))
    bench.send(joint2=goal[1], joint1=goal[0])
    bench.steps(60)
    np.testing.assert_allclose(bench.states[-1].position, goal, atol=6e-3)
    bench.send(joint1=0.0, elbow=0.0)
    bench.send(joint1=float("nan"), joint2=0.0)
    bench.steps(20)
    np.testing.assert_allclose(bench.states[-1].position, goal, atol=6e-3)


def test_a_cue_is_published_only_while_it_is_shown(bench: Bench) -> None:
    from geometry_msgs.msg import PointStamped

    shown = PointStamped()
    shown.point.x, shown.point.y, shown.point.z = 0.6, -0.1, 0.2
    bench.cue.publish(shown)
    bench.until(lambda: len(bench.cues) >= 10)
    bench.steps(10)
    assert len(bench.cues) == 10
    assert {(cue.point.x, cue.point.y, cue.point.z) for cue in bench.cues} == {(0.6, -0.1, 0.0)}
    shown.point.z = float("nan")
    bench.cue.publish(shown)
    bench.steps(10)
    assert len(bench.cues) == 10


def test_a_bump_throws_the_arm_off_and_home_brings_it_back(bench: Bench) -> None:
    from geometry_msgs.msg import Vector3Stamped
    from std_srvs.srv import Trigger

    push = Vector3Stamped()
    push.vector.x, push.vector.z = 45.0, 0.1
    bench.bump.publish(push)

    def away_m() -> float:
        return float(np.hypot(*(tip_of(bench.states[-1].position) - RING_CENTRE_M)))

    bench.until(lambda: away_m() > 0.1)
    bench.send(joint1=HOME_RAD[0] + 0.4, joint2=HOME_RAD[1])
    bench.steps(20)
    answer = bench.home.call_async(Trigger.Request())
    bench.steps(3)
    bench.send(joint1=HOME_RAD[0] + 0.4, joint2=HOME_RAD[1])
    bench.until(answer.done)
    assert answer.result().success
    assert answer.result().message.startswith("on the way home")
    bench.until(lambda: away_m() < 0.005)
    bench.steps(20)
    assert away_m() < 0.01
