"""Behaviour trees at a running policy node, over DDS.

Pinned: what a tree leaves behind on the node; that it works whoever spins its node, as trees of
py_trees_ros do, too; and that a policy node killed or frozen in the middle of a call is a FAILURE
within the timeout, after which the same tree works again as soon as the node is back.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import py_trees
import pytest
import rclpy
from flashrt_ros.msg import CapsuleEvent, PolicyStatus
from flashrt_ros.srv import Snapshot as SnapshotType
from lifecycle_msgs.msg import State
from node_peer import DEADLINE_S
from py_trees.behaviour import Behaviour
from py_trees.common import Status
from rclpy.executors import SingleThreadedExecutor
from rclpy.task import Future
from stage import Stage, arm_contract

from flashrt_ros import trees
from flashrt_ros.trees.link import _links

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("trees")) as stage:
        yield stage


@pytest.fixture
def node(stage: Stage) -> Iterator[Any]:
    """A ROS node that nobody spins yet."""
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=stage.domain)
    node = rclpy.create_node("tree", context=context)
    yield node
    assert _links == {}, "a tree left a link behind"
    assert list(node.clients) == []
    node.destroy_node()
    context.try_shutdown()


class Steps(Behaviour):
    """Waits for control steps of the node, then ends as told; remembers when it began.

    Between rounds the policy must have been restored: steps of the round before may yet be on
    their way.

    Attributes:
        began: ``generation`` and ``step`` of the last control step that each round waited for.
    """

    def __init__(self, name: str, stage: Stage, outcomes: list[bool], count: int = 3) -> None:
        super().__init__(name)
        self.stage, self.outcomes, self.count = stage, outcomes, count
        self.began: list[tuple[int, int]] = []

    def initialise(self) -> None:
        self._from = len(self.stage.steps)

    def update(self) -> Status:
        before = self.began[-1][0] if self.began else -1
        steps = self.stage.steps[self._from :]
        seen = [step for step in steps if step.published and step.generation > before]
        if len(seen) < self.count:
            return Status.RUNNING
        self.began.append((seen[-1].generation, seen[-1].step))
        good = self.outcomes[len(self.began) - 1]
        self.feedback_message = "" if good else "missed"
        return Status.SUCCESS if good else Status.FAILURE


RAISES = """
import py_trees, rclpy
from flashrt_ros import trees

class Raises(py_trees.behaviour.Behaviour):
    def update(self):
        # A request to a service that is not known yet would be lost with the program.
        if not retry.link.absent():
            1 / 0
        return py_trees.common.Status.RUNNING

