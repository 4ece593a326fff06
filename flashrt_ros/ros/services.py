"""Services of the node: requests become verbs, answers become responses.

A callback must not wait for the control thread, since it runs in the executor, and rclpy wants its
response when it returns. So it returns a ``Deferred``, and a thread sends the response once there
is an answer: no detour over the executor, whose length would grow with the number of its entities.
This rests on executors sending through ``Service.send_response``, which is public.
"""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile
from rclpy.service import Service

from flashrt_ros.errors import FlashRTError
from flashrt_ros.ros import messages
from flashrt_ros.ros.motion import Motion
from flashrt_ros.ros.records import CapsuleRecord, Outlet, PreviewRecord
from flashrt_ros.ros.resumption import Options
from flashrt_ros.ros.verbs import QUEUE_LENGTH, Answer, Ledger, Verb, VerbQueue, refusal
from flashrt_ros.ros.worker import Report, Worker, ignore
from flashrt_ros.srv import (
    Command,
    DropCapsule,
    Fork,
    GetCapsule,
    ListCapsules,
    LoadCapsule,
    MoveCapsule,
    Preview,
    ResetEpisode,
    Restore,
    Rollback,
    SaveCapsule,
    Snapshot,
)


@dataclass(frozen=True)
class Endpoint:
    """One service.

    Attributes:
        name: Below the node's name.
        type: Class of the .srv.
        active: Whether the node must be active rather than only configured.
    """

    name: str
    type: Any
    active: bool = False


ON_CONTROL_THREAD = (
    Endpoint("snapshot", Snapshot),
    Endpoint("restore", Restore),
    Endpoint("fork", Fork),
    Endpoint("rollback", Rollback),
    Endpoint("reset_episode", ResetEpisode),
    Endpoint("list_capsules", ListCapsules),
    Endpoint("get_capsule", GetCapsule),
    Endpoint("drop_capsule", DropCapsule),
    Endpoint("save_capsule", SaveCapsule),
    Endpoint("load_capsule", LoadCapsule),
    Endpoint("move_capsule", MoveCapsule),
    Endpoint("preview", Preview),
    Endpoint("resume", Command, active=True),
)
SEND_TIMEOUT_S = 1.0
"""How long the end of the node waits for responses that are being sent."""
AT_ONCE = ("pause", "stop", "clear_stop")
"""Answered by the callback itself: to stand still must not wait for an inference."""
REQUESTS = QoSProfile(depth=4 * QUEUE_LENGTH)
"""Requests that may arrive while the executor is busy, as during configure. ROS keeps ten, of all
clients together, and never answers those that are pushed out."""


class Deferred:
    """Stands for a response that is sent later.

    The executor hands it back with the request's header; the answer may come before or after.
    """

    def __init__(self, verb: Verb, respond: Callable[[Answer], Any]) -> None:
        """Takes the verb to be answered and how its answer becomes a response."""
        self._verb = verb
        self._respond = respond

    def send_with(self, send: Callable[[Callable[[], Any]], None]) -> None:
        """Calls ``send`` as soon as there is an answer, with what makes the response of it."""
        self._verb.listen(lambda answer: send(lambda: self._respond(answer)))


