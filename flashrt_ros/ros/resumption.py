"""``~/resume`` is answered when the first command has left, or when it is known why it has not."""

from __future__ import annotations

from collections.abc import Callable

from flashrt_ros.errors import (
    BusyError,
    FlashRTError,
    StaleInputError,
    StoppedError,
    SupersededError,
)
from flashrt_ros.ros.motion import Mode, Motion
from flashrt_ros.ros.verbs import Verb, done, refusal


class Options:
    """Parameters of the node that may change while it runs; read at every step.

    Attributes:
        publish_state_digest: Digest the state after each step into ``~/policy_step``.
        publish_chunk: Publish adopted chunks.
        start_timeout_s: How long ``~/resume`` waits for the first command.
        service_timeout_s: After this a service answers TIMEOUT.
        dry_run: Shadow mode: the policy runs, others drive.
        miss_limit_s: How long ``on_miss`` repeats before the stop message.
        rollback_period_steps: Control steps between two boundaries of the rollback ring.
        keep_warm_s: Replay the policy after so long a rest; 0: never.
    """

    def __init__(self) -> None:
        """Defaults, as the node declares them."""
        self.publish_state_digest = False
        self.publish_chunk = False
        self.start_timeout_s = 1.0
        self.service_timeout_s = 5.0
        self.keep_warm_s = 0.0
        self.dry_run = False
        self.miss_limit_s = 0.5
        self.rollback_period_steps = 1


class Resumption:
    """The one resume that may be under way; used by the control thread alone."""

    def __init__(self, motion: Motion, options: Options, clock_ns: Callable[[], int]) -> None:
        """Begins without one."""
        self._motion = motion
        self._options = options
        self._clock_ns = clock_ns
        self._verb: Verb | None = None
        self._until_ns = 0

    def begin(self, verb: Verb) -> None:
        """Takes charge of ``verb``, after ``Motion.resume``.

        Raises:
            BusyError: Another one is under way.
        """
        self.require_none()
        self._verb = verb
        self._until_ns = self._clock_ns() + round(self._options.start_timeout_s * 1e9)

    def require_none(self) -> None:
        """Raises BusyError if one is under way."""
        if self._verb is not None and self._verb.result is None:
            raise BusyError(
                "resume: another ~/resume waits for its first command; expected none; "
                "wait for its answer"
            )

    def end(self, error: BaseException | None) -> None:
        """Answers with success or ``error``, if one is under way."""
        verb, self._verb = self._verb, None
        if verb is not None:
            verb.answer(done("running") if error is None else refusal(error))

    def supersede(self, by: str) -> None:
        """The state that it was meant for is gone."""
        self.end(SupersededError(f"resume: overtaken by {by} before the first command"))

    def check(self) -> None:
        """Holds again if its time was up: who was told TIMEOUT does not expect motion later."""
        if self._verb is not None and self._verb.result is not None:
            self._verb = None
            self._motion.hold("~/resume timed out before the first command; call it again")

    def overtaken(self) -> None:
        """Motion was forbidden before the first command."""
        if self._verb is not None:
            standing = self._motion.standing
            kind = StoppedError if standing.mode is Mode.STOPPED else SupersededError
            self.end(kind(f"resume: overtaken before the first command: {standing.reason}"))

    def tire(self, now_ns: int, words: str) -> None:
        """Gives up when no fresh input came in time: holds again, so that nothing moves later."""
        if self._verb is None or now_ns < self._until_ns:
            return
        waited_s = self._options.start_timeout_s
        reason = f"no fresh input within {waited_s:g} s of ~/resume: {words}"
        self._motion.hold(f"{reason}; call ~/resume again when it is there")
        error: FlashRTError = StaleInputError(reason)
        self.end(error)
