"""Chunks that leave as one trajectory: the arm is led as by single commands, and stopped as soon.

A stand-in controller follows what is sent. Its arm is compared with what the same policy commands
step by step, and everything that stops a stepwise arm must stop this one: a trajectory that runs
on in a controller is motion that nobody commands any more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract_examples import contract_dict
from control_rig import PERIOD_NS, Rig, plan_ready
from node_policies import Follow, FollowChunks
from test_plans_ahead import Arm
from trajectory_controller import Follower, trajectory_fault

from flashrt_ros.contract import Command, Contract
from flashrt_ros.contract.horizon import Ahead
from flashrt_ros.errors import ContractError, SpecError
from flashrt_ros.ros import stepper
from flashrt_ros.ros.ahead import rows_ahead
from flashrt_ros.ros.messages import fill
from flashrt_ros.ros.motion import Mode
from flashrt_ros.runtime.policy import Buffers

TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
ROWS = 4


def action(**changes: Any) -> dict[str, Any]:
    output = {**contract_dict()["actions"][0], "type": TRAJECTORY, "horizon": "chunk"}
    return {**output, **changes}


def rig(**changes: Any) -> Rig:
    """A policy that plans four rows beside, each 0.01 rad farther."""
    return Rig(FollowChunks(), actions=[action(**changes)], on_miss=changes.get("on_miss", "hold"))


def run(rig: Rig, periods: int, position: tuple[float, float] = (0.1, 0.2)) -> None:
    """Control periods with plans that are done at once."""
    for _ in range(periods):
        rig.tick(position=position)
        plan_ready(rig)


def points(command: Command) -> list[list[float]]:
    return [point["positions"] for point in command.fields["points"]]


def times_s(command: Command) -> list[float]:
    stamps = [point["time_from_start"] for point in command.fields["points"]]
    return [stamp["sec"] + stamp["nanosec"] * 1e-9 for stamp in stamps]


def test_a_chunk_leaves_once_with_all_its_rows_and_times() -> None:
    arm = rig()
    run(arm, 1 + ROWS)
    (command,) = arm.out.sent
    assert np.allclose(points(command), [[0.1 + 0.01 * k, 0.2 + 0.01 * k] for k in range(ROWS)])
    assert np.allclose(times_s(command), [0.02, 0.04, 0.06, 0.08])
    assert command.fields["header"]["stamp"] == {"sec": 0, "nanosec": 0}
    assert [step.published for step in arm.out.steps] == [True] * ROWS
    run(arm, 1 + ROWS)
    assert len(arm.out.sent) == 3, "a hold while the next plan was awaited, then the next chunk"


def test_the_arm_is_where_single_commands_would_have_led_it() -> None:
    whole, single = rig(), rig(horizon="step")
    follower = Follower(("a", "b"), (0.1, 0.2))
    sent = 0
    for _ in range(40):
        run(whole, 1)
        run(single, 1)
        now_s = whole.now_ns * 1e-9
        for command in whole.out.sent[sent:]:
            follower.take(_message(command), now_s)
        sent = len(whole.out.sent)
        if single.out.sent:
            # A point is reached one period after its control step.
            wanted = points(single.out.sent[-1])[0]
            assert np.allclose(follower.at(now_s + PERIOD_NS * 1e-9), wanted, atol=1e-9)
    assert len(whole.out.sent) < len(single.out.sent) / 2


def test_a_plan_that_comes_before_the_end_replaces_what_is_left() -> None:
    """Plans take a period and begin with ten rows left, so each is spliced into the last one."""
    arm = Arm(1, 10, actions=[action()])
    single = Arm(1, 10, actions=[action(horizon="step")])
    follower = Follower(("a", "b"), (0.1, 0.2))
    sent = 0
    for period in range(60):
        # The arm wanders, so that each plan leads elsewhere than the one before.
        position = (0.1 + 0.002 * period, 0.2 - 0.001 * period)
        for each in (arm, single):
            each.periods(1, position=position)
        now_s = arm.rig.now_ns * 1e-9
        for command in arm.rig.out.sent[sent:]:
            follower.take(_message(command), now_s)
        sent = len(arm.rig.out.sent)
        if single.rig.out.sent:
            wanted = points(single.rig.out.sent[-1])[0]
            assert np.allclose(follower.at(now_s + PERIOD_NS * 1e-9), wanted, atol=1e-9)
    lengths = [len(points(command)) for command in arm.rig.out.sent]
    assert min(lengths) > 10, "no chunk was used up"
    assert len(lengths) > 5
    assert not any(words.startswith("error") for words in arm.rig.out.words)
    for each in (arm, single):
        each.close()


def test_control_of_the_above_a_chunk_that_is_not_replaced_leads_elsewhere() -> None:
    whole = rig()
    follower = Follower(("a", "b"), (0.1, 0.2))
    run(whole, 2)
    follower.take(_message(whole.out.sent[0]), whole.now_ns * 1e-9)
    run(whole, 10, position=(0.3, 0.2))
    last = points(whole.out.sent[-1])[0]
    assert not np.allclose(follower.at(whole.now_ns * 1e-9 + 1.0), last, atol=1e-3)


def test_limits_and_steps_hold_for_each_row_from_the_row_before() -> None:
    arm = rig(max_step=0.004, limits={"a": [-1.0, 0.106], "b": [-1.0, 1.0]})
    run(arm, 1 + ROWS)
    a, b = np.transpose(points(arm.out.sent[0]))
    assert np.allclose(a, [0.1, 0.104, 0.106, 0.106])
    assert np.allclose(np.diff(b), 0.004)
    assert len(arm.out.sent) == 1, "what single steps would have been limited to is what was sent"
    assert arm.commander.limited == 3


def test_a_row_to_come_that_is_refused_drops_the_chunk_before_it_moves() -> None:
    arm = rig(on_limit="refuse", limits={"a": [-1.0, 0.125], "b": [-1.0, 1.0]})
    run(arm, 3)
    assert not arm.out.sent
    assert arm.mode is Mode.HOLDING
    assert "row 3 of those to come" in arm.reason


@pytest.mark.parametrize("verb", ["pause", "restore", "hold"])
def test_what_ends_motion_replaces_the_trajectory_by_a_point_at_rest(verb: str) -> None:
    arm = rig()
    arm.ask("snapshot", name="cut")
    run(arm, 3)
    if verb == "pause":
        arm.motion.pause()
        arm.commander.halt()
    elif verb == "restore":
        arm.ask("restore", name="cut")
    else:
        arm.motion.hold("test")
        arm.commander.halt()
    stop = arm.out.sent[-1].fields["points"]
    assert len(stop) == 1
    assert stop[0]["velocities"] == [0.0, 0.0]
    assert np.allclose(stop[0]["positions"], [0.11, 0.21]), "where the arm is being led now"
    run(arm, 3)
    assert arm.out.sent[-1].fields["points"] == stop, "and then silence"
    arm.motion.resume(arm.now_ns)
    run(arm, 1 if verb != "restore" else 2)
    assert len(points(arm.out.sent[-1])) > 1, "the rest of the chunk, or a new one"


def test_a_bad_input_holds_the_arm_within_the_chunk_and_then_the_rest_is_sent() -> None:
    arm = rig()
    run(arm, 2)
    arm.tick(3, position=(float("nan"), 0.2))
    holds = arm.out.sent[1:]
    assert holds
    assert {len(points(command)) for command in holds} == {1}
    assert {tuple(points(command)[0]) for command in holds} == {tuple(points(arm.out.sent[0])[0])}
    run(arm, 1)
    assert points(arm.out.sent[-1]) == points(arm.out.sent[0])[1:]


def test_a_ramp_leads_by_single_points_and_the_chunk_follows_it() -> None:
    start = {**contract_dict()["start"], "max_distance": 0.005, "ramp_s": 0.1}
    policy = FollowChunks()
    arm = Rig(policy, actions=[action()], start=start)
    # Planned at 0.1, and the arm stands elsewhere when the chunk comes.
    run(arm, 1)
    run(arm, 12, position=(0.15, 0.2))
    lengths = [len(points(command)) for command in arm.out.sent]
    assert lengths[0] == 1, "the first command is far from the arm"
    assert ROWS in lengths
    moved = [0.15] + [points(command)[0][0] for command in arm.out.sent]
    assert np.abs(np.diff(moved)).max() < 0.05


def test_the_stamp_of_a_chunk_may_be_that_of_its_control_step() -> None:
    arm = rig(stamp="now")
    run(arm, 2)
    assert arm.out.sent[0].fields["header"]["stamp"] == {"sec": 0, "nanosec": 5}
    arm.commander.halt()
    assert arm.out.sent[-1].fields["header"]["stamp"] == {"sec": 0, "nanosec": 0}, (
        "a stop message that comes late must not lie in the past"
    )


def test_a_shadow_shows_whole_chunks_too() -> None:
    arm = Rig(FollowChunks(), actions=[action(max_step=0.004)], dry_run=True)
    run(arm, 1 + ROWS)
    assert [len(points(command)) for command in arm.out.shadows] == [ROWS]
    (command,) = arm.out.shadows
    assert np.allclose(np.diff(points(command), axis=0), 0.01), "steps are those of who drives"
    assert not arm.out.sent


def test_controllers_take_every_message() -> None:
    arm = rig()
    run(arm, 12)
    arm.commander.halt()
    assert {trajectory_fault(_message(command), ("a", "b"), 0.0) for command in arm.out.sent} == {
        ""
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"type": "sensor_msgs/msg/JointState"}, "horizon: expected no such key for"),
        ({"field": "velocity", "on_miss": "zeros"}, "horizon: expected chunks of positions"),
        ({"publish_rate_hz": 200.0}, "publish_rate_hz: expected no such key beside"),
        ({"qos": {"deadline_ms": 500}}, "no deadline_ms beside"),
        ({"horizon": "step", "stamp": "now"}, "stamp: expected this key only with"),
        ({"horizon": "all"}, "expected one of step, chunk"),
    ],
)
def test_wrong_entries_are_named(changes: dict[str, Any], words: str) -> None:
    fields = contract_dict(actions=[action(**changes)], start="unchecked")
    with pytest.raises(ContractError, match=words):
        Contract.from_dict(fields)


def test_no_row_is_read_from_the_device_under_the_lock_that_a_stop_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arm = rig()

    def gone(session: Any, action: Any) -> Ahead:
        ahead = rows_ahead(session, action)
        session.arena.state["chunk.actions"].fill_(9.0)
        return ahead

    monkeypatch.setattr(stepper, "rows_ahead", gone)
    run(arm, 2)
    assert np.allclose(points(arm.out.sent[0])[-1], [0.13, 0.23])


class Scaled(FollowChunks):
    """Keeps its chunk in a range of its own, as a policy may that was written elsewhere."""

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        super().act(state, inputs, outputs)
        outputs["action_out"].mul_(0.9)


def test_rows_that_are_not_the_actions_that_are_taken_never_leave() -> None:
    arm = Rig(Scaled(), actions=[action()])
    run(arm, 1)
    with pytest.raises(SpecError, match=r"expected row 0 of chunk.actions to be the action that"):
        run(arm, 1)
    assert not arm.out.sent


def test_a_policy_without_chunks_is_refused() -> None:
    fields = contract_dict(actions=[action()])
    fields["observations"] = fields["observations"][:1]
    contract = Contract.from_dict(fields)
    contract.check(FollowChunks().ports(), FollowChunks().layout())
    with pytest.raises(ContractError, match="horizon: expected step, since this policy keeps no"):
        contract.check(Follow().ports(), Follow().layout())


def _message(command: Command) -> Any:
    from trajectory_msgs.msg import JointTrajectory

    return fill(JointTrajectory(), command.fields)
