"""A client of one policy node for the command line: calls, lifecycle, and what the node says.

For installs without the ``ros2`` command; with it everything here goes as well.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile

from flashrt_ros import srv
from flashrt_ros.errors import DeadlineError, InvalidArgumentError, NotFoundError
from flashrt_ros.msg import PolicyStatus
from flashrt_ros.ros.found import policy_nodes, policy_nodes_in_words
from flashrt_ros.ros.verb_names import TRANSITIONS, VERBS

AGAIN_S = 1.0
"""After so long a request is sent again."""
SETTLE_S = 0.5
"""After the first policy node was found: are there others?"""
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Client:
    """Use it in a ``with`` block of ``connected``."""

    def __init__(self, node: Node, executor: SingleThreadedExecutor, timeout_s: float) -> None:
        """Takes a node and what spins it.

        Args:
            node: Of the client.
            executor: With the node.
            timeout_s: For all that is waited for.
        """
        self._node = node
        self._executor = executor
        self._end_s = time.monotonic() + timeout_s
        self._timeout_s = timeout_s

    def find(self, wanted: str) -> str:
        """Full name of the policy node.

        Args:
            wanted: Its name; empty: the only one that there is.

        Raises:
            NotFoundError: It is not there; names those that are.
            InvalidArgumentError: There are several, and none was named.
        """
        name = wanted if wanted.startswith("/") or not wanted else f"/{wanted}"
        if self._until(lambda: name in self._nodes() if name else bool(self._nodes())):
            if name:
                return name
            until_s = min(time.monotonic() + SETTLE_S, self._end_s)
            self._until(lambda: time.monotonic() > until_s)
        found = self._nodes()
        there = f"; {policy_nodes_in_words(self._node)}"
        if not found or name:
            domain = os.environ.get("ROS_DOMAIN_ID", "0")
            raise NotFoundError(
                f"expected {f'policy node {name}' if name else 'a policy node'} within "
                f"{self._timeout_s:g} s in ROS domain "
                f"{domain}, found none{there}"
            )
        if len(found) > 1:
            raise InvalidArgumentError(f"expected --node, since there are several{there}")
        return found[0]

    def call(
        self, node: str, verb: str, fields: Mapping[str, Any], within_s: float = math.inf
    ) -> Any:
        """The response of a service, awaited no longer than ``within_s``.

        A request without an id gets one, so that asking again does nothing twice.

        Raises:
            DeadlineError: There is none.
        """
        kind = getattr(srv, VERBS[verb])
        request = kind.Request(**fields)
        if hasattr(request, "request_id") and not request.request_id:
            request.request_id = uuid.uuid4().hex
        end_s = min(self._end_s, time.monotonic() + within_s)
        return self._ask(self._node.create_client(kind, f"{node}/{verb}"), request, end_s)

    def change(self, node: str, transition: str) -> bool:
        """Whether a transition of the lifecycle succeeded."""
        number = getattr(Transition, f"TRANSITION_{TRANSITIONS[transition]}")
        request = ChangeState.Request(transition=Transition(id=number))
        client = self._node.create_client(ChangeState, f"{node}/change_state")
        # A transition is not asked for twice; a node that answers a client which was made later
        # knows this one too.
        after = self._node.create_client(GetState, f"{node}/get_state")
        self._ask(after, GetState.Request())
        return bool(self._ask(client, request, again_s=math.inf).success)

    def status(self, node: str) -> PolicyStatus:
        """The latched status.

        Raises:
            DeadlineError: There is none.
        """
        found: list[PolicyStatus] = []
        self._node.create_subscription(PolicyStatus, f"{node}/status", found.append, LATCHED)
        if not self._until(lambda: bool(found)):
            raise DeadlineError(f"{node}/status: expected a message, none in time")
        return found[-1]

    def diagnostics(self, node: str) -> list[Any]:
        """The node's entries as they come once a second; empty if they do not."""
        found: list[Any] = []

        def take(message: DiagnosticArray) -> None:
            found.extend(s for s in message.status if s.name.startswith(f"{node}: "))

        self._node.create_subscription(DiagnosticArray, "/diagnostics", take, 10)
        self._until(lambda: bool(found))
        return found

    def _nodes(self) -> list[str]:
        return policy_nodes(self._node)

    def _ask(
        self, client: Any, request: Any, end_s: float | None = None, again_s: float = AGAIN_S
    ) -> Any:
        """Asks, and again every ``again_s``: a server drops answers to whom it has not found."""
        end_s = self._end_s if end_s is None else end_s
        asked: list[Any] = []
        if self._until(client.service_is_ready, end_s):
            while time.monotonic() < end_s:
                asked.append(client.call_async(request))
                until_s = min(end_s, time.monotonic() + again_s)
                if self._until(lambda: any(future.done() for future in asked), until_s):
                    return next(future.result() for future in asked if future.done())
        raise DeadlineError(
            f"{client.srv_name}: expected an answer within {self._timeout_s:g} s, none"
        )

    def _until(self, true: Callable[[], bool], end_s: float | None = None) -> bool:
        end_s = self._end_s if end_s is None else end_s
        while not (held := true()) and time.monotonic() < end_s:
            self._executor.spin_once(timeout_sec=0.05)
        return held


@contextmanager
def connected(timeout_s: float) -> Iterator[Client]:
    """A client with a node of its own."""
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node(f"flashrt_ros_{os.getpid()}", context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    try:
        yield Client(node, executor, timeout_s)
    finally:
        executor.shutdown()
        node.destroy_node()
        context.try_shutdown()


def read_fields(verb: str, words: Sequence[str]) -> dict[str, Any]:
    """Fields of a request from words such as ``name=cut`` and ``seeds=[1, 2]``.

    Raises:
        InvalidArgumentError: No such field, or a value that does not fit; lists the fields.
    """
    types = getattr(srv, VERBS[verb]).Request.get_fields_and_field_types()
    known = ", ".join(f"{name} ({kind})" for name, kind in types.items())
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in types:
            raise InvalidArgumentError(f"{verb}: expected NAME=VALUE of {known}, found {word!r}")
        kind = types[name]
        try:
            value = text if kind == "string" else yaml.safe_load(text)
        except yaml.YAMLError:
            raise InvalidArgumentError(
                f"{verb}: {name}: expected {kind}, found {text!r}"
            ) from None
        if kind.startswith("sequence") and not isinstance(value, list):
            value = [value]
        if not _fits(kind, value):
            raise InvalidArgumentError(f"{verb}: {name}: expected {kind}, found {text!r}")
        found[name] = value
    return found


def _fits(kind: str, value: Any) -> bool:
    if kind.startswith("sequence<"):
        return all(_fits(kind[9:-1].split(",")[0], each) for each in value)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "string":
        return isinstance(value, str)
    if kind in ("float", "double"):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    least = 0 if kind.startswith("u") else -(2**63)
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and least <= value < 2 ** int(kind.lstrip("uint"))


def plain(message: Any) -> Any:
    """A message as dictionaries, lists and numbers."""
    if hasattr(message, "get_fields_and_field_types"):
        return {
            name: plain(getattr(message, name)) for name in message.get_fields_and_field_types()
        }
    if isinstance(message, (str, bytes, int, float, bool)):
        return message
    return [plain(each) for each in message]
