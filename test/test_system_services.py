"""Services of a running node: answered while it infers, to clients that vanish, with every code.

Pinned here because clients of robot policies gave up after a second while a model was thinking,
and because a retry did the work twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import puppet
import pytest
from capsule_images import image_of
from flashrt_ros.msg import CapsuleEvent, PolicyStatus
from lifecycle_msgs.msg import Transition
from node_process import environment
from stage import SERVICES, Stage

from flashrt_ros.errors import ErrorCode
from flashrt_ros.runtime.capsule_folder import CapsuleFolder, SavedFile
from flashrt_ros.runtime.fingerprint import Fingerprint

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("services")) as stage:
        yield stage


# While it infers


def begin_slow_step(stage: Stage) -> None:
    """Returns in the middle of a step that takes two seconds."""
    late = "no control step for"  # what the watchdog says, after miss_limit_s
    before = stage.process.output().count(late)
    stage.robot.velocity = [puppet.SLOW, 0.0]
    stage.peer.wait(lambda: stage.process.output().count(late) > before, "a slow step")


def test_services_are_answered_within_one_act(stage: Stage) -> None:
    """A verb waits for the act under way, not for the ones after it."""
    stage.run(miss_limit_s=0.3)
    begin_slow_step(stage)
    seen = len(stage.steps)
    pending = [stage.send("snapshot", name=f"slow{i}") for i in range(5)]
    pending.append(stage.send("list_capsules"))
    responses = [one.result(stage.peer.quote) for one in pending]
    assert all(r.success for r in responses)
    assert len(responses[-1].capsules) == 5
    acts = len(stage.steps) - seen
    assert acts <= 1, f"{acts} acts of two seconds passed before the answer"


def test_pause_and_stop_do_not_wait_for_the_act(stage: Stage) -> None:
    """They are answered while it computes, and what it computed does not leave."""
    stage.run(miss_limit_s=0.3)
    begin_slow_step(stage)
    seen = len(stage.steps)
    stage.do("pause")
    stage.do("stop")
    assert len(stage.steps) == seen, "the answer came after the act"
    commands = len(stage.commands)
    stage.peer.wait(lambda: len(stage.steps) > seen, "the end of the act")
    assert not stage.steps[seen].published
    assert "stop" in stage.steps[seen].hold_reason
    stage.wait_status(PolicyStatus.STOPPED)
    assert len(stage.commands) == commands, "a command that was computed before the stop left"


def test_services_are_answered_beside_a_plan(stage: Stage) -> None:
    """Many verbs, all of them before a plan of two seconds ends."""
    stage.run("puppet:Planner")
    stage.begin_slow_plan()
    chunks = len(stage.chunks)
    for i in range(5):
        stage.do("snapshot", name=f"beside{i}")
        stage.do("fork", name=f"beside{i}", count=2)
        stage.do("get_capsule", name=f"beside{i}")
        stage.do("drop_capsule", name=f"beside{i}")
    assert len(stage.do("list_capsules").capsules) == 10
    assert len(stage.chunks) == chunks, "the answers came after the plan"
    stage.peer.wait(lambda: len(stage.chunks) > chunks, "the plan was adopted all the same")


def test_restore_and_reset_are_answered_beside_a_plan(stage: Stage) -> None:
    stage.run("puppet:Planner")
    stage.do("snapshot", name="here")
    stage.begin_slow_plan()
    chunks = len(stage.chunks)
    assert stage.do("restore", name="here").generation < stage.do("reset_episode").generation
    assert len(stage.chunks) == chunks, "the answers came after the plan"


# Clients that vanish


CLIENT = """
import sys
import rclpy
from flashrt_ros.srv import Snapshot
rclpy.init()
node = rclpy.create_node("vanishing")
client = node.create_client(Snapshot, "/policy/snapshot")
assert client.wait_for_service(20.0)
print("ready", flush=True)
sys.stdin.readline()
client.call_async(Snapshot.Request(name=sys.argv[1], request_id=sys.argv[2]))
print("sent", flush=True)
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
    stage.run(miss_limit_s=0.3)
    with client_of(stage, "once", "retry-me") as client:
        assert say(client) == "ready"
        begin_slow_step(stage)
        assert client.stdin is not None
        client.stdin.write("\n")
        client.stdin.flush()
        assert say(client) == "sent"
        client.kill()
        client.wait()
    assert not stage.events, "it was answered before it vanished"
    assert stage.do("snapshot", name="other").success
    made = [e for e in stage.events if e.kind == CapsuleEvent.SNAPSHOT]
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


