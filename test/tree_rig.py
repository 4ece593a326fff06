"""A ROS node for trees without ROS: clients, a policy node that answers at once, and a clock.

The policy node keeps capsules and answers a repeated request id as the real one does, so that
what a tree asks can be judged by what it leaves behind.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import py_trees
from flashrt_ros.msg import ActionChunk, CapsuleInfo, PolicyStatus
from py_trees.behaviour import Behaviour
from py_trees.common import Status
from rclpy.task import Future

from flashrt_ros.errors import ErrorCode
from flashrt_ros.trees.link import PolicyLink
from flashrt_ros.trees.linked import Linked


class RefusalError(Exception):
    """Answered as ``success=false``."""

    def __init__(self, code: ErrorCode, words: str) -> None:
        super().__init__(words)
        self.code = code


class FakePolicy:
    """What a policy node remembers.

    Attributes:
        live: Noise key and memory of the live state.
        capsules: The same by name, the oldest first.
        room: How many there is room for; the oldest that is not in ``pinned`` gives way.
        log: Services in the order in which they were carried out, with their requests.
        held: Whether it waits for ``resume``.
        silent: Services that take a request and never answer; ``lossy`` do what was asked, too.
        refuse: By service, called before the work: may raise ``RefusalError``.
    """

    def __init__(self) -> None:
        self.live: tuple[int, str] = (0, "start")
        self.capsules: dict[str, tuple[int, str]] = {}
        self.pinned: set[str] = set()
        self.room = 1000
        self.log: list[tuple[str, Any]] = []
        self.held = False
        self.silent: set[str] = set()
        self.lossy: set[str] = set()
        self.refuse: dict[str, Callable[[Any], None]] = {}
        self.generation = 0
        self._answers: dict[str, Any] = {}

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.log]

    def requests(self, verb: str) -> list[Any]:
        return [request for name, request in self.log if name == verb]

    def handle(self, verb: str, kind: Any, request: Any) -> Any:
        """The response; None: there is none."""
        if verb in self.silent:
            return None
        known = getattr(request, "request_id", "")
        if known and known in self._answers:
            return self._answers[known]
        response = kind.Response(success=True, message=f"{verb} done")
        try:
            self.refuse.get(verb, lambda request: None)(request)
            self.log.append((verb, request))
            getattr(self, f"_{verb}", lambda request, response: None)(request, response)
        except RefusalError as refusal:
            response.success, response.message = False, str(refusal)
            if hasattr(response, "error_code"):
                response.error_code = int(refusal.code)
        if known and response.success:
            self._answers[known] = response
        return None if verb in self.lossy else response

    def _found(self, name: str) -> tuple[int, str]:
        if name not in self.capsules:
            raise RefusalError(ErrorCode.NOT_FOUND, f"no capsule {name!r}")
        return self.capsules[name]

    def restart(self) -> None:
        """A new process: nothing is remembered, and services are silent no longer."""
        self.live, self.held, self.generation = (0, "anew"), False, 0
        self.capsules.clear()
        self.pinned.clear()
        self.silent.clear()
        self._answers.clear()

    def _make(self, name: str, state: tuple[int, str]) -> None:
        if name in self.capsules:
            raise RefusalError(ErrorCode.ALREADY_EXISTS, f"capsule {name!r} exists")
        if len(self.capsules) >= self.room:
            oldest = next((old for old in self.capsules if old not in self.pinned), None)
            if oldest is None:
                raise RefusalError(ErrorCode.NO_MEMORY, "all are pinned")
            del self.capsules[oldest]
        self.capsules[name] = state

    def _snapshot(self, request: Any, response: Any) -> None:
        name = request.name or f"made at {len(self.log)}"
        if request.replace:
            self.capsules.pop(name, None)
        self._make(name, self.live)
        if request.pin:
            self.pinned.add(name)
        response.capsule = CapsuleInfo(name=name, id=f"id of {name}")

    def _restore(self, request: Any, response: Any) -> None:
        seed, memory = self._found(request.name)
        self.live = (request.seed if request.set_seed else seed, memory)
        self.held = not request.publish
        self.generation += 1
        response.generation = self.generation

    def _fork(self, request: Any, response: Any) -> None:
        seed, memory = self._found(request.name) if request.name else self.live
        names = request.names or [f"made-{n}" for n in range(request.count or 1)]
        seeds = request.seeds or [seed + n for n in range(1, len(names) + 1)]
        for name, key in zip(names, seeds, strict=True):
            self._make(name, (key, memory))
        response.branches = [CapsuleInfo(name=name) for name in names]

    def _preview(self, request: Any, response: Any) -> None:
        response.chunks = [
            ActionChunk(names=["a"], horizon=2, data=[float(self._found(name)[0]), 0.5])
            for name in request.names
        ]

    def _drop_capsule(self, request: Any, response: Any) -> None:
        self._found(request.name)
        if request.name in self.pinned and not request.force:
            raise RefusalError(ErrorCode.PINNED, f"capsule {request.name!r} is pinned")
        del self.capsules[request.name]
        self.pinned.discard(request.name)

    def _reset_episode(self, request: Any, response: Any) -> None:
        self.live, self.held = (request.seed, "reset"), request.hold
        self.generation += 1
        response.generation = self.generation

    def _pause(self, request: Any, response: Any) -> None:
        self.held = True

    def _resume(self, request: Any, response: Any) -> None:
        self.held = False


class FakeClient:
    """A client whose requests are answered when its node is spun."""

    def __init__(self, node: FakeNode, kind: Any, name: str) -> None:
        self.srv_name, self._node, self._kind = name, node, kind
        self.srv_type = kind
        self._pending_requests: dict[int, Any] = {}
        self.sent: list[Any] = []

    @property
    def handle(self) -> Any:
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def take_response(self, kind: Any) -> tuple[None, None]:
        """As if somebody spun just now."""
        self._node.spin()
        return None, None

    def service_is_ready(self) -> bool:
        if self._node.ended:
            raise RuntimeError("the context is invalid")
        return self._node.there

    def call_async(self, request: Any) -> Any:
        if self._node.broken:
            raise RuntimeError("the node is gone")
        future = Future()
        self.sent.append(request)
        self._pending_requests[len(self.sent)] = future
        self._node.mail.append((self, request, future))
        future.add_done_callback(self.remove_pending_request)
        return future

    def remove_pending_request(self, future: Any) -> None:
        for number, pending in list(self._pending_requests.items()):
            if pending is future:
                del self._pending_requests[number]

    def answer(self, request: Any, future: Any) -> None:
        response = self._node.server.handle(self.srv_name.split("/")[-1], self._kind, request)
        if response is not None and future in self._pending_requests.values():
            future.set_result(response)


class FakeNode:
    """Of a tree.

    Attributes:
        server: See ``FakePolicy``.
        there: Whether the services exist.
        broken: Whether sending raises.
        ended: Whether its ROS context has ended, so that it cannot tell which services there are.
        now_s: What the clock shows.
        warnings: What was logged.
        clients: Those that were made and not destroyed.
        hear: By topic, what a subscription calls.
    """

    def __init__(self) -> None:
        self.server = FakePolicy()
        self.there, self.broken, self.now_s = True, False, 100.0
        self.ended = False
        self.clients: list[FakeClient] = []
        self.subscriptions: list[Any] = []
        self.hear: dict[str, Callable[[Any], None]] = {}
        self.mail: list[Any] = []
        self.warnings: list[str] = []

    def get_logger(self) -> Any:
        return SimpleNamespace(warning=self.warnings.append)

    def create_client(self, kind: Any, name: str, callback_group: Any = None) -> FakeClient:
        self.clients.append(FakeClient(self, kind, name))
        return self.clients[-1]

    def resolve_service_name(self, name: str, only_expand: bool = False) -> str:
        return name if name.startswith("/") else f"/{name}"

    def get_node_names_and_namespaces(self) -> list[tuple[str, str]]:
        return [("camera", "/"), ("policy", "/right")]

    def get_service_names_and_types_by_node(self, name: str, space: str) -> Any:
        kind = "Snapshot" if name == "policy" else "Shoot"
        return [(f"{space}/{name}/{kind.lower()}", [f"flashrt_ros/srv/{kind}"])]

    def destroy_client(self, client: FakeClient) -> None:
        self.clients.remove(client)

    def create_subscription(
        self, kind: Any, topic: str, callback: Any, qos: Any, callback_group: Any = None
    ) -> Any:
        self.hear[topic] = callback
        name = topic if topic.startswith("/") else f"/{topic}"
        self.subscriptions.append(SimpleNamespace(topic_name=name))
        return self.subscriptions[-1]

    def destroy_subscription(self, subscription: Any) -> None:
        self.subscriptions.remove(subscription)

    def spin(self) -> None:
        """Answers what was asked."""
        mail, self.mail = self.mail, []
        for client, request, future in mail:
            client.answer(request, future)

    def say_status(self, mode: int, reason: str = "", **fields: Any) -> None:
        self.hear["policy/status"](PolicyStatus(mode=mode, reason=reason, **fields))


class Plant:
    """A tree on a node, set up, with its clock."""

    def __init__(self, root: Behaviour, node: FakeNode | None = None) -> None:
        self.node = node or FakeNode()
        self.root, self.server = root, self.node.server
        py_trees.trees.setup(root, node=self.node)
        for link in self.links():
            link.clock = lambda: self.node.now_s

    def links(self) -> list[PolicyLink]:
        found = [node.link for node in self.root.iterate() if isinstance(node, Linked)]
        return [link for link in found if link is not None]

    @property
    def pending(self) -> int:
        return sum(len(client._pending_requests) for client in self.node.clients)

    def tick(self, passed_s: float = 0.02) -> Status:
        """One tick, then what a spin brings."""
        self.root.tick_once()
        self.node.spin()
        self.node.now_s += passed_s
        return self.root.status

    def run(self, limit: int = 500, passed_s: float = 0.02) -> Status:
        """Ticks to the end."""
        for _ in range(limit):
            if self.tick(passed_s) is not Status.RUNNING:
                return self.root.status
        raise AssertionError(f"still running after {limit} ticks: {self.root.feedback_message}")

    def close(self) -> None:
        for behaviour in self.root.iterate():
            behaviour.shutdown()


class Leaf(Behaviour):
    """Succeeds or fails as told, after some ticks; remembers what it found.

    Attributes:
        found: ``node.server.live`` at the beginning of each round.
    """

    def __init__(self, name: str, outcomes: list[bool], ticks: int = 2) -> None:
        super().__init__(name)
        self.outcomes, self.ticks = outcomes, ticks
        self.node: Any = None
        self.found: list[tuple[int, str]] = []
        self.ended: list[Status] = []

    def setup(self, **kwargs: Any) -> None:
        self.node = kwargs["node"]

    def initialise(self) -> None:
        self.found.append(self.node.server.live)
        self.node.server.live = (self.node.server.live[0], self.name)  # it changes the state
        self._left = self.ticks

    def update(self) -> Status:
        self._left -= 1
        if self._left > 0:
            return Status.RUNNING
        good = self.outcomes[(len(self.found) - 1) % len(self.outcomes)]
        self.feedback_message = "" if good else "dropped it"
        return Status.SUCCESS if good else Status.FAILURE

    def terminate(self, new_status: Status) -> None:
        self.ended.append(new_status)
