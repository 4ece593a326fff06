"""What the node may do now, and why: the rules about motion in one place, without ROS.

Several reasons to stand still can hold at once; the mode is the gravest of them. Each is ended
only by what is named for it, so ending one never starts a robot that another one keeps still:

==================  =====================================================================
stop                ``~/clear_stop``, which leaves a hold behind
bar                 a stop input that permits motion; one that came while the robot wanted to move
                    leaves a hold behind
pause               ``~/resume``, or restore and rollback with ``publish``
hold                ``~/resume``, restore and rollback with ``publish``, reset without ``hold``
start               the first command that was computed from fresh input and found safe
fault               a sample without faults
==================  =====================================================================
"""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass

from flashrt_ros.errors import (
    InactiveError,
    NotConfiguredError,
    StoppedError,
    SupersededError,
)

SHADOW = "in the shadow of others: what it would do is published below ~/shadow (dry_run)"
NOTHING_FRESH = "no fresh observations yet"


class Mode(enum.IntEnum):
    """Values of ``mode`` in ``PolicyStatus``, as the .msg file has them."""

    UNCONFIGURED = 0
    INACTIVE = 1
    WAITING = 2
    """Active, wants to move, waits for input newer than the last verb."""
    RUNNING = 3
    HOLDING = 4
    """Held by a verb, an unsafe start or a faulty action until resumed, or by an input fault."""
    PAUSED = 5
    STOPPED = 6
    """Latched until ``~/clear_stop``; outlives deactivation and clean-up."""


@dataclass(frozen=True)
class Standing:
    """Mode with its reason in words, empty where there is none, as always while RUNNING."""

    mode: Mode
    reason: str


