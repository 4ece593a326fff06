"""A node that waits in vain names the topic and those that it may have meant, and does not nag."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flashrt_ros.ros.intake import InputFigures
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.waiting import AGAIN_S, PATIENCE_S, Waiting

TYPE = "sensor_msgs/msg/JointState"


class Graph:
    """What a node and its outlet tell, and a clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.publishers = {"/left/joint_states": 1, "/camera": 1, "/silent": 0}
        self.resolved = {"joint_state": "/joint_state"}
        self.lines: list[tuple[str, str]] = []

    def get_topic_names_and_types(self) -> list[tuple[str, list[str]]]:
        return [
            ("/left/joint_states", [TYPE]),
            ("/silent", [TYPE]),
            ("/policy/shadow/joint_command", [TYPE]),
            ("/joint_state", [TYPE]),
            ("/camera", ["sensor_msgs/msg/Image"]),
        ]

    def count_publishers(self, topic: str) -> int:
        return self.publishers.get(topic, 0)

    def get_name(self) -> str:
        return "policy"

    def get_namespace(self) -> str:
        return "/"

    def get_publishers_info_by_topic(self, topic: str) -> list[Any]:
        """The shadow is the node's own; the control is that without it there were two."""
        own = SimpleNamespace(node_namespace="/", node_name="policy")
        robot = SimpleNamespace(node_namespace="/", node_name="robot")
        return [own] if "shadow" in topic else [robot] * self.count_publishers(topic)

    def log(self, level: str, words: str) -> None:
        self.lines.append((level, words))


def waiting() -> tuple[Any, Waiting, dict[str, InputFigures]]:
    graph: Any = Graph()
    inputs = {
        "joint_state": InputFigures("joint_state", TYPE),
        "cue": InputFigures("cue", TYPE, needed=False),
    }
    return graph, Waiting(graph, graph, lambda: graph.now_s), inputs


def test_after_some_seconds_the_topic_and_its_likes_are_named_once_in_a_while() -> None:
    graph, watch, inputs = waiting()
    watch.look(Mode.WAITING, inputs)
    graph.now_s += PATIENCE_S - 0.1
    watch.look(Mode.WAITING, inputs)
    assert graph.lines == []
    graph.now_s += 0.1
    watch.look(Mode.WAITING, inputs)
    ((level, words),) = graph.lines
    assert level == "warn"
    assert f"/joint_state ({TYPE}): no publisher" in words
    assert "of this type there are /left/joint_states: change" in words
    graph.now_s += AGAIN_S - 0.1
    watch.look(Mode.WAITING, inputs)
    assert len(graph.lines) == 1
    graph.now_s += 0.1
    watch.look(Mode.WAITING, inputs)
    assert len(graph.lines) == 2


def test_with_nothing_like_it_or_a_silent_publisher_it_says_so() -> None:
    for publishers, expected in (
        ({}, "no other topic"),
        ({"/joint_state": 2}, "2 publishers, no"),
    ):
        graph, watch, inputs = waiting()
        graph.publishers = publishers
        watch.look(Mode.WAITING, inputs)
        graph.now_s += PATIENCE_S
        watch.look(Mode.WAITING, inputs)
        assert expected in graph.lines[0][1]


def test_motion_or_a_message_ends_the_wait() -> None:
    graph, watch, inputs = waiting()
    watch.look(Mode.WAITING, inputs)
    graph.now_s += PATIENCE_S
    watch.look(Mode.RUNNING, inputs)
    watch.look(Mode.WAITING, inputs)
    assert graph.lines == [], "the wait began anew"
    graph.now_s += PATIENCE_S
    inputs["joint_state"].arrivals.note(1, 0)
    watch.look(Mode.WAITING, inputs)
    assert graph.lines == []
