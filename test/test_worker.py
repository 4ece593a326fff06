"""No thread of the node ends unnoticed: each is killed, says so, and begins again or is given up.

Without this an intake that is gone looks like cameras that are gone, a storage thread that is gone
like a slow disk, and a control thread that is gone like nothing at all, with an arm that follows
its last command.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import thread_killer
from contract_examples import cdr, contract_dict, joint_state
from control_rig import Lists, Rig, plan_ready
from node_policies import Follow, FollowChunks

from flashrt_ros.errors import ErrorCode, FlashRTError
from flashrt_ros.ros.control import Control
from flashrt_ros.ros.diagnostics import Level, threads_entry
from flashrt_ros.ros.intake import Intake
from flashrt_ros.ros.motion import Mode, Motion
from flashrt_ros.ros.planner import Planner
from flashrt_ros.ros.services import Replies
from flashrt_ros.ros.storage import Storage
from flashrt_ros.ros.verbs import Verb
from flashrt_ros.ros.worker import FRESH_NS, Losses, Worker

LIMIT_S = 20.0
"""A generous limit: it only decides how long a failure takes."""


class Reports(list[tuple[str, BaseException]]):
    """What was reported, with the thread that did it."""

    def __init__(self) -> None:
        self.came = threading.Event()

    def __call__(self, name: str, error: BaseException) -> None:
        assert threading.current_thread().name == name
        self.append((name, error))
        self.came.set()


def wait(found: Callable[[], Any]) -> Any:
    end_s = time.monotonic() + LIMIT_S
    while not (result := found()):
        assert time.monotonic() < end_s
        time.sleep(0.002)
    return result


def kill(worker: Worker, prod: Callable[[], Any], reports: Reports) -> None:
    """Kills the thread of a worker; ``prod`` gives it something to do, so that it runs Python."""
    wait(lambda: _works(worker))  # one that has not begun has no guard yet
    thread_killer.raise_in(worker._thread)
    prod()
    assert reports.came.wait(LIMIT_S)
    ((name, error),) = reports
    assert isinstance(error, thread_killer.Killed)
    assert name == worker._thread.name
    assert worker.alive


def _works(worker: Any) -> bool:
    """Whether its thread is in its work."""
    frame = sys._current_frames().get(worker._thread.ident or 0)
    while frame is not None and frame.f_code is not worker._work.__code__:
        frame = frame.f_back
    return frame is not None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_control_an_unguarded_thread_ends_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """What all others are compared with: this is what Python does by itself."""
    inbox = threading.Event()
    thread = threading.Thread(target=lambda: wait(inbox.is_set))
    thread.start()
    thread_killer.raise_in(thread)
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert capfd.readouterr() == ("", "")


def test_intake_decodes_again() -> None:
    rig, reports = Rig(), Reports()
    intake = Intake(rig.contract, rig.out, report=reports)
    message = cdr(joint_state(["a", "b"], [0.1, 0.2], [0.0, 0.0], stamp_ns=1))
    kill(intake._worker, lambda: intake.receive("joint_states", message), reports)
    wait(
        lambda: intake.receive("joint_states", message) or intake.figures["joint_states"].received
    )
    assert intake.close(LIMIT_S)


def test_storage_answers_the_verb_that_it_had_and_later_ones(tmp_path: Path) -> None:
    reports, rig = Reports(), Rig()
    rig.storage.close()
    storage = Storage(str(tmp_path), rig.queue, rig.out, reports)
    rig.stepper.storage = storage
    rig.ask("snapshot", name="cut")
    folder = storage.folder
    assert folder is not None
    save = type(folder).save

    def broken(*arguments: Any) -> Any:
        raise thread_killer.Killed("in the middle of a file")

    type(folder).save = broken  # type: ignore[method-assign]
    try:
        verb, _ = rig.call("save_capsule", name="cut")
        answer = wait(lambda: _turn(rig) or verb.result)
    finally:
        type(folder).save = save  # type: ignore[method-assign]
    assert answer.code is ErrorCode.INTERNAL
    assert "in the middle of a file" in answer.message
    assert reports.came.wait(LIMIT_S)
    assert storage._pending == 0, "the lost one does not count for ever"
    verb, _ = rig.call("save_capsule", name="cut")
    assert wait(lambda: _turn(rig) or verb.result).code is ErrorCode.NONE
    assert storage.close(LIMIT_S)


def _turn(rig: Rig) -> None:
    """The control thread's turn of a task."""
    if (verb := rig.queue.get(0.0)) is not None:
        rig.carry_out(verb)


def test_replies_sends_again() -> None:
    reports, sent = Reports(), []
    replies = Replies(Lists(), reports)
    service = SimpleNamespace(send_response=lambda response, header: sent.append(header))
    kill(replies._worker, lambda: replies._waiting.put(lambda: None), reports)
    wait(lambda: replies._waiting.put(lambda: service.send_response(None, 1)) or sent)
    replies.close()
    wait(lambda: not replies._worker.alive)


