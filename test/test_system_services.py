"""Services of a running node: answered while it infers, and to clients that vanish.

Pinned here because clients of robot policies gave up after a second while a model was thinking,
and because a retry did the work twice.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from flashrt_ros.msg import CapsuleEvent, PolicyStatus
from held import held
from lifecycle_msgs.msg import State
from node_process import environment
from stage import SERVICES, Stage

from flashrt_ros.errors import ErrorCode

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("services")) as stage:
        yield stage


# While it infers


def test_services_are_answered_within_one_act(stage: Stage) -> None:
    """A verb waits for the act under way, not for the ones after it."""
    stage.run()
    with held(stage) as let_go:
        pending = [stage.send("snapshot", name=f"slow{i}") for i in range(5)]
        pending.append(stage.send("list_capsules"))
        # The node takes what comes in turn: those before have come, too.
        assert stage.state() == State.PRIMARY_STATE_ACTIVE
        assert not any(one.done for one in pending), "control: the act is under way"
        let_go()  # and the next one does not end
        responses = [one.result(stage.peer.quote) for one in pending]
    assert all(r.success for r in responses)
    assert len(responses[-1].capsules) == 5


def test_pause_and_stop_do_not_wait_for_the_act(stage: Stage) -> None:
    """They are answered while it computes, and what it computed does not leave."""
    stage.run()
    with held(stage):
        stage.do("pause")
        stage.do("stop")
    withheld = stage.peer.wait(
        lambda: next((step for step in stage.steps if not step.published), None), "the act's end"
    )
    assert "stop" in withheld.hold_reason
    stage.wait_status(PolicyStatus.STOPPED)
    stops = [list(command.velocity) == [0.0, 0.0] for command in stage.commands]
    assert stops == sorted(stops), "a command that was computed before the stop left after it"
    assert stops[-1]


def test_services_are_answered_beside_a_plan(stage: Stage) -> None:
    """Many verbs, all of them before a plan ends."""
    stage.run("puppet:Planner")
    with held(stage, position=(0.12, -0.12)):
        for i in range(5):
            stage.do("snapshot", name=f"beside{i}")
            stage.do("fork", name=f"beside{i}", count=2)
            stage.do("get_capsule", name=f"beside{i}")
            stage.do("drop_capsule", name=f"beside{i}")
        assert len(stage.do("list_capsules").capsules) == 10
        assert not adopted(stage, 0.12), "control: no plan before this one saw that"
    stage.peer.wait(lambda: adopted(stage, 0.12), "the plan was adopted all the same")


def adopted(stage: Stage, position: float) -> bool:
    """Whether a chunk that begins there has been adopted."""
    return any(chunk.data[0] == pytest.approx(position) for chunk in stage.chunks)


def test_restore_and_reset_are_answered_beside_a_plan(stage: Stage) -> None:
    stage.run("puppet:Planner")
    stage.do("snapshot", name="here")
    with held(stage):
        assert stage.do("restore", name="here").generation < stage.do("reset_episode").generation


# Clients that vanish


CLIENT = """
import sys
import rclpy
from flashrt_ros.srv import Snapshot
from lifecycle_msgs.srv import GetState
rclpy.init()
node = rclpy.create_node("vanishing")
client = node.create_client(Snapshot, "/policy/snapshot")
state = node.create_client(GetState, "/policy/get_state")
assert client.wait_for_service(20.0)
assert state.wait_for_service(20.0)
print("ready", flush=True)
sys.stdin.readline()
client.call_async(Snapshot.Request(name=sys.argv[1], request_id=sys.argv[2]))
# The node takes what comes in turn: once it answers this, it has the other. It may not know yet
# whom to answer; then it is asked again.
answered = []
while not answered:
    future = state.call_async(GetState.Request())
    rclpy.spin_until_future_complete(node, future, timeout_sec=1.0)
    answered += [future] * future.done()
print("received", flush=True)
while True:
    rclpy.spin_once(node, timeout_sec=0.05)
"""


@contextlib.contextmanager
def client_of(stage: Stage, name: str, request_id: str) -> Iterator[subprocess.Popen[str]]:
    """A process that asks for a snapshot as soon as it is written to."""
    command = [sys.executable, "-c", CLIENT, name, request_id]
    pipe = subprocess.PIPE
    env = environment(stage.domain, stage.folder)
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) as client:
        try:
            yield client
        finally:
            client.kill()


def say(client: subprocess.Popen[str]) -> str:
    assert client.stdout is not None
    return client.stdout.readline().strip()


def test_vanished_client_hinders_nobody_and_a_retry_gets_the_first_answer(stage: Stage) -> None:
    stage.run()
    with client_of(stage, "once", "retry-me") as client:
        assert say(client) == "ready"
        with held(stage):  # so it is not answered before it vanishes
            assert client.stdin is not None
            client.stdin.write("\n")
            client.stdin.flush()
            assert say(client) == "received"
            client.kill()
            client.wait()
    assert stage.do("snapshot", name="other").success
    made = stage.all_events(CapsuleEvent.SNAPSHOT)
    assert [e.name for e in made] == ["once", "other"]
    assert made[0].request_id == "retry-me"
    again = stage.do("snapshot", name="once", request_id="retry-me")
    assert again.capsule.id == made[0].id
    names = [c.name for c in stage.do("list_capsules").capsules]
    assert names == ["once", "other"]
    # Control: without the id the same request is another one.
    assert stage.ask("snapshot", name="once").error_code == ErrorCode.ALREADY_EXISTS


def test_repeated_id_does_the_work_once(stage: Stage) -> None:
    stage.run()
    first = stage.do("reset_episode", request_id="r1", set_seed=True, seed=5)
    again = stage.do("reset_episode", request_id="r1", set_seed=True, seed=5)
    assert (again.episode, again.generation) == (first.episode, first.generation)
    assert again.message == first.message
    assert stage.do("reset_episode", request_id="r2").episode == first.episode + 1
    clash = stage.ask("reset_episode", request_id="r1", set_seed=True, seed=6)
    assert clash.error_code == ErrorCode.INVALID_ARGUMENT
    assert "'r1'" in clash.message
    failed = stage.ask("restore", name="none", request_id="r3")
    stage.do("snapshot", name="none")
    again = stage.ask("restore", name="none", request_id="r3")
    assert (again.error_code, again.message) == (failed.error_code, failed.message)


def test_services_cover_the_package(stage: Stage) -> None:
    """No service was forgotten in these tests."""
    found = stage.peer.node.get_service_names_and_types_by_node("policy", "/")
    private = {name.rsplit("/", 1)[1] for name, kinds in found if "flashrt_ros/" in kinds[0]}
    assert private == set(SERVICES)
