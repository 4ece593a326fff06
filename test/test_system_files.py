"""Capsule files of a running node: what outlives its process, to the bit, and what a save costs.

The node is killed without warning as soon as its answer is there: an answer is a promise that the
file is on the disk.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from flashrt_ros.msg import CapsuleEvent, PolicyStatus
from stage import Stage
from test_system_state import assert_no_step_is_alike, assert_still, trace

from flashrt_ros.capsule_command import DEFAULT_DIR
from flashrt_ros.errors import ErrorCode
from flashrt_ros.ros.parameters import DECLARATIONS

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("files")) as stage:
        yield stage


def test_a_capsule_outlives_the_process_of_its_node(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(5)
    cut = stage.do("snapshot", name="cut").capsule
    first = trace(stage, cut.generation, cut.step)
    stage.do("reset_episode", set_seed=True, seed=4)
    stage.wait_steps(5)
    other = stage.do("snapshot", name="other").capsule
    second = trace(stage, other.generation, other.step)
    saved = stage.do("save_capsule", name="cut")
    stage.do("save_capsule", name=other.id, file="elsewhere")
    assert saved.path == str(stage.folder / "capsules" / "cut.capsule")
    assert saved.size_bytes > cut.size_bytes // 2

    stage.process.send(signal.SIGKILL)
    assert stage.process.wait() == -signal.SIGKILL
    stage.start()
    stage.run()
    before = stage.wait_step_on_new_input()
    loaded = stage.do("load_capsule", file="cut").capsule
    assert (loaded.id, loaded.name, loaded.step) == (cut.id, "cut", cut.step)
    assert (loaded.state_id, loaded.exec_id) == (cut.state_id, cut.exec_id)
    live = stage.wait_step_on_new_input()
    assert (live.generation, live.capsule) == (before.generation, ""), "a load leaves it alone"
    restored = stage.do("restore", name="cut", publish=True)
    assert trace(stage, restored.generation, cut.step) == first
    # Control: the other file continues as the other episode did, and as nothing else.
    stage.do("load_capsule", file="elsewhere", name="renamed")
    renamed = stage.do("restore", name="renamed", publish=True)
    assert trace(stage, renamed.generation, other.step) == second
    assert_no_step_is_alike(first, second)
    # And nothing moves after a restore without publish.
    stage.do("restore", name="cut")
    stage.wait_status(PolicyStatus.HOLDING, "restore of 'cut'")
    assert_still(stage)


def test_node_and_command_look_in_the_same_folder() -> None:
    (default,) = [d.default for d in DECLARATIONS if d.name == "capsule_dir"]
    assert default == DEFAULT_DIR


def test_a_retry_gets_the_first_answer_and_writes_once(stage: Stage) -> None:
    stage.run()
    stage.do("snapshot", name="cut")
    for file in ("once", "once.capsule"):
        response = stage.ask("save_capsule", name="cut", file=file, request_id="save-1")
        if file == "once":
            first = response
            assert first.success, first.message
    assert response.error_code == ErrorCode.INVALID_ARGUMENT, "another request with the same id"
    again = stage.do("save_capsule", name="cut", file="once", request_id="save-1")
    assert (again.path, again.size_bytes) == (first.path, first.size_bytes)
    refused = stage.ask("save_capsule", name="cut", file="once", request_id="save-2")
    assert refused.error_code == ErrorCode.ALREADY_EXISTS
    loads = [stage.do("load_capsule", file="once", name="x", request_id="load-1") for _ in "ab"]
    assert loads[0].capsule == loads[1].capsule
    assert stage.ask("load_capsule", file="once", name="x").error_code == ErrorCode.ALREADY_EXISTS
    stage.do("save_capsule", name="x", file="once", replace=True)
    wanted = [
        (CapsuleEvent.SAVE, "cut", "save-1"),
        (CapsuleEvent.LOAD, "x", "load-1"),
        (CapsuleEvent.SAVE, "x", ""),
    ]

    def told() -> bool:
        files = (CapsuleEvent.SAVE, CapsuleEvent.LOAD)
        found = [(e.kind, e.name, e.request_id) for e in stage.events if e.kind in files]
        return found == wanted

    stage.peer.wait(told, f"{wanted}", seen=lambda: stage.events)


def test_a_capsule_on_disk_is_restored_by_the_node(stage: Stage) -> None:
    """The whole way over ROS: moved, listed, forked there, restored, continued to the bit."""
    stage.run()
    stage.wait_steps(4)
    cut = stage.do("snapshot", name="away", tier="disk").capsule
    assert cut.tier == "disk"
    first = trace(stage, cut.generation, cut.step)
    folder = stage.folder / "capsules"
    (file,) = folder.glob("away.*.capsule")
    branch = stage.do("fork", name="away", names=["branch"]).branches[0]
    assert branch.tier == "disk"
    restored = stage.do("restore", name="away", publish=True)
    assert restored.capsule.tier == "device"
    assert trace(stage, restored.generation, cut.step) == first
    # Control: the branch has a key of its own.
    other = stage.do("restore", name="branch", publish=True)
    assert_no_step_is_alike(first, trace(stage, other.generation, cut.step))
    moved = stage.do("move_capsule", name="away", tier="disk")
    assert moved.path == str(file)
    listed = stage.do("list_capsules")
    assert {c.name: c.tier for c in listed.capsules}["branch"] == "disk"
    assert listed.host_bytes_budget == 0
    wanted = [("away", "disk"), ("away", "device"), ("away", "disk")]
    stage.peer.wait(
        lambda: [(e.name, e.tier) for e in stage.events if e.kind == CapsuleEvent.MOVE] == wanted,
        f"{wanted}",
        seen=lambda: stage.events,
    )
    for name in ("away", "branch"):
        stage.do("drop_capsule", name=name)
    assert not file.exists()
