"""Ticks a tree of verbs and its twin of empty leaves at a running node, and times every tick.

    python -m flashrt_ros.trees.bench_peer '{"ticks": 1000, "threaded": false}'

Prints one JSON line and ends. Run by ``flashrt_ros bench trees``.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from typing import Any

import py_trees
import rclpy
from py_trees.behaviour import Behaviour
from py_trees.behaviours import TickCounter
from py_trees.common import Status
from py_trees.composites import Sequence
from rclpy.executors import SingleThreadedExecutor
from rclpy.task import Future

from flashrt_ros.trees.housekeeping import DropCapsule, GetCapsule, ListCapsules
from flashrt_ros.trees.linked import Linked
from flashrt_ros.trees.picture import verb_table
from flashrt_ros.trees.runner import tick_through
from flashrt_ros.trees.verb import Fork, Preview, ResetEpisode, Restore, Rollback, Snapshot
from flashrt_ros.trees.watch import WaitUntilFresh

EVERY = 10
"""A verb begins in every tenth tick."""
PERIOD_S = 0.01
PATIENCE_S = 60.0


class Empty(Behaviour):
    """What is left of a verb without its call: RUNNING for one tick, then SUCCESS."""

    def initialise(self) -> None:
        """Called at the first tick."""
        self._asked = False

    def update(self) -> Status:
        """Called at each tick."""
        before, self._asked = self._asked, True
        return Status.SUCCESS if before else Status.RUNNING


def verbs() -> list[Behaviour]:
    """Each changes what the others find; none of them lets the node wait."""
    return [
        Snapshot(capsule="bench", replace=True),
        Fork(source="bench", branches=["branch"]),
        Preview(branches=["branch"]),
        Restore(capsule="branch", publish=True),
        ListCapsules(),
        DropCapsule(capsule="branch"),
        Rollback(steps=1, publish=True),
        GetCapsule(capsule="bench"),
        ResetEpisode(),
    ]


def spaced(leaves: list[Behaviour]) -> Behaviour:
    """The leaves in turn, so that one begins in every ``EVERY``-th tick."""
    tree = Sequence("bench", memory=True)
    for leaf in leaves:
        rest = TickCounter(f"after {leaf.name}", EVERY - 2, Status.SUCCESS)
        tree.add_children([leaf, rest])
    return tree


class Clocked:
    """A tree whose ticks are timed.

    Attributes:
        wall_us: Of each tick.
        cpu_us: Of each tick, time of this thread on a processor.
        outcomes: Of each leaf that ended, by its name.
    """

    def __init__(self, root: Behaviour) -> None:
        """Args: root: of the tree."""
        self.root = root
        self.wall_us: list[float] = []
        self.cpu_us: list[float] = []
        self.failed: list[str] = []

    def tick(self) -> None:
        """One tick."""
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        self.root.tick_once()
        cpu_s, wall_s = time.thread_time() - cpu_s, time.perf_counter() - wall_s
        self.wall_us.append(wall_s * 1e6)
        self.cpu_us.append(cpu_s * 1e6)
        if self.root.status is Status.FAILURE and (tip := self.root.tip()) is not None:
            self.failed.append(tip.feedback_message)


def futures() -> int:
    """Futures of rclpy that are alive."""
    gc.collect()
    return sum(type(thing) is Future for thing in gc.get_objects())


def measure(ticks: int, threaded: bool) -> dict[str, Any]:
    """Ticks both trees in turn.

    Args:
        ticks: Of each.
        threaded: Another thread spins the node; else this one does, between ticks.
    """
    rclpy.init(args=[])
    node = rclpy.create_node("trees")
    if tick_through(WaitUntilFresh(timeout_s=PATIENCE_S), node) is not Status.SUCCESS:
        raise TimeoutError("the policy does not run")
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            executor.spin_once(timeout_sec=0.1)

    spinner = threading.Thread(target=spin, daemon=True)
    if threaded:
        spinner.start()
    leaves = verbs()
    twins = [Clocked(spaced(leaves)), Clocked(spaced([Empty(leaf.name) for leaf in leaves]))]
    before, services = futures(), len(list(node.clients))
    py_trees.trees.setup(twins[0].root, node=node)
    # Twice round before it counts: clients and services meet, caches fill.
    warm_up = 2 * EVERY * len(leaves)
    next_s = time.monotonic()
    for index in range(warm_up + ticks):
        if index == warm_up:
            for twin in twins:
                twin.wall_us, twin.cpu_us, twin.failed = [], [], []
        # Who comes first alternates: what a spin leaves behind falls on both alike.
        for twin in twins if index % 2 else reversed(twins):
            twin.tick()
            next_s = max(next_s + PERIOD_S, time.monotonic())
            while (left_s := next_s - time.monotonic()) > 0.0:
                if threaded:
                    time.sleep(left_s)
                else:
                    executor.spin_once(timeout_sec=left_s)
    link = next(leaf.link for leaf in leaves if isinstance(leaf, Linked))
    assert link is not None
    found = {
        "verbs_us": twins[0].wall_us,
        "empty_us": twins[1].wall_us,
        "verbs_cpu_us": twins[0].cpu_us,
        "empty_cpu_us": twins[1].cpu_us,
        "failed": twins[0].failed,
        "calls": sum(times.done + times.refused + times.lost for times in link.times.values()),
        "done": sum(times.done for times in link.times.values()),
        "table": verb_table(twins[0].root),
        "clients": link.clients,
        "pending": link.pending,
    }
    twins[0].root.stop(Status.INVALID)
    for behaviour in twins[0].root.iterate():
        behaviour.shutdown()
    stop.set()
    if threaded:
        spinner.join()
    del link
    return {
        **found,
        "clients_left": len(list(node.clients)) - services,
        "futures_left": futures() - before,
    }


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))), flush=True)
    # Nothing is left to be torn down in order: the process ends.
    os._exit(0)
