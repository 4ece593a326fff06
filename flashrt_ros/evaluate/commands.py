"""Commands that were recorded, brought back into the elements of the action they came from.

The inverse of ``contract.messages``: by name where a message carries names, never by position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

_POINT_FIELDS = {"position": "positions", "velocity": "velocities", "effort": "effort"}
_POSE = attributes(
    [f"pose.position.{axis}" for axis in "xyz"] + [f"pose.orientation.{axis}" for axis in "xyzw"]
)


def _joint_state(output: Output, message: Any, period_ns: int) -> Named:
    return message.name, getattr(message, output.field)


def _joint_trajectory(output: Output, message: Any, period_ns: int) -> Named:
    if not message.points:
        raise ContractError("expected a trajectory with points, found none")
    # What is asked for by the next control step: the points before it are on the way there.
    point = message.points[-1]
    for candidate in message.points:
        duration = candidate.time_from_start
        if duration.sec * 1_000_000_000 + duration.nanosec >= period_ns:
            point = candidate
            break
    return message.joint_names, getattr(point, _POINT_FIELDS[output.field])


def _twist(output: Output, message: Any, period_ns: int) -> Named:
    return None, attributes(output.names)(getattr(message, "twist", message))


_READ: Mapping[str, Callable[[Output, Any, int], Named]] = {
    "sensor_msgs/msg/JointState": _joint_state,
    "trajectory_msgs/msg/JointTrajectory": _joint_trajectory,
    "std_msgs/msg/Float64MultiArray": lambda output, message, _: (None, message.data),
    "std_msgs/msg/Float64": lambda output, message, _: (None, (message.data,)),
    "geometry_msgs/msg/Twist": _twist,
    "geometry_msgs/msg/TwistStamped": _twist,
    "geometry_msgs/msg/PoseStamped": lambda output, message, _: (None, _POSE(message)),
    GRIPPER: lambda output, message, _: (None, (message.position,)),
}


class CommandReader:
    """Reads the messages of one output."""

    def __init__(self, output: Output, period_s: float) -> None:
        """Prepares for the output's type.

        Args:
            output: One of the contract's actions.
            period_s: Of the control loop; picks the point of a trajectory.
        """
        self.output = output
        self._period_ns = round(period_s * 1e9)
        self._form = PoseForm(output.rotation, output.names) if output.is_pose else None
        self._orders: dict[tuple[str, ...], list[int]] = {}

    def __call__(self, cdr: bytes) -> Values:
        """The commanded values in the order of ``output.index``, float64, in contract units.

        Raises:
            ContractError: The message is damaged, lacks a name, or has another number of values.
        """
        output = self.output
        message = decode(output.type, cdr).message
        names, numbers = _READ[output.type](output, message, self._period_ns)
        values = np.array(numbers, dtype=np.float64)
        if self._form is not None:
            return self._form.elements(values)
        given = output.names if names is None else tuple(names)
        if values.shape != (len(given),):
            raise ContractError(
                f"expected {len(given)} values ({', '.join(given)}), found {values.size}"
            )
        order = self._orders.get(given)
        if order is None:
            missing = [name for name in output.names if name not in given]
            if missing:
                raise ContractError(f"expected {missing}, found only {list(given)}")
            order = self._orders[given] = [given.index(name) for name in output.names]
        return values[order]


class RecordedCommands:
    """What was commanded last, on all outputs of a contract.

    Attributes:
        faults: Topic to the first message that could not be used, in words, and how many.
        since_ns: Topic to the time of the message that counts.
    """

    def __init__(self, contract: Contract, size: int) -> None:
        """Nothing was commanded so far.

        Args:
            contract: Whose actions these are.
            size: Elements of the action.
        """
        self._size = size
        self._readers = {o.topic: CommandReader(o, contract.period_s) for o in contract.actions}
        self._index = {o.topic: list(o.index) for o in contract.actions}
        self._last: dict[str, tuple[int, Values]] = {}
        self.faults: dict[str, tuple[str, int]] = {}
        self.since_ns: dict[str, int] = {}

    def put(self, topic: str, cdr: bytes, time_ns: int) -> None:
        """Takes one message in; one that cannot be used is counted and changes nothing.

        Args:
            topic: As the contract writes it.
            cdr: Serialized.
            time_ns: When it was recorded.
        """
        try:
            self._last[topic] = (time_ns, self._readers[topic](cdr))
            self.since_ns[topic] = time_ns
        except ContractError as error:
            words, count = self.faults.get(topic, (str(error), 0))
            self.faults[topic] = (words, count + 1)

    def values(self, not_before_ns: int) -> Values:
        """``(A,)`` float64, NaN for elements that were not commanded since ``not_before_ns``."""
        found = np.full(self._size, np.nan)
        for topic, (time_ns, values) in self._last.items():
            if time_ns >= not_before_ns:
                found[self._index[topic]] = values
        return found

    def ages_ms(self, now_ns: int) -> dict[str, float]:
        """Age of the last command by ``command (topic)``; NaN where there was none."""
        return {
            f"command ({topic})": (now_ns - self._last[topic][0]) * 1e-6
            if topic in self._last
            else float("nan")
            for topic in self._readers
        }