# Every code

Case = tuple[ErrorCode, Callable[[Stage], Any], tuple[str, ...]]


def _pinned(stage: Stage) -> Any:
    stage.do("snapshot", name="kept", pin=True)
    return stage.ask("drop_capsule", name="kept")


def _twice(stage: Stage) -> Any:
    stage.do("snapshot", name="one")
    return stage.ask("snapshot", name="one")


def _busy(stage: Stage) -> Any:
    stage.do("pause")
    stage.robot.quiet = True
    first = stage.send("resume")
    stage.wait_status(PolicyStatus.WAITING)
    second = stage.ask("resume")
    stage.robot.quiet = False
    assert first.result(stage.peer.quote).success, "the first one goes on"
    return second


def _overtaken(by: str) -> Callable[[Stage], Any]:
    def provoke(stage: Stage) -> Any:
        stage.do("pause")
        stage.robot.quiet = True
        pending = stage.send("resume")
        stage.wait_status(PolicyStatus.WAITING)
        stage.do(by)
        return pending.result(stage.peer.quote)

    return provoke


def _stale(stage: Stage) -> Any:
    stage.do("pause")
    stage.robot.quiet = True
    return stage.ask("resume")


def _unsafe(stage: Stage) -> Any:
    stage.do("pause")
    stage.robot.velocity = [puppet.FAR, 0.0]
    return stage.ask("resume")


def _stopped(stage: Stage) -> Any:
    stage.do("snapshot", name="one")
    stage.do("stop")
    return stage.ask("restore", name="one", publish=True)


def _resume_stopped(stage: Stage) -> Any:
    stage.do("stop")
    return stage.ask("resume")


def _raises(stage: Stage) -> Any:
    stage.do("pause")
    stage.robot.velocity = [puppet.RAISES, 0.0]
    return stage.ask("resume")


def _all_pinned(stage: Stage) -> Any:
    for index in range(10_000):
        response = stage.ask("snapshot", name=f"p{index}", pin=True)
        if not response.success:
            return response
    raise AssertionError("ten thousand pinned capsules found room in a small store")


def _unpaused(stage: Stage, service: str) -> Any:
    stage.transit(Transition.TRANSITION_DEACTIVATE)
    return stage.ask(service)


def _timeout(stage: Stage) -> Any:
    assert stage.set(service_timeout_s=0.5).successful
    begin_slow_step(stage)
    response = stage.ask("snapshot", name="late")
    assert stage.set(service_timeout_s=20.0).successful
    return response


def _unconfigured(service: str) -> Callable[[Stage], Any]:
    def provoke(stage: Stage) -> Any:
        stage.put_away()
        return stage.ask(service)

    return provoke


def _files(stage: Stage) -> CapsuleFolder:
    """The node's own folder, with one capsule of it in ``cut``."""
    stage.do("snapshot", name="cut", replace=True)
    stage.do("save_capsule", name="cut", replace=True)
    return CapsuleFolder(stage.folder / "capsules")


def _load(prepare: Callable[[CapsuleFolder], SavedFile]) -> Callable[[Stage], Any]:
    def provoke(stage: Stage) -> Any:
        return stage.ask("load_capsule", file=prepare(_files(stage)).path.name)

    return provoke