def test_planner_tells_whoever_takes_the_lost_plan_and_plans_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Clock:
        """It looks at the clock between taking a plan in hand and what guards the plan."""

        looks = 0

        def monotonic_ns(self) -> int:
            self.looks += 1
            if self.looks == 1:
                raise thread_killer.Killed("before a plan")
            return time.monotonic_ns()

    ran: list[Any] = []
    monkeypatch.setattr("flashrt_ros.ros.planner.time", Clock())
    reports = Reports()
    planner = Planner(SimpleNamespace(run_plan=ran.append), report=reports)
    planner.begin("lost", 1)
    assert reports.came.wait(LIMIT_S)
    with pytest.raises(FlashRTError, match="the planner thread met Killed"):
        planner.take()
    assert not ran
    planner.begin("next", 2)
    assert wait(planner.take) == "next"
    assert ran == ["next"]
    assert planner.close(LIMIT_S)


def test_a_plan_that_exits_is_a_failure_of_the_policy() -> None:
    class Exits(FollowChunks):
        def plan(self, *_: object) -> None:
            raise SystemExit(3)

    rig = Rig(Exits())
    rig.tick()
    plan_ready(rig)
    with pytest.raises(FlashRTError, match=r"the planner thread met SystemExit\(3\)"):
        rig.tick()
    rig.stepper.close()


def test_a_policy_that_exits_holds_and_the_control_thread_goes_on() -> None:
    class Exits(Follow):
        family = "exits"
        exits = True

        def act(self, *buffers: Any) -> None:
            if self.exits:
                raise SystemExit(3)
            super().act(*buffers)

    policy = Exits()
    control, rig = _control(policy)
    wait(lambda: _hear(rig) or rig.mode is Mode.HOLDING)
    assert "the policy failed: SystemExit: 3" in rig.reason
    assert control.lost is None
    policy.exits = False
    # Before anything else: what is left of the failed step is no state to go on from.
    control.queue.put(rig.verb("reset_episode"))
    wait(lambda: _hear(rig) or rig.mode is Mode.RUNNING)
    assert control.close(LIMIT_S)


def _hear(rig: Rig) -> None:
    rig.now_ns = time.monotonic_ns()
    rig.hear()


def _control(policy: Any = None, report: Any = None) -> tuple[Control, Rig]:
    """A control thread over a rig, at the speed of the clock on the wall.

    Nothing is too old or late for it: the thread that lets it hear may stand still for seconds.
    """
    observations = contract_dict()["observations"]
    observations[0]["max_age_ms"] = 1e6
    rig = Rig(policy, miss_limit_s=1e3, observations=observations)
    rig.stepper.clock_ns = time.monotonic_ns
    more = {} if report is None else {"report": report}
    control = Control(lambda: rig.stepper, rig.out, 0.02, 1, **more)
    control.start()
    return control, rig


def test_control_stops_the_arm_refuses_verbs_and_says_that_it_is_lost() -> None:
    reports = Reports()
    control, rig = _control(report=reports)
    wait(lambda: _hear(rig) or rig.mode is Mode.RUNNING)
    assert rig.commander.moving
    thread_killer.kill("control")
    assert reports.came.wait(LIMIT_S)
    assert isinstance(control.lost, thread_killer.Killed)
    assert not rig.commander.moving
    stop, last = rig.positions[-1], rig.positions[-2]
    assert stop == last, "the stop message repeats what was commanded"
    verb = Verb("snapshot", lambda handlers, verb: None, 0, 10**18)
    with pytest.raises(FlashRTError, match="control thread failed: Killed: between"):
        control.queue.put(verb)
    assert control.close(LIMIT_S)
    assert control.stepper is None


def test_verbs_that_waited_are_answered_when_control_is_lost() -> None:
    control, rig = _control()
    wait(lambda: _hear(rig) or rig.mode is Mode.RUNNING)
    answers: list[ErrorCode] = []

    def ask(work: Any) -> None:
        verb = Verb("snapshot", work, 0, 10**18)
        verb.listen(lambda answer: answers.append(answer.code))
        control.queue.put(verb)

    def fatal(handlers: object, verb: Verb) -> None:
        ask(lambda handlers, verb: None)  # from here: afterwards it would be refused
        thread_killer.kill("control")

    ask(fatal)
    wait(lambda: len(answers) == 2)
    assert set(answers) == {ErrorCode.INTERNAL}
    assert control.close(LIMIT_S)


def test_a_worker_that_fails_for_ever_does_not_take_the_machine() -> None:
    reports = Reports()

    def work() -> None:
        raise ValueError("again")

    worker = Worker("bad", work, reports)
    wait(lambda: len(reports) == 3)
    assert worker.close(LIMIT_S), "its rest does not hold up a clean-up"
    assert len(reports) < 10


def test_losses_hold_the_robot_only_for_lost_input() -> None:
    motion, out, halts = Motion(), Lists(), []
    now_ns = 0
    losses = Losses(out, motion, lambda: halts.append(1), lambda: now_ns)
    assert threads_entry(losses.found()).level is Level.OK
    motion.configure(hold=False)
    motion.activate(0)
    for name in ("storage", "replies", "planner"):
        losses.failed(name, Killed())
    assert not halts
    assert motion.wants_to_move
    losses.failed("intake", Killed())
    assert halts == [1]
    assert "the intake thread failed: Killed: ; call ~/resume" in motion.standing.reason
    assert out.faults == 4
    entry = threads_entry(losses.found())
    assert entry.level is Level.ERROR
    assert "the storage thread failed: Killed: ; it runs again" in entry.message
    assert entry.values["failures of intake"] == "1"
    now_ns = FRESH_NS
    assert threads_entry(losses.found()).level is Level.WARN
    losses.clear()
    assert threads_entry(losses.found()).message == "ok"


Killed = thread_killer.Killed
