"""Topics that must not be one: what a node commands, and by what it tells where the robot is.

A contract may say it, or a remap that nobody has compared with the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flashrt_ros.errors import ContractError

if TYPE_CHECKING:
    from flashrt_ros.contract.contract import Contract

MERGED = "sensor_msgs/msg/JointState"
"""Whoever reads it takes joints by name, so that several outputs may share a topic."""


def refuse_loops(contract: Contract, resolve: Callable[[str], str] = str) -> None:
    """Refuses commands that come back as measured positions, and those that contradict another.

    Args:
        contract: Whose topics.
        resolve: From a topic as the contract writes it to its name in the graph.

    Raises:
        ContractError: There are some.
    """
    start = contract.start
    for position, output in enumerate(contract.actions):
        name = resolve(output.topic)
        if start is not None and resolve(start.measured.topic) == name:
            raise ContractError(
                f"{contract.source}: start.measured.topic: expected a topic on which the robot "
                f"says where it is, found {name}, which {output.path} commands: the first command "
                "would be compared with commands"
            )
        for other in contract.actions[:position]:
            merged = other.type == output.type == MERGED
            if resolve(other.topic) == name and not (
                merged and set(other.names).isdisjoint(output.names)
            ):
                raise ContractError(
                    f"{contract.source}: {output.path}.topic: expected another topic than "
                    f"{other.path} has, found {name} for both: the robot would follow them in turn"
                )
