"""A policy node says when it is not alone: two that command one arm look like one that misbehaves.

The graph is a stand-in here, so that who is there is certain; the last test asks a real one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from contract_examples import contract_dict
from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import JointState

from flashrt_ros.contract import Contract
from flashrt_ros.ros.company import Company
from flashrt_ros.ros.diagnostics import Entry, Level

CONTRACT = Contract.from_dict(contract_dict())
TOPIC = f"/{CONTRACT.actions[0].topic}"


class Graph:
    """What a node and its outlet tell of the graph; ``/policy`` is the node asked."""

    def __init__(self) -> None:
        self.nodes = ["policy"]
        self.publishers = ["policy"]
        self.policies = {"/policy"}
        self.lines: list[tuple[str, str]] = []

    def get_fully_qualified_name(self) -> str:
        return "/policy"

    def get_node_names_and_namespaces(self) -> list[tuple[str, str]]:
        return [(name, "/") for name in self.nodes]

    def get_publishers_info_by_topic(self, topic: str) -> list[Any]:
        names = self.publishers if topic == TOPIC else []
        return [SimpleNamespace(node_name=name, node_namespace="/") for name in names]

    def count_publishers(self, topic: str) -> int:
        return int(topic.removesuffix("/policy_step") in self.policies)

    def topic_name(self, topic: str) -> str:
        return f"/{topic}"

    def log(self, level: str, words: str) -> None:
        self.lines.append((level, words))


def company() -> tuple[Any, Company]:
    graph: Any = Graph()
    return graph, Company(graph, graph)


def output(found: Company, active: bool) -> Entry:
    return found.mark([Entry(f"output {TOPIC}")], active)[0]


def test_alone_is_no_news() -> None:
    graph, found = company()
    found.look(None, False)
    found.look(CONTRACT, False)
    assert graph.lines == []
    assert output(found, True).level is Level.OK
    assert found.entry().level is Level.OK


def test_another_publisher_is_named_once_and_forgotten_when_gone() -> None:
    graph, found = company()
    graph.publishers.append("joystick")
    found.look(CONTRACT, False)
    found.look(CONTRACT, False)
    ((level, words),) = graph.lines
    assert level == "warn"
    assert TOPIC in words
    assert "/joystick" in words
    assert "policy node" not in words
    assert output(found, True).level is Level.WARN
    assert "/joystick" in output(found, True).message
    graph.publishers.remove("joystick")
    found.look(CONTRACT, False)
    assert output(found, True).level is Level.OK
    graph.publishers.append("joystick")
    found.look(CONTRACT, False)
    assert len(graph.lines) == 2, "one that comes back is news"


def test_another_policy_is_an_error_while_active() -> None:
    graph, found = company()
    graph.publishers.append("second")
    graph.policies.add("/second")
    found.look(CONTRACT, False)
    assert "policy node /second" in graph.lines[0][1]
    assert output(found, True).level is Level.ERROR
    assert output(found, False).level is Level.WARN


def test_in_a_dry_run_others_are_expected_until_it_ends() -> None:
    graph, found = company()
    graph.publishers.append("joystick")
    found.look(CONTRACT, True)
    assert graph.lines == []
    assert output(found, True).level is Level.OK
    found.look(CONTRACT, False)
    assert len(graph.lines) == 1
    assert output(found, True).level is Level.WARN


def test_a_namesake_is_named_with_its_publisher() -> None:
    graph, found = company()
    graph.nodes.append("policy")
    graph.publishers.append("policy")
    found.look(CONTRACT, False)
    assert any("another node of the name /policy" in words for _, words in graph.lines)
    assert any("another policy node /policy" in words for _, words in graph.lines)
    assert {level for level, _ in graph.lines} == {"warn"}
    assert found.entry().level is Level.WARN
    assert output(found, True).level is Level.ERROR


@pytest.mark.ros
def test_a_real_node_tells_of_a_publisher_and_a_namesake(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    import rclpy
    from stage import Stage, arm_contract

    with Stage(tmp_path_factory.mktemp("company")) as stage:
        stage.run(contract=arm_contract())
        log = stage.peer.record(DiagnosticArray, "/diagnostics")

        def entry(suffix: str) -> Any:
            entries = [s for message in log[-1:] for s in message.status]
            return next((s for s in entries if s.name.endswith(suffix)), None)

        def level(suffix: str) -> int | None:
            found = entry(suffix)
            return None if found is None else int.from_bytes(found.level, "little")

        stage.peer.wait(lambda: level("output /joint_command") == Level.OK, "nobody else")
        assert level("node name") == Level.OK
        publisher = stage.peer.node.create_publisher(JointState, "/joint_command", 1)
        namesake = rclpy.create_node("policy", context=stage.peer.node.context)
        try:
            stage.peer.wait(lambda: level("output /joint_command") == Level.WARN, "a warning")
            assert "/peer" in entry("output /joint_command").message
            stage.peer.wait(lambda: level("node name") == Level.WARN, "a namesake")
        finally:
            stage.peer.node.destroy_publisher(publisher)
            namesake.destroy_node()
