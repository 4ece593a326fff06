"""What goes wrong around a node that drives an arm, and within it, at the running node.

After each fault three things hold: the arm has stopped or goes on correctly, ``/diagnostics`` say
why, and services still answer. Each begins from an arm that moves, so that a fault that is not
noticed would show as one that goes on moving.
"""

from __future__ import annotations

import array
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import puppet
import pytest
import rclpy
from flashrt_ros.msg import PolicyStatus
from lifecycle_msgs.msg import State, Transition
from node_peer import BEST_EFFORT, JOINTS, RELIABLE, Robot
from sensor_msgs.msg import Image, JointState
from stage import Stage, arm_contract
from test_system_images import RED, TOPICS, Camera, contract, raw
from test_system_state import assert_still
from thread_killer import THREADS

from flashrt_ros.errors import ErrorCode

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("faults")) as stage:
        yield stage


def assert_goes_on(stage: Stage) -> None:
    """Commands flow, near the arm, and services answer."""
    stage.wait_running()
    stage.commands.clear()
    stage.wait_steps(5)
    stage.peer.wait(lambda: len(stage.commands) >= 5, "commands")
    for command in stage.commands:
        for position, at in zip(command.position, stage.robot.position, strict=True):
            assert abs(position - at) < 0.1, command
    stage.do("list_capsules")


# Publishers


def test_a_publisher_that_dies_and_returns(stage: Stage) -> None:
    stage.run(contract=arm_contract(max_age_ms=300.0))
    for _ in range(3):
        stage.clear()
        stage.robot.close()
        try:
            stage.wait_diagnostic("motion", "stale")
            stage.end_hold()
            stage.wait_status(PolicyStatus.WAITING, "stale")
            stage.peer.wait(lambda: stage.commands and rests(stage.commands[-1]), "a stop message")
            commands = len(stage.commands)
            stage.do("snapshot", name="while_blind", replace=True)
            assert len(stage.commands) == commands
        finally:
            stage.robot = Robot(stage.peer, "/joint_states", RELIABLE)
        assert_goes_on(stage)


def rests(message: JointState) -> bool:
    return list(message.velocity) == [0.0, 0.0]


def test_a_second_publisher_at_ten_times_the_rate(stage: Stage) -> None:
    """Of those that come at once the newest counts; none holds up a control step."""
    stage.run()
    stage.wait_steps(1)
    publisher = stage.peer.node.create_publisher(JointState, "/joint_states", RELIABLE)
    try:
        before = stage.steps[-1].tick
        for _ in range(100):
            for _ in range(10):
                publisher.publish(stage.robot.message())
            stage.wait_steps(1)
        assert stage.steps[-1].tick >= before + 100
        assert_goes_on(stage)
    finally:
        stage.peer.node.destroy_publisher(publisher)

    stage.peer.wait(
        lambda: int(stage.values("input /joint_states").get("received", 0)) > 200,
        "more messages than control steps",
    )


def test_messages_of_ten_times_the_size(stage: Stage) -> None:
    """More joints than asked for are what robots publish; they are found by name."""

    def more(message: JointState) -> None:
        spare = [f"spare{n}" for n in range(2000)]
        message.name = [*spare, *JOINTS]
        message.position = [9.0] * len(spare) + list(message.position)
        message.velocity = [9.0] * len(spare) + list(message.velocity)

    stage.run()
    stage.robot.alter = more
    stage.wait_steps(20)
    assert_goes_on(stage)


def test_an_image_of_ten_times_the_size_is_a_fault_of_its_input(stage: Stage) -> None:
    camera = Camera(stage, Image)
    try:
        camera.message = raw(RED, "rgb8")
        stage.run("seeing_policy:Seeing", contract=contract())
        stage.clear()
        big = Image(height=40, width=60, encoding="rgb8", step=180)
        big.data = array.array("B", bytes(40 * 180))
        camera.message = big
        stage.wait_diagnostic("input /camera", "expected 4 x 6")
        stage.end_hold()
        stage.wait_status(PolicyStatus.WAITING, "expected 4 x 6")
        assert_still(stage)
        stage.do("list_capsules")
        camera.message = raw(RED, "rgb8")
        stage.wait_running()
    finally:
        camera.close()


def test_clocks_that_disagree_are_said_and_stop_nothing(stage: Stage) -> None:
    camera = Camera(stage, Image)
    try:
        camera.message = raw(RED, "rgb8")

        def late(message: JointState) -> None:
            message.header.stamp.sec -= 2

        stage.run("seeing_policy:Seeing", contract=contract())
        stage.put_away()
        stage.activate("seeing_policy:Seeing", contract=contract())
        stage.robot.alter = late
        entry = stage.wait_diagnostic("input /joint_states", "behind those of input /camera", 1)
        assert "the clocks of their publishers differ" in entry.message
        stage.wait_running()
        stage.wait_steps(5)
        # Control: clocks that agree.
        stage.robot.alter = lambda message: None
        stage.put_away()
        stage.activate("seeing_policy:Seeing", contract=contract())
        stage.wait_running()
        stage.wait_diagnostic("input /joint_states", "ok", level=0)
    finally:
        camera.close()


def test_a_discovery_storm(stage: Stage) -> None:
    """Nodes come and go with publishers on our topics, as when a launch file is restarted."""
    stage.run()
    stage.wait_steps(1)
    before = stage.steps[-1].tick
    for round_ in range(8):
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=stage.domain)
        nodes = [rclpy.create_node(f"storm_{round_}_{n}", context=context) for n in range(8)]
        for node in nodes:
            node.create_publisher(JointState, "/joint_states", RELIABLE)
            node.create_subscription(JointState, "/joint_command", lambda _: None, BEST_EFFORT)
            node.create_subscription(Image, f"/{TOPICS['Image']}", lambda _: None, 1)
        stage.do("snapshot", name="storm", replace=True)
        for node in nodes:
            node.destroy_node()
        context.try_shutdown()
    stage.peer.wait(lambda: stage.steps[-1].tick > before + 8, "control steps all along")
    assert_goes_on(stage)


