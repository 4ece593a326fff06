"""Waiting for inputs and new episodes, pictures and the loop, against a node without ROS.

Pinned: that a status from before a verb, or of a node that has fallen silent, does not count as
running; that a paused policy's inputs are judged by diagnostics; and what a tree looks like.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import py_trees
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from flashrt_ros.msg import PolicyStatus
from py_trees.common import Status
from test_trees_composite import refuse
from tree_rig import Leaf, Plant

from flashrt_ros import trees
from flashrt_ros.errors import ErrorCode, NotFoundError

RUNNING, WAITING, PAUSED = PolicyStatus.RUNNING, PolicyStatus.WAITING, PolicyStatus.PAUSED

pytestmark = pytest.mark.usefixtures("no_link_left")


def wait(**options: Any) -> Plant:
    return Plant(trees.WaitUntilFresh(**options))


def test_it_waits_until_the_policy_runs() -> None:
    tree = wait()
    assert tree.tick() is Status.RUNNING
    assert tree.root.feedback_message == "no ~/status yet"
    tree.node.say_status(WAITING, "joint_states: stale")
    assert tree.tick() is Status.RUNNING
    assert tree.root.feedback_message == "WAITING: joint_states: stale"
    tree.node.say_status(RUNNING)
    assert tree.tick() is Status.SUCCESS
    tree.close()


def test_not_in_time_is_a_failure_with_the_nodes_reason() -> None:
    tree = wait(timeout_s=1.0)
    tree.node.say_status(WAITING, "joint_states: stale")
    assert tree.run(passed_s=0.125) is Status.FAILURE
    words = "running: not within 1 s: WAITING: joint_states: stale"
    assert tree.root.feedback_message == words
    tree.close()


def test_with_no_time_it_is_a_condition() -> None:
    tree = wait(timeout_s=0.0)
    assert tree.tick() is Status.FAILURE
    tree.node.say_status(RUNNING)
    assert tree.tick() is Status.SUCCESS
    tree.close()


def test_a_node_that_has_fallen_silent_does_not_run() -> None:
    tree = wait(timeout_s=0.0)
    tree.node.say_status(RUNNING)
    assert tree.tick(4.0) is Status.SUCCESS
    assert tree.tick() is Status.FAILURE
    assert "no status for 4.0 s: is it running?" in tree.root.feedback_message
    tree.close()


def test_a_status_from_before_a_verb_does_not_count() -> None:
    tree = Plant(trees.EpisodeReset(seed=3))
    tree.node.say_status(RUNNING, tick=50, generation=0)
    tree.tick()
    assert tree.tick() is Status.RUNNING
    assert tree.root.tip().feedback_message == "no ~/status since the last verb yet"
    tree.node.say_status(RUNNING, tick=51, generation=1)
    assert tree.tick() is Status.SUCCESS
    tree.node.say_status(RUNNING, tick=3, generation=0)  # the node was started anew
    condition = Plant(trees.WaitUntilFresh(timeout_s=0.0), tree.node)
    assert condition.tick() is Status.SUCCESS
    condition.close()
    tree.close()


def say_inputs(tree: Plant, *levels: bytes, node: str = "/policy") -> None:
    entries = [
        DiagnosticStatus(name=f"{node}: input t{n}", level=level, message="silent for 3 s")
        for n, level in enumerate(levels)
    ]
    motion = DiagnosticStatus(name=f"{node}: motion", level=DiagnosticStatus.ERROR)
    tree.node.hear["/diagnostics"](DiagnosticArray(status=[*entries, motion]))


def test_inputs_of_a_paused_policy_are_judged_by_diagnostics() -> None:
    ok, warn, error = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
    tree = wait(held=True)
    tree.node.say_status(PAUSED)
    say_inputs(tree, ok)  # from before the wait
    tree.node.now_s += 0.1
    assert tree.tick() is Status.RUNNING
    assert tree.root.feedback_message == "no /diagnostics of its inputs yet"
    say_inputs(tree, ok, error)
    assert tree.tick() is Status.RUNNING
    assert tree.root.feedback_message == "t1: silent for 3 s"
    say_inputs(tree, ok, ok, node="/other/policy")
    assert tree.tick() is Status.RUNNING
    say_inputs(tree, ok, warn)
    assert tree.tick() is Status.SUCCESS
    tree.close()


def test_a_new_episode_with_a_way_home() -> None:
    home = Leaf("home", [True])
    tree = Plant(trees.EpisodeReset(homing=home, seed=3, task="stack"))
    assert tree.run() is Status.SUCCESS
    assert tree.server.verbs == ["pause", "reset_episode", "resume"]
    (request,) = tree.server.requests("reset_episode")
    assert (request.hold, request.seed, request.task) == (True, 3, "stack")
    assert not tree.server.held
    tree.close()


def test_without_py_trees_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("flashrt_ros.trees")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "py_trees", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'flashrt_ros\[trees\]'"):
        importlib.import_module("flashrt_ros.trees")


# Pictures


def picked() -> Plant:
    children = [trees.Snapshot(capsule="c"), trees.Restore(capsule="c")]
    tree = Plant(py_trees.composites.Sequence("pick", memory=True, children=children))
    tree.server.refuse["restore"] = refuse(ErrorCode.BUSY)
    assert tree.run() is Status.FAILURE
    return tree


def test_a_tree_as_text_has_outcomes_words_and_times() -> None:
    tree = picked()
    lines = trees.text_tree(tree.root).splitlines()
    assert len(lines) == 3
    assert "pick [" in lines[0]
    assert "snapshot done (" in lines[1]
    assert lines[1].endswith(" ms)")
    assert "restore: BUSY: as ordered" in lines[2]
    tree.close()


def test_the_table_counts_calls_by_what_became_of_them() -> None:
    tree = picked()
    rows = {line.split()[0]: line.split() for line in trees.verb_table(tree.root).splitlines()}
    assert rows["snapshot"][1] == "1"
    assert len(rows["snapshot"]) == 5  # n, p50, p99, max
    assert rows["restore"][5:] == ["1", "refused"]
    before = trees.verb_table(tree.root)
    tree.close()
    assert trees.verb_table(tree.root) == before  # of the last run, until it is set up again
    again = Plant(tree.root)
    assert trees.verb_table(tree.root).splitlines()[1:] == []
    again.close()


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs graphviz")
def test_a_tree_as_a_drawing(tmp_path: Path) -> None:
    root = picked_root()
    root.children[0].feedback_message = 'no room in "device\\0" for <another> capsule & more'
    root.children[0].status = Status.FAILURE
    trees.write_svg(root, str(tmp_path / "tree.svg"))
    drawing = ElementTree.parse(tmp_path / "tree.svg").getroot()
    texts = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["pick", "snapshot", 'no room in "device\\0" for', "<another> capsule & more"]


def test_a_drawing_tells_outcomes_apart(tmp_path: Path) -> None:
    colours = {}
    for status in Status:
        root = picked_root()
        root.children[0].status = status
        trees.write_svg(root, tmp_path / "tree.dot")
        line = (tmp_path / "tree.dot").read_text().splitlines()[-2]
        assert line.startswith('1 [label="snapshot" shape=component')
        colours[line] = status
    assert len(colours) == len(Status)


def test_a_drawing_tells_kinds_apart(tmp_path: Path) -> None:
    leaves = [Leaf(f"leaf {n}", [True]) for n in range(6)]
    once = py_trees.composites.Sequence("sequence", True, [leaves[0], trees.Pause()])
    root = py_trees.composites.Selector(
        "selector",
        True,
        [
            once,
            py_trees.composites.Parallel(
                "parallel", py_trees.common.ParallelPolicy.SuccessOnOne(), [leaves[1]]
            ),
            trees.RetryFromCapsule("retry", leaves[2]),
            py_trees.decorators.Inverter("inverter", leaves[3]),
            trees.TryBranches("branches", leaves[4:]),
        ],
    )
    trees.write_svg(root, tmp_path / "tree.dot")
    lines = (tmp_path / "tree.dot").read_text().splitlines()
    shapes = {
        line.split('"')[1]: line.split("shape=")[1].split()[0]
        for line in lines
        if "shape=" in line
    }
    assert shapes == {
        **{leaf.name: "ellipse" for leaf in leaves},
        "pause": "component",
        "sequence": "box",
        "selector": "octagon",
        "parallel": "parallelogram",
        "retry": "hexagon",
        "inverter": "hexagon",
        "branches": "doubleoctagon",
    }


def test_without_dot_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFoundError, match="apt install graphviz"):
        trees.write_svg(picked_root(), tmp_path / "tree.svg")
    trees.write_svg(picked_root(), tmp_path / "tree.dot")
    assert "snapshot" in (tmp_path / "tree.dot").read_text()


def picked_root() -> Any:
    return py_trees.composites.Sequence("pick", memory=True, children=[trees.Snapshot()])