rclpy.init()
retry = trees.RetryFromCapsule("retry", Raises("child"), policy="/policy")
trees.tick_through(retry, rclpy.create_node("program"))
"""
PATIENT = "from flashrt_ros.trees import link; link.PARTING_S = 20.0\n"
"""The node may be stalled for longer than programs wait for the answers of the last requests."""


def names(stage: Stage) -> list[str]:
    return [capsule.name for capsule in stage.do("list_capsules").capsules]


def through(root: Behaviour, node: Any, **options: Any) -> Status:
    """Ticks to the end, but not for ever."""
    end_s = time.monotonic() + DEADLINE_S

    def ticked(root: Behaviour) -> None:
        assert time.monotonic() < end_s, trees.text_tree(root)

    return trees.tick_through(root, node, ticked=ticked, **options)


def test_a_program_that_ends_with_its_tree_leaves_no_capsules(stage: Stage) -> None:
    stage.run()
    environment = {**os.environ, "ROS_DOMAIN_ID": str(stage.domain)}
    command = [sys.executable, "-c", PATIENT + RAISES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert "ZeroDivisionError" in done.stderr
    assert names(stage) == []


def until_names(stage: Stage, wanted: int) -> list[str]:
    """The capsules, once there are so many; those that there are if that takes too long."""
    end_s = time.monotonic() + DEADLINE_S
    while len(found := names(stage)) != wanted and time.monotonic() < end_s:
        time.sleep(0.05)
    return found


def test_after_ctrl_c_a_program_leaves_no_capsules(stage: Stage) -> None:
    """Whether its answers still come depends on when rclpy ends: what it has asked is done."""
    stage.run()
    environment = {**os.environ, "ROS_DOMAIN_ID": str(stage.domain)}
    command = [sys.executable, "-c", RAISES.replace("1 / 0", "print('known', flush=True)")]
    pipe = subprocess.PIPE
    program = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
    try:
        assert program.stdout is not None
        assert "known\n" in program.stdout, "each service of the tree becomes known"
        assert len(names(stage)) == 1
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=DEADLINE_S)
    finally:
        program.kill()
    assert "KeyboardInterrupt" in said
    assert until_names(stage, 0) == [], said


def test_three_lines_try_come_back_and_try_again(stage: Stage, node: Any) -> None:
    stage.run()
    stage.wait_steps(3)
    child = Steps("pick", stage, [False, False, True])
    root = trees.RetryFromCapsule("retry", child, attempts=3, publish=True, policy="/policy")
    assert through(root, node) is Status.SUCCESS
    (taken,) = stage.all_events(CapsuleEvent.SNAPSHOT)
    restored = stage.all_events(CapsuleEvent.RESTORE)
    assert [event.step for event in restored] == [taken.step, taken.step]
    assert all(event.seeded for event in restored)
    assert len({event.seed for event in restored}) == 2
    generations = [generation for generation, _ in child.began]
    assert generations == sorted(set(generations))
    assert names(stage) == []


def test_branches_with_a_node_that_another_thread_spins(stage: Stage) -> None:
    stage.run()
    stage.wait_steps(3)
    # On hold after each restore: it is up to the child to let the arm move.
    ways = [
        py_trees.composites.Sequence(
            f"way {n}", memory=True, children=[trees.Resume(), Steps(f"reach {n}", stage, [good])]
        )
        for n, good in enumerate((False, True, True))
    ]
    root = trees.TryBranches("try", ways, seeds=[11, 12, 13])
    assert through(root, stage.peer.node, spin=False) is Status.SUCCESS
    assert root.winner == 1
    restored = stage.all_events(CapsuleEvent.RESTORE)
    assert len(restored) == 2
    assert len({event.step for event in restored}) == 1
    assert names(stage) == []
    stage.wait_running()


def test_the_best_preview_becomes_live(stage: Stage, node: Any) -> None:
    stage.run()
    stage.wait_steps(3)
    root = trees.ChooseByPreview("choose", lambda chunk: trees.rows(chunk)[0, 0], count=3)
    assert through(root, node) is Status.SUCCESS
    assert len(set(root.scores)) == 3, "seeds must make a difference"
    assert root.scores[root.choice] == max(root.scores)
    stage.wait_status(PolicyStatus.HOLDING)
    now = stage.all_events(CapsuleEvent.RESTORE)[-1].generation
    stage.do("resume")
    stage.peer.wait(lambda: stage.steps and stage.steps[-1].generation == now, "a step from there")
    assert next(step for step in stage.steps if step.generation == now).published
    assert names(stage) == []


def test_a_watchdog_pauses_on_stale_input_and_goes_on_with_fresh_one(
    stage: Stage, node: Any
) -> None:
    stage.run(contract=arm_contract(max_age_ms=500.0))
    stage.robot.quiet = True
    stage.wait_status(PolicyStatus.HOLDING, "joint_states")
    fresh = trees.WaitUntilFresh(held=True, timeout_s=DEADLINE_S)
    root = py_trees.composites.Sequence(
        "watchdog", memory=True, children=[trees.Pause(), fresh, trees.Resume()]
    )
    found: list[str] = []
    end_s = time.monotonic() + DEADLINE_S

    def ticked(root: Behaviour) -> None:
        assert time.monotonic() < end_s, trees.text_tree(root)
        if "joint_states" in fresh.feedback_message:
            found.append(fresh.feedback_message)
            stage.robot.quiet = False

    assert trees.tick_through(root, node, ticked=ticked) is Status.SUCCESS
    assert found, "it was never seen to be stale"
    stage.wait_running()


class RosTree(py_trees.trees.BehaviourTree):
    """What trees of py_trees_ros do with a node, by their documentation and source.

    ``setup`` hands the node to each behaviour as the keyword ``node`` and nothing else of ROS;
    ``tick_tock`` ticks in a timer of that node; ``shutdown`` cancels the timer, shuts the
    behaviours down, then destroys the node.
    """

    def setup(self, node: Any, timeout: float = 15.0, visitor: Any = None) -> None:
        self.node = node
        super().setup(timeout=timeout, visitor=visitor, node=node)

    def tick_tock(self, period_ms: float) -> None:
        self.timer = self.node.create_timer(period_ms / 1000.0, self.tick)

    def shutdown(self) -> None:
        self.timer.cancel()
        self.node.destroy_timer(self.timer)
        super().shutdown()


def test_a_tree_that_ticks_in_a_timer_of_its_node(stage: Stage, node: Any) -> None:
    stage.run()
    stage.wait_steps(3)
    root = py_trees.composites.Sequence(
        "s",
        memory=True,
        children=[
            trees.EpisodeReset(seed=3),
            trees.Snapshot(capsule="here"),
            trees.DropCapsule(capsule="here"),
        ],
    )
    once = py_trees.decorators.OneShot("once", root, py_trees.common.OneShotPolicy.ON_COMPLETION)
    tree = RosTree(once)
    tree.setup(node=node)
    executor = SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    tree.tick_tock(20)
    end_s = time.monotonic() + DEADLINE_S
    while once.final_status is None:
        assert time.monotonic() < end_s, trees.text_tree(root)
        executor.spin_once(timeout_sec=0.1)
    assert once.final_status is Status.SUCCESS
    tree.shutdown()
    executor.shutdown()
    assert stage.all_events(CapsuleEvent.SNAPSHOT)[-1].name == "here"


# The node is killed or frozen


class Loop:
    """A tree that is ticked over and over, with its clocks watched."""

    def __init__(self, root: Behaviour, node: Any) -> None:
        self.root, self.node = root, node
        self.executor = SingleThreadedExecutor(context=node.context)
        self.executor.add_node(node)
        self.longest_ms = 0.0
        py_trees.trees.setup(root, node=node)
        end_s = time.monotonic() + DEADLINE_S
        while missing := root.link.absent():
            assert time.monotonic() < end_s, missing
            self.executor.spin_once(timeout_sec=0.05)

    def tick(self) -> Status:
        begin_s = time.perf_counter()
        self.root.tick_once()
        self.longest_ms = max(self.longest_ms, (time.perf_counter() - begin_s) * 1e3)
        end_s = time.monotonic() + 0.01
        while (left_s := end_s - time.monotonic()) > 0:
            self.executor.spin_once(timeout_sec=left_s)
        return self.root.status

    def round(self) -> tuple[Status, float]:
        """One round, and how long it took, s."""
        begin_s = time.monotonic()
        while self.tick() is Status.RUNNING:
            assert time.monotonic() < begin_s + DEADLINE_S
        return self.root.status, time.monotonic() - begin_s

    def until(self, status: Status) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while self.round()[0] is not status:
            assert time.monotonic() < end_s, trees.text_tree(self.root)

    def close(self) -> None:
        for behaviour in self.root.iterate():
            behaviour.shutdown()
        self.executor.shutdown()


class Freeze(Behaviour):
    """Fails, with the policy node frozen, from where on its parent waits for a second only."""

    def __init__(self, stage: Stage) -> None:
        super().__init__("freeze")
        self.stage = stage

    def update(self) -> Status:
        self.stage.process.send(signal.SIGSTOP)
        self.parent.timeout_s = 1.0
        return Status.FAILURE


def test_a_retry_on_a_frozen_node_fails_in_time_and_leaves_nothing(
    stage: Stage, node: Any
) -> None:
    see_running(stage)
    for name in names(stage):
        stage.do("drop_capsule", name=name)
    root = trees.RetryFromCapsule("retry", Freeze(stage), timeout_s=DEADLINE_S)
    loop = Loop(root, node)
    assert loop.round()[0] is Status.FAILURE
    assert "retry: restore: no answer from /policy/restore within 1 s" in root.feedback_message
    stage.process.send(signal.SIGCONT)
    # What was asked of it meanwhile is done now: the restore, and the capsule's drop after it.
    end_s = time.monotonic() + DEADLINE_S
    while names(stage):
        assert time.monotonic() < end_s
    loop.close()
    stage.do("resume")


def see_running(stage: Stage) -> None:
    """Starts it, unless a test before this one has."""
    if stage.state() != State.PRIMARY_STATE_ACTIVE:
        stage.run()


def futures() -> int:
    gc.collect()
    return sum(type(thing) is Future for thing in gc.get_objects())


def test_calls_and_clients_do_not_pile_up(stage: Stage, node: Any) -> None:
    see_running(stage)
    services = len(list(node.clients))
    snapshot = trees.Snapshot(capsule="here", replace=True)
    loop = Loop(snapshot, node)
    loop.until(Status.SUCCESS)
    before = futures()
    stage.process.send(signal.SIGSTOP)  # so that none is answered
    for _ in range(30):
        assert loop.tick() is Status.RUNNING
        snapshot.stop(Status.INVALID)
    assert snapshot.link.pending == 0
    idle = futures()
    assert idle <= before
    # The control: who forgets a call keeps it.
    client = node.create_client(SnapshotType, "/policy/snapshot")
    for _ in range(30):
        client.call_async(SnapshotType.Request())
    assert len(client._pending_requests) == 30
    assert futures() >= idle + 30
    node.destroy_client(client)
    stage.process.send(signal.SIGCONT)
    loop.until(Status.SUCCESS)
    assert len(list(node.clients)) == services + 1
    loop.close()
    assert len(list(node.clients)) == services


@pytest.mark.parametrize("kill", [signal.SIGSTOP, signal.SIGKILL])
def test_a_node_that_dies_in_a_call(stage: Stage, node: Any, kill: signal.Signals) -> None:
    see_running(stage)
    snapshot = trees.Snapshot(capsule="here", replace=True, timeout_s=1.0)
    loop = Loop(snapshot, node)
    loop.until(Status.SUCCESS)
    stage.process.send(kill)
    if kill is signal.SIGKILL:
        stage.process.wait()
    assert loop.tick() is Status.RUNNING
    assert snapshot.link.pending == 1  # it is under way
    status, took_s = loop.round()
    assert status is Status.FAILURE
    assert took_s < DEADLINE_S / 2  # within its timeout, on a machine that stalls for seconds
    assert "snapshot: " in snapshot.feedback_message
    assert "/policy/snapshot" in snapshot.feedback_message
    assert snapshot.link.pending == 0
    if kill is signal.SIGKILL:
        stage.start()
        stage.run()
    else:
        stage.process.send(signal.SIGCONT)
    loop.until(Status.SUCCESS)
    assert "here" in names(stage)
    assert snapshot.link.pending == 0
    loop.close()
