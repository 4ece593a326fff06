"""The life of the process: signals, crashes, restarts, neighbours.

Pinned here because a robot's service manager starts the node again whatever happened to it, and
because an arm that is left without a stop message keeps its last velocity.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from flashrt_ros.msg import PolicyStatus
from held import held
from lifecycle_msgs.msg import Transition
from node_process import Domain
from sensor_msgs.msg import JointState
from stage import Stage, arm_contract, write_contract

from flashrt_ros.errors import ErrorCode

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("process")
    write_contract(folder, arm_contract())
    return folder


@pytest.fixture(scope="module")
def stage(folder: Path) -> Iterator[Stage]:
    """Starts and runs by itself whenever its process is started, as on a robot."""
    parameters = {
        "policy": "puppet:Puppet",
        "contract": folder / "arm.contract.yaml",
        "autostart": True,
        "store_bytes": 1 << 20,
        # A stop message comes from what a test does, and not from a machine that stalls.
        "miss_limit_s": 10.0,
        "watchdog_periods": 100_000,
    }
    with Stage(folder, parameters=parameters) as stage:
        yield stage


def begin(stage: Stage) -> None:
    """The process runs, newly started if it has ended, and commands flow."""
    if stage.process.code is not None:
        stage.clear()
        stage.start()
    stage.peer.wait(lambda: len(stage.commands) > 3, "commands", seen=lambda: stage.statuses[-1:])
    # Whoever restarts it wants to use it, too.
    assert stage.ask("list_capsules").success


def stop_message(stage: Stage) -> JointState:
    """The last command, once it is a stop message."""
    return stage.peer.wait(
        lambda: stage.commands[-1] if list(stage.commands[-1].velocity) == [0.0, 0.0] else None,
        "a stop message",
        seen=lambda: stage.commands[-1],
    )


def assert_ended_well(stage: Stage) -> None:
    """Nothing after the stop message, which repeats the last command; no traceback."""
    last, stop = stage.commands[-2:]
    assert list(last.velocity) == []
    assert list(stop.velocity) == [0.0, 0.0]
    assert stop.position == last.position
    assert "Traceback" not in stage.process.output()


SIGNALS = {
    "SIGINT": [signal.SIGINT],
    "SIGTERM": [signal.SIGTERM],
    "twice SIGINT": [signal.SIGINT, signal.SIGINT],
    "SIGINT, SIGTERM": [signal.SIGINT, signal.SIGTERM],
}


@pytest.mark.parametrize("case", SIGNALS)
def test_signal_sends_the_stop_message_and_ends_with_0(stage: Stage, case: str) -> None:
    begin(stage)
    stage.peer.alive = lambda: True
    for number in SIGNALS[case]:
        stage.process.send(number)
    assert stage.process.wait() == 0
    stop_message(stage)
    assert_ended_well(stage)
    first = SIGNALS[case][0].name
    if len(set(SIGNALS[case])) == 1:
        assert stage.process.output().count(f"{first}: the node ends") == 1
    else:
        assert stage.process.output().count(": the node ends") == 1, "either may come first"


def test_stop_and_start_again_after_kill(stage: Stage) -> None:
    """Twice, as what a killed process leaves behind could pile up."""
    for _ in range(2):
        begin(stage)
        stage.do("snapshot", name="gone")
        stage.process.send(signal.SIGKILL)
        assert stage.process.wait() == -signal.SIGKILL
        last = stage.commands[-1]
        assert list(last.velocity) == [], "control: a killed process cannot have said stop"
    begin(stage)
    response = stage.ask("restore", name="gone")
    assert response.error_code == ErrorCode.NOT_FOUND, "the store is of the process"


def test_kill_in_the_middle_of_a_call(stage: Stage) -> None:
    begin(stage)
    with held(stage):
        pending = stage.send("snapshot", name="never")
        stage.process.send(signal.SIGKILL)
        assert stage.process.wait() == -signal.SIGKILL
    assert not pending.done
    begin(stage)
    assert stage.do("snapshot", name="never").capsule.name == "never"


def test_signal_while_a_step_is_computed(stage: Stage) -> None:
    """The stop message does not wait for the policy, and its late command does not follow."""
    begin(stage)
    stage.peer.alive = lambda: True
    with held(stage):
        stage.process.send(signal.SIGTERM)
        stop_message(stage)
    assert stage.process.wait() == 0
    assert_ended_well(stage)
    assert "does not end" not in stage.process.output()


def test_signal_while_unconfigured(folder: Path) -> None:
    """As soon as the services are there; before that it is Python itself that ends."""
    with Stage(folder / "idle") as stage:
        assert stage.ask("snapshot").error_code == ErrorCode.NOT_CONFIGURED
        assert "the node ends" not in stage.process.output(), "control"
        stage.process.send(signal.SIGINT)
        assert stage.process.wait() == 0
        assert "SIGINT: the node ends" in stage.process.output()


def test_deactivate_sends_the_stop_message(stage: Stage) -> None:
    begin(stage)
    stage.transit(Transition.TRANSITION_DEACTIVATE)
    stop_message(stage)
    assert_ended_well(stage)
    commands = len(stage.commands)
    begun = len(stage.robot.published)
    stage.peer.wait(lambda: len(stage.robot.published) > begun + 10, "input for a while")
    assert len(stage.commands) == commands, "it moves while inactive"
    stage.transit(Transition.TRANSITION_ACTIVATE)
    stage.peer.wait(lambda: len(stage.commands) > commands, "commands again")


def test_shutdown_while_active_sends_the_stop_message(stage: Stage) -> None:
    begin(stage)
    stage.transit(Transition.TRANSITION_ACTIVE_SHUTDOWN)
    stop_message(stage)
    assert_ended_well(stage)
    stage.process.send(signal.SIGINT)
    assert stage.process.wait() == 0


def test_impossible_transition_is_refused_and_survived(stage: Stage) -> None:
    begin(stage)
    assert not stage.change(Transition.TRANSITION_CONFIGURE)
    assert not stage.change(Transition.TRANSITION_CLEANUP)
    steps = len(stage.steps)
    stage.peer.wait(lambda: len(stage.steps) > steps + 3, "it goes on")


def test_two_nodes_in_two_namespaces(folder: Path) -> None:
    """One policy, one contract: what is done to one is not seen at the other."""
    domain = Domain()
    parameters = {"policy": "puppet:Puppet", "contract": folder / "arm.contract.yaml"}
    with (
        Stage(folder / "left", domain.id, "/left", parameters) as left,
        Stage(folder / "right", domain.id, "/right", parameters) as right,
    ):
        left.robot.position = [0.5, 0.5]
        published = len(left.robot.published)
        left.peer.wait(lambda: len(left.robot.published) > published + 1, "the new position")
        for stage in (left, right):
            stage.transit(Transition.TRANSITION_CONFIGURE)
            stage.transit(Transition.TRANSITION_ACTIVATE)
        for stage in (left, right):
            stage.wait_running()
            stage.wait_steps(3)
        left.do("snapshot", name="mine")
        assert [c.name for c in left.do("list_capsules").capsules] == ["mine"]
        assert not right.do("list_capsules").capsules
        assert right.ask("restore", name="mine").error_code == ErrorCode.NOT_FOUND
        right.do("reset_episode")
        left.do("stop")
        left.wait_status(PolicyStatus.STOPPED)
        right.peer.wait(lambda: right.steps[-1].episode == 1, "the new episode")
        right.clear()
        right.wait_steps(3)
        assert {step.episode for step in right.steps} == {1}
        assert {step.episode for step in left.steps} == {0}
        assert right.steps[-1].observations[0].topic == "/right/joint_states"
        assert all(abs(c.position[0] - 0.5) <= 0.051 for c in left.commands)
        assert all(abs(c.position[0] - 0.1) <= 0.051 for c in right.commands)
        left.process.send(signal.SIGKILL)
        left.process.wait()
        right.wait_steps(3)
        assert right.do("snapshot", name="mine").capsule.episode == 1
    domain.close()
