"""A node whose namespace, name and topics are not those of the contract, and its QoS by parameter.

Every name that it offers or tells of must follow the remaps: a service that stays at its old name,
or a record that names a topic that does not exist, is found only when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flashrt_ros.msg import PolicyStatus
from lifecycle_msgs.msg import Transition
from rclpy.qos import ReliabilityPolicy
from stage import Stage, arm_contract

pytestmark = pytest.mark.ros
STATES, COMMANDS = "/sensors/joints", "/robot1/arm/command"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    overrides = {
        f"qos_overrides.{STATES}.subscription.reliability": "reliable",
        "qos_overrides./joint_states.subscription.reliability": "reliable",
    }
    with Stage(
        tmp_path_factory.mktemp("names"),
        namespace="/robot1",
        parameters=overrides,
        node="brain",
        remaps={"joint_states": STATES, "joint_command": "arm/command"},
    ) as stage:
        yield stage


def test_every_name_follows_namespace_node_name_and_remaps(stage: Stage) -> None:
    assert stage.topic("joint_command") == COMMANDS
    stage.run()
    stage.peer.wait(lambda: len(stage.commands) > 3, "commands")
    stage.wait_steps(3)
    assert {stamp.topic for stamp in stage.steps[-1].observations} == {STATES}
    stage.do("snapshot", name="here")
    for entry in (f"input {STATES}", f"output {COMMANDS}", "motion", "node name"):
        stage.wait_diagnostic(entry, "", level=0)

    def topics() -> list[str]:
        return [name for name, _ in stage.peer.node.get_topic_names_and_types()]

    def services() -> list[str]:
        return [name for name, _ in stage.peer.node.get_service_names_and_types()]

    stage.peer.wait(
        lambda: "/robot1/brain/shadow/joint_command" in topics(), "shadow topic", seen=topics
    )
    assert not [name for name in topics() if name.startswith(("/policy", "/robot1/policy"))]
    wanted = {f"/robot1/brain/{n}" for n in ("snapshot", "change_state", "set_parameters", "stop")}
    stage.peer.wait(lambda: wanted <= set(services()), f"{wanted}", seen=services)
    stage.do("stop")
    stage.wait_status(PolicyStatus.STOPPED)
    stage.do("clear_stop")


def test_commands_that_a_remap_makes_measured_positions_are_refused(stage: Stage) -> None:
    stage.prepare(contract=arm_contract(topic=STATES))
    assert not stage.change(Transition.TRANSITION_CONFIGURE)
    words = f"says where it is, found {STATES}, which actions[0] commands"
    assert words in stage.process.output()


def test_qos_overrides_reach_the_middleware_and_those_of_no_topic_are_said(stage: Stage) -> None:
    stage.run()
    wait_for(stage, STATES, ReliabilityPolicy.RELIABLE)
    name = "'qos_overrides./joint_states.subscription.reliability' has no effect"
    stage.peer.wait(lambda: name in stage.process.output(), "a word on the name before the remap")
    refused = stage.set(**{f"qos_overrides.{STATES}.subscription.reliability": "best_effort"})
    assert not refused.successful
    assert "is given at start" in refused.reason


def test_what_is_not_overridden_is_that_of_the_present_contract(stage: Stage) -> None:
    stage.run()
    wait_for(stage, COMMANDS, ReliabilityPolicy.RELIABLE)
    # Never matched by the reliable reader of the tests, for whose match ``activate`` waits.
    stage.prepare(contract=arm_contract(qos={"reliability": "best_effort"}))
    stage.transit(Transition.TRANSITION_CONFIGURE)
    wait_for(stage, COMMANDS, ReliabilityPolicy.BEST_EFFORT)
    wait_for(stage, STATES, ReliabilityPolicy.RELIABLE)


def wait_for(stage: Stage, topic: str, wanted: ReliabilityPolicy) -> None:
    """Waits until the graph, which lags behind, has this for the node's endpoint on a topic."""
    stage.peer.wait(
        lambda: ours(stage, topic) == wanted,
        f"{wanted} on {topic}",
        seen=lambda: ours(stage, topic),
    )


def ours(stage: Stage, topic: str) -> ReliabilityPolicy | None:
    """Reliability of the node's endpoint on a topic, as the graph has it."""
    node = stage.peer.node
    peers = node.get_publishers_info_by_topic(topic) + node.get_subscriptions_info_by_topic(topic)
    found = [p.qos_profile.reliability for p in peers if p.node_name == "brain"]
    return found[0] if len(found) == 1 else None
