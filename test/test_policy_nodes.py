"""Several policies in one process: each moves its own robot, and who fails stops its own only.

What would couple them is an executor or a thread that they share: then a configure of one, which
takes a second, leaves the other without input.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import node_process
import puppet
import pytest
from flashrt_ros.msg import PolicyStatus
from lifecycle_msgs.msg import Transition
from node_peer import Log
from node_process import NodeProcess
from stage import Stage

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.ros.policy_nodes import main, names_of

HOST = "import sys; from flashrt_ros.ros.policy_nodes import main; sys.exit(main())"


def test_names_are_read_up_to_the_ros_arguments() -> None:
    assert names_of(["/left/policy", "/a/b/c", "/one", "--ros-args", "-p", "x:=1"]) == [
        ("/left", "policy"),
        ("/a/b", "c"),
        ("/", "one"),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected full names such as /left/policy /right/policy, found none"),
        (["policy"], "expected a full name such as /left/policy, found 'policy'"),
        (["/a/", "/b"], "found '/a/'"),
        (["/a", "/a"], "expected each name once"),
        (["/a", "/b", "--ros-args", "-r", "__ns:=/c"], "would rename all nodes alike"),
    ],
)
def test_what_names_no_nodes_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        names_of(words)


class Side(Stage):
    """One of two nodes in a process that another stage has started."""

    def __init__(self, folder: Path, namespace: str, host: NodeProcess, domain: int) -> None:
        self._host = host
        super().__init__(folder, domain, namespace)

    def start(self) -> None:
        self.process = self._host
        self._wait_until_known()

    def close(self) -> None:
        self.robot.close()
        self.peer.close()


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    folder = tmp_path_factory.mktemp("nodes")
    domain = node_process.Domain()
    names = ("/left/policy", "/right/policy")
    host = NodeProcess(folder, domain.id, main=HOST, words=names)
    left = Side(folder / "l", "/left", host, domain.id)
    right = Side(folder / "r", "/right", host, domain.id)
    try:
        yield left, right
    finally:
        for side in (left, right):
            side.close()
        host.close()
        domain.close()


@pytest.mark.ros
def test_two_robots_side_by_side_and_a_failure_stops_one(sides: tuple[Side, Side]) -> None:
    left, right = sides
    # Both begin where every robot of the tests does, and are within reach of a first command from
    # there, whichever measurement it came from.
    for side, position in ((left, [0.2, 0.1]), (right, [-0.15, -0.2])):
        side.folder.mkdir(exist_ok=True)
        side.activate()
        side.robot.position = position
    for side in sides:
        side.wait_running()
    _assert_apart(left, right)
    left.do("snapshot", name="mine")
    assert {c.name for c in right.do("list_capsules").capsules} == set()
    left.robot.velocity = [puppet.RAISES, 0.0]
    left.wait_status(PolicyStatus.HOLDING, "the puppet's string broke")
    _assert_moves(right)
    # While one is configured anew the other goes on, and answers.
    left.robot.velocity = [0.0, 0.0]
    right.clear()
    begun = _now_ns(right)
    left.transit(Transition.TRANSITION_DEACTIVATE)
    left.transit(Transition.TRANSITION_CLEANUP)
    left.transit(Transition.TRANSITION_CONFIGURE)
    left.transit(Transition.TRANSITION_ACTIVATE)
    ended = _now_ns(right)
    left.wait_running()
    right.peer.wait(
        lambda: right.steps and _stamp_ns(right.steps[-1]) > ended, "steps from then on"
    )
    assert [step for step in right.steps if begun < _stamp_ns(step) < ended]
    right.peer.wait(
        lambda: right.statuses and _stamp_ns(right.statuses[-1]) > ended, "a status from then on"
    )
    assert {s.mode for s in right.statuses} == {PolicyStatus.RUNNING}
    _assert_moves(right)
    _assert_moves(left)


def _assert_moves(side: Side) -> None:
    side.commands.clear()
    side.wait_steps(5)
    side.peer.wait(lambda: len(side.commands) >= 3, "commands")
    side.do("list_capsules")


def _assert_apart(left: Side, right: Side) -> None:
    """Each commands what its own robot measures; the first commands may be of the start."""

    def follows(side: Side, sign: int) -> bool:
        last = side.commands[-3:]
        return len(last) == 3 and all(sign * command.position[0] > 0.1 for command in last)

    for side, sign in ((left, 1), (right, -1)):
        side.peer.wait(functools.partial(follows, side, sign), f"commands of {side.namespace}")


def _reaches(log: Log, stamp_ns: int) -> bool:
    return bool(log) and _stamp_ns(log[-1]) > stamp_ns


def _now_ns(side: Side) -> int:
    return int(side.peer.node.get_clock().now().nanoseconds)


def _stamp_ns(message: Any) -> int:
    return int(message.header.stamp.sec * 10**9 + message.header.stamp.nanosec)


def test_wrong_names_end_with_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy"]) == 1
    assert "expected a full name" in capsys.readouterr().err
