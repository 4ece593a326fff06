"""The experiment's trees and behaviours against a stage without ROS.

Pinned: which services are called in which order for each way to go on, that `success=false` is a
FAILURE with the service's message, that an unsafe start leads to a retreat and a second try, and
that a target not reached is told from an episode that was not carried through.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from py_trees.common import Status

from flashrt_ros.demo.behaviour import CallService, Until, Wait
from flashrt_ros.demo.experiment import Ending, Experiment
from flashrt_ros.demo.report import Report, quantiles
from flashrt_ros.demo.task import HOME_RAD
from flashrt_ros.demo.tree import Builder, Way
from flashrt_ros.demo.trial import Judge, draw_trials

UNSAFE_START = 14


class FakeCall:
    def __init__(self, response: Any) -> None:
        self.response, self.forgotten = response, False

    def forget(self) -> None:
        self.forgotten = True


class FakeStage:
    """Remembers what was last shown, as a policy would, and answers at once."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.log: list[str] = []
        self.requests: list[tuple[str, Mapping[str, object]]] = []
        self.answers: dict[str, Callable[[], Any]] = {}
        self.latency_ms: dict[str, list[float]] = defaultdict(list)
        self.path: list[tuple[float, ...]] = []
        self.commands: list[tuple[float, ...]] = []
        self.pictures: list[str] = []
        self.memory: Any = None
        self.capsules: dict[str, Any] = {}
        self.judge: Judge | None = None

    def clock(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s

    def begin(self, verb: str, fields: Mapping[str, object]) -> FakeCall:
        self.log.append(verb)
        self.requests.append((verb, fields))
        self.latency_ms[verb].append(1.0)
        if verb in self.answers:
            return FakeCall(self.answers[verb]())
        if verb == "reset_episode":
            self.memory = None
        if verb == "snapshot":
            self.capsules[str(fields["name"])] = self.memory
        if verb == "fork":
            self.capsules.update(dict.fromkeys(fields["names"], self.memory))  # type: ignore
        if verb == "restore":
            self.memory = self.capsules[str(fields["name"])]
        return FakeCall(answer(capsule=SimpleNamespace(size_bytes=768)))

    def show_cue(self, point_m: Any, duration_s: float) -> None:
        self.log.append("cue")
        self.memory = tuple(point_m)

    def bump(self, torque_nm: tuple[float, float], duration_s: float) -> None:
        self.log.append("bump")

    def look_for_home(self) -> None:
        pass

    def at_home(self) -> bool:
        return True

    def watch(self, judge: Judge) -> None:
        self.judge, self.path = judge, [tuple(HOME_RAD)]
        self.commands = [(0.1 * len(self.requests), 0.0)]

    def content(self) -> bool:
        assert self.judge is not None
        return self.memory == tuple(self.judge.target_m)

    def show_tree(self, text: str) -> None:
        self.pictures.append(text)


def answer(success: bool = True, code: int = 0, message: str = "done", **fields: Any) -> Any:
    return SimpleNamespace(success=success, error_code=code, message=message, **fields)


def run(stage: FakeStage, episodes: int = 2) -> Report:
    said: list[str] = []
    return Experiment(stage, 0, said.append, sleep=stage.sleep).run(episodes)


def test_only_the_restored_memory_reaches_the_target() -> None:
    report = run(FakeStage(), 8)
    assert [report.rate(way)["reached"] for way in Way] == [8, 0, 0]
    assert [branch.reached for branch in report.branches] == [True, True]
    assert report.as_expected
    assert report.faults == []
    assert report.capsule_bytes == 768


@pytest.mark.parametrize(
    ("way", "after"),
    [
        (Way.RESTORE, ["restore", "resume"]),
        (Way.RESET, ["reset_episode", "resume"]),
        (Way.AS_IT_IS, ["resume"]),
    ],
)
def test_order_of_services(way: Way, after: list[str]) -> None:
    stage = FakeStage()
    root = Builder(stage).episode(draw_trials(0, 1)[0], way, "seen")
    assert Experiment(stage, sleep=stage.sleep).tick_through(root) == Ending()
    begin = ["pause", "home", "reset_episode", "resume", "cue", "snapshot"]
    assert stage.log == [*begin, "bump", "cue", "pause", "home", *after]


def test_the_true_cue_is_over_before_the_snapshot_and_the_episode_is_short() -> None:
    stage = FakeStage()
    seen = {}

    def snapshot() -> Any:
        seen["at"] = stage.now_s
        return answer(capsule=SimpleNamespace(size_bytes=1))

    stage.answers["snapshot"] = snapshot
    root = Builder(stage).episode(draw_trials(0, 1)[0], Way.AS_IT_IS, "seen")
    Experiment(stage, sleep=stage.sleep).tick_through(root)
    assert seen["at"] >= 0.5
    assert stage.now_s < 4.0


def test_a_refused_snapshot_is_a_fault_with_the_services_words() -> None:
    stage = FakeStage()
    stage.answers["snapshot"] = lambda: answer(False, 10, "no room for 768 bytes")
    report = run(stage, 1)
    assert len(report.faults) == 3
    assert "snapshot: error 10: no room for 768 bytes" in report.faults[0]
    assert not any(outcome.reached for outcome in report.outcomes)
    assert "fault: " in report.table()


def test_a_target_that_is_not_reached_is_no_fault() -> None:
    stage = FakeStage()
    stage.content = lambda: False  # type: ignore[method-assign]
    report = run(stage, 1)
    assert report.faults == []
    assert not report.as_expected


def test_an_unsafe_start_leads_to_a_retreat_and_a_second_try() -> None:
    stage = FakeStage()
    answers = iter([answer(False, UNSAFE_START, "0.4 rad away"), answer()])
    stage.answers["resume"] = lambda: next(answers, answer())
    root = Builder(stage).episode(draw_trials(0, 1)[0], Way.RESTORE, "seen")
    assert Experiment(stage, sleep=stage.sleep).tick_through(root) == Ending()
    assert stage.log[:6] == ["pause", "home", "reset_episode", "resume", "home", "resume"]
    assert root.status is Status.SUCCESS


def test_a_start_that_stays_unsafe_counts_as_not_reached_and_is_said() -> None:
    stage = FakeStage()
    stage.answers["resume"] = lambda: answer(False, UNSAFE_START, "0.4 rad away")
    report = run(stage, 1)
    assert [outcome.reached for outcome in report.outcomes] == [False] * 3
    assert "resume: error 14: 0.4 rad away" in report.outcomes[0].refused
    assert "(1 refused as an unsafe start)" in report.table()
    assert [branch.reached for branch in report.branches] == [False, False]


def test_fork_restores_each_branch_with_a_seed_of_its_own() -> None:
    stage = FakeStage()
    run(stage, 1)
    fields = next(fields for verb, fields in stage.requests if verb == "fork")
    assert len(set(fields["seeds"])) == 2  # type: ignore[arg-type]
    restored = [fields["name"] for verb, fields in stage.requests if verb == "restore"]
    assert restored[-2:] == fields["names"]


def test_the_tree_is_shown_at_each_change_and_no_more() -> None:
    stage = FakeStage()
    run(stage, 1)
    assert any("snapshot" in picture for picture in stage.pictures)
    assert all(a != b for a, b in itertools.pairwise(stage.pictures))


def test_a_dead_process_ends_the_run_and_halts_the_tree() -> None:
    stage = FakeStage()
    ticks = iter(range(100))

    def alive() -> None:
        if next(ticks) > 20:
            raise RuntimeError("arm has ended")

    with pytest.raises(RuntimeError, match="arm has ended"):
        Experiment(stage, 0, lambda line: None, alive, stage.sleep).run(1)


def test_a_call_that_is_not_answered_fails_and_is_forgotten() -> None:
    stage, calls = FakeStage(), []

    class Silent:
        def begin(self, verb: str, fields: Mapping[str, object]) -> FakeCall:
            calls.append(FakeCall(None))
            return calls[-1]

    call = CallService("restore", Silent(), clock=stage.clock, timeout_s=1.0)
    call.tick_once()
    assert call.status is Status.RUNNING
    stage.now_s = 1.1
    call.tick_once()
    assert call.status is Status.FAILURE
    assert call.feedback_message == "restore: no answer within 1.0 s"
    assert calls[0].forgotten


def test_an_interrupted_call_is_forgotten() -> None:
    stage, call_made = FakeStage(), FakeCall(None)
    services = SimpleNamespace(begin=lambda verb, fields: call_made)
    call = CallService("restore", services, clock=stage.clock)
    call.tick_once()
    call.stop(Status.INVALID)
    assert call_made.forgotten


def test_fields_may_be_made_when_the_call_is_sent() -> None:
    stage = FakeStage()
    call = CallService("pause", stage, lambda: {"request_id": str(stage.now_s)}, clock=stage.clock)
    stage.now_s = 7.0
    call.tick_once()
    assert stage.requests == [("pause", {"request_id": "7.0"})]
    assert call.status is Status.SUCCESS


def test_wait_and_until_keep_to_the_clock() -> None:
    stage = FakeStage()
    wait = Wait("wait", 0.5, stage.clock)
    until = Until("until", lambda: False, 0.5, stage.clock)
    for now_s, (waiting, asking) in {
        0.0: (Status.RUNNING, Status.RUNNING),
        0.4: (Status.RUNNING, Status.RUNNING),
        0.5: (Status.SUCCESS, Status.FAILURE),
    }.items():
        stage.now_s = now_s
        wait.tick_once()
        until.tick_once()
        assert (wait.status, until.status) == (waiting, asking)
    assert until.feedback_message == "until: not within 0.5 s"


def test_table_and_json_say_the_same() -> None:
    report = run(FakeStage(), 4)
    table, values = report.table(), report.to_dict()
    assert "(a) restore the capsule, go on              4 of 4     51.0% to 100.0%" in table
    assert "(b) reset plainly, go on                    0 of 4       0.0% to 49.0%" in table
    assert "a capsule weighs 768 bytes" in table
    assert values["ways"]["restore"]["reached"] == 4  # type: ignore[index]
    assert values["capsule_bytes"] == 768
    assert values["verbs_ms"]["snapshot"]["n"] == 12  # type: ignore[index]


def test_quantiles() -> None:
    assert quantiles([1.0, 2.0, 3.0])["p50"] == 2.0
    assert quantiles([])["n"] == 0
