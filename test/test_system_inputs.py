"""Bad input and bad actions at a running node: motion ends, the reason is named, all heals.

Pinned here because each of these moved a robot somewhere else: an old observation that was held,
joints taken by position, a NaN that went on to the arm, a looped bag, a topic that stayed silent
because its QoS did not fit.
"""

from __future__ import annotations

import itertools
import math
import re
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
    stage.run(contract=arm_contract(max_age_ms=500.0))
    stage.wait_steps(3)
    setattr(stage.robot, knob, value)
    # Motion was under way: a hold, and after miss_limit_s the stop message.
    held = stage.wait_status(PolicyStatus.HOLDING, words[0])
    for word in ("observation.state", "joint_states", *words):
        assert word in held.reason
    stage.wait_diagnostic("motion", words[0])
    stage.wait_diagnostic("input /joint_states", words[0])
    stage.end_hold()
    ticks = stage.wait_status(PolicyStatus.WAITING, words[0]).tick
    # Positions as commanded last, velocities zero.
    stopped = wait_for_rest(stage)
    before = len(stage.robot.published)
    stage.robot.reset()
    stage.wait_running()
    stage.peer.wait(lambda: stage.steps[-1].tick >= ticks, "a control step after it")
    (last,) = [s for s in stage.steps if s.tick == ticks - 1]
    (first,) = [s for s in stage.steps if s.tick == ticks]
    assert first.step == last.step + 1
    fed = stage.robot.published[max(before - 1, 0) :]
    assert first.observations[0].digest in fed, "it moves again on an old message"
    positions = [tuple(c.position) for c in stage.commands[:stopped]]
    held_from = positions.index(tuple(last.action))
    assert stopped - held_from >= 3, "the policy's command, some of the hold, the stop message"
    assert len(set(positions[held_from:])) == 1, "the hold is not where the policy's last one is"


def wait_for_rest(stage: Stage) -> int:
    """Waits for the stop message; returns how many commands there are with it."""

    def found() -> int:
        commands = list(stage.commands)
        return len(commands) if commands and list(commands[-1].velocity) == [0.0, 0.0] else 0

    return stage.peer.wait(found, "the stop message", seen=lambda: stage.commands[-1:])


def test_on_miss_stop_says_so_once_and_is_silent(stage: Stage) -> None:
    stage.run(contract=arm_contract(on_miss="stop"))
    stage.robot.alter = set_nan
    stage.wait_status(PolicyStatus.WAITING, "non-finite position of b")
    stage.wait_diagnostic("motion", "non-finite", level=1)
    stopped = wait_for_rest(stage)
    assert [list(c.velocity) for c in stage.commands[stopped - 2 : stopped]] == [[], [0.0, 0.0]]
    stage.robot.reset()
    stage.wait_running()
    stage.peer.wait(lambda: len(stage.commands) > stopped, "a command after it")
    assert list(stage.commands[stopped].velocity) == [], "more than one stop message"


def test_other_names_and_another_order_are_fine(stage: Stage) -> None:
    """Control of the above: what may differ does not stop the arm, and is found by name."""

    def reorder(message: JointState) -> None:
        message.name = ["gripper", "b", "a"]
        message.position = [9.0, -0.1, 0.1]
        message.velocity = [9.0, 0.0, 0.0]

    stage.run()
    stage.robot.alter = reorder
    for _ in range(10):
        stage.wait_step_on_new_input()
    commands = len(stage.commands)
    stage.peer.wait(lambda: len(stage.commands) > commands, "another command")
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
    stage.wait_running()


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
    withheld = stage.peer.wait(
        lambda: [s for s in stage.steps if not s.published], "a record of what was withheld"
    )
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
    stage.peer.wait(lambda: "Traceback" in stage.process.output(), "a traceback in the log")
    response = stage.ask("resume")
    assert response.error_code == ErrorCode.INTERNAL
    assert "the puppet's string broke" in response.message
    assert stage.ask("list_capsules").success, "the node must go on answering"
    stage.robot.velocity = [0.0, 0.0]
    stage.do("restore", name="whole", publish=True)
    stage.wait_running()


def assert_only_told_to_move_again(stage: Stage) -> None:
    """On hold: good input alone starts nothing, ~/resume does."""
    commands = wait_for_rest(stage)
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
    begun = len(stage.process.output())

    def turn_back(message: JointState) -> None:
        message.header.stamp.sec -= 30

    stage.robot.alter = turn_back
    log = stage.process.output
    stage.peer.wait(lambda: f"on_time_jump {rule}" in log()[begun:], "a word in the log", seen=log)
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
    # The message before was older by a period, or by as long as the machine stalled.
    (back_s,) = {float(s) for s in re.findall(r"stamps went back by ([\d.]+)", log()[begun:])}
    assert 20.0 < back_s <= 30.0
    assert after.tick == before.tick + 1
    assert after.episode == episode
    assert after.step == (0 if rule == "reset" else before.step + 1)

    def resets() -> int:
        return [e.kind for e in stage.events].count(CapsuleEvent.RESET)

    stage.peer.wait(lambda: resets() >= episode, "a reset")
    stage.diagnostics.clear()
    stage.wait_diagnostic("input /joint_states", "ok", level=0)
    jumps = "jumps back in time"
    stage.peer.wait(lambda: stage.values("input /joint_states").get(jumps) == "1", jumps)
    assert resets() == episode


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

    def fits() -> bool:
        array = stage.diagnostics[-1]
        (status,) = [s for s in array.status if s.name == f"/policy: {entry}"]
        return "incompatible" not in status.message

    stage.peer.wait(fits, "diagnostics that do not name it any more")


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
        words = "incompatible QoS policy reliability"
        stage.peer.wait(lambda: words in stage.process.output(), words)
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