def _elsewhere(files: CapsuleFolder) -> SavedFile:
    image = files.load("cut")
    made = Fingerprint({**image.facts.exec_fingerprint.fields, "torch": "0.1"})
    facts = dataclasses.replace(image.facts, name="elsewhere", exec_fingerprint=made)
    return files.save(dataclasses.replace(image, facts=facts), replace=True)


def _half(files: CapsuleFolder) -> SavedFile:
    path = files.path / "half.capsule"
    path.write_bytes((files.path / "cut.capsule").read_bytes()[:-1])
    return SavedFile(path, 0)


def _save_over_a_folder(stage: Stage) -> Any:
    (_files(stage).path / "d.capsule").mkdir(exist_ok=True)
    return stage.ask("save_capsule", name="cut", file="d", replace=True)


CASES: dict[str, Case] = {
    **{
        f"NOT_CONFIGURED {name}": (
            ErrorCode.NOT_CONFIGURED,
            _unconfigured(name),
            ("unconfigured", "expected inactive or active", "configure it first"),
        )
        for name in ("snapshot", "restore", "reset_episode", "list_capsules", "pause", "resume")
    },
    **{
        f"INACTIVE {name}": (
            ErrorCode.INACTIVE,
            lambda stage, name=name: _unpaused(stage, name),
            ("inactive", "expected active", "activate it first"),
        )
        for name in ("pause", "resume")
    },
    "BUSY": (ErrorCode.BUSY, _busy, ("another ~/resume waits", "wait for its answer")),
    "NOT_FOUND restore": (
        ErrorCode.NOT_FOUND,
        lambda stage: stage.ask("restore", name="ghost"),
        ("'ghost'",),
    ),
    "NOT_FOUND drop": (
        ErrorCode.NOT_FOUND,
        lambda stage: stage.ask("drop_capsule", name="ghost"),
        ("'ghost'",),
    ),
    "NOT_FOUND get": (
        ErrorCode.NOT_FOUND,
        lambda stage: stage.ask("get_capsule", name="ghost"),
        ("'ghost'",),
    ),
    "NOT_FOUND fork": (
        ErrorCode.NOT_FOUND,
        lambda stage: stage.ask("fork", name="ghost"),
        ("'ghost'",),
    ),
    "NOT_FOUND rollback": (
        ErrorCode.NOT_FOUND,
        lambda stage: stage.ask("rollback", steps=1_000_000),
        ("1000000",),
    ),
    "NOT_FOUND parent": (
        ErrorCode.NOT_FOUND,
        lambda stage: stage.ask("rollback"),
        ("descends from a reset",),
    ),
    "ALREADY_EXISTS": (ErrorCode.ALREADY_EXISTS, _twice, ("'one'",)),
    "ALREADY_EXISTS fork": (
        ErrorCode.ALREADY_EXISTS,
        lambda stage: stage.ask("fork", names=["x", "x"]),
        ("'x'", "twice"),
    ),
    "INVALID_NAME": (
        ErrorCode.INVALID_NAME,
        lambda stage: stage.ask("snapshot", name="../../etc/passwd"),
        ("../../etc/passwd", "expected 1 to 128 letters, digits"),
    ),
    "INVALID_ARGUMENT count": (
        ErrorCode.INVALID_ARGUMENT,
        lambda stage: stage.ask("fork", count=3, seeds=[1, 2]),
        ("seeds", "expected 3", "found 2"),
    ),
    "INVALID_ARGUMENT too many": (
        ErrorCode.INVALID_ARGUMENT,
        lambda stage: stage.ask("fork", count=1_000_000),
        ("count", "expected at most", "found 1000000"),
    ),
    "NO_MEMORY": (ErrorCode.NO_MEMORY, _all_pinned, ("pinned", "store_bytes")),
    "PINNED": (ErrorCode.PINNED, _pinned, ("'kept'", "force")),
    "STALE_INPUT": (ErrorCode.STALE_INPUT, _stale, ("observation.state (joint_states)",)),
    "UNSAFE_START": (
        ErrorCode.UNSAFE_START,
        _unsafe,
        ("a: command", "measured 0.1", "max_distance 0.3", "~/resume"),
    ),
    "STOPPED restore": (ErrorCode.STOPPED, _stopped, ("~/clear_stop",)),
    "STOPPED resume": (ErrorCode.STOPPED, _resume_stopped, ("~/clear_stop",)),
    "STOPPED while resuming": (ErrorCode.STOPPED, _overtaken("stop"), ("resume", "~/clear_stop")),
    "SUPERSEDED": (ErrorCode.SUPERSEDED, _overtaken("reset_episode"), ("reset", "resume")),
    "TIMEOUT": (ErrorCode.TIMEOUT, _timeout, ("snapshot", "withdrawn", "repeat it")),
    "UNSUPPORTED tier": (
        ErrorCode.UNSUPPORTED,
        lambda stage: stage.ask("snapshot", tier="disk"),
        ("tier", "'disk'", "'device'"),
    ),
    **{
        f"UNSUPPORTED {name}": (
            ErrorCode.UNSUPPORTED,
            lambda stage, name=name: stage.ask(name),
            (name, "nothing was done"),
        )
        for name in ("preview",)
    },
    "STATE_MISMATCH": (
        ErrorCode.STATE_MISMATCH,
        _load(lambda files: files.save(image_of(name="foreign"))),
        ("foreign.capsule", "policy.family: expected puppet, found toy_recurrent"),
    ),
    "EXEC_MISMATCH": (
        ErrorCode.EXEC_MISMATCH,
        _load(_elsewhere),
        ("elsewhere.capsule", "torch: expected", "found 0.1", "allow an inexact continuation"),
    ),
    "CORRUPT": (ErrorCode.CORRUPT, _load(_half), ("half.capsule", "truncated: expected")),
    "IO_ERROR": (ErrorCode.IO_ERROR, _save_over_a_folder, ("d.capsule", "cannot be written")),
    "INTERNAL": (ErrorCode.INTERNAL, _raises, ("RuntimeError", "the puppet's string broke")),
}


