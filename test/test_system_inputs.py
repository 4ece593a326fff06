"""Bad input and bad actions at a running node: motion ends, the reason is named, all heals.

Pinned here because each of these moved a robot somewhere else: an old observation that was held,
joints taken by position, a NaN that went on to the arm, a looped bag, a topic that stayed silent
because its QoS did not fit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import puppet
import pytest
from builtin_interfaces.msg import Time
from flashrt_ros.msg import CapsuleEvent, PolicyStatus
from node_peer import BEST_EFFORT, Robot
from rclpy.qos import DurabilityPolicy, QoSProfile
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from stage import Stage, arm_contract

from flashrt_ros.errors import ErrorCode

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("inputs")) as stage:
        yield stage


def set_nan(message: JointState) -> None:
    message.position[1] = math.nan


def set_infinity(message: JointState) -> None:
    message.velocity[0] = -math.inf


def rename(message: JointState) -> None:
    message.name = ["a", "gripper"]


def drop_names(message: JointState) -> None:
    message.name = []


def shorten(message: JointState) -> None:
    message.position = [0.1]


def double(message: JointState) -> None:
    message.name = ["a", "a"]


BAD_INPUTS: dict[str, tuple[str, Callable[..., Any], tuple[str, ...]]] = {
    "NaN": ("alter", set_nan, ("non-finite position of b",)),
    "infinity": ("alter", set_infinity, ("non-finite velocity of a",)),
    "wrong name": ("alter", rename, ("expected ['b'], found only ['a', 'gripper']",)),
    "no names": ("alter", drop_names, ("expected joint names, found an empty `name`",)),
    "wrong length": ("alter", shorten, ("expected 2 values in `position`", "found 1")),
    "name twice": ("alter", double, ("expected ['b'], found only ['a', 'a']",)),
    "cut off": ("mangle", lambda data: data[:20], ("sensor_msgs/msg/JointState",)),
    "no message": ("quiet", True, ("stale",)),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_stops_motion_until_good_input(stage: Stage, case: str) -> None:
    knob, value, words = BAD_INPUTS[case]
    stage.run(contract=arm_contract(max_age_ms=500.0), miss_limit_s=0.5)
    stage.wait_steps(3)
    setattr(stage.robot, knob, value)
    # Motion was under way: a hold, and after miss_limit_s the stop message.
    held = stage.peer.wait(
        lambda: next((s for s in stage.statuses if s.mode == PolicyStatus.HOLDING), None),
        "mode HOLDING",
        seen=lambda: stage.statuses,
    )
    for word in ("observation.state", "joint_states", *words):
        assert word in held.reason
    steps, commands = len(stage.steps), len(stage.commands)
    stage.wait_diagnostic("motion", words[0])
    stage.wait_diagnostic("input /joint_states", words[0])
    # Positions as commanded last, velocities zero.
    stage.peer.wait(lambda: list(stage.commands[-1].velocity) == [0.0, 0.0], "the stop message")
    stopped = len(stage.commands)
    stage.wait_status(PolicyStatus.WAITING, words[0])
    before = len(stage.robot.published)
    stage.robot.reset()
    stage.wait_running()
    stage.wait_steps(1)
    assert stage.steps[steps].step == stage.steps[steps - 1].step + 1
    fed = stage.robot.published[max(before - 1, 0) :]
    assert stage.steps[steps].observations[0].digest in fed, "it moves again on an old message"
    moved = {tuple(c.position) for c in stage.commands[commands - 1 : stopped]}
    assert len(moved) == 1, "the policy's last command was not the last one before the stop"


def test_on_miss_stop_says_so_once_and_is_silent(stage: Stage) -> None:
    stage.run(contract=arm_contract(on_miss="stop"))
    stage.robot.alter = set_nan
    stage.wait_status(PolicyStatus.WAITING, "non-finite position of b")
    stage.wait_diagnostic("motion", "non-finite", level=1)
    ending = list(stage.commands)
    assert [list(c.velocity) for c in ending[-2:]] == [[], [0.0, 0.0]]
    stage.robot.reset()
    stage.wait_running()
    stage.wait_steps(1)
    assert list(stage.commands[len(ending)].velocity) == [], "more than one stop message"


def test_other_names_and_another_order_are_fine(stage: Stage) -> None:
    """Control of the above: what may differ does not stop the arm, and is found by name."""

    def reorder(message: JointState) -> None:
        message.name = ["gripper", "b", "a"]
        message.position = [9.0, -0.1, 0.1]
        message.velocity = [9.0, 0.0, 0.0]

    stage.run()
    stage.robot.alter = reorder
    stage.clear()
    stage.wait_steps(10)
    assert {s.mode for s in stage.statuses} <= {PolicyStatus.RUNNING}
    a, b = stage.commands[-1].position
    assert abs(a - 0.1) <= 0.05
    assert abs(b + 0.1) <= 0.05


def test_missing_input_is_named_before_the_first_message(stage: Stage) -> None:
    stage.prepare()
    stage.robot.quiet = True
    stage.transit(1)
    stage.clear()
    stage.transit(3)
    stage.wait_status(PolicyStatus.WAITING, "observation.state (joint_states): no message")
    stage.wait_diagnostic("input /joint_states", "no message (1 publishers")
    assert not stage.commands
    stage.robot.quiet = False
    stage.wait_running()


# Actions


def test_action_beyond_limits_is_clamped_and_reported(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(2)
    stage.robot.velocity = [puppet.BEYOND, 0.0]
    stage.peer.wait(
        lambda: stage.commands and list(stage.commands[-1].position) == [3.0, 2.0],
        "both joints at their limits",
        seen=lambda: stage.commands[-1:],
    )
    positions = [list(c.position) for c in stage.commands]
    for joint, limit in ((0, 3.0), (1, 2.0)):
        column = [p[joint] for p in positions]
        assert max(column) <= limit
        assert max(b - a for a, b in itertools.pairwise(column)) <= 0.2 + 1e-9
    stage.peer.wait(lambda: list(stage.steps[-1].action) == [3.0, 2.0], "a record of what left")
    stage.wait_diagnostic("limits", "to 3 by limits [-3.0, 3.0]", level=1)
    assert stage.statuses[-1].mode == PolicyStatus.RUNNING


def test_action_beyond_limits_is_refused_where_the_contract_says_so(stage: Stage) -> None:
    stage.run(contract=arm_contract(on_limit="refuse"))
    stage.wait_steps(2)
    stage.robot.velocity = [puppet.BEYOND, 0.0]
    status = stage.wait_status(PolicyStatus.HOLDING, "joint_command: refused, a 100")
    assert "limits [-3.0, 3.0]" in status.reason
    assert "~/resume" in status.reason
    stage.wait_diagnostic("motion", "refused, a 100")
    assert max(c.position[0] for c in stage.commands) < 0.2
    assert_only_told_to_move_again(stage)


def test_nan_action_holds_until_told(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(2)
    stage.robot.velocity = [puppet.NAN, 0.0]
    stage.wait_status(PolicyStatus.HOLDING, "joint_command: non-finite action for a, b")
    stage.wait_diagnostic("motion", "non-finite action for a, b")
    assert all(math.isfinite(value) for c in stage.commands for value in c.position)
    withheld = [s for s in stage.steps if not s.published]
    assert len(withheld) == 1
    assert "non-finite" in withheld[0].hold_reason
    stage.robot.velocity = [0.0, 0.0]
    stage.do("reset_episode")  # the NaN is in no state here, but only the policy knows that
    stage.wait_running()


def test_policy_that_raises_holds_until_reset(stage: Stage) -> None:
    stage.run()
    stage.do("snapshot", name="whole")
    stage.robot.velocity = [puppet.RAISES, 0.0]
    status = stage.wait_status(PolicyStatus.HOLDING, "RuntimeError: the puppet's string broke")
    assert "reset" in status.reason
    stage.wait_diagnostic("motion", "the puppet's string broke")
    assert "Traceback" in stage.process.output()
    response = stage.ask("resume")
    assert response.error_code == ErrorCode.INTERNAL
    assert "the puppet's string broke" in response.message
    assert stage.ask("list_capsules").success, "the node must go on answering"
    stage.robot.velocity = [0.0, 0.0]
    stage.do("restore", name="whole", publish=True)
    stage.wait_running()


def assert_only_told_to_move_again(stage: Stage) -> None:
    """On hold: good input alone starts nothing, ~/resume does."""
    commands = len(stage.commands)
    stage.robot.reset()
    begun = len(stage.robot.published)
    stage.peer.wait(lambda: len(stage.robot.published) > begun + 15, "good input for a while")
    assert len(stage.commands) == commands, "it moved by itself"
    stage.do("resume")
    stage.wait_running()


# First commands


def test_measured_position_outside_limits_is_no_place_to_start(stage: Stage) -> None:
    stage.run()
    stage.do("pause")
    stage.robot.position = [3.5, -0.1]
    response = stage.ask("resume")
    assert response.error_code == ErrorCode.UNSAFE_START
    assert "a stands at 3.5, outside its limits [-3.0, 3.0]" in response.message
    assert "bring it back inside" in response.message
    stage.wait_status(PolicyStatus.HOLDING, "outside its limits")
    assert max(c.position[0] for c in stage.commands) < 0.2
    assert_only_told_to_move_again(stage)


# Time


@pytest.mark.parametrize(("rule", "episode"), [("hold", 0), ("reset", 1)])
def test_jump_back_in_time_is_cleared_reported_and_survived(
    stage: Stage, rule: str, episode: int
) -> None:
    contract = arm_contract()
    contract["on_time_jump"] = rule
    stage.run(contract=contract)
    stage.wait_steps(5)

    def turn_back(message: JointState) -> None:
        message.header.stamp.sec -= 30

    stage.robot.alter = turn_back
    log = stage.process.output
    stage.peer.wait(lambda: f"on_time_jump {rule}" in log(), "a word in the log", seen=log)
    stage.peer.wait(
        lambda: stage.steps[-1].observations[0].stamp.sec < stage.steps[0].header.stamp.sec - 20,
        "control steps on the input of the new time",
    )
    stage.wait_running()
    first = next(
        position
        for position, step in enumerate(stage.steps)
        if step.observations[0].stamp.sec < stage.steps[0].header.stamp.sec - 20
    )
    before, after = stage.steps[first - 1], stage.steps[first]
    assert "stamps went back by 29.9" in log()
    assert after.tick == before.tick + 1
    assert after.episode == episode
    assert after.step == (0 if rule == "reset" else before.step + 1)
    resets = [e for e in stage.events if e.kind == CapsuleEvent.RESET]
    assert len(resets) == episode
    stage.diagnostics.clear()
    entry = stage.wait_diagnostic("input /joint_states", "ok", level=0)
    assert {v.key: v.value for v in entry.values}["jumps back in time"] == "1"


def test_clock_that_goes_back_is_survived(stage: Stage) -> None:
    """As when a bag is played again and again with --clock."""
    publisher = stage.peer.node.create_publisher(Clock, "/clock", QoSProfile(depth=10))

    def tell(second: int) -> None:
        publisher.publish(Clock(clock=Time(sec=second)))

    def told(second: int) -> bool:
        tell(second)
        return bool(stage.statuses) and stage.statuses[-1].header.stamp.sec == second

    stage.run(use_sim_time=True)
    try:
        stage.peer.wait(lambda: told(50), "a status at the simulated time")
        stage.wait_steps(3)
        before = stage.steps[-1]
        begun = len(stage.process.output())
        log = stage.process.output
        tell(20)
        stage.peer.wait(lambda: "went back by 30.000 s" in log()[begun:], "a word", seen=log)
        stage.wait_running()
        stage.wait_steps(3)
        after = stage.steps[-1]
        assert after.episode == before.episode, "on_time_jump: hold"
        assert after.step > before.step
        assert log()[begun:].count("went back by") == 1
    finally:
        assert stage.set(use_sim_time=False).successful
        stage.peer.node.destroy_publisher(publisher)


# Quality of service


def stays(stage: Stage, entry: str) -> None:
    """Sees that the error is repeated as long as the peer is there, in several reports."""
    stage.diagnostics.clear()
    stage.peer.wait(lambda: len(stage.diagnostics) >= 3, "three reports")
    for array in list(stage.diagnostics):
        (status,) = [s for s in array.status if s.name == f"/policy: {entry}"]
        assert "incompatible QoS" in status.message


def forgotten(stage: Stage, topic: str, entry: str) -> None:
    """Waits until the node has noticed that the peer whose QoS did not fit is gone."""
    said = f"{topic}: every peer's QoS fits again"
    stage.peer.wait(lambda: said in stage.process.output(), said)
    stage.diagnostics.clear()
    stage.peer.wait(lambda: len(stage.diagnostics) >= 1, "diagnostics after that")
    (status,) = [s for s in stage.diagnostics[0].status if s.name == f"/policy: {entry}"]
    assert "incompatible" not in status.message


def test_incompatible_publisher_is_named(stage: Stage) -> None:
    contract = arm_contract()
    contract["observations"][0]["qos"] = {"reliability": "reliable"}
    contract["start"]["measured"]["qos"] = {"reliability": "reliable"}
    stage.robot.quiet = True
    stage.activate(contract=contract)
    other = Robot(stage.peer, "/joint_states", BEST_EFFORT)
    try:
        found = stage.wait_diagnostic("input /joint_states", "incompatible QoS")
        assert "/joint_states does not offer the reliability" in found.message
        assert "`qos`" in found.message
        assert "incompatible QoS policy reliability" in stage.process.output()
        stays(stage, "input /joint_states")
    finally:
        other.close()
    forgotten(stage, "input joint_states", "input /joint_states")


def test_incompatible_subscriber_is_named(stage: Stage) -> None:
    stage.activate()
    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    subscription = stage.peer.node.create_subscription(
        JointState, "/joint_command", lambda message: None, latched
    )
    try:
        found = stage.wait_diagnostic("output /joint_command", "incompatible QoS")
        assert "durability" in found.message
        stays(stage, "output /joint_command")
    finally:
        stage.peer.node.destroy_subscription(subscription)
    forgotten(stage, "output joint_command", "output /joint_command")
