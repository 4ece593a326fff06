"""Requests on their way to the control thread and their answers on the way back, without ROS.

A verb is answered once, by whoever comes first: the control thread that carried it out, or the
callback side when its time is up.
"""

from __future__ import annotations

import collections
import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashrt_ros.errors import BusyError, ErrorCode, FlashRTError, InvalidArgumentError

QUEUE_LENGTH = 64
"""Verbs that may wait; more are refused with BUSY, as their answers would come too late."""
LEDGER_LENGTH = 256
"""Answers kept for repeated request ids, the oldest forgotten first."""
LONGEST_ID = 256
"""Characters of a request id: it is kept, recorded and echoed."""
LONGEST_MESSAGE = 4096
"""Characters of a refusal."""
SHOWN = 200
"""Characters of a request that are kept to show it in a refusal."""
TRANSIENT = frozenset(
    {ErrorCode.NOT_CONFIGURED, ErrorCode.INACTIVE, ErrorCode.BUSY, ErrorCode.TIMEOUT}
)
"""Refusals without any work done: a retry with the same request id tries anew."""


@dataclass(frozen=True)
class Answer:
    """What a service responds.

    Attributes:
        code: NONE on success.
        message: What was done, or what was expected, what was found and what to do.
        fields: Further fields of the response by name, as plain values and records of ours.
    """

    code: ErrorCode
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)


def done(message: str, **fields: Any) -> Answer:
    """An answer of success."""
    return Answer(ErrorCode.NONE, message, fields)


def refusal(error: BaseException) -> Answer:
    """The answer that an error amounts to."""
    if isinstance(error, FlashRTError):
        return Answer(error.code, _short(str(error)))
    return Answer(
        ErrorCode.INTERNAL,
        f"{type(error).__name__}: {error} (a fault of ours; the log has the traceback)",
    )