def test_every_code_is_provoked() -> None:
    assert {code for code, _, _ in CASES.values()} | {ErrorCode.NONE} == set(ErrorCode)


@pytest.mark.parametrize("case", CASES)
def test_refusal(stage: Stage, case: str) -> None:
    """The code, words that help, and a node that does what it should afterwards."""
    code, provoke, words = CASES[case]
    slow = code in (ErrorCode.STALE_INPUT, ErrorCode.TIMEOUT)
    stage.run(start_timeout_s=0.5 if slow else 10.0, miss_limit_s=0.3 if slow else 5.0)
    response = provoke(stage)
    assert response.error_code == code, response.message
    assert not response.success
    for word in words:
        assert word in response.message
    assert "Traceback" not in response.message
    # All or nothing: it still works.
    stage.robot.reset()
    if stage.state() == 1:
        stage.transit(Transition.TRANSITION_CONFIGURE)
    if stage.state() == 2:
        stage.transit(Transition.TRANSITION_ACTIVATE)
    stage.do("clear_stop")
    stage.do("drop_capsule", name="p0", force=True) if code is ErrorCode.NO_MEMORY else None
    stage.do("reset_episode")
    if stage.ask("list_capsules").success:
        stage.ask("resume")
    stage.wait_running()
    assert stage.do("snapshot", name="after").capsule.name == "after"


def test_services_cover_the_package(stage: Stage) -> None:
    """No service was forgotten in these tests."""
    found = stage.peer.node.get_service_names_and_types_by_node("policy", "/")
    private = {name.rsplit("/", 1)[1] for name, kinds in found if "flashrt_ros/" in kinds[0]}
    assert private == set(SERVICES)
