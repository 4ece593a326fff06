"""Many sources over many workers: the same report, with the same hash, as one after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flashrt_ros.errors import CorruptError, InvalidArgumentError
from flashrt_ros.evaluate import fork
from flashrt_ros.evaluate.crew import Crew, Lost
from flashrt_ros.evaluate.desk import Desk, Job, Outcome, Unit
from flashrt_ros.evaluate.evaluator import SourceFacts
from flashrt_ros.evaluate.fan import Fan
from flashrt_ros.evaluate.fork import ForkPlan
from flashrt_ros.evaluate.work_folder import Kept, WorkFolder

EVERY_S = 1.0

Tell = Callable[[str], None]
"""Told how far it is, in words."""


@dataclass(frozen=True)
class Engine:
    """Who does the work.

    Attributes:
        name: ``serial``, ``processes`` or ``ray``.
        workers: Processes or actors.
        address: Of a Ray cluster; empty: one of our own.
    """

    name: str = "serial"
    workers: int = 1
    address: str = ""

    def run(self, job: Job, units: Sequence[Unit]) -> Iterator[tuple[int, Outcome]]:
        """Yields the number of each unit and what became of it, as they come.

        Raises:
            FlashRTError: The policies cannot be opened in a worker.
        """
        hire = functools.partial(Desk, job)
        found: Iterator[tuple[int, Any]]
        if self.name == "serial":
            with contextlib.closing(Desk(job)) as desk:
                yield from ((number, desk(unit)) for number, unit in enumerate(units))
            return
        if self.name == "processes":
            found = Crew(hire, self.workers).run(units)
        else:
            from flashrt_ros.evaluate import ray_engine

            found = ray_engine.run(hire, units, self.workers, self.address)
        for number, result in found:
            yield number, Outcome(error=result.words) if isinstance(result, Lost) else result


def spread(
    job: Job,
    paths: Sequence[str],
    engine: Engine,
    plan: ForkPlan | None = None,
    tell: Tell | None = None,
) -> tuple[list[Kept], list[Fan]]:
    """Evaluates all sources, and runs all branches, whoever does it.

    What lies in the work folder already is not made again.

    Args:
        job: What to do.
        paths: Of the sources.
        engine: Who does it.
        plan: Of a fork in each source; None: none.
        tell: Told how far it is.

    Returns:
        What was kept of each source, in their order, one that failed with its error; and the fans.

    Raises:
        FlashRTError: The policies cannot be opened in a worker, the folder cannot be written, or a
            fork is not possible.
    """
    folder = WorkFolder(job.folder)
    folder.sweep()
    units = [Unit(path) for path in paths]
    parts = [] if plan is None else _parts(plan, engine.workers)
    units += [Unit(path, part) for path in paths for part in parts]
    outcomes: list[Outcome] = [Outcome()] * len(units)
    progress = _Progress(len(units), tell)
    for number, outcome in engine.run(job, units):
        outcomes[number] = outcome
        progress(outcome)
    kept = [
        _load(folder, path, outcome, job.series)
        for path, outcome in zip(paths, outcomes, strict=False)
    ]
    fans = _fans(folder, kept, outcomes[len(paths) :], len(parts))
    return kept, fans


def _parts(plan: ForkPlan, workers: int) -> list[ForkPlan]:
    """A plan in as many parts as there are workers, of neighbours."""
    branches = plan.branches
    size = -(-len(branches) // max(1, workers))
    return [
        dataclasses.replace(plan, branches=branches[begin : begin + size])
        for begin in range(0, len(branches), size)
    ]


def _load(folder: WorkFolder, path: str, outcome: Outcome, series: bool) -> Kept:
    if outcome.error:
        return Kept(SourceFacts(path, error=outcome.error))
    try:
        return folder.load(outcome.key, series)
    except CorruptError as error:
        return Kept(SourceFacts(path, error=str(error)))


def _fans(
    folder: WorkFolder, kept: list[Kept], outcomes: Sequence[Outcome], parts: int
) -> list[Fan]:
    """Fans; of several sources one that cannot be forked has an error, and the others go on."""
    fans = []
    for number, begin in enumerate(range(0, len(outcomes), max(1, parts))):
        found = []
        own, facts = outcomes[begin : begin + parts], kept[number].facts
        if words := facts.error or next((each.error for each in own if each.error), ""):
            if len(kept) == 1 and not facts.error:
                raise InvalidArgumentError(words)
            facts = dataclasses.replace(facts, error=words)
            kept[number] = dataclasses.replace(kept[number], facts=facts)
            continue
        for outcome in own:
            fan = folder.load(outcome.key).fan
            assert fan is not None
            found.append(fan)
        fans.append(fork.join(found))
    return fans


class _Progress:
    """Says at most once a second how far it is."""

    def __init__(self, count: int, tell: Tell | None) -> None:
        self._count, self._tell = count, tell
        self._done = self._found = self._failed = 0
        self._begun_s = self._said_s = time.monotonic()

    def __call__(self, outcome: Outcome) -> None:
        self._done += 1
        self._failed += bool(outcome.error)
        self._found += not outcome.made and not outcome.error
        now_s = time.monotonic()
        if self._tell is None or (now_s - self._said_s < EVERY_S and self._done < self._count):
            return
        self._said_s = now_s
        rate = (self._done - self._found) / max(now_s - self._begun_s, 1e-9)
        left = f", {(self._count - self._done) / rate:.0f} s left" if rate else ""
        self._tell(
            f"{self._done} of {self._count} done, {self._found} of them before, "
            f"{self._failed} failed, {rate:.2f} a second{left}"
        )
