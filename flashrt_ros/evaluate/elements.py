"""The elements of an action: what they are called, their units, and which of them are grippers."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.messages import GRIPPER
from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.runtime.policy import Ports

GRIPPER_WORDS = ("gripper", "jaw", "finger")
"""An element whose name holds one of these opens and closes something."""


@dataclass(frozen=True)
class Elements:
    """The action vector, element by element.

    Attributes:
        names: ``A`` different names, as the robot has them.
        units: ``A`` units, empty where none is given.
        gripper: ``A`` flags: opens and closes something.
        period_s: Length of a control step.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    gripper: tuple[bool, ...]
    period_s: float

    @property
    def size(self) -> int:
        """A."""
        return len(self.names)


def is_gripper(name: str) -> bool:
    """Whether an element of this name opens and closes something."""
    return any(word in name.lower() for word in GRIPPER_WORDS)


def elements_of(contract: Contract, ports: Ports) -> Elements:
    """The action as contract and policy have it.

    An element is called as in its message, with the topic in front where two would be called
    alike. What the contract leaves unused is called as the policy calls it.

    Args:
        contract: Of the robot.
        ports: Of the policy.
    """
    size = math.prod(ports.action.shape)
    names = list(ports.action.names) or [f"action[{i}]" for i in range(size)]
    units = [ports.action.unit] * size
    gripper = [False] * size
    topics = [""] * size
    for output in contract.actions:
        for i, name in zip(output.index, output.names, strict=True):
            names[i], topics[i] = name, output.topic
            units[i] = output.unit
            gripper[i] = output.type == GRIPPER or is_gripper(name) or is_gripper(output.topic)
    counts = Counter(names)
    unique = [
        f"{topic}/{name}" if counts[name] > 1 and topic else name
        for name, topic in zip(names, topics, strict=True)
    ]
    return Elements(tuple(unique), tuple(units), tuple(gripper), contract.period_s)


def with_grippers(elements: Elements, names: Sequence[str]) -> Elements:
    """The same with these marked as grippers, too.

    Raises:
        InvalidArgumentError: One of them is not there.
    """
    missing = [name for name in names if name not in elements.names]
    if missing:
        raise InvalidArgumentError(
            f"--gripper: expected elements of the action ({', '.join(elements.names)}), found "
            f"{', '.join(missing)}"
        )
    gripper = zip(elements.names, elements.gripper, strict=True)
    marked = tuple(flag or name in names for name, flag in gripper)
    return dataclasses.replace(elements, gripper=marked)
