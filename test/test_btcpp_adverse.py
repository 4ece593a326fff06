"""What happens around a tree of BehaviorTree.CPP while it runs, without ROS.

Pinned, as ``test_trees_adverse.py`` does for py_trees: a parent that halts a control node in any
of its states leaves nothing behind, without the tree being halted or beginning anew; a lost call
ends a control node within its time-out; and what a leaf raises, wherever it does, comes out of the
tick with everything given back.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from btcpp_rig import Plant
from tree_rig import RefusalError

from flashrt_ros.errors import ErrorCode, InvalidArgumentError
from flashrt_ros.trees.btcpp import Ports, Steps

NODES = {
    "retry": '<RetryFromCapsule timeout_ms="1000" message="{m}"><Try/></RetryFromCapsule>',
    "try": '<TryBranches timeout_ms="1000" message="{m}"><Try/><Try/></TryBranches>',
    "retry in branches in retry": '<RetryFromCapsule timeout_ms="1000"><TryBranches>'
    "<RetryFromCapsule><Try/></RetryFromCapsule><Try/></TryBranches></RetryFromCapsule>",
}


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    plant = Plant(tmp_path)
    plant.outcomes = [False] * 99
    return plant


def refuse(code: ErrorCode) -> Callable[[Any], None]:
    def handler(request: Any) -> None:
        raise RefusalError(code, "as ordered")

    return handler


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("ticks", range(1, 8))
def test_a_parent_that_halts_leaves_nothing(plant: Plant, node: str, ticks: int) -> None:
    halts: list[bool] = []
    plant.factory.leaf("Halt", lambda ports: halts[-1])
    body = f"<ReactiveFallback><Halt/>{NODES[node]}</ReactiveFallback>"
    with plant.tree(body) as tree:
        halts.append(False)
        for _ in range(ticks):
            assert plant.tick(tree) == "RUNNING"
        halts.append(True)
        assert plant.tick(tree) == "SUCCESS"
        plant.node.spin()
        assert plant.server.capsules == {}
        assert plant.server.pinned == set()
        assert tree.link.pending == 0
        log = list(plant.server.verbs)
        plant.node.spin()
        assert plant.server.verbs == log, "something goes on"
        halts.append(False)
        assert plant.through(tree) == "FAILURE"  # and it can begin anew
        assert plant.server.capsules == {}


def test_a_time_limit_is_a_parent_that_halts(plant: Plant) -> None:
    plant.factory.leaf("Stay", lambda ports: stay())

    def stay() -> Steps:
        while True:
            yield

    body = '<Timeout msec="1500"><RetryFromCapsule><Stay/></RetryFromCapsule></Timeout>'
    with plant.tree(body) as tree:
        begin_s = plant.node.now_s
        assert plant.through(tree) == "FAILURE"
        assert 1.5 <= plant.node.now_s - begin_s < 1.8
        plant.node.spin()
        assert plant.server.capsules == {}
    plant.outcomes = [True]
    status, tree = plant.run('<Timeout msec="1500"><Try/></Timeout>')
    assert status == "SUCCESS"
    assert [outcome.name for outcome in tree.outcomes] == ["Try"]
    with pytest.raises(InvalidArgumentError, match="Timeout: expected one child, and msec"):
        plant.tree("<Timeout><Try/></Timeout>")


def test_drops_that_are_halted_are_sent_when_the_service_is_back(plant: Plant) -> None:
    plant.outcomes, halts = [True], [False]
    plant.factory.leaf("Halt", lambda ports: halts[0])
    body = f"<ReactiveFallback><Halt/>{NODES['retry']}</ReactiveFallback>"
    with plant.tree(body) as tree:
        while not plant.live:
            assert plant.tick(tree) == "RUNNING"
        plant.node.there = False
        assert plant.tick(tree) == "RUNNING"  # the child has succeeded, and its capsule should go
        halts[0] = True
        assert plant.tick(tree) == "SUCCESS"
        assert plant.server.capsules != {}
        plant.node.there = True
    plant.node.spin()
    assert plant.server.capsules == {}


def test_a_leaf_that_is_halted_by_itself_keeps_the_capsule(plant: Plant) -> None:
    """The control of the above: not every halt below a control node is one of the node."""
    cuts = [False, True]
    plant.factory.leaf("Cut", lambda ports: cuts.pop(0))
    inner = "<ReactiveFallback><Cut/><Try/></ReactiveFallback>"
    plant.factory.leaf("Kept", lambda ports: bool(plant.server.capsules))
    body = f"<RetryFromCapsule><Sequence>{inner}<Kept/></Sequence></RetryFromCapsule>"
    status, tree = plant.run(body)
    assert status == "SUCCESS"
    assert ("Try", "HALTED") in [(outcome.name, outcome.status) for outcome in tree.outcomes]
    assert plant.server.capsules == {}


@pytest.mark.parametrize("node", ["retry", "try"])
@pytest.mark.parametrize("verb", ["snapshot", "fork", "restore"])
def test_a_lost_call_ends_it_within_its_time_out(plant: Plant, node: str, verb: str) -> None:
    plant.server.silent |= {verb, "drop_capsule"}
    if verb == "fork" and node == "retry":
        plant.server.silent.add("restore")
    with plant.tree(NODES[node]) as tree:
        begin_s = plant.node.now_s
        assert plant.through(tree) == "FAILURE"
        assert plant.node.now_s - begin_s < 2.0  # one time-out of 1 s, and some ticks
        assert "no answer from /policy/" in tree.entry("m")
        plant.server.silent.clear()
        for _ in range(2):  # the requests that were sent arrive, the drops as well
            plant.node.now_s += 1.0
            tree.link.begin("drop_capsule", {"name": "none"}, 1.0)
            plant.node.spin()
        assert plant.server.verbs.count("restore") == 0


def test_a_store_full_of_pinned_capsules(plant: Plant) -> None:
    plant.server.room = 0
    for node in ("retry", "try"):
        status, tree = plant.run(NODES[node])
        assert status == "FAILURE"
        assert tree.entry("m") == "snapshot: NO_MEMORY: all are pinned"
    assert plant.live == []


@pytest.mark.parametrize("node", ["retry", "try"])
def test_a_full_store_takes_no_capsule_that_is_needed(plant: Plant, node: str) -> None:
    plant.server.room = 3

    def hoard(ports: Ports) -> bool:
        for number in range(9):
            plant.server._make(f"{ports.path} {len(plant.server.log)} {number}", (0, ""))
        return False

    plant.factory.leaf("Hoard", hoard)
    plant.server.live = (9, "before")
    status, tree = plant.run(
        NODES[node].replace("<Try/><Try/>", "<Try/>").replace("Try/", "Hoard/")
    )
    assert status == "FAILURE"
    assert plant.server.live[1] == "before"
    assert tree.entry("m") == {"retry": "attempt 3 failed", "try": "branch 1 failed"}[node]
    assert plant.server.pinned == set()


@pytest.mark.parametrize("node", ["retry", "try"])
@pytest.mark.parametrize("code", [c for c in ErrorCode if c is not ErrorCode.NONE])
def test_every_refusal_has_its_end(plant: Plant, node: str, code: ErrorCode) -> None:
    plant.server.refuse["restore"] = refuse(code)
    status, tree = plant.run(NODES[node])
    assert status == "FAILURE"
    assert tree.entry("m") == f"restore: {code.name}: as ordered"
    plant.node.spin()
    assert plant.server.capsules == {}


@pytest.mark.parametrize("node", ["retry", "try"])
@pytest.mark.parametrize("ticks", range(1, 10))
def test_a_node_that_restarts_in_the_middle(plant: Plant, node: str, ticks: int) -> None:
    with plant.tree(NODES[node]) as tree:
        for _ in range(ticks):
            if plant.tick(tree) != "RUNNING":
                break
        else:
            plant.server.restart()
            assert plant.through(tree) == "FAILURE"
        plant.node.spin()
        assert plant.server.capsules == {}
        assert plant.through(tree) == "FAILURE"
        assert plant.server.capsules == {}


def test_what_a_leaf_raises_as_it_is_closed(plant: Plant) -> None:
    def stubborn(ports: Ports) -> Steps:
        try:
            yield
        finally:
            raise RuntimeError("the gripper does not open")

    plant.factory.leaf("Stubborn", stubborn)
    with plant.tree("<Stubborn/>") as tree:
        assert tree.tick() == "RUNNING"
        with pytest.raises(RuntimeError, match="does not open"):
            tree.halt()
    tree = plant.tree("<RetryFromCapsule><Stubborn/></RetryFromCapsule>")
    while not plant.server.capsules:
        plant.tick(tree)
    plant.tick(tree)
    with pytest.raises(RuntimeError, match="does not open"):
        tree.close()
    plant.node.spin()
    assert plant.server.capsules == {}
    assert plant.node.clients == []


def test_ctrl_c_within_a_leaf_comes_out_of_the_tick(plant: Plant) -> None:
    def interrupted(ports: Ports) -> bool:
        raise KeyboardInterrupt

    plant.factory.leaf("Interrupted", interrupted)
    with plant.tree("<Interrupted/>") as tree, pytest.raises(KeyboardInterrupt):
        tree.tick()


def test_a_closed_tree_is_not_ticked(plant: Plant) -> None:
    tree = plant.tree("<Snapshot/>")
    tree.close()
    with pytest.raises(InvalidArgumentError, match="expected a tree that is open"):
        tree.tick()
    tree.close()
    assert plant.node.clients == []


def test_two_trees_on_one_node_keep_their_capsules_apart(plant: Plant) -> None:
    plant.outcomes = [False, False, True, True]
    first, second = plant.tree(NODES["retry"]), plant.tree(NODES["retry"])
    left = [first, second]
    while left:
        left = [tree for tree in left if plant.tick(tree) == "RUNNING"]
    assert len({request.name for request in plant.server.requests("snapshot")}) == 2
    first.close()
    assert plant.node.clients != []
    second.close()
    assert plant.node.clients == []
    assert plant.server.capsules == {}
