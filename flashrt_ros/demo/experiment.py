"""Runs the trees of the experiment one after another and gathers what came out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import py_trees
from py_trees.behaviour import Behaviour
from py_trees.common import Status
from py_trees.display import ascii_tree

from flashrt_ros.demo.arm import tip_of
from flashrt_ros.demo.behaviour import Until
from flashrt_ros.demo.report import Branch, Outcome, Report
from flashrt_ros.demo.task import Array
from flashrt_ros.demo.tree import REACH, Builder, Stage
from flashrt_ros.demo.trial import Trial, Way, draw_trials
from flashrt_ros.errors import ErrorCode
from flashrt_ros.trees import Snapshot

TICK_S = 0.02


class Theatre(Stage, Protocol):
    """A stage that also keeps what was seen."""

    path: list[tuple[float, ...]]
    commands: list[tuple[float, ...]]

    def latency_ms(self) -> dict[str, list[float]]:
        """Times of each verb, measured at the client."""

    def show_tree(self, text: str) -> None:
        """Publishes a picture of the tree."""


@dataclass(frozen=True)
class Ending:
    """How a tree ended that neither reached the target nor gave the policy its time for it.

    Attributes:
        fault: Why the episode was not carried through; empty if it was.
        refused: Why the policy's first command was refused, also after a retreat; else empty. The
            episode was carried through, to the point where the node kept the arm from harm.
    """

    fault: str = ""
    refused: str = ""


class Experiment:
    """All episodes of a run."""

    def __init__(
        self,
        stage: Theatre,
        seed: int = 0,
        say: Callable[[str], None] = print,
        alive: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepares a run.

        Args:
            stage: Where the episodes play.
            seed: Of the trials.
            say: Given one line of progress per episode.
            alive: Called at each tick; raises if going on is pointless.
            sleep: Waits for so many seconds.
        """
        self.stage, self.say, self.alive, self.sleep = stage, say, alive, sleep
        self.report = Report(seed)
        self.builder = Builder(stage)

    def run(self, episodes: int) -> Report:
        """Runs everything.

        Args:
            episodes: For each of the three ways.
        """
        # One more trial than episodes: the fork gets one of its own.
        trials = draw_trials(self.report.seed, episodes + 1)
        for index, trial in enumerate(trials[:episodes]):
            for way in Way:
                self.report.outcomes.append(self._episode(index, trial, way))
        self._fork(trials[-1])
        self.report.latency_ms = self.stage.latency_ms()
        return self.report

    def tick_through(self, root: Behaviour) -> Ending:
        """Ticks a tree until it is done.

        Returns:
            How it ended, besides reaching the target or not.
        """
        py_trees.trees.setup(root, node=self.stage.node)
        picture: list[Status] = []
        next_s = self.stage.clock()
        try:
            while True:
                self.alive()
                root.tick_once()
                statuses = [node.status for node in root.iterate()]
                if statuses != picture:
                    picture = statuses
                    self.stage.show_tree(ascii_tree(root, show_status=True))
                if root.status is not Status.RUNNING:
                    break
                now_s = self.stage.clock()
                # A late tick does not make the next ones come faster.
                next_s = max(next_s + TICK_S, now_s)
                self.sleep(next_s - now_s)
        finally:
            if root.status is Status.RUNNING:
                root.stop(Status.INVALID)
            for behaviour in root.iterate():
                behaviour.shutdown()
        leaf = root.tip()
        if root.status is Status.SUCCESS or leaf is None:
            return Ending()
        if leaf.name == REACH and isinstance(leaf, Until) and not leaf.overdue:
            return Ending()
        words = f"{root.name}: {leaf.feedback_message}"
        code = getattr(getattr(leaf, "response", None), "error_code", None)
        return Ending(refused=words) if code == ErrorCode.UNSAFE_START else Ending(fault=words)

    def _episode(self, index: int, trial: Trial, way: Way) -> Outcome:
        started_s = self.stage.clock()
        name = f"seen-{index}-{way.name.lower()}"
        root = self.builder.episode(trial, way, name)
        ending = self.tick_through(root)
        for node in root.iterate():
            if isinstance(node, Snapshot) and node.status is Status.SUCCESS:
                self.report.capsule_bytes = int(node.response.capsule.size_bytes)
        outcome = Outcome(
            way.value,
            index,
            trial.target,
            trial.false_target,
            root.status is Status.SUCCESS,
            ending.refused,
            ending.fault,
            float("nan") if ending.fault or ending.refused else self._nearest_m(trial),
            self.stage.clock() - started_s,
        )
        nearest = f"nearest {outcome.nearest_m * 1e3:.0f} mm"
        word = f"reached ({nearest})" if outcome.reached else f"not reached ({nearest})"
        self.say(
            f"episode {index + 1}, {way.value:8}: target {trial.target}, false cue "
            f"{trial.false_target}: {outcome.fault or outcome.refused or word}"
        )
        return outcome

    def _fork(self, trial: Trial) -> None:
        seeds = [trial.seed, trial.seed + 1]
        names = ["branch-0", "branch-1"]
        # What becomes of them stands in the table.
        self.say(f"fork: {' and '.join(names)} from one capsule, each with its own seed")
        ending = self.tick_through(self.builder.fork(trial, names, seeds))
        for name, seed in zip(names, seeds, strict=True):
            root = self.builder.branch(trial, name)
            branch = ending if ending.fault or ending.refused else self.tick_through(root)
            problem = branch.fault or branch.refused
            path = [] if problem else self._tips_m().tolist()
            commands = [] if problem else [list(row) for row in self.stage.commands]
            reached = root.status is Status.SUCCESS
            self.report.branches.append(Branch(name, seed, reached, problem, path, commands))

    def _nearest_m(self, trial: Trial) -> float:
        away = self._tips_m() - trial.target_m
        return float(np.hypot(away[:, 0], away[:, 1]).min(initial=np.inf))

    def _tips_m(self) -> Array:
        return tip_of(np.asarray(self.stage.path, dtype=np.float64).reshape(-1, 2))