class Motion:
    """The state machine. Its methods are called from the control thread and from callbacks.

    Attributes:
        lock: Held while a command is published, so that after ``stop`` or ``pause`` returned no
            command computed earlier can follow. Re-entrant.
        not_before_ns: Steady clock; input received before this is not to be acted on.
        starting: The next command is the first after an interruption and must be checked against
            the measured position.
        epoch: Raised by every stop, pause and deactivation: a command that was computed under an
            older one must not leave, and a request that came under an older one must not move.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.not_before_ns = 0
        self.starting = True
        self.epoch = 0
        self._configured = False
        self._active = False
        self._stopped = ""
        self._barred = ""
        self._paused = False
        self._held = ""
        self._fault = ""
        self._failed_transition = ""
        self._shadow = False

    @property
    def standing(self) -> Standing:
        """Mode and reason now."""
        with self.lock:
            return self._standing()

    def _standing(self) -> Standing:
        if not self._configured:
            return Standing(Mode.UNCONFIGURED, self._with_failure(self._stopped))
        if not self._active:
            held = self._stopped or self._barred or self._held
            return Standing(Mode.INACTIVE, self._with_failure(held))
        if self._stopped:
            return Standing(Mode.STOPPED, self._stopped)
        if self._paused:
            return Standing(Mode.PAUSED, "by ~/pause: call ~/resume to go on")
        if self._barred or self._held:
            return Standing(Mode.HOLDING, self._barred or self._held)
        if self.starting:
            return Standing(Mode.WAITING, self._fault or NOTHING_FRESH)
        if self._fault:
            return Standing(Mode.HOLDING, self._fault)
        return Standing(Mode.RUNNING, SHADOW if self._shadow else "")

    def _with_failure(self, reason: str) -> str:
        return "; ".join(filter(None, (self._failed_transition, reason)))

    @property
    def mode(self) -> Mode:
        """Mode now."""
        return self.standing.mode

    @property
    def wants_to_move(self) -> bool:
        """True if only fresh input, at most, is missing for a command."""
        with self.lock:
            reasons = self._stopped or self._barred or self._paused or self._held
            return self._active and not reasons

    @property
    def faulty(self) -> bool:
        """True while an input fault interrupts a motion that had begun."""
        with self.lock:
            return self.wants_to_move and bool(self._fault) and not self.starting

    @property
    def active(self) -> bool:
        """True from activate to deactivate."""
        return self._active

    @property
    def stopped(self) -> bool:
        """True while the stop is latched."""
        return bool(self._stopped)

    def require(self, active: bool) -> None:
        """Checks that a verb can work now.

        Args:
            active: Whether the verb needs the node active rather than only configured.

        Raises:
            NotConfiguredError: Before configure and after clean-up.
            InactiveError: ``active`` is asked for and the node is inactive.
        """
        with self.lock:
            if not self._configured:
                raise NotConfiguredError(
                    "the node is unconfigured: expected inactive or active; "
                    "configure it first (ros2 lifecycle set ... configure)"
                )
            if active and not self._active:
                raise InactiveError(
                    "the node is inactive: expected active; "
                    "activate it first (ros2 lifecycle set ... activate)"
                )

    # Lifecycle

    def transition_begins(self) -> None:
        """Why the last one failed is of no interest any more."""
        with self.lock:
            self._failed_transition = ""

    def transition_failed(self, words: str) -> None:
        """The reason shows until the next transition, as long as the node is not active."""
        with self.lock:
            self._failed_transition = words

    def configure(self, hold: bool) -> None:
        """The session stands ready; with ``hold`` the first activation waits for ``~/resume``."""
        with self.lock:
            self._configured = True
            self._paused = False
            self._fault = ""
            self._held = "on start, by the parameter hold: call ~/resume to go on" if hold else ""
            self.starting = True

    def activate(self, now_ns: int) -> None:
        """Motion is wanted; holds and pauses from before still stand."""
        with self.lock:
            self._active = True
            self._begin(now_ns)

    def deactivate(self) -> None:
        """No more motion."""
        with self.lock:
            self._active = False
            self._fault = ""
            self.starting = True
            self.epoch += 1

    def clean_up(self) -> None:
        """All but the latched stop is forgotten."""
        with self.lock:
            self._configured = self._active = self._paused = False
            self._held = self._fault = self._barred = ""
            self.starting = True

    # The stop input

    def bar(self, reason: str) -> bool:
        """Forbids motion until ``permit``; a robot that wanted to move holds even then.

        Args:
            reason: In words, also of what is waited for.

        Returns:
            True if motion was not barred before.
        """
        with self.lock:
            fresh = not self._barred
            if fresh and self.wants_to_move:
                self._held = f"{reason}; that is over: call ~/resume to go on"
            self._barred = reason
            if fresh:
                self.starting = True
                self.epoch += 1
            return fresh

    def permit(self, now_ns: int) -> None:
        """Ends ``bar``; only input received from now on, steady clock, is acted on."""
        with self.lock:
            if self._barred:
                self._barred = ""
                self._begin(now_ns)

    # Verbs

    def stop(self, reason: str = "by ~/stop: call ~/clear_stop, then ~/resume") -> None:
        """Latches the stop, in any lifecycle state; the reason also names what ends it."""
        with self.lock:
            self._stopped = reason
            self.starting = True
            self.epoch += 1

    def clear_stop(self) -> bool:
        """Releases the stop into a hold, as motion needs a second, separate word.

        Returns:
            False if there was no stop.
        """
        with self.lock:
            if not self._stopped:
                return False
            self._stopped = ""
            if self._configured:
                self._held = "the stop was cleared: call ~/resume to go on"
                self._paused = False
            return True

    def pause(self) -> None:
        """Stands still until resumed.

        Raises:
            NotConfiguredError: The node is unconfigured.
            InactiveError: The node is inactive.
        """
        with self.lock:
            self.require(active=True)
            self._paused = True
            self.starting = True
            self.epoch += 1

    def resume(self, now_ns: int, epoch: int | None = None) -> None:
        """Ends pause and hold; the next command is checked as a first one.

        Args:
            now_ns: Steady clock; only input received from now on is acted on.
            epoch: ``epoch`` when the request came; None: now.

        Raises:
            NotConfiguredError: The node is unconfigured.
            InactiveError: The node is inactive.
            StoppedError: The stop is latched, or the stop input does not permit motion.
            SupersededError: A stop, pause or deactivation came after the request.
        """
        with self.lock:
            self.require(active=True)
            self.refuse_if_overtaken(epoch)
            if self._barred:
                raise StoppedError(f"resume: expected a stop input that permits: {self._barred}")
            self._paused = False
            self._held = ""
            self._begin(now_ns)

    def refuse_if_stopped(self) -> None:
        """Raises StoppedError while the stop is latched."""
        if self._stopped:
            raise StoppedError(
                "the stop is latched: expected it cleared; call ~/clear_stop, then ~/resume"
            )

    def refuse_if_overtaken(self, epoch: int | None) -> None:
        """Refuses a request to move that a word to stand still has overtaken.

        Stop and pause act at once, requests to move wait for the control thread: one that came
        first must not undo what was said after it.

        Raises:
            StoppedError: The stop is latched.
            SupersededError: A stop, pause or deactivation came after the request.
        """
        self.refuse_if_stopped()
        if self._overtaken(epoch):
            raise SupersededError(
                "a stop, pause or deactivation came after this request and before its turn: "
                "expected none; nothing was done; ask anew if the robot is to move all the same"
            )

    def _overtaken(self, epoch: int | None) -> bool:
        return epoch is not None and epoch != self.epoch

    def state_changed(
        self, now_ns: int, hold: str, end_pause: bool = False, epoch: int | None = None
    ) -> None:
        """The execution state is another one now: what was received before no longer counts.

        Args:
            now_ns: Steady clock; only input received from now on is acted on.
            hold: Reason to hold until resumed; empty: go on as soon as input is fresh.
            end_pause: True if the caller asked for commands in so many words.
            epoch: ``epoch`` when the request came: if it has risen since, holds; None: now.
        """
        with self.lock:
            if not hold and self._overtaken(epoch):
                hold = "a stop, pause or deactivation came after the request: call ~/resume"
            if not hold and self._barred:
                hold = f"{self._barred}: call ~/resume when it permits"
            self._held = hold
            if end_pause and not hold:
                self._paused = False
            self._begin(now_ns)

    def hand_over(self, shadow: bool) -> None:
        """Another one drives from now on; a command computed before must not leave."""
        with self.lock:
            self._shadow = shadow
            self.starting = True
            self.epoch += 1

    def interrupt(self) -> None:
        """Commands stopped flowing: the next one is to be checked as a first one."""
        with self.lock:
            self.starting = True

    def time_jumped(self, since_ns: int) -> None:
        """Buffered input no longer counts; pause and hold stay as they are."""
        with self.lock:
            self._begin(since_ns)

    def _begin(self, now_ns: int) -> None:
        # A message from before the last verb may turn out to be a jump in time only after it.
        self.not_before_ns = max(self.not_before_ns, now_ns)
        self.starting = True
        self._fault = ""

    # What the control step finds

    def hold(self, reason: str) -> None:
        """Holds until resumed; the next command will be checked as a first one."""
        with self.lock:
            self._held = reason
            self.starting = True

    def input_fault(self, words: str) -> None:
        """The input does not do, every one concerned in words; ends when a sample is good."""
        with self.lock:
            self._fault = words

    def input_good(self) -> None:
        """The input is complete and fresh."""
        with self.lock:
            self._fault = ""

    def started(self) -> None:
        """The first command was found safe."""
        with self.lock:
            self.starting = False
