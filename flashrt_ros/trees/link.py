"""The clients of one policy node's services, shared by all behaviours of a ROS node."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.exceptions import InvalidHandle

from flashrt_ros import srv
from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.ros.found import policy_nodes_in_words
from flashrt_ros.ros.verb_names import VERBS
from flashrt_ros.trees.call import Call, Clock, VerbTimes
from flashrt_ros.trees.news import News

SERVICES: Mapping[str, Any] = {verb: getattr(srv, kind) for verb, kind in VERBS.items()}
"""Every service of the policy node, and its type."""
RESEND_S = 1.0
"""Services answer in milliseconds, so after this long a request or its answer was lost."""
FAREWELL_S = 5.0
"""How long the answer to a request is awaited that nobody looks at."""
PARTING_S = 0.5
"""How long the end of a tree waits for such answers: who goes may take its requests along."""
PARTING_STEP_S = 0.002
SHOWN = 80
"""Characters of a wrong value that are shown."""

_links: dict[tuple[int, str], PolicyLink] = {}
_lock = threading.Lock()


class PolicyLink:
    """What the behaviours of one ROS node share of one policy.

    Each client is made when the first behaviour that needs it is set up, and all are destroyed
    with the last behaviour's ``shutdown``. Called by the thread that ticks; answers arrive in
    whichever thread spins the node.

    Attributes:
        node: ROS node of the tree.
        policy: Name of the policy node, as given.
        clock: Steady clock.
        times: By service, how its calls went.
        generation: The highest that a service has told of; a status below it is from before.
    """

    clock: Clock

    def __init__(self, node: Any, policy: str) -> None:
        """Makes nothing yet; behaviours use ``shared``.

        Args:
            node: ROS node.
            policy: Name of the policy node.
        """
        self.node, self.policy = node, policy
        self.clock = time.monotonic
        self.times: dict[str, VerbTimes] = {}
        self.generation = 0
        self.news: News | None = None
        # The answers must not wait for a callback of the user's that takes long.
        self._group = ReentrantCallbackGroup()
        self._clients: dict[str, Any] = {}
        self._kinds: dict[str, Any] = {}
        self._farewells: list[Call] = []
        self._run = uuid.uuid4().hex[:12]
        self._serial = 0
        self._last: Call | None = None
        self._users = 0

    @staticmethod
    def shared(node: Any, policy: str) -> PolicyLink:
        """The one of this node and policy; ``release`` it as often as it was asked for.

        Args:
            node: ROS node.
            policy: Name of the policy node.

        Raises:
            InvalidArgumentError: The name is empty.
        """
        name = policy.rstrip("/")
        if not name:
            raise InvalidArgumentError(f"policy: expected the name of a node, found {policy!r}")
        with _lock:
            link = _links.get((id(node), name))
            if link is None:
                link = _links[id(node), name] = PolicyLink(node, name)
            link._users += 1
        return link

    def release(self) -> None:
        """One user less; the last one closes it."""
        with _lock:
            self._users -= 1
            last = self._users == 0
            if last:
                del _links[(id(self.node), self.policy)]
        if last:
            self._close()

    def use(self, verb: str, kind: Any = None) -> None:
        """Makes the client of a service, unless it is there. Takes milliseconds: not in a tick.

        Args:
            verb: Name of the service below that of the node.
            kind: Its type, with ``success`` and ``message`` in the response; None: one of
                ``SERVICES``.
        """
        if verb not in self._clients:
            self._kinds[verb] = SERVICES[verb] if kind is None else kind
            # In full, as it is named to people.
            name = self.node.resolve_service_name(f"{self.policy}/{verb}", only_expand=True)
            self._clients[verb] = self.node.create_client(
                self._kinds[verb], name, callback_group=self._group
            )

    def watch(self) -> News:
        """Subscribes to what the node says of itself, unless that is done."""
        if self.news is None:
            self.news = News(self, self._group)
        return self.news

    def absent(self) -> list[str]:
        """Names of the services that it has a client of and no node offers."""
        clients = self._clients.values()
        return [str(client.srv_name) for client in clients if not client.service_is_ready()]

    @property
    def clients(self) -> int:
        """Service clients that it has."""
        return len(self._clients)

    @property
    def pending(self) -> int:
        """Requests that a client waits for an answer to."""
        return sum(len(client._pending_requests) for client in self._clients.values())

    def begin(
        self,
        verb: str,
        fields: Mapping[str, Any],
        timeout_s: float,
        before: Call | None = None,
        last: bool = False,
        argument_of: Mapping[str, str] | None = None,
    ) -> Call:
        """Sends a request.

        Args:
            verb: A service that was announced by ``use``.
            fields: Fields of the request that differ from their defaults.
            timeout_s: From now to the answer.
            before: The caller's call before: if that may yet be done and this is the same again,
                it keeps its request id, and the node does not do the work twice. Only at once, and
                only if nothing else was asked in between: later the first answer would be about
                the past.
            last: See ``Call``.
            argument_of: What the caller's user calls a field, where that differs.

        Raises:
            InvalidArgumentError: A field has a wrong type or range; names it, not the verb.
        """
        self._sweep()
        request = _request(self._kinds[verb], fields, argument_of or {})
        times = self.times.setdefault(verb, VerbTimes())
        tracked = hasattr(request, "request_id")
        if tracked and not request.request_id:
            request.request_id = self._request_id(verb, request, before)
        client = self._clients[verb]
        company = self._company if self._kinds[verb] is SERVICES.get(verb) else str
        call = Call(verb, client, request, timeout_s, RESEND_S, self.clock, times, last, company)
        if tracked:
            self._last = call
        return call

    def new_name(self, word: str) -> str:
        """A name for a capsule that no other tree takes."""
        self._serial += 1
        return f"{word}-{self._run}-{self._serial}"

    def farewell(self, names: list[str]) -> None:
        """Has capsules dropped whose user was interrupted; nobody waits for the answers."""
        self._farewells += [self.drop(name, FAREWELL_S) for name in names]

    def drop(self, name: str, timeout_s: float) -> Call:
        """Begins to drop a capsule of a composite, which may have pinned it."""
        return self.begin("drop_capsule", {"name": name, "force": True}, timeout_s, last=True)

    def see_off(self, calls: Iterable[Call]) -> None:
        """Takes over calls that drop capsules from a user who waits for them no longer."""
        self._farewells += calls

    def heard(self, response: Any) -> None:
        """Notes the generation that an answer tells of."""
        self.generation = max(self.generation, getattr(response, "generation", 0))

    def _request_id(self, verb: str, request: Any, before: Call | None) -> str:
        if before is not None and before.unknown and before is self._last and before.verb == verb:
            request.request_id = before.request.request_id
            soon = self.clock() - before.ended_s <= before.timeout_s
            if soon and request == before.request:
                return str(request.request_id)
        self._serial += 1
        return f"{self._run}-{self._serial}"

    def _company(self) -> str:
        try:
            return policy_nodes_in_words(self.node)
        except InvalidHandle:
            return "the tree's own node is destroyed"

    def _sweep(self) -> None:
        # In place: whoever adds to it has looked it up before he begins a call, which sweeps.
        self._farewells[:] = [call for call in self._farewells if not call.poll()]

    def _part(self) -> None:
        """Waits shortly for capsules to be dropped, whether or not somebody spins the node."""
        end_s = time.monotonic() + PARTING_S
        lost: list[Call] = []
        while self._farewells:
            lost += [call for call in self._farewells if call.poll() and call.lost]
            self._farewells = [call for call in self._farewells if not call.over]
            if time.monotonic() >= end_s:
                break
            if self._farewells and not _take_answer(self._clients["drop_capsule"]):
                time.sleep(PARTING_STEP_S)
        if left := [str(call.request.name) for call in lost + self._farewells]:
            self.node.get_logger().warning(
                f"{self.policy}: capsules that may be left, since nobody has answered the request "
                f"to drop them: {', '.join(left)}"
            )

    def _close(self) -> None:
        self._part()
        for call in self._farewells:
            call.let_go()
        self._farewells.clear()
        if self.news is not None:
            self.news.close()
            self.news = None
        for client in self._clients.values():
            self.node.destroy_client(client)
        self._clients.clear()


def _take_answer(client: Any) -> bool:
    """Looks for an answer of a client in this thread; returns whether there was one."""
    try:
        with client.handle:
            header, response = client.handle.take_response(client.srv_type.Response)
        if header is None:
            return False
        client.get_pending_request(header.request_id.sequence_number).set_result(response)
    except (KeyError, InvalidHandle, RuntimeError):
        return False  # of a call that was let go; or the node, or all of ROS, has ended
    return True


def _request(kind: Any, fields: Mapping[str, Any], argument_of: Mapping[str, str]) -> Any:
    # Unchecked, a wrong type shows when the request is sent, without the name of the field.
    request = kind.Request(check_fields=True)
    known = request.get_fields_and_field_types()
    for name, value in fields.items():
        try:
            setattr(request, name, value)
        except (AssertionError, TypeError, ValueError, OverflowError):
            text = repr(value)
            shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
            raise InvalidArgumentError(
                f"{argument_of.get(name, name)}: expected {known[name]}, found {shown}"
            ) from None
    return request
