"""Starts the real node and drives it through its life over DDS, as a robot and a tree would.

What each control period does in every situation is held by test_control.py without ROS; this file
holds that the pieces are connected: topics, services, lifecycle, parameters, signals.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from contract_examples import contract_dict
from flashrt_ros.msg import PolicyStatus
from flashrt_ros.srv import Snapshot
from node_rig import ACTIVATE, CLEANUP, CONFIGURE, DEACTIVATE, ROOT, NodeRig, write_contract
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import DescribeParameters, SetParameters
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState

pytestmark = pytest.mark.ros
DOMAIN = 20 + os.getpid() % 20
"""Test runs beside each other must not hear each other."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    with NodeRig(tmp_path, DOMAIN) as rig:
        yield rig


def test_runs_snapshots_restores_and_resets(rig: NodeRig) -> None:
    rig.until_mode(PolicyStatus.RUNNING)
    rig.until(lambda: len(rig.commands) > 5 and len(rig.steps) > 5, "commands")
    step = rig.steps[-1]
    assert step.published
    assert list(step.names) == ["a", "b"]
    assert step.observations[0].topic == "/joint_states"
    assert step.observations[0].digest
    assert rig.commands[-1].name == ["a", "b"]

    made = rig.call("snapshot", name="here")
    assert made.success, made.message
    assert made.capsule.name == "here"
    rig.until(lambda: rig.steps[-1].tick > made.capsule.tick + 2, "steps that are undone")
    restored = rig.call("restore", name="here")
    assert restored.success, restored.message
    assert restored.capsule.id == made.capsule.id
    rig.until_mode(PolicyStatus.HOLDING, "restore of 'here'")
    resumed = rig.command("resume")
    assert resumed.success, resumed.message
    rig.until_mode(PolicyStatus.RUNNING)
    rig.until(lambda: rig.steps[-1].generation == restored.generation, "steps after the restore")
    first = next(s for s in rig.steps if s.generation == restored.generation)
    assert first.step == made.capsule.step
    assert first.capsule == made.capsule.id
    assert first.tick > made.capsule.tick

    reset = rig.call("reset_episode", set_task=True, task="again")
    assert reset.success, reset.message
    rig.until(lambda: rig.steps[-1].task == "again", "steps of the new episode")
    rig.until(lambda: len(rig.events) >= 3, "three events")
    assert [event.kind for event in rig.events] == [1, 2, 5]
    assert rig.end() == 0
    assert "Traceback" not in rig.said()


def test_stop_message_is_the_last_command(rig: NodeRig) -> None:
    rig.until(lambda: len(rig.commands) > 5, "commands")
    assert rig.end(signal.SIGTERM, times=3) == 0
    rig.spin(0.2)
    last, before = rig.commands[-1], rig.commands[-2]
    assert list(last.velocity) == [0.0, 0.0], "a stop message says that nothing moves"
    assert not before.velocity, "control: an ordinary command does not"


def test_stop_service_latches(rig: NodeRig) -> None:
    rig.until(lambda: len(rig.commands) > 5, "commands")
    assert rig.command("stop").success
    rig.until_mode(PolicyStatus.STOPPED)
    count = len(rig.commands)
    refused = rig.command("resume")
    assert refused.error_code == refused.STOPPED
    rig.spin(0.2)
    assert len(rig.commands) == count
    assert rig.command("clear_stop").success
    rig.until_mode(PolicyStatus.HOLDING, "stop was cleared")
    assert rig.command("resume").success
    rig.until_mode(PolicyStatus.RUNNING)


def test_lifecycle_by_hand(tmp_path: Path) -> None:
    with NodeRig(tmp_path, DOMAIN, namespace="/left", parameters={"autostart": False}) as rig:
        refused = rig.call("snapshot")
        assert refused.error_code == refused.NOT_CONFIGURED
        assert not rig.transition(ACTIVATE), "not possible before configure"
        assert rig.transition(CONFIGURE)
        assert rig.call("snapshot", name="first").success, "works while inactive"
        refused = rig.command("pause")
        assert refused.error_code == refused.INACTIVE
        assert rig.transition(ACTIVATE)
        rig.until_mode(PolicyStatus.RUNNING)
        rig.until(lambda: rig.steps, "steps")
        assert rig.steps[-1].observations[0].topic == "/left/joint_states"
        assert rig.transition(DEACTIVATE)
        rig.spin(0.1)
        assert list(rig.commands[-1].velocity) == [0.0, 0.0]
        count = len(rig.commands)
        rig.spin(0.2)
        assert len(rig.commands) == count
        assert rig.transition(CLEANUP)
        assert rig.transition(CONFIGURE)
        assert rig.transition(ACTIVATE)
        rig.until_mode(PolicyStatus.RUNNING)
        assert rig.end() == 0


