"""Messages of a recording by the digest of their bytes, as a record of a control step names them.

The recording is read once, a little ahead of the steps: what is asked for is kept until the last
step that asks for it, everything else is gone at once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from flashrt_ros.bag.message import Message
from flashrt_ros.contract.cdr import peek_stamp
from flashrt_ros.contract.rebuild import Key, Rebuilder
from flashrt_ros.contract.sampler import Prepared

AHEAD_NS = 5_000_000_000
"""How much later than a step, by the recorder's clock, a message behind it may be recorded."""
PASSED_BY = 512
"""Messages of each topic that nobody asked for and of which digest and stamp are kept."""


@dataclass(frozen=True)
class PassedBy:
    """A message that no record names.

    Attributes:
        stamp_ns: Header stamp; 0 where the type has none.
        digest: xxh3_64.
    """

    stamp_ns: int
    digest: int


class NamedMessages:
    """Finds messages by topic and digest; ask in order of steps."""

    def __init__(
        self,
        messages: Iterator[Message],
        wanted: Counter[Key],
        topics: dict[Key, str],
        rebuilder: Rebuilder,
        stamped: frozenset[str],
    ) -> None:
        """Begins before the first message.

        Args:
            messages: Of all topics that are read, in order of recorded time.
            wanted: How often each message will be asked for; counted down.
            topics: The contract's topic of each.
            rebuilder: Decodes them, once.
            stamped: Recorded topics whose messages have header stamps.
        """
        self._messages = messages
        self._wanted = wanted
        self._topics = topics
        self._rebuilder = rebuilder
        self._stamped = stamped
        self._held: dict[Key, bytes | Prepared] = {}
        self._passed: dict[str, deque[PassedBy]] = {}
        self._next: Message | None = next(messages, None)

    def find(self, key: Key, time_ns: int) -> Prepared | None:
        """Returns a message, None if it is not there.

        Args:
            key: Of the message; it counts as one of the times that it is asked for.
            time_ns: Recorded time of the step that asks.
        """
        while key not in self._held and self._next is not None:
            if self._next.time_ns > time_ns + AHEAD_NS:
                break
            self._take(self._next)
            self._next = next(self._messages, None)
        held = self._held.get(key)
        if isinstance(held, bytes):
            held = self._held[key] = self._rebuilder.prepare(self._topics[key], held)
        self.skip(key)
        return held

    def skip(self, key: Key) -> None:
        """A step that wanted this message is passed over."""
        self._wanted[key] -= 1
        if self._wanted[key] <= 0:
            self._held.pop(key, None)
            del self._wanted[key]

    def instead(self, topic: str, stamp_ns: int) -> PassedBy | None:
        """A message with this header stamp that no record names, if one was passed by lately."""
        passed = self._passed.get(topic, ())
        return next((each for each in passed if stamp_ns and each.stamp_ns == stamp_ns), None)

    def _take(self, message: Message) -> None:
        digest = xxhash.xxh3_64_intdigest(message.cdr)
        key = (message.topic, digest)
        if key in self._wanted:
            self._held.setdefault(key, bytes(message.cdr))
            return
        stamp_ns = peek_stamp(message.cdr) if message.topic in self._stamped else 0
        passed = self._passed.setdefault(message.topic, deque(maxlen=PASSED_BY))
        passed.append(PassedBy(stamp_ns, digest))