class Verb:
    """One request.

    Attributes:
        name: Service that was called.
        work: Run on the control thread with its handlers and the verb; returns the answer, or None
            if it will come later.
        deadline_ns: Steady clock; answered with TIMEOUT then.
        received_ns: Steady clock.
        epoch: ``Motion.epoch`` at reception; None: not noted.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Any, Verb], Answer | None],
        received_ns: int,
        deadline_ns: int,
    ) -> None:
        self.name = name
        self.work = work
        self.received_ns = received_ns
        self.deadline_ns = deadline_ns
        self.request_id = ""
        self.epoch: int | None = None
        self._lock = threading.Lock()
        self._begun = False
        self._answer: Answer | None = None
        self._late: Answer | None = None
        self._listeners: list[Callable[[Answer], None]] = []

    @property
    def result(self) -> Answer | None:
        """The answer, None while there is none."""
        return self._answer

    def listen(self, listener: Callable[[Answer], None]) -> None:
        """Calls ``listener`` once with the answer, at once if it is there already."""
        with self._lock:
            if self._answer is None:
                self._listeners.append(listener)
                return
        listener(self._answer)

    def settle(self) -> bool:
        """Takes the outcome that came after a timeout for the answer; False if none is to come."""
        with self._lock:
            if self._late is not None:
                self._answer, self._late = self._late, None
            assert self._answer is not None
            return self._begun or self._answer.code is not ErrorCode.TIMEOUT

    def begin(self) -> bool:
        """Claims the verb for the control thread; False if it was answered before."""
        with self._lock:
            if self._answer is not None:
                return False
            self._begun = True
            return True

    def carry_out(self, handlers: Any) -> Answer | None:
        """Does the work, once; after ``begin``.

        The ledger keeps the verb, but not what it was to do: a request may be large.
        """
        work, self.work = self.work, _nothing
        return work(handlers, self)

    def answer(self, answer: Answer) -> bool:
        """Answers all listeners; False if there was an answer before."""
        with self._lock:
            if self._answer is not None:
                # Carried out after its time was up: kept for a retry with the same id.
                self._late = answer
                return False
            self._answer = answer
            if not self._begun:
                self.work = _nothing
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(answer)
        return True

    def expire(self, now_ns: int) -> bool:
        """Answers with TIMEOUT if the deadline has passed."""
        if now_ns < self.deadline_ns or self._answer is not None:
            return False
        waited_ms = (now_ns - self.received_ns) / 1e6
        if self._begun:
            tail = (
                "it had begun and may still be carried out; look at ~/status before repeating it"
            )
        else:
            tail = "it had not begun and is withdrawn; repeat it when the policy is less busy"
        text = f"{self.name}: expected an answer of the control thread, none in {waited_ms:.0f} ms"
        return self.answer(Answer(ErrorCode.TIMEOUT, f"{text}; {tail}"))


def _short(words: str) -> str:
    """What a client sent comes back in a refusal, and is kept with it, but not all of it."""
    if len(words) <= LONGEST_MESSAGE:
        return words
    return f"{words[: LONGEST_MESSAGE // 2]} ... {words[-LONGEST_MESSAGE // 2 :]}"


def _nothing(handlers: Any, verb: Verb) -> Answer | None:
    return None


class VerbQueue:
    """Verbs in order of arrival, from any thread to the control thread."""

    def __init__(self, length: int = QUEUE_LENGTH) -> None:
        self._length = length
        self._condition = threading.Condition()
        self._waiting: collections.deque[Verb] = collections.deque()
        self._open: list[Verb] = []
        self._closed: FlashRTError | None = None

    def put(self, verb: Verb) -> None:
        """Hands a verb to the control thread.

        Raises:
            BusyError: Too many wait already.
            FlashRTError: The queue was closed with this error.
        """
        with self._condition:
            if self._closed is not None:
                raise self._closed
            if len(self._waiting) >= self._length:
                raise BusyError(
                    f"{verb.name}: {self._length} requests wait for the control thread already; "
                    "expected fewer; repeat it later"
                )
            self._waiting.append(verb)
            self._open = [other for other in self._open if other.result is None]
            self._open.append(verb)
            self._condition.notify()

    def wake(self) -> None:
        """Makes a waiting ``get`` return."""
        with self._condition:
            self._condition.notify()

    def get(self, timeout_s: float | None) -> Verb | None:
        """Takes the oldest verb, waiting for one; None when the time is up or on ``wake``."""
        with self._condition:
            if not self._waiting and (timeout_s is None or timeout_s > 0.0):
                self._condition.wait(timeout_s)
            return self._waiting.popleft() if self._waiting else None

    def expire(self, now_ns: int) -> int:
        """Answers every verb whose deadline has passed; called from the callback side.

        Returns:
            How many.
        """
        if not self._open:
            return 0
        with self._condition:
            self._open = [verb for verb in self._open if verb.result is None]
            overdue = list(self._open)
        return sum(verb.expire(now_ns) for verb in overdue)

    def close(self, error: FlashRTError) -> None:
        """Refuses all that wait and all that come with ``error``."""
        with self._condition:
            self._closed = error
            self._waiting.clear()
            left, self._open = self._open, []
            self._condition.notify()
        for verb in left:
            verb.answer(refusal(error))


class Ledger:
    """Remembers verbs by request id, so that a repeated one gets the first answer again."""

    def __init__(self, length: int = LEDGER_LENGTH) -> None:
        self._length = length
        self._entries: collections.OrderedDict[str, tuple[bytes, str, Verb]] = (
            collections.OrderedDict()
        )

    def find(self, request_id: str, content: str) -> Verb | None:
        """The verb that first came with this id, done or under way.

        Args:
            request_id: Id of the request; empty is never found.
            content: Service and request in full, to tell a repetition from a clash of ids.

        Raises:
            InvalidArgumentError: The id is too long, or came before with another content.
            BusyError: Its time was up once, and it is under way still.
        """
        if len(request_id) > LONGEST_ID:
            raise InvalidArgumentError(
                f"request_id: expected at most {LONGEST_ID} characters, found {len(request_id)}"
            )
        entry = self._entries.get(request_id) if request_id else None
        if entry is None:
            return None
        known, shown, verb = entry
        if known != _digest(content):
            raise InvalidArgumentError(
                f"request_id {request_id!r} was used for another request: expected {shown}, "
                f"found {content[:SHOWN]}; use a new id for each request"
            )
        if verb.result is None:
            return verb
        lost = not verb.settle()
        if verb.result.code is ErrorCode.TIMEOUT and not lost:
            raise BusyError(
                f"request_id {request_id!r}: its {verb.name} is still being carried out; "
                "repeat it later for its answer"
            )
        if verb.result.code in TRANSIENT:
            del self._entries[request_id]
            return None
        return verb

    def remember(self, request_id: str, content: str, verb: Verb) -> None:
        """Keeps ``verb`` under its id, unless that is empty."""
        if not request_id:
            return
        verb.request_id = request_id
        self._entries[request_id] = (_digest(content), content[:SHOWN], verb)
        while len(self._entries) > self._length:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forgets all."""
        self._entries.clear()

    def __len__(self) -> int:
        """Verbs remembered."""
        return len(self._entries)


def _digest(content: str) -> bytes:
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
