"""Runs the program of the page on behaviour trees: what a reader copies must do what it says.

With a policy node that only answers, so that what the tree asks can be counted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("py_trees")

import numpy as np
from flashrt_ros.msg import ActionChunk
from py_trees.common import Status
from tree_rig import Leaf, Plant

from flashrt_ros import trees

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def blocks(language: str, page: str = "trees.md") -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def block(language: str) -> str:
    (found,) = blocks(language)
    return found


@pytest.fixture
def job() -> Iterator[ModuleType]:
    module = ModuleType("job")
    sys.modules["job"] = module
    exec(compile(block("python"), "docs/trees.md", "exec"), module.__dict__)
    yield module
    del sys.modules["job"]


def played(job: ModuleType, done: list[bool]) -> tuple[Status, list[str], Plant, list[Leaf]]:
    homes: list[Leaf] = []

    def move_back() -> Leaf:
        homes.append(Leaf(f"home {len(homes)}", [True]))
        return homes[-1]

    plant = Plant(job.make_tree(move_back, lambda: Leaf("done?", done)))
    status = plant.run()
    return status, plant.server.verbs, plant, homes


def test_the_tree_tries_again_from_the_state_in_which_it_began(job: ModuleType) -> None:
    status, verbs, plant, homes = played(job, [False, True])
    assert status is Status.SUCCESS
    begin = ["pause", "reset_episode", "resume"]
    assert verbs == [
        *begin,
        *["snapshot", "pause", "resume"],
        *["restore", "pause", "resume"],
        "drop_capsule",
    ]
    assert plant.server.requests("reset_episode")[0].task == "put the block into the tray"
    # Both attempts found the same memory, under different noise.
    (first_seed, first), (second_seed, second) = homes[1].found
    assert first == second
    assert first_seed != second_seed
    plant.close()


def test_control_what_fails_three_times_is_a_failure(job: ModuleType) -> None:
    status, verbs, plant, _ = played(job, [False])
    assert status is Status.FAILURE
    assert verbs.count("restore") == 2
    plant.close()


def test_the_sensor_decides_and_only_from_the_beginning_of_an_attempt(job: ModuleType) -> None:
    now = [0.0]

    class Moment:
        def __init__(self) -> None:
            self.at_s = now[0]

        def __sub__(self, other: Any) -> Any:
            return SimpleNamespace(nanoseconds=(self.at_s - other.at_s) * 1e9)

    node = SimpleNamespace(
        get_clock=lambda: SimpleNamespace(now=Moment),
        create_subscription=lambda kind, topic, callback, depth: callback,
    )
    leaf = job.SeenDone("done?")
    leaf.setup(node=node)
    leaf.see(SimpleNamespace(data=True))  # before the attempt
    leaf.tick_once()
    assert leaf.status is Status.RUNNING
    leaf.see(SimpleNamespace(data=True))
    leaf.tick_once()
    assert leaf.status is Status.SUCCESS
    leaf.tick_once()
    now[0] += 11.0
    leaf.tick_once()
    assert leaf.status is Status.FAILURE


def test_the_xml_has_nodes_that_exist_with_ports_that_they_have() -> None:
    model = ElementTree.parse(ROOT / "trees" / "flashrt_ros_nodes.xml").getroot()
    known = {
        node.get("ID"): {port.get("name") for port in node}
        for node in model.iter()
        if node.get("ID")
    }
    of_the_library = {"Sequence": set(), "SubTree": {"ID"}}
    for node in ElementTree.fromstring(block("xml")).iter():
        ports = known.get(node.tag, of_the_library.get(node.tag))
        assert ports is not None, node.tag
        assert set(node.attrib) <= ports, node.tag


def test_the_commands_of_the_page_exist() -> None:
    from flashrt_ros.demo.trees.command import EXAMPLES

    named = set(re.findall(r"flashrt_ros trees (\w+)", (DOCS / "trees.md").read_text()))
    assert named == set(EXAMPLES)


def test_the_score_of_the_reference_takes_the_branch_that_ends_nearest() -> None:
    spin, choose = blocks("python", "trees_reference.md")
    compile(spin, "trees_reference.md", "exec")
    scope: dict[str, Any] = {"trees": trees, "goal": np.array([1.0, 1.5])}
    exec(compile(choose, "trees_reference.md", "exec"), scope)

    def chunk(*data: float) -> ActionChunk:
        return ActionChunk(horizon=2, names=["base", "elbow"], data=list(data))

    near, far, bent = chunk(0, 0, 1, 1.4), chunk(0, 0, 0, 0), chunk(0, 2.1, 1, 1.5)
    scores = [scope["score"](each) for each in (near, far, bent)]
    assert scores[0] > scores[1] > scores[2] == -np.inf
    assert isinstance(scope["choose"], trees.ChooseByPreview)
