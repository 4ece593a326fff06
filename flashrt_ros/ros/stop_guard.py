"""Heeds the contract's stop input: a message that stops, or that must keep coming.

``receive`` runs in the executor and acts before it returns; ``check`` runs before every command,
under the lock that commands need, so that none leaves that the input no longer permits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import QoSProfile

from flashrt_ros.contract.stop import StopInput
from flashrt_ros.ros import messages
from flashrt_ros.ros.commander import Commander
from flashrt_ros.ros.motion import Motion
from flashrt_ros.ros.records import Outlet
from flashrt_ros.ros.subscriptions import subscription


class StopGuard:
    """The stop input of one contract.

    Attributes:
        stop: What the contract says of it.
        received: Messages so far.
        stops: How often it has ended or forbidden motion.
        heard_stamp_ns: ROS clock at the reception of the last message that did; 0: none.
    """

    def __init__(
        self,
        stop: StopInput,
        motion: Motion,
        commander: Commander,
        outlet: Outlet,
        latch: Callable[[str], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Begins without a message: where messages must come, motion is barred.

        Args:
            stop: Of the contract.
            motion: Told what is permitted.
            commander: Asks before each command, and sends the stop message.
            outlet: For clock and log.
            latch: Stops like ``~/stop``, for a reason in words.
            clock_ns: Steady clock.
        """
        self.stop = stop
        self.received = self.stops = 0
        self.heard_stamp_ns = 0
        self._motion = motion
        self._commander = commander
        self._outlet = outlet
        self._latch = latch
        self._clock_ns = clock_ns
        self._max_age_ns = round(stop.max_age_ms * 1e6)
        self._received_ns = 0
        self._says = False
        self._misfit = ""
        commander.guard = self.check
        self.check(clock_ns())

    def listen(
        self,
        node: Node,
        changed: Callable[[], None],
        endpoint: Callable[..., tuple[QoSProfile, Callable[[Any], None]]],
    ) -> Any:
        """Subscribes.

        Args:
            node: Of the subscription.
            changed: Called when the mode may have changed.
            endpoint: The profile, and what is called when a publisher cannot be heard; see
                ``QosWatch``.

        Raises:
            UnsupportedError: See ``subscription``.
        """

        def receive(message: Any) -> None:
            before = self._motion.standing
            self.receive(bool(message.data))
            if self._motion.standing != before:
                changed()

        def misfit(words: str) -> None:
            self.misfit(words)
            changed()

        profile, incompatible = endpoint("stop input", self.stop.topic, self.stop.qos, misfit)
        return subscription(
            node,
            "stop input",
            messages.interface(self.stop.type),
            self.stop.topic,
            receive,
            profile,
            event_callbacks=SubscriptionEventCallbacks(incompatible_qos=incompatible),
        )

    @property
    def objection(self) -> str:
        """Why it permits no motion now; empty where it does."""
        with self._motion.lock:
            return self._objection(self._clock_ns())

    @property
    def age_ms(self) -> float:
        """Since the last message; NaN before the first."""
        if not self.received:
            return float("nan")
        return (self._clock_ns() - self._received_ns) / 1e6

    def receive(self, says: bool) -> None:
        """Takes a message, and acts on it before returning."""
        with self._motion.lock:
            now_ns = self._received_ns = self._clock_ns()
            self.received += 1
            self._says = says
            if says and not self.stop.dead_man:
                self._note()
                if not self._motion.stopped:
                    self._latch(
                        f"by a message on {self.stop.topic}: call ~/clear_stop, then ~/resume"
                    )
            self.check(now_ns)

    def misfit(self, words: str) -> None:
        """A publisher that cannot be heard: no motion while it is there; empty: it is gone."""
        with self._motion.lock:
            self._misfit = words
            self.check(self._clock_ns())

    def check(self, now_ns: int) -> None:
        """Bars motion, with the stop message, while the input does not permit it.

        Args:
            now_ns: Steady clock.
        """
        with self._motion.lock:
            reason = self._objection(now_ns)
            if not reason:
                self._motion.permit(now_ns)
                return
            # The message first: it belongs to the motion that ends here.
            if self._commander.moving:
                self._commander.halt()
            if self._motion.bar(reason):
                if self.received or self._misfit:
                    self._note()
                self._outlet.log("warn", f"no motion: {reason}")

    def _objection(self, now_ns: int) -> str:
        """Why the input does not permit motion; empty where it does."""
        topic = self.stop.topic
        if self._misfit:
            return f"stop input {topic}: {self._misfit}"
        if self.stop.dead_man and self.received and not self._says:
            return f"dead-man switch {topic} is released"
        if not self._max_age_ns:
            return ""
        kind = "dead-man switch" if self.stop.dead_man else "stop input"
        if not self.received:
            return f"{kind} {topic}: no message yet"
        if now_ns - self._received_ns > self._max_age_ns:
            # No figure of the age: it would be another reason each time.
            return f"{kind} {topic}: no message for more than {self.stop.max_age_ms:g} ms"
        return ""

    def _note(self) -> None:
        self.stops += 1
        self.heard_stamp_ns = self._outlet.stamp_ns()
