"""Counts what is amiss with the rows of a data set while they are read, each row once.

Suffixes: N rows of a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashrt_ros.dataset.episodes import Episode
from flashrt_ros.dataset.info import INFO, Info
from flashrt_ros.dataset.table import Batch

TOLERANCE_S = 1e-4
"""How far a timestamp may lie from its frame's number divided by the rate, as in LeRobot."""

Flags = npt.NDArray[np.bool_]


@dataclass
class _Count:
    number: int
    first: int


def expected_s(step_N: npt.NDArray[np.int64], fps: float) -> npt.NDArray[np.float64]:
    """Time in the episode at which a frame should lie."""
    expected: npt.NDArray[np.float64] = step_N / fps
    return expected


def is_regular(timestamp_N: npt.NDArray[np.float64], expected_N: npt.NDArray[np.float64]) -> Flags:
    """Whether times are those expected, as near as a float32 can be."""
    slack_N = np.maximum(TOLERANCE_S, 4 * np.spacing(expected_N.astype(np.float32)))
    regular: Flags = np.abs(timestamp_N - expected_N) <= slack_N
    return regular


class Audit:
    """What is amiss so far.

    Attributes:
        marks: By file: one more than the highest ``index`` that was looked at.

    Args:
        info: Of the data set.
        episodes: By number.
        tasks: Known values of ``task_index``; empty where no texts could be read.
    """

    def __init__(
        self, info: Info, episodes: Mapping[int, Episode], tasks: Collection[int]
    ) -> None:
        self._info, self._episodes, self._tasks = info, episodes, tasks
        self.marks: dict[str, int] = {}
        self._counts: dict[str, _Count] = {}
        self._faults: dict[str, str] = {}

    def promises(self, rows: int) -> list[str]:
        """Where the numbers that ``meta/`` promises differ from those found."""
        info, found = self._info, len(self._episodes)
        words = []
        if info.total_episodes is not None and found and info.total_episodes != found:
            words.append(
                f"{INFO}: promises {info.total_episodes} episodes, meta/episodes has {found}"
            )
        if info.total_frames is not None and info.total_frames != rows:
            words.append(f"{INFO}: promises {info.total_frames} frames, the files hold {rows}")
        missing = [
            n for n in range(max(self._episodes, default=-1) + 1) if n not in self._episodes
        ]
        if missing:
            words.append(
                f"meta/episodes: {len(missing)} episodes missing, the first is {missing[0]}"
            )
        return words

    def fault(self, what: str, words: str) -> None:
        """Tells a fault once, however often a file is read."""
        self._faults.setdefault(what, words)

    def reading(self) -> Reading:
        """Begins to look at the rows of one way through the data set."""
        return Reading(self)

    def look(self, batch: Batch, new_N: Flags) -> None:
        """Counts what is amiss with those rows of a batch that are new."""
        numbers = batch.numbers
        index_N, step_N = numbers["index"], numbers["frame_index"]
        episode_N, timestamp_N = numbers["episode_index"], numbers["timestamp"]
        expected_N = expected_s(step_N, self._info.fps)
        late_N = new_N & ~is_regular(timestamp_N, expected_N)
        self.add(
            f"timestamps are not those of {self._info.fps:g} frames a second", late_N, index_N
        )
        bounds = [self._episodes.get(int(n)) for n in episode_N]
        known_N = np.array([e is not None for e in bounds], np.bool_)
        start_N = np.array([0 if e is None else e.start for e in bounds], np.int64)
        length_N = np.array([0 if e is None else e.length for e in bounds], np.int64)
        if self._episodes:
            self.add("rows of episodes that meta/episodes lacks", new_N & ~known_N, index_N)
        misplaced_N = known_N & new_N & (start_N + step_N != index_N)
        self.add("rows whose `index` is not where meta/episodes has them", misplaced_N, index_N)
        beyond_N = known_N & new_N & (step_N >= length_N)
        self.add("rows beyond the length of their episode", beyond_N, index_N)
        if self._tasks:
            named_N = np.isin(numbers["task_index"], list(self._tasks))
            self.add("rows of a task that meta/tasks.parquet lacks", new_N & ~named_N, index_N)
        for key, values in batch.values.items():
            bad_N = np.array([isinstance(value, str) for value in values], np.bool_)
            self.add(f"{key}: rows without a value that can be used", new_N & bad_N, index_N)

    def add(self, words: str, bad_N: Flags, index_N: npt.NDArray[np.int64]) -> None:
        """Adds to a count, and keeps where it was seen first."""
        if bad_N.any():
            first = int(index_N[np.argmax(bad_N)])
            self._counts.setdefault(words, _Count(0, first)).number += int(bad_N.sum())

    def defects(self) -> list[str]:
        """Everything so far, in words."""
        counted = [
            f"{words} ({count.number}, first at frame {count.first})"
            for words, count in self._counts.items()
        ]
        return [*self._faults.values(), *counted]


class Reading:
    """One way through a data set, from wherever it began.

    Args:
        audit: Where to tell what is amiss.
    """

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._old: dict[str, int] = {}
        self._last: int | None = None

    def rows(self, file: str, batch: Batch) -> None:
        """Looks at rows, but for those that an earlier way through has seen.

        Args:
            file: Their file.
            batch: All of them are the next ones.
        """
        index_N = batch.numbers["index"]
        marks = self._audit.marks
        old = self._old.setdefault(file, marks.get(file, -1))
        new_N = index_N >= old
        last = int(index_N[0]) - 1 if self._last is None else self._last
        step_N = np.diff(index_N, prepend=last)
        self._audit.add("frames are missing: gaps in `index`", new_N & (step_N > 1), index_N)
        self._audit.add("frames are there again: `index` goes back", new_N & (step_N < 1), index_N)
        self._audit.look(batch, new_N)
        self._last = int(index_N[-1])
        marks[file] = max(marks.get(file, -1), int(index_N.max()) + 1)
