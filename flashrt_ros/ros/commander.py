"""The last gate before the robot: every command passes here, under the lock of ``Motion``.

Commands come from the control thread; ``halt`` may come from any thread, and after it returned no
command that was computed before it can follow.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract import ActionShaper, Admitted, Command, Contract, StartGate
from flashrt_ros.contract.between import Interpolator
from flashrt_ros.contract.horizon import Ahead, Horizon
from flashrt_ros.contract.output import Commands
from flashrt_ros.contract.start import distance_fault
from flashrt_ros.ros.motion import Motion
from flashrt_ros.ros.records import Outlet, Vector
from flashrt_ros.ros.relay import Relay

ACK_TIMEOUT_S = 0.2
"""How long a stop message is waited for; a subscriber that is gone must not block the stop."""


class Verdict(enum.Enum):
    """What became of an action."""

    SENT = "sent"
    DRY = "dry run"
    """All but published."""
    UNSAFE = "unsafe start"
    """A first command too far from the measured position; nothing left."""
    DROPPED = "dropped"
    """Not finite, or out of limits where the contract refuses; nothing left."""
    OVERTAKEN = "overtaken"
    """Stopped, paused or deactivated while it was computed; nothing left."""


@dataclass(frozen=True)
class Outcome:
    """What became of one action.

    Attributes:
        verdict: See ``Verdict``.
        action: ``(A,)`` after blending and limits.
        reason: Why nothing left; empty where something did.
        limited: What was changed by limits, in words.
        ramp: What the start ramp made of it.
        limited_from: Commands before, as ``ActionShaper.pack`` has them, from which steps are
            counted; None where limits changed nothing.
    """

    verdict: Verdict
    action: Vector
    reason: str = ""
    limited: tuple[str, ...] = ()
    ramp: Admitted | None = None
    limited_from: Vector | None = None

    def facts(self) -> dict[str, Any]:
        """Its part of a ``StepRecord``."""
        ramp = self.ramp if self.ramp is not None and self.ramp.origin is not None else None
        return {
            "action": self.action,
            "published": self.verdict is Verdict.SENT,
            "dry_run": self.verdict is Verdict.DRY,
            "hold_reason": self.reason,
            "ramp_share": 1.0 if ramp is None else ramp.share,
            "ramp_from": np.empty(0) if ramp is None else ramp.origin,
            "limited_from": np.empty(0) if self.limited_from is None else self.limited_from,
        }


class Commander:
    """Blends, limits and sends actions, and says what to do without one.

    Attributes:
        limited: Commands that limits have changed so far.
        limited_words: What was changed in the last of them.
        guard: Called with the steady clock before anything leaves, under the lock; forbids motion
            where the stop input does.
        relay: Publishes between control steps; None where no output wants it, or before ``start``.
    """

    def __init__(
        self,
        contract: Contract,
        motion: Motion,
        outlet: Outlet,
        dry_run: bool,
        miss_limit_s: float,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Makes a commander that has sent nothing yet.

        Args:
            contract: Outputs, limits, start check.
            motion: Decides whether something may leave.
            outlet: Where commands go.
            dry_run: Shadow mode: others drive, nothing is sent; see ``shadow``.
            miss_limit_s: How long ``on_miss: hold`` and ``zeros`` repeat before the stop message.
            clock_ns: Steady clock.
        """
        self.contract = contract
        self.shaper = ActionShaper(contract)
        self.dry_run = dry_run
        self.limited = 0
        self.limited_words = ""
        self.guard: Callable[[int], None] = lambda now_ns: None
        self._motion = motion
        self._outlet = outlet
        self._gate = StartGate(contract)
        self._horizon = Horizon(self.shaper)
        self._miss_limit_ns = round(miss_limit_s * 1e9)
        self._clock_ns = clock_ns
        self._last: dict[str, Vector] = {}
        self._moving: set[str] = set()
        self._missing_since_ns: int | None = None
        motion.hand_over(dry_run)
        self._between = {
            output.topic: Interpolator(output, contract.period_s)
            for output in contract.actions
            if output.publish_rate_hz
        }
        self.relay: Relay | None = None

    def start(self) -> None:
        """Begins to publish between control steps, where the contract wants it."""
        if self._between:
            outputs = [between.output for between in self._between.values()]
            self.relay = Relay(
                outputs, self.publish_between, lambda: self.moving, self._fail, self._outlet
            )
            self.relay.start()

    def close(self) -> bool:
        """Ends that; False if its thread hangs."""
        return self.relay is None or self.relay.close()

    @property
    def moving(self) -> bool:
        """True while some output follows our commands: sent, and not ended by a stop message."""
        return bool(self._moving)

    def command(
        self,
        action: npt.ArrayLike,
        measured: npt.NDArray[np.float32] | None,
        now_ns: int,
        epoch: int,
        ahead: Ahead | None = None,
    ) -> Outcome:
        """Sends one action if all is well with it.

        Args:
            action: ``(A,)`` as the policy gave it.
            measured: Positions in the order of ``start.measured.names``; needed for a first one.
            now_ns: Steady clock.
            epoch: ``Motion.epoch`` when the step began.
            ahead: What comes after it, for outputs of whole chunks.
        """
        values = np.array(action, dtype=np.float64)
        with self._motion.lock:
            self.guard(now_ns)
            if epoch != self._motion.epoch or not self._motion.wants_to_move:
                return Outcome(Verdict.OVERTAKEN, values, self._motion.standing.reason)
            if self.dry_run:
                return self._shadow_command(values, measured, now_ns, ahead)
            # Kept if nothing leaves: the stop message that follows repeats what was sent, not
            # what was measured.
            last = {**self._last, **self._horizon.overrun(now_ns)}
            if self._motion.starting:
                self._gate.arm_()
                self._horizon.forget()
                last = self.shaper.at_rest(measured)
                if not np.isfinite(values).all():
                    # Said by the shaper, by name; the gate would call it a distance.
                    return Outcome(Verdict.DROPPED, values, self.shaper.shape(values).dropped)
            admitted = self._gate.admit(values, measured, now_ns)
            if admitted.action is None:
                return Outcome(Verdict.UNSAFE, values, f"unsafe start: {admitted.refused}")
            shaped = self.shaper.shape(admitted.action, last)
            if shaped.dropped:
                return Outcome(Verdict.DROPPED, shaped.action, shaped.dropped, ramp=admitted)
            # While a ramp leads, the rows to come are not what will be commanded.
            messages, dropped = self._horizon.messages(
                shaped, None if admitted.blending else ahead, self._outlet.stamp_ns(), now_ns
            )
            if dropped:
                return Outcome(Verdict.DROPPED, admitted.action, dropped, ramp=admitted)
            self._motion.started()
            self._missing_since_ns = None
            self._send(messages, now_ns, last)
            self._last = {**last, **shaped.commands}
            if shaped.limited:
                self.limited += 1
                self.limited_words = "; ".join(shaped.limited)
            changed = not np.array_equal(shaped.action, admitted.action)
            before = self.shaper.pack(last) if changed else None
            return Outcome(Verdict.SENT, shaped.action, "", shaped.limited, admitted, before)

    def _shadow_command(
        self,
        values: Vector,
        measured: npt.NDArray[np.float32] | None,
        now_ns: int,
        ahead: Ahead | None,
    ) -> Outcome:
        """What would have left, within limits of position; steps are those of whoever drives."""
        shaped = self.shaper.shape(values)
        if shaped.dropped:
            return Outcome(Verdict.DROPPED, shaped.action, shaped.dropped)
        messages, dropped = self._horizon.messages(
            shaped, ahead, self._outlet.stamp_ns(), now_ns, steps=False
        )
        if dropped:
            return Outcome(Verdict.DROPPED, values, dropped)
        self._motion.started()
        self._outlet.shadow(messages)
        words = Verdict.DRY.value
        if far := distance_fault(self.contract, shaped.action, measured):
            words += f"; as a first command it would not leave: {far}"
        return Outcome(Verdict.DRY, shaped.action, words, shaped.limited)

    def shadow(self, dry_run: bool) -> bool:
        """Hands the robot over: to others, with the stop message, or to the policy, checked anew.

        Args:
            dry_run: True: from now on others drive, and what would have left goes to the shadow
                topics. False: the next command is checked as a first one.

        Returns:
            False if it was so already.
        """
        with self._motion.lock:
            if dry_run == self.dry_run:
                return False
            self.halt()  # of a shadow that sends nothing
            self.dry_run = dry_run
            self._last = {}
            self._motion.hand_over(dry_run)
        words = "others drive, this is their shadow" if dry_run else "the policy drives"
        self._outlet.log("info", f"dry_run is now {dry_run}: {words}")
        return True

    def limit_misses(self, miss_limit_s: float) -> None:
        """Changes how long ``on_miss`` repeats."""
        self._miss_limit_ns = round(miss_limit_s * 1e9)

    def miss(self, now_ns: int) -> None:
        """Does what ``on_miss`` says in a control period without an action.

        Repeating ends with the stop message after ``miss_limit_s``: a velocity that is held for
        ever is a robot that drives on for ever.
        """
        with self._motion.lock:
            self.guard(now_ns)
            if not self._motion.wants_to_move or not self._moving:
                return
            first = self._missing_since_ns is None
            if self._missing_since_ns is None:
                self._missing_since_ns = now_ns
            if now_ns - self._missing_since_ns >= self._miss_limit_ns:
                self._outlet.log("warn", "no action for longer than miss_limit_s: stop message")
                self.halt()
                return
            last = {**self._last, **self._horizon.overrun(now_ns)}
            for topic, between in self._between.items():
                # A stop is where the arm was sent last, not where it would have been sent next.
                if between.output.on_miss == "stop" and between.place is not None:
                    last = {**last, topic: between.place}
            commands = self.shaper.miss_messages(last, self._outlet.stamp_ns())
            due = [c for c in commands if c.output.topic in self._moving and (c.repeat or first)]
            for command in due:
                self._horizon.forget(command.output.topic)
            self._send(due, now_ns, last)
            self._last = {**self._last, **{c.output.topic: c.values for c in due}}
            if any(not command.repeat for command in due):
                self._motion.interrupt()

    def halt(self, wait: bool = False, all_outputs: bool = False) -> None:
        """Sends the stop message of each output that is moving; the next command is a first one.

        Args:
            wait: Wait until reliable subscribers have it, at most ``ACK_TIMEOUT_S``.
            all_outputs: Also outputs that do not follow us now, where the message is one of zeros:
                an old position must not be sent to an arm that others have moved meanwhile.
        """
        with self._motion.lock:
            known = {**self._last, **self._horizon.overrun(self._clock_ns())}
            last = {topic: known[topic] for topic in self._moving if topic in known}
            for topic, between in self._between.items():
                if (place := between.cut()) is not None and topic in last:
                    last[topic] = place
            commands = self.shaper.stop_messages(last, self._outlet.stamp_ns())
            if not all_outputs:
                commands = [c for c in commands if c.output.topic in self._moving]
            if commands and not self.dry_run:
                self._outlet.send(commands)
            self._moving.clear()
            self._horizon.forget()
            self._missing_since_ns = None
            self._motion.interrupt()
            if commands and wait and not self.dry_run and not self._outlet.flush(ACK_TIMEOUT_S):
                self._outlet.log("warn", "a subscriber has not acknowledged the stop message")

    def _send(self, commands: Sequence[Command], now_ns: int, last: Commands) -> None:
        """Sends commands, or leaves them to the relay; ``last``: those before."""
        if not commands or self.dry_run:
            return
        at_once = []
        for command in commands:
            topic = command.output.topic
            resting = not command.repeat and self._missing_since_ns is not None
            (self._moving.discard if resting else self._moving.add)(topic)
            between = self._between.get(topic)
            if between is None or resting:
                at_once.append(command)
                if between is not None:
                    between.cut()
            elif command.repeat and command.output.on_miss == "zeros":
                between.jump(command.values, now_ns)
            else:
                between.aim(command.values, now_ns, last.get(topic))
        if at_once:
            self._outlet.send(at_once)
        if self.relay is not None:
            self.relay.wake()

    def publish_between(self, topics: Sequence[str], now_ns: int) -> int:
        """Publishes samples of these outputs as of now, and says of how many there were some."""
        with self._motion.lock:
            self.guard(now_ns)
            if not self._motion.wants_to_move:
                return 0
            stamp_ns = self._outlet.stamp_ns()
            samples = []
            for topic in topics:
                between = self._between[topic]
                if topic not in self._moving or (values := between.sample(now_ns)) is None:
                    continue
                fields = self.shaper.encode(between.output, values, stamp_ns)
                samples.append(Command(between.output, fields, values))
            if samples:
                self._outlet.send(samples)
            return len(samples)

    def _fail(self, reason: str) -> None:
        with self._motion.lock:
            self.halt()
            self._motion.hold(reason)
