"""Commands that were recorded, brought back into the elements of the action they came from.

The inverse of ``contract.messages``: by name where a message carries names, never by position. A
trajectory of several points commands one after the other, as its controller follows it.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.conversions import decode
from flashrt_ros.contract.field_path import attributes
from flashrt_ros.contract.messages import GRIPPER, Values
from flashrt_ros.contract.pose import PoseForm
from flashrt_ros.contract.schema import Output
from flashrt_ros.errors import ContractError

Named = tuple[Sequence[str] | None, Any]
"""Names that a message carries, None where its type carries none, and its numbers."""
JITTER = 0.5
"""Share of a control period by which a step may be early and still counts as the next one."""


@dataclass(frozen=True)
class Recorded:
    """What one message commands.

    Attributes:
        time_ns: When it was recorded.
        values_PK: ``(P, K)`` float64 in the order of ``Output.index``: a row for each point.
        after_ns_P: When each point is to be reached, from the beginning of the trajectory; empty
            where there is one row.
    """

    time_ns: int
    values_PK: Values
    after_ns_P: tuple[int, ...] = ()


_POINT_FIELDS = {"position": "positions", "velocity": "velocities", "effort": "effort"}
_POSE = attributes(
    [f"pose.position.{axis}" for axis in "xyz"] + [f"pose.orientation.{axis}" for axis in "xyzw"]
)


def _joint_state(output: Output, message: Any) -> Named:
    return message.name, getattr(message, output.field)


def _joint_trajectory(output: Output, message: Any) -> Named:
    if not message.points:
        raise ContractError("expected a trajectory with points, found none")
    rows = [getattr(point, _POINT_FIELDS[output.field]) for point in message.points]
    return message.joint_names, rows


def _twist(output: Output, message: Any) -> Named:
    return None, attributes(output.names)(getattr(message, "twist", message))


_READ: Mapping[str, Callable[[Output, Any], Named]] = {
    "sensor_msgs/msg/JointState": _joint_state,
    "trajectory_msgs/msg/JointTrajectory": _joint_trajectory,
    "std_msgs/msg/Float64MultiArray": lambda output, message: (None, message.data),
    "std_msgs/msg/Float64": lambda output, message: (None, (message.data,)),
    "geometry_msgs/msg/Twist": _twist,
    "geometry_msgs/msg/TwistStamped": _twist,
    "geometry_msgs/msg/PoseStamped": lambda output, message: (None, _POSE(message)),
    GRIPPER: lambda output, message: (None, (message.position,)),
}


class CommandReader:
    """Reads the messages of one output."""

    def __init__(self, output: Output, unnamed: bool = False) -> None:
        """Prepares for the output's type.

        Args:
            output: One of the contract's actions.
            unnamed: Messages that have left their names empty are in the contract's order.
        """
        self.output = output
        self._unnamed = unnamed
        self._form = PoseForm(output.rotation, output.names) if output.is_pose else None
        self._orders: dict[tuple[str, ...], list[int]] = {}

    def __call__(self, message: Any, time_ns: int) -> Recorded:
        """What a message commands, in contract units.

        Args:
            message: Of the output's type.
            time_ns: When it was recorded.

        Raises:
            ContractError: The message lacks a name, or has another number of values.
        """
        output = self.output
        names, numbers = _READ[output.type](output, message)
        after_ns_P = tuple(map(_after_ns, getattr(message, "points", ())))
        try:
            values_PK = np.array(numbers, dtype=np.float64, ndmin=2)
        except ValueError as error:
            raise ContractError(f"expected points of one length: {error}") from error
        values_PK[~np.isfinite(values_PK)] = np.nan
        if self._form is not None:
            return Recorded(time_ns, self._form.elements(values_PK[0])[None])
        given = output.names if names is None else tuple(names)
        if not given and self._unnamed:
            given = output.names
        if not given:
            raise ContractError(
                "expected the names of joints, found none; --unnamed-commands takes them to be in "
                "the contract's order"
            )
        if values_PK.shape[1:] != (len(given),):
            raise ContractError(
                f"expected {len(given)} values ({', '.join(given)}), found {values_PK.shape[1:]}"
            )
        order = self._orders.get(given)
        if order is None:
            missing = [name for name in output.names if name not in given]
            if missing:
                raise ContractError(f"expected {missing}, found only {list(given)}")
            order = self._orders[given] = [given.index(name) for name in output.names]
        return Recorded(time_ns, values_PK[:, order], after_ns_P)

    def as_of(self, recorded: Recorded, now_ns: int) -> Values:
        """``(K,)``: what a controller that follows this message is led to in a control step."""
        if len(recorded.values_PK) == 1:
            first: Values = recorded.values_PK[0]
            return first
        # As in a message of one point: what is to be reached so long after this step.
        ahead_ns = round((self.output.time_from_start_s - JITTER * self.output.period_s) * 1e9)
        due_ns = now_ns - recorded.time_ns + ahead_ns
        row = bisect.bisect_left(recorded.after_ns_P, due_ns)
        found: Values = recorded.values_PK[min(row, len(recorded.values_PK) - 1)]
        return found


def _after_ns(point: Any) -> int:
    duration = point.time_from_start
    return int(duration.sec) * 1_000_000_000 + int(duration.nanosec)


class RecordedCommands:
    """What was commanded last, on all outputs of a contract.

    Attributes:
        faults: Topic to the first message that could not be used, in words, and how many.
        partial: Topic to messages with values that are not finite, which command nothing.
        since_ns: Topic to the time of the message that counts.
    """

    def __init__(self, contract: Contract, size: int, unnamed: bool = False) -> None:
        """Nothing was commanded so far.

        Args:
            contract: Whose actions these are.
            size: Elements of the action.
            unnamed: See ``CommandReader``.
        """
        self._size = size
        self._readers = {o.topic: CommandReader(o, unnamed) for o in contract.actions}
        self._index = {output.topic: list(output.index) for output in contract.actions}
        self._last: dict[str, Recorded] = {}
        self.faults: dict[str, tuple[str, int]] = {}
        self.partial: dict[str, int] = {}
        self.since_ns: dict[str, int] = {}

    def put(self, topic: str, message: Any, time_ns: int) -> None:
        """Takes one message in; one that cannot be used is counted and changes nothing.

        Args:
            topic: As the contract writes it.
            message: Decoded.
            time_ns: When it was recorded.
        """
        try:
            self._last[topic] = self._readers[topic](message, time_ns)
            self.since_ns[topic] = time_ns
        except ContractError as error:
            self.fault(topic, str(error))
            return
        if not np.isfinite(self._last[topic].values_PK).all():
            self.partial[topic] = self.partial.get(topic, 0) + 1

    def repeat(self, topic: str, type_name: str, cdr: bytes, time_ns: int) -> None:
        """Takes in again, undecoded, what was taken before; nothing is counted."""
        try:
            message = decode(type_name, cdr).message
            self._last[topic] = self._readers[topic](message, time_ns)
            self.since_ns[topic] = time_ns
        except ContractError:
            pass

    def fault(self, topic: str, words: str) -> None:
        """Counts a message that cannot be used."""
        first, count = self.faults.get(topic, (words, 0))
        self.faults[topic] = (first, count + 1)

    def values(self, now_ns: int, not_before_ns: int) -> Values:
        """``(A,)`` float64 as of ``now_ns``, NaN where nothing came since ``not_before_ns``."""
        found = np.full(self._size, np.nan)
        for topic, recorded in self._last.items():
            if recorded.time_ns >= not_before_ns:
                found[self._index[topic]] = self._readers[topic].as_of(recorded, now_ns)
        return found

    def ages_ms(self, now_ns: int) -> dict[str, float]:
        """Age of the last command by ``command (topic)``; NaN where there was none."""
        return {
            f"command ({topic})": (now_ns - self._last[topic].time_ns) * 1e-6
            if topic in self._last
            else float("nan")
            for topic in self._readers
        }
