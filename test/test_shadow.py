"""Shadow mode: the policy runs on what it sees, others drive, and hand-over is smooth both ways.

A shadow that sends one command too many fights whoever drives; a take-over from a place where the
policy has not been moves the arm in one jump.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from control_rig import Rig, close
from held import held
from lifecycle_msgs.msg import State
from node_policies import STEP_RAD, Follow
from sensor_msgs.msg import JointState
from stage import Stage

from flashrt_ros.ros.motion import Mode


def test_a_shadow_publishes_what_would_have_left_and_sends_nothing() -> None:
    rig = Rig(dry_run=True)
    for position in (0.1, 0.5, 0.9):  # another one moves the arm, faster than our step limit
        rig.tick(position=(position, position))
    assert not rig.out.sent
    assert [c.values[0] for c in rig.out.shadows] == pytest.approx(
        [position + n * STEP_RAD for n, position in enumerate((0.1, 0.5, 0.9))]
    )
    assert (rig.mode, rig.session.host.step) == (Mode.RUNNING, 3)
    assert "in the shadow of others" in rig.reason
    assert {step.published for step in rig.out.steps} == {False}


def test_a_shadow_far_from_the_arm_goes_on_and_says_so() -> None:
    rig = Rig(Follow(offset=1.0), dry_run=True)
    rig.tick(3)
    assert rig.session.host.step == 3
    assert "as a first command it would not leave: a: command" in rig.out.steps[-1].hold_reason
    # Control: the same, live, holds.
    live = Rig(Follow(offset=1.0))
    live.tick()
    assert live.mode is Mode.HOLDING


def test_take_over_is_checked_against_where_the_arm_is_now() -> None:
    rig = Rig(Follow(offset=1.0), dry_run=True)
    rig.tick(3)
    assert rig.commander.shadow(False)
    rig.tick()
    assert rig.mode is Mode.HOLDING
    assert "unsafe start" in rig.reason
    assert not rig.out.sent


def test_take_over_goes_on_from_the_state_that_the_shadow_has_reached() -> None:
    rig = Rig(dry_run=True)
    rig.tick(3)
    rig.commander.shadow(False)
    rig.tick(position=(0.3, 0.3))
    assert close(rig.positions[-1], 0.3 + 3 * STEP_RAD, 0.3 + 3 * STEP_RAD)
    assert (rig.mode, rig.reason) == (Mode.RUNNING, "")


def test_handing_over_to_others_sends_the_stop_message_and_no_more() -> None:
    rig = Rig()
    rig.tick(3)
    sent = len(rig.out.sent)
    assert rig.commander.shadow(True)
    assert len(rig.out.sent) == sent + 1
    assert rig.positions[-1] == rig.positions[-2], "it stands where it was commanded last"
    assert not rig.commander.moving
    rig.tick(3)
    rig.commander.miss(rig.now_ns)
    rig.commander.halt(all_outputs=True)
    assert len(rig.out.sent) == sent + 1
    assert rig.session.host.step == 6, "the policy goes on"
    assert not rig.commander.shadow(True), "it is so already"


def test_a_command_that_was_computed_before_the_hand_over_does_not_leave() -> None:
    rig = Rig()
    rig.tick(2)
    epoch = rig.motion.epoch
    for dry_run in (True, False):
        rig.commander.shadow(dry_run)
    outcome = rig.commander.command([0.1, 0.2], [0.1, 0.2], rig.now_ns, epoch)
    assert outcome.verdict.name == "OVERTAKEN"


def test_a_stop_in_the_shadow_holds_the_take_over_back() -> None:
    rig = Rig(dry_run=True)
    rig.tick(2)
    rig.motion.stop()
    rig.commander.shadow(False)
    rig.tick(2)
    assert (rig.mode, rig.out.sent) == (Mode.STOPPED, [])


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("shadow")) as stage:
        yield stage


@pytest.mark.ros
def test_both_ways_at_a_running_node(stage: Stage) -> None:
    shadows = stage.peer.record(JointState, "/policy/shadow/joint_command")
    stage.run()
    stage.wait_steps(5)
    assert not shadows
    assert stage.set(dry_run=True).successful
    stage.wait_status(3, "in the shadow of others")
    stage.peer.wait(lambda: stage.statuses[-1].dry_run, "a status that says so")
    stage.peer.wait(lambda: list(stage.commands[-1].velocity) == [0.0, 0.0], "the stop message")
    stage.clear()
    stage.wait_step_on_new_input()
    stage.wait_steps(5)
    assert not stage.commands, "the stop message was the last"
    stage.peer.wait(lambda: len(shadows) >= 5, "shadow commands")
    stage.wait_diagnostic("motion", "dry run", level=0)
    # Another one has moved the arm meanwhile.
    stage.robot.position = [0.4, 0.4]
    stage.wait_step_on_new_input()
    stage.clear()
    assert stage.set(dry_run=False).successful
    stage.wait_steps(5)
    stage.peer.wait(lambda: len(stage.commands) >= 3, "commands")
    assert all(abs(p - 0.4) < 0.1 for p in stage.commands[0].position)
    assert stage.steps[-1].step > 10, "one episode all along"
    stage.peer.wait(lambda: stage.values("parameters").get("dry_run") == "False", "dry_run False")


@pytest.mark.ros
def test_parameters_at_run_time_are_all_set_or_none(stage: Stage) -> None:
    stage.run(miss_limit_s=10.0, rollback_period_steps=1)
    refused = stage.set(miss_limit_s=0.2, device="cuda")
    assert not refused.successful
    assert "device is read at configure" in refused.reason
    refused = stage.set(dry_run=True, miss_limit_s=11.0)
    assert not refused.successful
    assert not stage.wait_step_on_new_input().dry_run
    assert stage.set(miss_limit_s=0.2, rollback_period_steps=10).successful
    begun = stage.do("reset_episode").generation
    stage.peer.wait(
        lambda: stage.steps[-1].generation == begun and stage.steps[-1].step > 20, "21 steps"
    )
    ring = stage.do("list_capsules", include_automatic=True).capsules
    episode = max(c.episode for c in ring)
    steps = {c.step for c in ring if c.automatic and c.episode == episode}
    assert steps
    assert all(step % 10 == 0 for step in steps)
    assert stage.state() == State.PRIMARY_STATE_ACTIVE
    before = len(stage.process.output())
    late = re.compile(r"no control step for ([0-9.]+) s")
    with held(stage):
        found = stage.peer.wait(lambda: late.search(stage.process.output(), before), "a bark")
    assert float(found[1]) < 10.0, "that is the limit from before"
    stage.wait_running()
