"""Says for what a node waits, and where it might be: a wrong topic name looks like no robot."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rclpy.node import Node

from flashrt_ros.ros.intake import InputFigures
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.outlet import RosOutlet

PATIENCE_S = 5.0
"""A robot that starts beside the node may take so long to appear."""
AGAIN_S = 30.0
"""After a warning the next one comes no sooner."""
SHOWN = 5
"""Topics of one type that are named."""


class Waiting:
    """Warns of inputs that do not come; used by the executor alone."""

    def __init__(
        self, node: Node, outlet: RosOutlet, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Begins with all well.

        Args:
            node: Whose graph is looked at.
            outlet: For the log and names of topics.
            clock_s: Steady clock.
        """
        self._node = node
        self._outlet = outlet
        self._clock_s = clock_s
        self._next_s: float | None = None

    def look(self, mode: Mode, inputs: Mapping[str, InputFigures]) -> None:
        """Warns once in a while of what is waited for; called once a second.

        Args:
            mode: As of now.
            inputs: By topic as the contract writes it.
        """
        now_s = self._clock_s()
        if mode is not Mode.WAITING:
            self._next_s = None
        elif self._next_s is None:
            self._next_s = now_s + PATIENCE_S
        elif now_s >= self._next_s:
            silent = [f for f in inputs.values() if f.needed and not f.arrivals.last_ns]
            for figures in silent:
                self._outlet.log("warn", self._words(figures))
            if silent:
                self._next_s = now_s + AGAIN_S

    def _words(self, figures: InputFigures) -> str:
        topic = self._outlet.resolved.get(figures.topic, figures.topic)
        count = self._node.count_publishers(topic)
        if count:
            return f"still waiting for {topic} ({figures.type}): {count} publishers, no message"
        words = f"still waiting for {topic} ({figures.type}): no publisher"
        others = sorted(
            name
            for name, types in self._node.get_topic_names_and_types()
            if figures.type in types and name != topic and self._others_publish(name)
        )
        if not others:
            return f"{words}, and no other topic of this type has one"
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        return (
            f"{words}; of this type there are {', '.join(others[:SHOWN])}{more}: change `topic` "
            "in the contract, or remap"
        )

    def _others_publish(self, topic: str) -> bool:
        """Whether anybody does but this node itself, whose commands and shadows are no inputs."""
        own = (self._node.get_namespace(), self._node.get_name())
        found = self._node.get_publishers_info_by_topic(topic)
        return any((each.node_namespace, each.node_name) != own for each in found)