# Memory and disk


def test_no_memory_for_a_snapshot(stage: Stage) -> None:
    stage.run("puppet:large", rollback_depth=0, store_bytes=4 << 20)
    for name in ("a", "b", "c"):
        response = stage.ask("snapshot", name=name, pin=True)
    assert response.success, response.message
    refused = stage.ask("snapshot", name="d", pin=True)
    assert refused.error_code == ErrorCode.NO_MEMORY, refused.message
    assert_goes_on(stage)
    stage.do("drop_capsule", name="a", force=True)
    stage.do("snapshot", name="d")


@pytest.mark.parametrize("call", ["save_capsule", "move_capsule"])
def test_a_full_disk(stage: Stage, call: str) -> None:
    folder = stage.folder / f"full_{call}"
    stage.run(capsule_dir=str(folder))
    stage.do("snapshot", name="cut")
    folder.mkdir()
    more = {"tier": "disk"} if call == "move_capsule" else {}
    with full_disk(stage):
        refused = stage.ask(call, name="cut", **more)
        assert refused.error_code == ErrorCode.IO_ERROR, refused.message
        assert "No space left on device" in refused.message
        assert_goes_on(stage)
        listed = stage.do("list_capsules").capsules
        assert [(c.name, c.tier) for c in listed] == [("cut", "device")]
    assert not list(folder.iterdir()), "nothing half-done is left"
    stage.do(call, name="cut", **more)
    stage.do("drop_capsule", name="cut")


def test_a_disk_that_is_really_full(stage: Stage) -> None:
    folder = stage.folder / "small"
    with small_disk(folder):
        stage.run("puppet:large", capsule_dir=str(folder), rollback_depth=0, store_bytes=8 << 20)
        stage.do("snapshot", name="cut")
        refused = stage.ask("save_capsule", name="cut")
        assert refused.error_code == ErrorCode.IO_ERROR, refused.message
        assert "No space left on device" in refused.message
        assert_goes_on(stage)
        assert not list(folder.iterdir()), "nothing half-done is left"
        stage.put_away()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 256 KiB."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount; test_a_full_disk does without")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def full_disk(stage: Stage) -> Iterator[None]:
    """The node's own writes fail: told to by the policy, which runs in its process."""
    stage.move(velocity=[puppet.DISK_FULL, 0.0])
    try:
        yield
    finally:
        stage.move(velocity=[puppet.DISK_FREE, 0.0])
        stage.robot.velocity = [0.0, 0.0]


# Threads


@pytest.mark.parametrize("name", [name for name in THREADS if name not in ("control", "planner")])
def test_a_thread_that_dies_begins_again(stage: Stage, name: str) -> None:
    stage.run()
    stage.do("snapshot", name="cut")
    kill(stage, name)
    # Something to do for each of them, on which it dies at the latest.
    for service, fields in (("list_capsules", {}), ("save_capsule", {"name": "cut"})):
        with contextlib.suppress(AssertionError):
            stage.send(service, **fields).result(lambda: "", timeout_s=1.0)
    entry = stage.wait_diagnostic("threads", f"the {name} thread failed: Killed")
    assert "it runs again" in entry.message
    stage.robot.velocity = [0.0, 0.0]
    if name == "intake":
        stage.wait_status(PolicyStatus.HOLDING, "the intake thread failed")
        assert_still(stage)
        stage.do("resume")
    assert_goes_on(stage)
    stage.do("save_capsule", name="cut", file="again", replace=True)


def test_a_planner_that_dies_holds_and_plans_again(stage: Stage) -> None:
    stage.run("puppet:Planner")
    kill(stage, "planner")
    stage.wait_diagnostic("threads", "the planner thread failed: Killed")
    stage.wait_status(PolicyStatus.HOLDING, "the planner thread met Killed")
    assert_still(stage)
    stage.robot.velocity = [0.0, 0.0]
    stage.chunks.clear()
    stage.do("reset_episode")
    stage.peer.wait(lambda: len(stage.chunks) >= 2, "new chunks")
    stage.do("list_capsules")


def test_a_control_thread_that_dies_ends_in_unconfigured(stage: Stage) -> None:
    stage.run()
    stage.clear()
    kill(stage, "control")
    stage.wait_status(PolicyStatus.UNCONFIGURED, "the control thread failed: Killed")
    entry = stage.wait_diagnostic("threads", "the control thread failed: Killed")
    assert "the stop message was sent" in entry.message
    assert stage.state() == State.PRIMARY_STATE_UNCONFIGURED
    assert_still(stage)
    assert stage.ask("snapshot").error_code == ErrorCode.NOT_CONFIGURED
    stage.do("stop")
    stage.do("clear_stop")
    stage.robot.velocity = [0.0, 0.0]
    stage.transit(Transition.TRANSITION_CONFIGURE)
    stage.transit(Transition.TRANSITION_ACTIVATE)
    assert_goes_on(stage)


def kill(stage: Stage, name: str) -> None:
    order = puppet.KILLS[THREADS.index(name)]
    if name in ("storage", "replies"):  # with which the arm goes on
        stage.move(velocity=[order, 0.0])
    else:
        stage.robot.velocity = [order, 0.0]
