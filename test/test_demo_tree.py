"""The experiment's trees and behaviours against a stage without ROS.

Pinned: which services are called in which order for each way to go on, that `success=false` is a
FAILURE with the service's message, that an unsafe start leads to a retreat and a second try, and
that a target not reached is told from an episode that was not carried through. A policy
that is kept waiting gets the time that it needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from py_trees.common import Status
from tree_rig import FakeNode, FakePolicy, RefusalError

from flashrt_ros.demo.behaviour import Until
from flashrt_ros.demo.experiment import Ending, Experiment
from flashrt_ros.demo.report import Report, quantiles
from flashrt_ros.demo.task import HOME_RAD
from flashrt_ros.demo.tree import Builder
from flashrt_ros.demo.trial import Judge, Way, draw_trials
from flashrt_ros.errors import ErrorCode
from flashrt_ros.trees.link import PolicyLink, _links

UNSAFE_START, NO_MEMORY = 14, 10


@pytest.fixture(autouse=True)
def _forget_links() -> Iterator[None]:
    yield
    left = [key for key, link in _links.items() if link._users > 1]
    _links.clear()
    assert left == [], "a tree was not shut down"


class FakeServer(FakePolicy):
    """Remembers what was last shown, as a policy would."""

    def _home(self, request: Any, response: Any) -> None:
        pass

    def _snapshot(self, request: Any, response: Any) -> None:
        super()._snapshot(request, response)
        response.capsule.size_bytes = 768


class FakeStage:
    """A stage whose services answer, and whose policy takes its steps, while it sleeps.

    Attributes:
        stalled: Whether the policy takes none.
    """

    def __init__(self) -> None:
        self.node = FakeNode()
        self.server = self.node.server = FakeServer()
        self.path: list[tuple[float, ...]] = []
        self.commands: list[tuple[float, ...]] = []
        self.pictures: list[str] = []
        self.judge: Judge | None = None
        self.stalled = self.shown = False
        self.taken = self.taken_before = self.cue_steps = 0
        self.links = [PolicyLink.shared(self.node, name) for name in ("policy", "arm")]
        for link in self.links:
            link.clock = self.clock

    @property
    def log(self) -> list[str]:
        return self.server.verbs

    def refuse(self, verb: str, code: int, words: str, times: int = 1_000_000) -> None:
        left = [times]

        def handler(request: Any) -> None:
            left[0] -= 1
            if left[0] >= 0:
                self.server.log.append((verb, request))
                raise RefusalError(ErrorCode(code), words)

        self.server.refuse[verb] = handler

    def clock(self) -> float:
        return self.node.now_s

    def sleep(self, duration_s: float) -> None:
        self.node.spin()
        self.node.now_s += duration_s
        if not self.stalled:
            self.taken += 1
            self.cue_steps = self.cue_steps + 1 if self.shown else 0

    def latency_ms(self) -> dict[str, list[float]]:
        times = {verb: t for link in self.links for verb, t in link.times.items()}
        return {verb: list(found.took_ms) for verb, found in times.items()}

    def seen(self, port: str) -> int:
        return self.cue_steps

    def count_steps(self) -> None:
        self.taken_before = self.taken

    def steps(self) -> int:
        return self.taken - self.taken_before

    def hide_cue(self) -> None:
        self.shown = False

    def show_cue(self, point_m: Any) -> None:
        self.shown = True
        self.server.log.append(("cue", None))
        self.server.live = (self.server.live[0], tuple(point_m))  # type: ignore[assignment]

    def bump(self, torque_nm: tuple[float, float], duration_s: float) -> None:
        self.server.log.append(("bump", None))

    def look_for_home(self) -> None:
        pass

    def at_home(self) -> bool:
        return True

    def watch(self, judge: Judge) -> None:
        self.judge, self.path = judge, [tuple(HOME_RAD)]
        self.commands = [(0.1 * len(self.server.log), 0.0)]

    def content(self) -> bool:
        assert self.judge is not None
        return self.server.live[1] == tuple(self.judge.target_m)

    def show_tree(self, text: str) -> None:
        self.pictures.append(text)


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
    begin_s, seen = stage.clock(), {}

    def look(request: Any) -> None:
        seen.update(at=stage.clock() - begin_s, steps=stage.cue_steps)

    stage.server.refuse["snapshot"] = look
    root = Builder(stage).episode(draw_trials(0, 1)[0], Way.AS_IT_IS, "seen")
    Experiment(stage, sleep=stage.sleep).tick_through(root)
    assert seen["steps"] == 0
    assert seen["at"] >= 0.4
    assert stage.clock() - begin_s < 4.0


def test_a_refused_snapshot_is_a_fault_with_the_services_words() -> None:
    stage = FakeStage()
    stage.refuse("snapshot", NO_MEMORY, "no room for 768 bytes")
    report = run(stage, 1)
    assert len(report.faults) == 3
    assert "snapshot: NO_MEMORY: no room for 768 bytes" in report.faults[0]
    assert not any(outcome.reached for outcome in report.outcomes)
    assert "fault: " in report.table()


def test_a_target_that_is_not_reached_is_no_fault() -> None:
    stage = FakeStage()
    stage.content = lambda: False  # type: ignore[method-assign]
    report = run(stage, 1)
    assert report.faults == []
    assert not report.as_expected


@pytest.mark.parametrize("name", ["it is seen", "it is seen no more", "on the way", "reach"])
def test_a_stall_of_the_policy_makes_an_episode_longer_and_no_different(name: str) -> None:
    """Of ten seconds: by the clock all would be over."""
    stage = FakeStage()
    root = Builder(stage).episode(draw_trials(0, 1)[0], Way.RESET, "seen")
    content = stage.content
    stage.content = lambda: stage.steps() >= 40 and content()  # type: ignore[method-assign]
    stage.server.live = (0, ())
    begun_s: list[float] = []

    def sleep(duration_s: float) -> None:
        running = any(n.name == name and n.status is Status.RUNNING for n in root.iterate())
        if running and not begun_s:
            begun_s.append(stage.clock())
        stage.stalled = bool(begun_s) and stage.clock() < begun_s[0] + 10.0
        stage.sleep(duration_s)

    assert Experiment(stage, sleep=sleep).tick_through(root) == Ending()
    assert stage.clock() > begun_s[0] + 10.0
    assert root.tip().name == "reach"
    assert root.tip().feedback_message == "reach: will not be any more"
    assert stage.steps() == 80


def test_a_policy_that_takes_no_more_steps_is_a_fault() -> None:
    """And no target that was not reached."""
    stage = FakeStage()
    stage.content = lambda: False  # type: ignore[method-assign]
    root = Builder(stage).episode(draw_trials(0, 1)[0], Way.RESTORE, "seen")

    def sleep(duration_s: float) -> None:
        reaching = any(n.name == "reach" and n.status is Status.RUNNING for n in root.iterate())
        stage.stalled = reaching and stage.steps() == 12
        stage.sleep(duration_s)

    words = "reach: not within 60.0 s, the policy took 12 of 80 control steps"
    ending = Experiment(stage, sleep=sleep).tick_through(root)
    assert ending == Ending(fault=f"episode, restore: {words}")


def test_an_unsafe_start_leads_to_a_retreat_and_a_second_try() -> None:
    stage = FakeStage()
    stage.refuse("resume", UNSAFE_START, "0.4 rad away", times=1)
    root = Builder(stage).episode(draw_trials(0, 1)[0], Way.RESTORE, "seen")
    assert Experiment(stage, sleep=stage.sleep).tick_through(root) == Ending()
    assert stage.log[:6] == ["pause", "home", "reset_episode", "resume", "home", "resume"]
    assert root.status is Status.SUCCESS


def test_a_start_that_stays_unsafe_counts_as_not_reached_and_is_said() -> None:
    stage = FakeStage()
    stage.refuse("resume", UNSAFE_START, "0.4 rad away")
    report = run(stage, 1)
    assert [outcome.reached for outcome in report.outcomes] == [False] * 3
    assert "resume: UNSAFE_START: 0.4 rad away" in report.outcomes[0].refused
    assert "(1 refused as an unsafe start)" in report.table()
    assert [branch.reached for branch in report.branches] == [False, False]


def test_fork_restores_each_branch_with_a_seed_of_its_own() -> None:
    stage = FakeStage()
    run(stage, 1)
    (fork,) = stage.server.requests("fork")
    assert len(set(fork.seeds)) == 2
    assert [request.name for request in stage.server.requests("restore")][-2:] == fork.names


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


def test_until_keeps_to_the_clock() -> None:
    clock = SimpleNamespace(now_s=0.0)
    until = Until("until", lambda: False, 0.5, lambda: clock.now_s, found=lambda: "found none")
    for now_s, status in {0.0: Status.RUNNING, 0.4: Status.RUNNING, 0.5: Status.FAILURE}.items():
        clock.now_s = now_s
        until.tick_once()
        assert (until.status, until.overdue) == (status, status is Status.FAILURE)
    assert until.feedback_message == "until: not within 0.5 s, found none"


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