class Services:
    """All services; they exist as long as the node.

    Attributes:
        queue: Of the control thread; None while the node is unconfigured.
        ledger: Answers by request id.
    """

    def __init__(
        self,
        node: LifecycleNode,
        motion: Motion,
        options: Options,
        outlet: Outlet,
        at_once: Callable[[str], Answer],
        report: Report = ignore,
    ) -> None:
        """Creates them.

        Args:
            node: Their node.
            motion: Says what the lifecycle allows.
            options: See ``Options``.
            outlet: For the log.
            at_once: Carries out one of ``AT_ONCE`` by its name.
            report: Told of a failure of the thread that sends, which then begins again.
        """
        self.queue: VerbQueue | None = None
        self.ledger = Ledger()
        self._motion = motion
        self._options = options
        self._outlet = outlet
        self._replies = Replies(outlet, report)
        for endpoint in ON_CONTROL_THREAD:
            self._create(node, endpoint.name, endpoint.type, self._enqueue(endpoint))
        for name in AT_ONCE:
            self._create(node, name, Command, self._at_once(at_once))

    def _create(
        self,
        node: LifecycleNode,
        name: str,
        cls: Any,
        begin: Callable[[Any, Verb], None],
    ) -> None:
        def make(answer: Answer) -> Any:
            try:
                return respond(cls.Response(), answer)
            except Exception as error:
                self._outlet.log("error", f"{name}:\n{traceback.format_exc()}")
                return respond(cls.Response(), refusal(error))

        def callback(request: Any, response: Any) -> Deferred:
            return Deferred(self._verb(name, request, begin), make)

        service = node.create_service(cls, f"~/{name}", callback, qos_profile=REQUESTS)
        self._replies.defer(service)

    def _verb(self, name: str, request: Any, begin: Callable[[Any, Verb], None]) -> Verb:
        """The verb of a request: begun, refused, or one that came before with the same id."""
        now_ns = time.monotonic_ns()
        verb = Verb(name, _no_work, now_ns, now_ns + round(self._options.service_timeout_s * 1e9))
        request_id = getattr(request, "request_id", "")
        with self._answering(verb):
            content = f"{name} {request}" if request_id else ""
            if (known := self.ledger.find(request_id, content)) is not None:
                return known
            self.ledger.remember(request_id, content, verb)
            begin(request, verb)
        return verb

    @contextmanager
    def _answering(self, verb: Verb) -> Iterator[None]:
        """Answers ``verb`` with what is raised, so that no request is left without an answer."""
        try:
            yield
        except FlashRTError as error:
            verb.answer(refusal(error))
        except Exception as error:
            self._outlet.log("error", f"{verb.name}:\n{traceback.format_exc()}")
            verb.answer(refusal(error))

    def _enqueue(self, endpoint: Endpoint) -> Callable[[Any, Verb], None]:
        def begin(request: Any, verb: Verb) -> None:
            self._motion.require(endpoint.active)
            verb.epoch = self._motion.epoch
            assert self.queue is not None
            verb.work = lambda handlers, verb: handlers.find(endpoint.name)(request, verb)
            self.queue.put(verb)

        return begin

    def _at_once(self, carry_out: Callable[[str], Answer]) -> Callable[[Any, Verb], None]:
        def begin(request: Any, verb: Verb) -> None:
            verb.answer(carry_out(verb.name))

        return begin

    def close(self) -> None:
        """Sends what was answered; nothing is answered any more."""
        self._replies.close()

    def expire(self) -> None:
        """Answers requests whose time is up; called by a timer."""
        if self.queue is not None:
            self.queue.expire(time.monotonic_ns())


def _no_work(handlers: Any, verb: Verb) -> Answer | None:
    return None


class Replies:
    """The thread that sends deferred responses.

    The middleware waits up to 0.1 s for a client that it does not know yet, or that is gone; the
    control thread must not, nor the executor.
    """

    def __init__(self, outlet: Outlet, report: Report = ignore) -> None:
        """Starts the thread."""
        self._outlet = outlet
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker = Worker("replies", self._run, report)

    def defer(self, service: Service) -> None:
        """Lets a service answer with ``Deferred``."""
        send = service.send_response

        def send_response(response: Any, header: Any) -> None:
            if isinstance(response, Deferred):
                response.send_with(
                    lambda made: self._waiting.put(lambda: send(made(), header)),
                )
            else:
                send(response, header)

        service.send_response = send_response

    def close(self) -> None:
        """Sends what waits and ends the thread."""
        self._waiting.put(None)
        self._worker.close(SEND_TIMEOUT_S)

    def _run(self) -> None:
        while (send := self._waiting.get()) is not None:
            try:
                send()
            except Exception as error:
                # The client or the service is gone; the work is done all the same.
                self._outlet.log("warn", f"a response was not sent: {error}")


def respond(response: Any, answer: Answer) -> Any:
    """Writes an answer into a response and returns it."""
    response.success = answer.code == 0
    response.message = answer.message
    response.error_code = int(answer.code)
    for name, value in answer.fields.items():
        setattr(response, name, _message(value))
    return response


def _message(value: Any) -> Any:
    if isinstance(value, CapsuleRecord):
        return messages.capsule_info(value)
    if isinstance(value, PreviewRecord):
        return messages.action_chunk(value.chunk, value.stamp_ns)
    if isinstance(value, list):
        return [_message(item) for item in value]
    return value
