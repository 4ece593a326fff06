"""Every error code, provoked at a running node: the words say what was expected and what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import puppet
import pytest
from capsule_images import image_of
from flashrt_ros.msg import PolicyStatus
from held import held
from lifecycle_msgs.msg import Transition
from stage import Stage

from flashrt_ros.errors import ErrorCode
from flashrt_ros.runtime.capsule_folder import CapsuleFolder, SavedFile
from flashrt_ros.runtime.fingerprint import Fingerprint

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("codes")) as stage:
        yield stage


# Every code

Case = tuple[ErrorCode, Callable[[Stage], Any], tuple[str, ...]]


def _pinned(stage: Stage) -> Any:
    stage.do("snapshot", name="kept", pin=True)
    return stage.ask("drop_capsule", name="kept")


def _twice(stage: Stage) -> Any:
    stage.do("snapshot", name="one")
    return stage.ask("snapshot", name="one")


def _busy(stage: Stage) -> Any:
    stage.silence()
    stage.do("pause")
    first = stage.send("resume")
    stage.wait_status(PolicyStatus.WAITING)
    second = stage.ask("resume")
    stage.robot.quiet = False
    assert first.result(stage.peer.quote).success, "the first one goes on"
    return second


def _overtaken(by: str) -> Callable[[Stage], Any]:
    def provoke(stage: Stage) -> Any:
        stage.silence()
        stage.do("pause")
        pending = stage.send("resume")
        stage.wait_status(PolicyStatus.WAITING)
        stage.do(by)
        return pending.result(stage.peer.quote)

    return provoke


def _stale(stage: Stage) -> Any:
    stage.silence()
    stage.do("pause")
    return stage.ask("resume")


def _resume_with(stage: Stage, order: float) -> Any:
    """A step whose first input is an order to the puppet."""
    stage.silence()
    stage.do("pause")
    stage.robot.velocity = [order, 0.0]
    stage.robot.quiet = False
    return stage.ask("resume")


def _unsafe(stage: Stage) -> Any:
    return _resume_with(stage, puppet.FAR)


def _stopped(stage: Stage) -> Any:
    stage.do("snapshot", name="one")
    stage.do("stop")
    return stage.ask("restore", name="one", publish=True)


def _resume_stopped(stage: Stage) -> Any:
    stage.do("stop")
    return stage.ask("resume")


def _raises(stage: Stage) -> Any:
    return _resume_with(stage, puppet.RAISES)


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
    with held(stage):
        response = stage.ask("snapshot", name="late")
    assert stage.set(service_timeout_s=50.0).successful
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
        lambda stage: stage.ask("snapshot", tier="host"),
        ("tier 'host'", "on cpu host and device are one memory", "raise store_bytes"),
    ),
    "NOT_FOUND preview": (
        ErrorCode.NOT_FOUND,
        lambda stage: stage.ask("preview", names=["nobody"]),
        ("'nobody'",),
    ),
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
    stage.run(
        start_timeout_s=0.5 if code is ErrorCode.STALE_INPUT else 40.0,
        miss_limit_s=0.3 if code is ErrorCode.TIMEOUT else 10.0,
    )
    response = provoke(stage)
    assert response.error_code == code, response.message
    assert not response.success
    for word in words:
        assert word in response.message
    assert "Traceback" not in response.message
    # All or nothing: it still works.
    stage.robot.reset()
    assert stage.set(start_timeout_s=40.0).successful
    if stage.state() == 1:
        stage.transit(Transition.TRANSITION_CONFIGURE)
    if stage.state() == 2:
        stage.transit(Transition.TRANSITION_ACTIVATE)
    stage.do("clear_stop")
    stage.do("drop_capsule", name="p0", force=True) if code is ErrorCode.NO_MEMORY else None
    generation = stage.do("reset_episode").generation
    stage.do("resume")
    stage.wait_running(since=generation)
    assert stage.do("snapshot", name="after").capsule.name == "after"
