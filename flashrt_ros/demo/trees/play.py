"""Starts cell and policy, plays the episodes of an example, gathers what came of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from py_trees.behaviour import Behaviour
from py_trees.common import Status
from py_trees.composites import Sequence as SequenceOf

from flashrt_ros.demo.trees.episode import GOAL_M, Episode, Facts
from flashrt_ros.demo.trees.onlooker import CELL, Onlooker
from flashrt_ros.errors import DeadlineError
from flashrt_ros.process import Process, node_command
from flashrt_ros.ros.share import shared
from flashrt_ros.trees import PolicyLink, WaitUntilFresh, text_tree, tick_through, verb_table

CONTRACT = "config/demo_pick.contract.yaml"
POLICY = "flashrt_ros.demo.trees.picker:PickPolicy"
START_S = 60.0
"""A loaded machine with a cold disk takes long to import torch."""


@dataclass(frozen=True)
class Outcome:
    """What came of an episode.

    Attributes:
        name: Of the episode.
        status: Of the tree.
        words: Of the behaviour that failed.
        block_m: Where the block ended.
        placed: Whether that is its goal.
        as_expected: Whether tree, block and facts are what the episode says.
        duration_s: Steady clock.
        facts: See ``Episode``.
        tree: As text, with the outcome of each behaviour.
    """

    name: str
    status: str
    words: str
    block_m: list[float]
    placed: bool
    as_expected: bool
    duration_s: float
    facts: Facts
    tree: str


class Theatre:
    """Cell, policy and onlooker, while in a ``with`` block of ``opened``."""

    def __init__(self, onlooker: Onlooker, processes: Sequence[Process]) -> None:
        """Args: see ``opened``."""
        self.onlooker, self.processes = onlooker, processes
        self.verbs = ""

    def wait_until_ready(self) -> None:
        """Waits until the policy runs on what the cell publishes.

        Raises:
            DeadlineError: With the last words of both.
        """
        there = self.onlooker.until("cell", self.onlooker.ready, START_S)
        root = SequenceOf(
            "ready", memory=True, children=[there, WaitUntilFresh(timeout_s=START_S)]
        )
        if self.tick(root) is not Status.SUCCESS:
            tip = root.tip()
            logs = [f"{p.name}, {p.log}:\n{p.last_words()}" for p in self.processes]
            words = [tip.feedback_message if tip is not None else "", *logs]
            raise DeadlineError("\n".join(words))

    def tick(self, root: Behaviour, then: Callable[[], None] = lambda: None) -> Status:
        """Ticks a tree to its end; ``then`` before it is shut down."""

        def ticked(_: Behaviour) -> None:
            for process in self.processes:
                process.check()
            if root.status is not Status.RUNNING:
                then()

        return tick_through(root, self.onlooker, ticked=ticked)

    def play(self, episode: Episode) -> Outcome:
        """Plays an episode.

        Raises:
            InternalError: A process ended.
        """
        root, begin_s = episode.root, time.monotonic()
        trees: list[str] = []

        def end() -> None:
            trees.append(root.text() if hasattr(root, "text") else text_tree(root))
            self.verbs = verb_table(root)

        status = self.tick(root, end)
        facts, block_m = episode.facts(), self.onlooker.block_m
        placed = self.onlooker.placed(GOAL_M)
        succeeded = status is Status.SUCCESS
        told = all(facts[key] == value for key, value in episode.expected.items())
        tip = root.tip()
        return Outcome(
            episode.name,
            status.value,
            "" if succeeded or tip is None else tip.feedback_message,
            np.round(block_m, 4).tolist(),
            placed,
            succeeded == placed == episode.succeeds and told,
            time.monotonic() - begin_s,
            facts,
            *trees,
        )


@contextmanager
def opened(log_directory: Path, wall: bool, viewer: bool) -> Iterator[Theatre]:
    """Starts everything, in the ROS domain of the environment.

    Args:
        log_directory: For the logs of the processes.
        wall: Whether the wall stands.
        viewer: Open MuJoCo's window.

    Raises:
        DeadlineError: Something did not start.
    """
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    policy: dict[str, Any] = {
        "policy": POLICY,
        "contract": shared(CONTRACT),
        "autostart": True,
        "torch_threads": 1,
    }
    commands = {
        "cell": node_command("flashrt_ros.demo.trees.cell_node", {"wall": wall, "viewer": viewer}),
        "policy": node_command("flashrt_ros.ros.policy_node", policy),
    }
    with ExitStack() as stack:
        processes = [
            stack.enter_context(Process(name, command, log_directory))
            for name, command in commands.items()
        ]
        rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
        stack.callback(rclpy.try_shutdown)
        onlooker = Onlooker()
        stack.callback(onlooker.destroy_node)
        # Kept, so that the times of all episodes' calls are in one place.
        for name in ("policy", CELL):
            stack.callback(PolicyLink.shared(onlooker, name).release)
        theatre = Theatre(onlooker, processes)
        theatre.wait_until_ready()
        yield theatre
