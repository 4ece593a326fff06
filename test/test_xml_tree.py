"""A tree of BehaviorTree.CPP as a behaviour of py_trees, and the other way round.

Pinned because the examples in XML are judged by it: outcomes are neither lost nor made up on the
way, and what is interrupted on one side ends on the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import py_trees
import pytest

pytest.importorskip("behaviortreepy")
pytest.importorskip("rclpy")
pytest.importorskip("mujoco")

from py_trees.common import Status
from tree_rig import Leaf, Plant

from flashrt_ros.demo.trees import command
from flashrt_ros.demo.trees.xml_tree import EXPECTED, FAILED, XmlTree, steps_of

ONE = """
<root BTCPP_format="4" main_tree_to_execute="One">
  <BehaviorTree ID="One">
    <Sequence>
      <RetryFromCapsule num_attempts="3" attempt="{attempts}"><Work/></RetryFromCapsule>
      <Last/>
    </Sequence>
  </BehaviorTree>
</root>
"""


@pytest.fixture
def one(tmp_path: Path) -> Path:
    (tmp_path / "one.xml").write_text(ONE)
    return tmp_path / "one.xml"


@pytest.fixture
def planted() -> Iterator[Any]:
    plants = []

    def plant(root: Any) -> Plant:
        plants.append(Plant(root))
        return plants[-1]

    yield plant
    for each in plants:
        each.close()
        assert each.node.clients == []


@pytest.mark.parametrize(
    ("work", "last", "status", "attempts", "failed"),
    [
        ([True], True, Status.SUCCESS, 1, None),
        ([False, True], True, Status.SUCCESS, 2, "Work"),
        ([True], False, Status.FAILURE, 1, "Last"),
        ([False, False, False], True, Status.FAILURE, 3, "Work"),
    ],
)
def test_outcomes_and_entries_come_out(
    one: Path,
    planted: Any,
    work: list[bool],
    last: bool,
    status: Status,
    attempts: int,
    failed: Any,
) -> None:
    leaves = {"Work": Leaf("work", work), "Last": Leaf("last", [last])}
    root = XmlTree(one, leaves, ["attempts", FAILED])
    plant = planted(root)
    assert plant.run() is status
    assert root.facts == {"attempts": attempts, FAILED: failed}
    assert len(leaves["Work"].found) == attempts
    assert len({seed for seed, _ in leaves["Work"].found}) == attempts
    lines = root.text().splitlines()
    assert lines[0] == f"one.xml {status.value}"
    assert sum(line.split()[1] == "Work" for line in lines[1:]) >= 1


def test_interrupted_it_halts_its_leaves(one: Path, planted: Any) -> None:
    work = Leaf("work", [True], ticks=1000)
    root = XmlTree(one, {"Work": work, "Last": Leaf("last", [True])}, [])
    plant = planted(root)
    while work.status is not Status.RUNNING:
        plant.tick()
    root.stop(Status.INVALID)
    assert work.ended == [Status.INVALID]
    plant.node.spin()
    assert plant.server.capsules == {}
    assert plant.pending == 0


def test_a_leaf_that_is_closed_stops_its_behaviour_and_one_that_ends_does_not() -> None:
    running = py_trees.behaviours.Running("r")
    steps = steps_of(running)(None)
    next(steps)
    assert running.status is Status.RUNNING
    steps.close()
    assert running.status is Status.INVALID
    done = py_trees.behaviours.StatusQueue("q", [Status.RUNNING, Status.FAILURE], None)
    steps = steps_of(done)(None)
    next(steps)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value is False
    assert done.status is Status.FAILURE


def test_every_example_is_there_in_xml_too() -> None:
    folder = Path(command.__file__).parent
    assert set(EXPECTED) == set(command.EXAMPLES) == {file.stem for file in folder.glob("*.xml")}
