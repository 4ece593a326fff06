"""Ticks a tree of verbs and its twin of empty leaves at a running node, and times every tick.

    python -m flashrt_ros.trees.bench_peer '{"library": "py_trees", "ticks": 9, "threaded": false}'

Prints one JSON line and ends. Run by ``flashrt_ros bench trees``.
"""

from __future__ import annotations

import gc
import importlib
import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import rclpy
from py_trees.common import Status
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.task import Future

from flashrt_ros.trees.link import PolicyLink
from flashrt_ros.trees.runner import tick_through
from flashrt_ros.trees.watch import WaitUntilFresh

TWINS = {
    "py_trees": "flashrt_ros.trees.bench_twins",
    "BehaviorTree.CPP": "flashrt_ros.trees.btcpp.bench_twins",
}
"""By library, the module whose ``make(node)`` returns ``Twins``."""
EVERY = 10
"""A verb begins in every tenth tick."""
PERIOD_S = 0.01
PATIENCE_S = 60.0

Tick = Callable[[], str]
"""Ticks a tree once; why it failed, empty as a rule."""


@dataclass(frozen=True)
class Twins:
    """Two trees that differ in their leaves only.

    Attributes:
        verbs: Ticks the one whose leaves call services.
        empty: Ticks the other.
        link: Of the verbs.
        leaves: How many verbs it has.
        close: Ends both.
    """

    verbs: Tick
    empty: Tick
    link: PolicyLink
    leaves: int
    close: Callable[[], None]


class Clocked:
    """A tree whose ticks are timed.

    Attributes:
        wall_us: Of each tick.
        cpu_us: Of each tick, time of this thread on a processor.
        waited: Of each tick, how often this thread waited: for a lock, Python's own among them.
        preempted: Of each tick, how often the kernel gave its processor to another.
        failed: Why, of each tick that ended in a failure.
    """

    def __init__(self, tick: Tick) -> None:
        """Args: tick: of the tree."""
        self._tick = tick
        self.begin()

    def begin(self) -> None:
        """Forgets what was timed so far."""
        self.wall_us: list[float] = []
        self.cpu_us: list[float] = []
        self.waited: list[int] = []
        self.preempted: list[int] = []
        self.failed: list[str] = []

    def tick(self) -> None:
        """One tick."""
        before = resource.getrusage(resource.RUSAGE_THREAD)
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        failed = self._tick()
        cpu_s, wall_s = time.thread_time() - cpu_s, time.perf_counter() - wall_s
        self.wall_us.append(wall_s * 1e6)
        self.cpu_us.append(cpu_s * 1e6)
        after = resource.getrusage(resource.RUSAGE_THREAD)
        self.waited.append(after.ru_nvcsw - before.ru_nvcsw)
        self.preempted.append(after.ru_nivcsw - before.ru_nivcsw)
        if failed:
            self.failed.append(failed)


def futures() -> int:
    """Futures of rclpy that are alive."""
    gc.collect()
    return sum(type(thing) is Future for thing in gc.get_objects())


def measure(node: Node, library: str, ticks: int, threaded: bool) -> dict[str, Any]:
    """Ticks both trees in turn.

    Args:
        node: Theirs.
        library: One of ``TWINS``.
        ticks: Of each.
        threaded: Another thread spins the node; else this one does, between ticks.
    """
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
    before, services = futures(), len(list(node.clients))
    twins: Twins = importlib.import_module(TWINS[library]).make(node)
    verbs, empty = Clocked(twins.verbs), Clocked(twins.empty)
    link = twins.link
    pending_before = link.pending
    # Twice round before it counts: clients and services meet, caches fill.
    warm_up = 2 * EVERY * twins.leaves
    next_s = time.monotonic()
    for index in range(warm_up + ticks):
        if index == warm_up:
            verbs.begin()
            empty.begin()
        # Who comes first alternates: what a spin leaves behind falls on both alike.
        for clocked in (verbs, empty) if index % 2 else (empty, verbs):
            clocked.tick()
            next_s = max(next_s + PERIOD_S, time.monotonic())
            while (left_s := next_s - time.monotonic()) > 0.0:
                if threaded:
                    time.sleep(left_s)
                else:
                    executor.spin_once(timeout_sec=left_s)
    found = {
        "verbs_us": verbs.wall_us,
        "empty_us": empty.wall_us,
        "verbs_cpu_us": verbs.cpu_us,
        "empty_cpu_us": empty.cpu_us,
        "waited": verbs.waited,
        "preempted": verbs.preempted,
        "failed": verbs.failed,
        "calls": sum(times.done + times.refused + times.lost for times in link.times.values()),
        "done": sum(times.done for times in link.times.values()),
        "clients": link.clients,
        "pending_before": pending_before,
        "pending": link.pending,
    }
    twins.close()
    del link, twins, verbs, empty, clocked
    stop.set()
    if threaded:
        spinner.join()
    executor.shutdown()
    return {
        **found,
        "clients_left": len(list(node.clients)) - services,
        "futures_left": futures() - before,
    }


def main(options: dict[str, Any]) -> None:
    """Prints what ``measure`` returns, and ends in order, so that no shared memory is left."""
    rclpy.init(args=[])
    node = rclpy.create_node("trees")
    try:
        print(json.dumps(measure(node, **options)), flush=True)
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