def test_failed_configure_says_why_and_can_be_mended(tmp_path: Path) -> None:
    parameters = {"autostart": False, "miss_limits_s": 0.1, "use_sim_time": False}
    with NodeRig(tmp_path, DOMAIN, policy="no_such", parameters=parameters) as rig:
        assert not rig.transition(CONFIGURE)
        assert "'miss_limits_s' is none of this node's" in rig.said()
        assert "did you mean 'miss_limit_s'?" in rig.said()
        assert rig.said().count("has no effect") == 1, "control: use_sim_time is a parameter"
        assert "policy 'no_such'" in rig.said()
        value = ParameterValue(
            type=ParameterType.PARAMETER_STRING, string_value="node_policies:follow"
        )
        new = [Parameter(name="policy", value=value)]
        (result,) = rig.call("set_parameters", SetParameters, parameters=new).results
        assert result.successful
        assert rig.transition(CONFIGURE)
        (result,) = rig.call("set_parameters", SetParameters, parameters=new).results
        assert not result.successful
        assert "read at configure" in result.reason
        assert rig.end() == 0


def test_incompatible_qos_is_named(tmp_path: Path) -> None:
    fields = contract_dict()
    for part in fields["observations"][0]["parts"]:
        part["qos"] = {"reliability": "reliable"}
    contract = write_contract(tmp_path, observations=fields["observations"])
    with NodeRig(tmp_path, DOMAIN, contract=contract) as rig:
        rig.until_mode(PolicyStatus.RUNNING)

        def named() -> bool:
            return any(
                "incompatible QoS" in status.message and "reliability" in status.message
                for message in rig.diagnostics
                for status in message.status
                if status.name == "/policy: input /joint_states"
            )

        rig.spin(1.2)
        assert not named(), "control: all publishers fit so far"
        loose = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        rig.node.create_publisher(JointState, "joint_states", loose)
        rig.until(named, "a diagnostic that names topic and policy")


def test_repeated_request_gets_the_first_answer(rig: NodeRig) -> None:
    rig.until_mode(PolicyStatus.RUNNING)
    first = rig.call("snapshot", request_id="once")
    again = rig.call("snapshot", request_id="once")
    other = rig.call("snapshot", request_id="twice")
    assert first.success
    assert again.capsule == first.capsule
    assert other.capsule.id != first.capsule.id


def test_vanished_client_hurts_nothing(tmp_path: Path) -> None:
    with NodeRig(tmp_path, DOMAIN, policy="node_policies:slow") as rig:
        rig.until(lambda: rig.steps, "steps")
        client, future = rig.begin("snapshot", Snapshot, name="orphan")
        rig.spin(0.1)
        assert not future.done(), "the control thread is busy for longer than that"
        rig.node.destroy_client(client)
        rig.until(lambda: rig.events, "the work done all the same")
        assert rig.call("get_capsule", name="orphan").success
        assert rig.end() == 0


def test_every_parameter_is_described_and_in_the_file(rig: NodeRig) -> None:
    file = yaml.safe_load((ROOT / "config" / "policy_node.yaml").read_text(encoding="utf-8"))
    listed = file["/**"]["ros__parameters"]
    described = rig.call("describe_parameters", DescribeParameters, names=list(listed))
    assert len(described.descriptors) == len(listed), "the file has a parameter of no node"
    for descriptor in described.descriptors:
        assert descriptor.description, descriptor.name
        value = listed[descriptor.name]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            (limits,) = descriptor.integer_range or descriptor.floating_point_range
            assert limits.from_value <= value <= limits.to_value
    assert [d.name for d in described.descriptors if d.read_only] == ["autostart"]
    from flashrt_ros.ros.parameters import DECLARATIONS

    assert {d.name: d.default for d in DECLARATIONS} == listed
