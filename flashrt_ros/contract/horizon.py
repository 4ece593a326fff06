"""Chunks that leave as one trajectory: when one must be sent, and what is in it.

The policy goes on by control steps, and what it commands in each is a point of the trajectory that
the controller follows. So there is nothing to say until the two differ: with a new chunk, after
limits or a ramp have changed an action, and after anything else was sent. And once control steps
are late: a controller goes on by its own clock, whether they come or not.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np

from flashrt_ros.contract.messages import Values
from flashrt_ros.contract.output import ROUNDING, ActionShaper, Command, Shaped
from flashrt_ros.contract.schema import Output

LATE_PERIODS = 0.75
"""By which a control step may come after its row and still count as in time. Control steps keep
to deadlines within half a period, or leave one out."""


@dataclass(frozen=True)
class Ahead:
    """What comes after the action of a control step, if nothing new is planned.

    Attributes:
        chunk: Tells chunks apart.
        index: Row of the action in it.
        rows: The actions after it, ``(K, A)`` float64 in contract units: copied, since a device
            that hangs must not be waited for under the lock that a stop needs.
    """

    chunk: Hashable
    index: int
    rows: Values = field(compare=False)


@dataclass(frozen=True)
class _Sent:
    chunk: Hashable
    index: int
    points: Values
    sent_ns: int
    row: int = 0
    """That the last control step commanded."""


class Horizon:
    """What controllers have been sent, for outputs of whole chunks; the caller holds the lock."""

    def __init__(self, shaper: ActionShaper) -> None:
        """Begins with controllers that follow nothing.

        Args:
            shaper: Of the contract.
        """
        self._shaper = shaper
        self._period_ns = round(shaper.contract.period_s * 1e9)
        self._sent: dict[str, _Sent] = {}

    def messages(
        self,
        shaped: Shaped,
        ahead: Ahead | None,
        stamp_ns: int,
        now_ns: int,
        steps: bool = True,
    ) -> tuple[list[Command], str]:
        """The messages of one shaped action.

        Args:
            shaped: After limits, not dropped.
            ahead: None: the action stands alone, so single points are sent.
            stamp_ns: ROS clock.
            now_ns: Steady clock.
            steps: Whether ``shaped`` was limited in its step, so that later rows are.

        Returns:
            Those to send, without outputs whose controllers follow a trajectory with this action,
            and why the frame is dropped; empty where it is not.
        """
        found = []
        sent: dict[str, _Sent] = {}
        for command in self._shaper.messages(shaped, stamp_ns):
            output, values = command.output, command.values
            if not output.is_chunk or ahead is None:
                found.append(command)
                continue
            if self._follows(output, ahead, values, now_ns):
                followed = self._sent[output.topic]
                row = ahead.index - followed.index
                sent[output.topic] = replace(followed, row=row)
                continue
            points, reason = self._shaper.follow(output, values, ahead.rows, steps)
            if reason:
                return [], reason
            sent[output.topic] = _Sent(ahead.chunk, ahead.index, points, now_ns)
            found.append(Command(output, self._shaper.encode(output, points, stamp_ns), values))
        self._sent = sent
        return found, ""

    def forget(self, topic: str | None = None) -> None:
        """Something else was sent to this topic, or to all: the next action is sent anew."""
        if topic is None:
            self._sent.clear()
        else:
            self._sent.pop(topic, None)

    def overrun(self, now_ns: int) -> dict[str, Values]:
        """Where controllers have led the arm beyond the last command, as no control step came.

        Args:
            now_ns: Steady clock.

        Returns:
            Topic to values; of those alone that are beyond it.
        """
        found = {}
        for topic, sent in self._sent.items():
            # A row is reached one period after its control step.
            reached = (now_ns - sent.sent_ns) / self._period_ns - 1.0
            if reached > sent.row + LATE_PERIODS:
                row = min(reached, len(sent.points) - 1.0)
                before, after = sent.points[math.floor(row)], sent.points[math.ceil(row)]
                found[topic] = before + (row % 1.0) * (after - before)
        return found

    def _follows(self, output: Output, ahead: Ahead, values: Values, now_ns: int) -> bool:
        """Whether the trajectory that was sent last has these values in this control step."""
        sent = self._sent.get(output.topic)
        if sent is None or sent.chunk != ahead.chunk:
            return False
        row = ahead.index - sent.index
        if not 0 <= row < len(sent.points):
            return False
        if now_ns - sent.sent_ns > (row + LATE_PERIODS) * self._period_ns:
            return False
        return bool(np.allclose(sent.points[row], values, rtol=ROUNDING, atol=ROUNDING))
