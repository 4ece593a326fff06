"""Plays a recording at its recorded times, paused, faster or again and again; knows no ROS."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from flashrt_ros.bag.message import Message
from flashrt_ros.bag.reader import BagReader
from flashrt_ros.errors import InvalidArgumentError

CLOCK_PERIOD_S = 0.01
"""Between two messages, the recorded time is told at least so often."""


class Sink(Protocol):
    """Where played messages go."""

    def publish(self, message: Message) -> None:
        """Sends one message; called from the thread of ``Player.run``."""

    def tell_time(self, time_ns: int) -> None:
        """Sends the recorded time; called only if the player was asked to."""


@dataclass
class Played:
    """What was played.

    Attributes:
        messages: Messages sent.
        loops: Times that the recording was begun.
        latest_ms: The longest that a message was sent after its time.
    """

    messages: int = 0
    loops: int = 0
    latest_ms: float = 0.0


class Player:
    """Sends the messages of a recording when they are due.

    ``pause``, ``resume``, ``toggle`` and ``stop`` may be called from any thread.

    Args:
        reader: The recording, open.
        sink: Where the messages go.
        topics: Names of the topics to play; None for all.
        rate: Recorded seconds per second, above 0.
        loop: Begin again at the end, without a gap. Recorded stamps then jump back.
        paused: Begin paused, before the first message.
        tell_time: Send the recorded time, too.
        now: Steady clock in seconds.
        wait: Waits on the condition given for at most the seconds given.

    Raises:
        InvalidArgumentError: The rate is not above 0, or there is nothing to play.
    """

    def __init__(
        self,
        reader: BagReader,
        sink: Sink,
        topics: Collection[str] | None = None,
        rate: float = 1.0,
        loop: bool = False,
        paused: bool = False,
        tell_time: bool = False,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Condition, float | None], object] = threading.Condition.wait,
    ) -> None:
        if not 0 < rate < float("inf"):
            raise InvalidArgumentError(f"rate: expected a number above 0, found {rate}")
        chosen = [t for t in reader.topics if topics is None or t.name in topics]
        if not any(topic.count for topic in chosen):
            raise InvalidArgumentError(
                f"{reader.path}: expected messages on {', '.join(sorted(topics or ['any topic']))}"
                ", found none to play"
            )
        self._reader, self._sink, self._topics = reader, sink, topics
        self._rate, self._loop, self._tell_time = rate, loop, tell_time
        self._now, self._wait = now, wait
        self._changed = threading.Condition()
        self._paused, self._stopped = paused, False
        # Recorded time `_recorded_ns` is due at `_steady_s`.
        self._recorded_ns, self._steady_s = 0, 0.0

    @property
    def paused(self) -> bool:
        """Whether it holds still."""
        return self._paused

    def pause(self) -> None:
        """Holds still before the next message."""
        self._set(paused=True)

    def resume(self) -> None:
        """Goes on where it was paused."""
        self._set(paused=False)

    def toggle(self) -> None:
        """Pauses or resumes."""
        self._set(paused=not self._paused)

    def stop(self) -> None:
        """Ends ``run`` before the next message."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def run(self) -> Played:
        """Plays until the end, or until ``stop``."""
        played = Played()
        while not self._stopped:
            played.loops += 1
            begun = False
            for message in self._reader.messages(self._topics):
                if not begun:
                    self._recorded_ns, self._steady_s = message.time_ns, self._now()
                    begun = True
                late_s = self._await(message.time_ns)
                if late_s is None:
                    return played
                if self._tell_time:
                    self._sink.tell_time(message.time_ns)
                self._sink.publish(message)
                played.messages += 1
                played.latest_ms = max(played.latest_ms, late_s * 1e3)
            if not self._loop or not begun:
                break
        return played

    def _set(self, paused: bool) -> None:
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    def _await(self, time_ns: int) -> float | None:
        """Waits until a recorded time is due; returns seconds too late, None when stopped."""
        with self._changed:
            while not self._stopped:
                if self._paused:
                    begin = self._now()
                    self._wait(self._changed, None)
                    self._steady_s += self._now() - begin
                    continue
                due_s = self._steady_s + (time_ns - self._recorded_ns) / 1e9 / self._rate
                left_s = due_s - self._now()
                if left_s <= 0:
                    return -left_s
                if not self._tell_time:
                    self._wait(self._changed, left_s)
                    continue
                self._wait(self._changed, min(left_s, CLOCK_PERIOD_S))
                if not self._paused and self._now() < due_s:
                    passed_s = (self._now() - self._steady_s) * self._rate
                    self._sink.tell_time(self._recorded_ns + int(passed_s * 1e9))
        return None
