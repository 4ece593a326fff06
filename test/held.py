"""A control step or a plan of the node that lasts until a test lets it go.

Where something must be answered while the policy computes, a step of so many seconds would not do:
a machine may stall for longer than that, on either side.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import puppet
from sensor_msgs.msg import JointState
from stage import Stage

ALL = 1 << 62


@contextlib.contextmanager
def held(
    stage: Stage, position: tuple[float, float] = (0.1, -0.1)
) -> Iterator[Callable[[], None]]:
    """Holds what ``puppet.Puppet`` or ``puppet.Planner`` computes next; all ends with the block.

    Gives what lets the first one go, and no other.

    Args:
        stage: Runs one of them.
        position: What the robot says from now on; the held computation is the first to see it.
    """

    def count(words: str) -> int:
        return stage.process.output().count(words)

    def let_go(until: int) -> None:
        path = stage.folder / puppet.GO_ON
        path.with_suffix(".new").write_text(str(until))
        os.replace(path.with_suffix(".new"), path)

    begun = count(puppet.HOLDS)
    let_go(begun)

    def hold(message: JointState) -> None:
        message.position = list(position)
        message.velocity = [puppet.HELD, 0.0]

    before, stage.robot.alter = stage.robot.alter, hold
    try:
        stage.peer.wait(lambda: count(puppet.HOLDS) > begun, "a computation that is held")
        yield lambda: let_go(begun + 1)
    finally:
        stage.robot.alter = before
        let_go(ALL)
        if stage.process.code is None:
            stage.peer.wait(lambda: count(puppet.HOLDS) == count(puppet.GOES_ON), "its end")
