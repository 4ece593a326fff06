"""The trees of ``trees/`` at a running policy node, run by BehaviorTree.CPP itself.

Pinned: the XML that is shipped is valid and does what its comments say; attempts and branches
begin in the same state, to the last bit; and a policy node killed in the middle of a call is a
FAILURE within the time-out, after which the same tree works again as soon as the node is back.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from flashrt_ros.msg import CapsuleEvent, PolicyStatus
from node_peer import DEADLINE_S
from rclpy.executors import SingleThreadedExecutor
from stage import Stage, arm_contract

from flashrt_ros.trees import rows
from flashrt_ros.trees.btcpp import Ports, Steps, Tree, TreeFactory
from flashrt_ros.trees.link import _links

pytestmark = pytest.mark.ros
TREES = Path(__file__).resolve().parents[1] / "trees"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("btcpp")) as stage:
        yield stage


class Ticker:
    """Ticks trees on a ROS node that is spun in between."""

    def __init__(self, stage: Stage) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=stage.domain)
        self.node = rclpy.create_node("tree", context=self.context)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self.factory = TreeFactory(self.node, "/policy")

    def tick(self, tree: Tree) -> str:
        status = tree.tick()
        end_s = time.monotonic() + 0.01
        while (left_s := end_s - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=left_s)
        return status

    def through(
        self, tree: Tree, ticked: Callable[[], Any] = lambda: None, limit_s: float = DEADLINE_S
    ) -> str:
        """Ticks to the end, but not for ever."""
        end_s = time.monotonic() + limit_s
        while (status := self.tick(tree)) == "RUNNING":
            assert time.monotonic() < end_s, list(tree.outcomes)
            ticked()
        return status

    def close(self) -> None:
        assert _links == {}, "a tree left a link behind"
        assert list(self.node.clients) == []
        self._executor.shutdown()
        self.node.destroy_node()
        self.context.try_shutdown()


@pytest.fixture
def ticker(stage: Stage) -> Iterator[Ticker]:
    ticker = Ticker(stage)
    yield ticker
    ticker.close()


class Robot:
    """The leaves of the examples: a retreat that moves nothing, and work that ends as told.

    Attributes:
        first: ``state_digest`` of the first control step of each round of work.
        forces: What the port of that name held.
    """

    def __init__(self, stage: Stage, ticker: Ticker, outcomes: list[bool]) -> None:
        self.stage, self.outcomes = stage, outcomes
        self.first: list[str] = []
        self.forces: list[str] = []
        self._begun = 0
        ticker.factory.leaf("Retreat", self.retreat)
        ticker.factory.leaf("Brief", lambda ports: True)
        ticker.factory.leaf("Reach", self.work)
        ticker.factory.leaf("Grasp", self.work, inputs=["force"])

    def retreat(self, ports: Ports) -> bool:
        """Stands still until all control steps so far have been heard of."""
        self.stage.do("pause")
        self.stage.wait_all_steps()
        self._begun = len(self.stage.steps)
        return True

    def work(self, ports: Ports) -> Steps:
        while not (seen := [s for s in self.stage.steps[self._begun :] if s.published]):
            yield
        self.first.append(seen[0].state_digest)
        self.forces.append(str(ports.read("force")))
        return self.outcomes[len(self.first) - 1]


def names(stage: Stage) -> list[str]:
    return [capsule.name for capsule in stage.do("list_capsules").capsules]


def altered(tmp_path: Path, name: str, *changes: tuple[str, str]) -> Path:
    """An example with some of its text replaced."""
    text = (TREES / name).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / name
    path.write_text(text)
    return path


def retried(
    stage: Stage, ticker: Ticker, path: Path, main: str = "PickAndRetry"
) -> tuple[str, Robot, Tree]:
    """Status of the tree, its robot, and the tree, which is closed."""
    stage.run()
    robot = Robot(stage, ticker, [False, False, True])
    with ticker.factory.load(path, main) as tree:
        status = ticker.through(tree)
        if main == "PickAndRetry":
            assert float(tree.entry("attempt")) == 3
    assert names(stage) == []
    return status, robot, tree


def test_pick_and_retry(stage: Stage, ticker: Ticker) -> None:
    status, robot, tree = retried(stage, ticker, TREES / "pick_and_retry.xml")
    assert status == "SUCCESS", list(tree.outcomes)
    (taken,) = stage.all_events(CapsuleEvent.SNAPSHOT)
    restored = stage.all_events(CapsuleEvent.RESTORE)
    assert [event.step for event in restored] == [taken.step] * 2
    assert len({event.seed for event in restored}) == 2
    # Other noise each time, so each attempt goes another way.
    assert len(set(robot.first)) == 3


def test_each_attempt_begins_in_the_same_state(
    stage: Stage, ticker: Ticker, tmp_path: Path
) -> None:
    same = ("<RetryFromCapsule num", '<RetryFromCapsule reseed="false" num')
    path = altered(tmp_path, "pick_and_retry.xml", same)
    status, robot, _ = retried(stage, ticker, path)
    assert status == "SUCCESS"
    assert len(robot.first) == 3
    assert len(set(robot.first)) == 1


def test_a_retry_without_the_capsule_begins_elsewhere(stage: Stage, ticker: Ticker) -> None:
    """The control of the test before."""
    path = TREES / "pick_and_retry.xml"
    status, robot, _ = retried(stage, ticker, path, "JustAgain")
    assert status == "SUCCESS"
    assert len(set(robot.first)) == 3
    assert stage.all_events(CapsuleEvent.RESTORE) == []


def test_two_strategies(stage: Stage, ticker: Ticker, tmp_path: Path) -> None:
    stage.run()
    stage.wait_steps(3)
    robot = Robot(stage, ticker, [False, True, False, True, False, False])
    with ticker.factory.load(TREES / "two_strategies.xml") as tree:
        assert ticker.through(tree) == "SUCCESS", list(tree.outcomes)
        assert tree.entry("winner") == "1.000000"
    assert robot.forces == ["low", "high"]
    (taken,) = stage.all_events(CapsuleEvent.SNAPSHOT)
    restored = stage.all_events(CapsuleEvent.RESTORE)
    assert [event.step for event in restored] == [taken.step] * 2
    assert [capsule.noise_key for capsule in stage.steps[-1:]] == [12]
    # With one noise key for both, the second begins exactly as the first did.
    same = altered(tmp_path, "two_strategies.xml", ("11;12", "11;11"))
    with ticker.factory.load(same) as tree:
        assert ticker.through(tree) == "SUCCESS"
    assert robot.first[0] != robot.first[1]
    assert robot.first[2] == robot.first[3]
    # Without a winner the state of the beginning is back.
    with ticker.factory.load(TREES / "two_strategies.xml") as tree:
        assert ticker.through(tree) == "FAILURE"
        with pytest.raises(Exception, match="winner"):
            tree.entry("winner")
    assert stage.all_events(CapsuleEvent.RESTORE)[-1].name.startswith("origin")
    assert names(stage) == []


def test_a_watchdog_pauses_on_stale_input_and_goes_on(stage: Stage, ticker: Ticker) -> None:
    stage.run(contract=arm_contract(max_age_ms=200.0))
    done: list[bool] = []

    def work(ports: Ports) -> Steps:
        while not done:
            yield
        return True

    ticker.factory.leaf("Work", work)
    with ticker.factory.load(TREES / "watchdog.xml") as tree:

        def until(mode: int) -> None:
            end_s = time.monotonic() + DEADLINE_S
            while stage.statuses[-1].mode != mode:
                assert time.monotonic() < end_s, (mode, stage.statuses[-1], tree.outcomes)
                assert ticker.tick(tree) == "RUNNING"

        while not tree.outcomes:  # until it has heard of the policy
            assert ticker.tick(tree) == "RUNNING"
        for _ in range(40):
            assert ticker.tick(tree) == "RUNNING"
        # It lets a healthy policy be; a machine that stalled made the input stale already.
        failed = [o.message for o in tree.outcomes if (o.name, o.status) == ("running", "FAILURE")]
        assert all("joint_states" in words for words in failed)
        assert [o.name for o in tree.outcomes].count("Pause") <= len(failed)
        until(PolicyStatus.RUNNING)
        stage.robot.quiet = True
        until(PolicyStatus.PAUSED)
        words = [o.message for o in tree.outcomes if o.name == "running"][-1]
        assert "joint_states" in words
        stage.robot.quiet = False
        until(PolicyStatus.RUNNING)
        done.append(True)
        assert ticker.through(tree) == "SUCCESS"


def test_the_best_preview_becomes_live(stage: Stage, ticker: Ticker) -> None:
    stage.run()
    stage.wait_steps(3)
    scores: dict[str, float] = {}

    def choose(ports: Ports) -> bool:
        branches = str(ports.read("branches")).split(";")
        for branch, chunk in zip(branches, ports.read("chunks"), strict=True):
            scores[branch] = float(rows(chunk)[0, 0])
        ports.write("best", max(scores, key=lambda branch: scores[branch]))
        return True

    ticker.factory.leaf("Choose", choose, inputs=["branches", "chunks"], outputs=["best"])
    with ticker.factory.load(TREES / "choose_by_preview.xml") as tree:
        assert ticker.through(tree) == "SUCCESS", list(tree.outcomes)
    assert len(set(scores.values())) == 3, "seeds must make a difference"
    assert stage.all_events(CapsuleEvent.RESTORE)[-1].name == max(scores, key=lambda b: scores[b])
    stage.wait_status(PolicyStatus.HOLDING)


def test_a_node_that_is_killed_in_a_call(stage: Stage, ticker: Ticker, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.xml"
    path.write_text(
        '<root BTCPP_format="4"><BehaviorTree ID="Main"><Snapshot capsule="here" replace="true" '
        'timeout_ms="1000" message="{words}" error_code="{code}"/></BehaviorTree></root>'
    )
    stage.run()
    with ticker.factory.load(path) as tree:
        while ticker.through(tree) != "SUCCESS":
            pass
        stage.process.send(signal.SIGKILL)
        stage.process.wait()
        begin_s = time.monotonic()
        assert ticker.tick(tree) == "RUNNING"
        assert tree.link.pending == 1  # it is under way
        assert ticker.through(tree) == "FAILURE"
        # Within its time-out, on a machine that stalls for seconds.
        assert time.monotonic() - begin_s < DEADLINE_S / 2
        assert "/policy/snapshot" in tree.entry("words")
        assert float(tree.entry("code")) == 18
        assert tree.link.pending == 0
        stage.start()
        stage.run()
        end_s = time.monotonic() + DEADLINE_S
        while ticker.through(tree) != "SUCCESS":
            assert time.monotonic() < end_s, list(tree.outcomes)
        assert "here" in names(stage)
        assert tree.link.pending == 0
