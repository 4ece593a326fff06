"""Trees of BehaviorTree.CPP with Python leaves, without ROS.

Pinned: what XML means to leaves whose bindings know no ports (types, defaults, entries, subtrees,
lists); the order in which control nodes call and what they leave behind, which is that of the C++
nodes; and that whatever is wrong in XML is refused with its name before anything is ticked.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import behaviortreepy
import pytest
from btcpp_rig import Plant
from tree_rig import RefusalError

from flashrt_ros.errors import ErrorCode, InvalidArgumentError, NotFoundError
from flashrt_ros.trees.btcpp import Ports, Steps
from flashrt_ros.trees.btcpp.model import NEEDED, nodes

TREES = Path(__file__).resolve().parents[1] / "trees"


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    return Plant(tmp_path)


def test_ports_become_fields_of_the_request(plant: Plant) -> None:
    plant.run('<Fork source="" count="2" seeds=" 4; 5 ;" names="a;b"/>')
    (request,) = plant.server.requests("fork")
    assert (request.count, list(request.seeds), list(request.names)) == (2, [4, 5], ["a", "b"])
    plant.run('<Restore capsule="a" publish="true" set_seed="1" seed="18446744073709551615"/>')
    (request,) = plant.server.requests("restore")
    assert (request.name, request.publish, request.allow_inexact) == ("a", True, False)
    assert (request.set_seed, request.seed) == (True, 2**64 - 1)


def test_entries_go_from_node_to_node_through_subtrees_and_scripts(plant: Plant) -> None:
    status, tree = plant.run(
        '<Sequence><Script code="n := 7; yes := true"/>'
        '<SubTree ID="Take" capsule="{c}"/>'
        '<Restore capsule="{c}" set_seed="{yes}" seed="{n}" generation="{g}" message="{words}"/>'
        '<ScriptCondition code="g == 1"/></Sequence>',
        '<BehaviorTree ID="Take"><Snapshot capsule="x" capsule_name="{capsule}"/></BehaviorTree>',
    )
    assert status == "SUCCESS", list(tree.outcomes)
    assert plant.server.live == (7, "start")
    assert tree.entry("words") == "restore done"
    with pytest.raises(NotFoundError, match="'nothing'"):
        tree.entry("nothing")


def test_success_false_is_failure_with_the_reason(plant: Plant) -> None:
    status, tree = plant.run('<Restore capsule="no" message="{m}" error_code="{e}" step="{s}"/>')
    assert status == "FAILURE"
    assert tree.entry("m") == "restore: NOT_FOUND: no capsule 'no'"
    assert float(tree.entry("e")) == ErrorCode.NOT_FOUND
    assert tree.outcomes[-1].message == tree.entry("m")
    with pytest.raises(NotFoundError):
        tree.entry("s")


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ('<Restore capsule="a" seed="7"', 'expected set_seed="true"'),
        ('<ResetEpisode task="stack"', 'expected set_task="true"'),
        ('<Fork seeds="1;x"', "expected whole numbers"),
        ('<Fork count="-1"', "whole number from 0 on, found '-1'"),
        ('<Fork count="4294967296"', "count: expected uint32"),
        ('<Restore capsule="a" publish="perhaps"', "true or false, found 'perhaps'"),
        ('<Restore capsule="{nowhere}"', "entry {nowhere}, which nobody has written"),
    ],
)
def test_what_the_service_would_not_heed_is_not_sent(plant: Plant, node: str, words: str) -> None:
    status, tree = plant.run(f'{node} message="{{m}}" error_code="{{e}}"/>')
    assert status == "FAILURE"
    assert words in tree.entry("m")
    assert plant.server.log == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('<Snapshot colour="red"/>', "found ['colour']"),
        ("<Unheard/>", "Unheard"),
        ("<Snapshot><Try/></Snapshot>", "no child, found 1"),
        ("<RetryFromCapsule/>", "one child, found 0"),
        ("<TryBranches/>", "at least one child"),
        ('<Sequence><Snapshot service_name="/other/restore"/></Sequence>', "NODE/snapshot"),
        ('<Snapshot service_name="{s}"/>', "NODE/snapshot"),
    ],
)
def test_a_tree_that_cannot_be_is_refused(plant: Plant, body: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        plant.tree(body)
    assert words in str(error.value)
    assert plant.node.clients == []


def test_files_that_are_no_trees_are_refused(plant: Plant, tmp_path: Path) -> None:
    for text, words in (
        ("<root>", "expected XML"),
        ('<root BTCPP_format="3"/>', 'expected <root BTCPP_format="4">'),
        ('<root BTCPP_format="4"/>', "main_tree_to_execute"),
    ):
        path = tmp_path / "bad.xml"
        path.write_text(text)
        with pytest.raises(InvalidArgumentError, match=words) as error:
            plant.factory.load(path)
        assert "bad.xml" in str(error.value)
    with pytest.raises(NotFoundError, match=r"nowhere\.xml"):
        plant.factory.load(tmp_path / "nowhere.xml")
    with pytest.raises(InvalidArgumentError, match="'Snapshot'"):
        plant.factory.leaf("Snapshot", lambda ports: True)


def test_files_are_included(plant: Plant, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "take.xml").write_text(
        '<root BTCPP_format="4"><include path="../tree.xml"/>'
        '<BehaviorTree ID="Take"><Snapshot capsule="x"/></BehaviorTree></root>'
    )
    status, _ = plant.run('<SubTree ID="Take"/>', '<include path="more/take.xml"/>')
    assert status == "SUCCESS"
    assert set(plant.server.capsules) == {"x"}


def test_retry_from_capsule(plant: Plant) -> None:
    plant.outcomes = [False, False, True]
    body = '<RetryFromCapsule attempt="{a}" seed="40" publish="true"><Try/></RetryFromCapsule>'
    status, tree = plant.run(body)
    assert status == "SUCCESS"
    assert plant.server.verbs == ["snapshot", "restore", "restore", "drop_capsule"]
    assert [seed for seed, _ in plant.live] == [0, 41, 42]
    assert all(request.publish for request in plant.server.requests("restore"))
    assert float(tree.entry("a")) == 3
    assert plant.server.capsules == {}


def test_retry_from_capsule_that_fails(plant: Plant) -> None:
    plant.outcomes = [False] * 3
    body = '<RetryFromCapsule reseed="false" message="{m}"><Try/></RetryFromCapsule>'
    status, tree = plant.run(body)
    assert status == "FAILURE"
    assert plant.server.verbs == ["snapshot", "restore", "restore", "drop_capsule"]
    assert [seed for seed, _ in plant.live] == [0, 0, 0]
    assert tree.entry("m") == "attempt 3 failed"
    assert plant.server.capsules == {}


def test_no_attempt_at_all_is_refused(plant: Plant) -> None:
    body = '<RetryFromCapsule num_attempts="0" message="{m}"><Try/></RetryFromCapsule>'
    status, tree = plant.run(body)
    assert status == "FAILURE"
    assert "num_attempts: expected at least 1" in tree.entry("m")
    assert plant.server.log == []


def no(words: str) -> Callable[[Any], None]:
    def refuse(request: Any) -> None:
        raise RefusalError(ErrorCode.BUSY, words)

    return refuse


def test_a_restore_that_fails_ends_the_retry(plant: Plant) -> None:
    plant.outcomes, plant.server.refuse["restore"] = [False], no("not now")
    status, tree = plant.run('<RetryFromCapsule message="{m}"><Try/></RetryFromCapsule>')
    assert status == "FAILURE"
    assert plant.server.verbs == ["snapshot", "drop_capsule"]
    assert tree.entry("m") == "restore: BUSY: not now"


def test_a_snapshot_that_fails_begins_nothing(plant: Plant) -> None:
    plant.server.refuse["snapshot"] = no("not now")
    for node in ("RetryFromCapsule", "TryBranches"):
        status, tree = plant.run(f'<{node} message="{{m}}"><Try/></{node}>')
        assert status == "FAILURE"
        assert tree.entry("m") == "snapshot: BUSY: not now"
    assert plant.live == []


def test_try_branches(plant: Plant) -> None:
    plant.outcomes = [False, True]
    body = '<TryBranches seeds="4;5;6" winner="{w}"><Try/><Try/><Try/></TryBranches>'
    status, tree = plant.run(body)
    assert status == "SUCCESS"
    assert plant.server.verbs == ["snapshot", "fork", "restore", "restore", *["drop_capsule"] * 4]
    assert [seed for seed, _ in plant.live] == [4, 5]
    assert float(tree.entry("w")) == 1
    assert plant.server.capsules == {}


def test_try_branches_without_a_winner_goes_back(plant: Plant) -> None:
    plant.server.live, plant.outcomes = (9, "here"), [False, False]
    status, tree = plant.run('<TryBranches message="{m}"><Try/><Try/></TryBranches>')
    assert status == "FAILURE"
    assert plant.server.live == (9, "here")
    assert tree.entry("m") == "branch 2 failed"
    assert plant.server.capsules == {}


def test_a_branch_that_cannot_be_restored_counts_as_failed(plant: Plant) -> None:
    refusals = [no("not now"), lambda request: None, lambda request: None]
    plant.server.refuse["restore"] = lambda request: refusals.pop(0)(request)
    plant.outcomes = [True]
    status, tree = plant.run('<TryBranches winner="{w}"><Try/><Try/></TryBranches>')
    assert status == "SUCCESS"
    assert float(tree.entry("w")) == 1


def test_each_use_of_a_subtree_has_control_nodes_of_its_own(plant: Plant) -> None:
    plant.outcomes = [False, True, False, True]
    twice = '<Sequence><SubTree ID="S" /><SubTree ID="S"/></Sequence>'
    inner = "<RetryFromCapsule><RetryFromCapsule><Try/></RetryFromCapsule></RetryFromCapsule>"
    status, _ = plant.run(twice, f'<BehaviorTree ID="S">{inner}</BehaviorTree>')
    assert status == "SUCCESS"
    assert plant.server.capsules == {}


def test_no_answer_is_failure_and_a_retry_keeps_its_id(plant: Plant) -> None:
    plant.server.lossy.add("snapshot")
    body = '<Snapshot capsule="x" timeout_ms="500" message="{m}" error_code="{e}"/>'
    with plant.tree(body) as tree:
        begin_s = plant.node.now_s
        assert plant.through(tree) == "FAILURE"
        assert plant.node.now_s - begin_s < 0.8
        assert float(tree.entry("e")) == ErrorCode.TIMEOUT
        plant.server.lossy.clear()
        assert plant.through(tree) == "SUCCESS"
        assert plant.server.verbs == ["snapshot"]  # not done twice
        plant.server.capsules.clear()
        assert plant.through(tree) == "SUCCESS"
        assert plant.server.verbs == ["snapshot"] * 2  # a new intention
        assert tree.link.pending == 0


def test_a_request_id_of_ones_own(plant: Plant) -> None:
    plant.run('<Snapshot capsule="x" request_id="mine"/>')
    assert plant.server.requests("snapshot")[0].request_id == "mine"


def test_a_service_of_another_policy(plant: Plant) -> None:
    with plant.tree('<Snapshot capsule="x" service_name="/other/snapshot"/>') as tree:
        assert [client.srv_name for client in plant.node.clients] == ["/other/snapshot"]
        assert plant.through(tree) == "SUCCESS"
    assert plant.node.clients == []


def test_loggers_of_the_bindings_show_leaves_by_their_names(plant: Plant, tmp_path: Path) -> None:
    with plant.tree('<Snapshot name="remember"/>') as tree:
        logger = behaviortreepy.FileLogger(tree.native, str(tmp_path / "log.btlog"))
        plant.through(tree)
        logger.flush()
        del logger
    assert b"remember" in (tmp_path / "log.btlog").read_bytes()


def test_a_halt_lets_go_and_drops(plant: Plant) -> None:
    with plant.tree("<RetryFromCapsule><Try/></RetryFromCapsule>") as tree:
        while not plant.live:
            plant.tick(tree)
        assert len(plant.server.capsules) == 1
        tree.halt()
        assert tree.outcomes[-1].status == "HALTED"
        plant.node.spin()
        assert plant.server.capsules == {}
    with plant.tree("<Snapshot/>") as tree:
        assert tree.tick() == "RUNNING"
        tree.halt()
        assert tree.link.pending == 0
    assert plant.node.clients == []


def test_what_a_leaf_raises_comes_out_of_the_tick(plant: Plant) -> None:
    def broken(ports: Ports) -> Steps:
        yield
        raise RuntimeError("the gripper is gone")

    plant.factory.leaf("Broken", broken)
    with plant.tree("<Broken/>") as tree:
        assert tree.tick() == "RUNNING"
        with pytest.raises(RuntimeError, match="the gripper is gone"):
            tree.tick()


def test_objects_pass_between_leaves(plant: Plant) -> None:
    seen: list[Any] = []

    def look(ports: Ports) -> bool:
        seen.append(ports.read("chunks"))
        return True

    plant.factory.leaf("Look", look, inputs=["chunks"])
    plant.run(
        '<Sequence><Fork names="a;b" branches="{b}"/><Preview branches="{b}" chunks="{c}"/>'
        '<Look chunks="{c}"/></Sequence>'
    )
    assert [chunk.horizon for chunk in seen[0]] == [2, 2]


def test_every_node_of_the_model_can_be_used(plant: Plant) -> None:
    nodes_with_time = [model for model in nodes().values() if "timeout_ms" in model.inputs]
    assert len(nodes_with_time) == len(nodes())
    assert {model.inputs["timeout_ms"][1] for model in nodes_with_time} == {"5000"}
    for model in nodes().values():
        if model.kind == "Action" and model.service:
            ports = [f'{port}="{{{port}}}"' for port in model.outputs]
            ports += [f'{port}="device"' for port in NEEDED.get(model.id, ())]
            status, tree = plant.run(f"<{model.id} {' '.join(ports)}/>")
            asked = [verb for verb, _ in plant.server.log] + [o.message for o in tree.outcomes]
            assert status in ("SUCCESS", "FAILURE")
            assert any(model.service in word for word in asked)


def test_without_the_bindings_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("flashrt_ros.trees.btcpp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "behaviortreepy", None)
    with pytest.raises(ModuleNotFoundError, match=r"flashrt_ros\[btcpp\]"):
        importlib.import_module("flashrt_ros.trees.btcpp")


@pytest.mark.parametrize("name", sorted(path.name for path in TREES.glob("*.xml")))
def test_shipped_files_are_of_format_4(name: str) -> None:
    assert 'BTCPP_format="4"' in (TREES / name).read_text()


def test_a_bare_name_is_looked_for_among_the_examples(plant: Plant) -> None:
    for leaf in ("Retreat", "Brief", "Reach"):
        plant.factory.leaf(leaf, lambda ports: True)
    plant.factory.load("pick_and_retry.xml").close()
    with pytest.raises(NotFoundError, match=r"none at /.*nor among .*/trees: choose_by_preview"):
        plant.factory.load("pick_and_reply.xml")
    with pytest.raises(NotFoundError, match=r"none at /nowhere/pick_and_retry\.xml$"):
        plant.factory.load("/nowhere/pick_and_retry.xml")


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("<DropCapsule/>", "DropCapsule: expected a value for capsule, found none"),
        ('<Restore capsule=" "/>', "for capsule, found"),
        ('<MoveCapsule capsule="c"/>', "for tier, found none"),
        ("<LoadCapsule/>", "for file, found"),
    ],
)
def test_a_node_without_what_it_needs_is_refused_as_it_is_loaded(
    plant: Plant, node: str, words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        plant.tree(node)
