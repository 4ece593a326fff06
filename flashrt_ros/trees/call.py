"""One call of a service: sent when the service is there, repeated while unanswered, let go."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flashrt_ros.errors import ErrorCode

Clock = Callable[[], float]
"""Seconds on a steady clock."""
KEPT = 10_000
"""Durations that are remembered of a verb, the newest."""


@dataclass
class VerbTimes:
    """How the calls of one service went.

    Attributes:
        took_ms: Steady clock, from sending to the arrival of the answer: the newest ``KEPT``.
        done: Answered with success.
        refused: Answered without.
        lost: Not answered in time, or not sent.
        cancelled: Given up before either.
    """

    took_ms: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    done: int = 0
    refused: int = 0
    lost: int = 0
    cancelled: int = 0


class Call:
    """A call under way; made by ``PolicyLink.begin``.

    A request is repeated with the same id while no answer comes, since the middleware may lose one
    while client and server still get to know each other, and a server may come back.

    Attributes:
        verb: Name of the service.
        request: As sent.
        response: The answer, whatever it says; None without one.
        problem: Why there is no answer, or why it is no success; empty until known, and then on
            success.
        code: Error code of the answer; ``TIMEOUT`` where none came.
        lost: There will be no answer: it is not known whether the work was done.
        took_ms: Steady clock, from the last sending to the answer; NaN without one.
        ended_s: Clock; when it was over.
    """

    def __init__(
        self,
        verb: str,
        client: Any,
        request: Any,
        timeout_s: float,
        resend_s: float,
        clock: Clock,
        times: VerbTimes,
        last: bool = False,
        company: Callable[[], str] = str,
    ) -> None:
        """Sends the request, if the service is there.

        Args:
            verb: Name of the service.
            client: rclpy's client of it.
            request: To be sent.
            timeout_s: From now to the answer.
            resend_s: Repeats the request after so long without an answer.
            clock: Steady clock.
            times: Where its end is counted.
            last: It is also sent once the ROS context has ended, as by Ctrl-C, where nobody can
                say whether the service is there, and no answer will come.
            company: Says, where the service is not there, which nodes are.
        """
        self.verb, self.request, self.timeout_s = verb, request, timeout_s
        self.response: Any = None
        self.problem = ""
        self.code = ErrorCode.NONE
        self.lost = False
        self.took_ms = float("nan")
        self.ended_s = float("inf")
        self._client, self._clock, self._times = client, clock, times
        self._resend_s, self._last, self._company = resend_s, last, company
        self._deadline_s = clock() + timeout_s
        self._resend_at_s = clock()
        self._futures: list[Any] = []
        self._over = False
        self._advance()

    @property
    def over(self) -> bool:
        """Whether it was answered, lost or let go."""
        return self._over

    @property
    def unknown(self) -> bool:
        """Whether the work may yet be done, or be under way: a retry must keep its id."""
        return self.code in (ErrorCode.TIMEOUT, ErrorCode.BUSY)

    @property
    def waits_for(self) -> str:
        """Name of the service while no node offers it; empty once the request was sent."""
        return "" if self._futures or self._over else str(self._client.srv_name)

    def poll(self) -> bool:
        """Looks for the answer; never waits.

        Returns:
            Whether it is over.
        """
        if not self._over:
            answered = next((future for future in self._futures if future.done()), None)
            if answered is not None:
                self._take(answered)
            elif self._clock() >= self._deadline_s:
                self._lose(self._silence())
            else:
                self._advance()
        return self._over

    def let_go(self) -> None:
        """Nobody waits any longer: the client forgets it. The node may yet do what was asked."""
        if not self._over:
            self._times.cancelled += 1
            self._end()

    def _advance(self) -> None:
        now_s = self._clock()
        if now_s < self._resend_at_s:
            return
        # In a tick nothing may be raised: a node that was destroyed is a call that failed.
        try:
            if not self._ready():
                return
            future = self._client.call_async(self.request)
        except Exception as error:
            self._lose(f"could not be sent: {type(error).__name__}: {error}")
            return
        self._resend_at_s = now_s + self._resend_s
        self._futures.append(future)
        self._sent_s = sent_s = time.perf_counter()
        # In the thread that spins, so that the time does not depend on when the tree ticks.
        future.add_done_callback(lambda _: self._arrived(time.perf_counter() - sent_s))

    def _ready(self) -> bool:
        try:
            return bool(self._client.service_is_ready())
        except Exception:
            if self._last:
                return True
            raise

    def _arrived(self, passed_s: float) -> None:
        self.took_ms = passed_s * 1e3

    def _take(self, future: Any) -> None:
        error = future.exception()
        response = None if error is not None else future.result()
        if response is None:
            self._lose(f"no answer can be had: {error or 'the call was cancelled'}")
            return
        self.response = response
        if math.isnan(self.took_ms):
            # An executor runs callbacks of a future as tasks of their own: ours is yet to come.
            self._arrived(time.perf_counter() - self._sent_s)
        self._times.took_ms.append(self.took_ms)
        if response.success:
            self._times.done += 1
        else:
            self._times.refused += 1
            number = getattr(response, "error_code", ErrorCode.INTERNAL)
            self.code = _code(number)
            word = f"{_word(number)}: " if hasattr(response, "error_code") else ""
            self.problem = f"{self.verb}: {word}{response.message}"
        self._end()

    def _silence(self) -> str:
        if self._futures:
            return (
                f"no answer from {self._client.srv_name} within {self.timeout_s:g} s; whether it "
                "was done is not known"
            )
        words = (
            f"expected service {self._client.srv_name}, which no node has offered for "
            f"{self.timeout_s:g} s; is the policy node running under this name?"
        )
        return " ".join(filter(None, (words, self._company())))

    def _lose(self, words: str) -> None:
        self.lost, self.code = True, ErrorCode.TIMEOUT
        self.problem = f"{self.verb}: {words}"
        self._times.lost += 1
        self._end()

    def _end(self) -> None:
        self._over = True
        self.ended_s = self._clock()
        for future in self._futures:
            self._client.remove_pending_request(future)
        self._futures.clear()


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.INTERNAL  # of a newer node


def _word(number: int) -> str:
    try:
        return ErrorCode(number).name
    except ValueError:
        return f"error {number}"
