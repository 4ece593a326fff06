"""Ticks a tree to its end, for programs that have nothing else to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import py_trees
from py_trees.behaviour import Behaviour
from py_trees.common import Status
from rclpy.executors import SingleThreadedExecutor

TICK_S = 0.02


def tick_through(
    root: Behaviour,
    node: Any,
    *,
    period_s: float = TICK_S,
    spin: bool = True,
    ticked: Callable[[Behaviour], None] = lambda root: None,
) -> Status:
    """Sets a tree up, ticks it until it is no longer RUNNING, and shuts it down.

    Between two ticks the node's callbacks run in this thread. A late tick does not make the next
    ones come faster.

    Args:
        root: Of the tree.
        node: ROS node, in no executor yet if ``spin``.
        period_s: From tick to tick.
        spin: False: somebody else spins the node, in another thread.
        ticked: Called after each tick, and with what it raises the tree ends: the place for prints
            and for looking whether going on makes sense.

    Returns:
        SUCCESS or FAILURE.
    """
    executor = SingleThreadedExecutor(context=node.context) if spin else None
    try:
        if executor is not None:
            executor.add_node(node)
        py_trees.trees.setup(root, node=node)
        next_s = time.monotonic()
        while True:
            root.tick_once()
            ticked(root)
            if root.status is not Status.RUNNING:
                return root.status
            next_s = max(next_s + period_s, time.monotonic())
            while (left_s := next_s - time.monotonic()) > 0.0:
                if executor is None:
                    time.sleep(left_s)
                else:
                    executor.spin_once(timeout_sec=left_s)
    finally:
        if root.status is Status.RUNNING:
            root.stop(Status.INVALID)
        for behaviour in root.iterate():
            behaviour.shutdown()
        if executor is not None:
            executor.remove_node(node)
            executor.shutdown(timeout_sec=1.0)
