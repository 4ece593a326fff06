"""What a worker does with one source, of whichever engine: look it up, or evaluate it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from flashrt_ros.errors import CorruptError, ExecMismatchError, FlashRTError, StateMismatchError
from flashrt_ros.evaluate import report
from flashrt_ros.evaluate.binding import bind, digest_of
from flashrt_ros.evaluate.evaluator import Evaluator, Options, SourceFacts
from flashrt_ros.evaluate.fork import ForkPlan, fork
from flashrt_ros.evaluate.source import open_source
from flashrt_ros.evaluate.work_folder import Kept, WorkFolder, key_of

ELSEWHERE = frozenset(
    {"candidates", "contract", "device", "numerics", "trust", "threads", "capsules"}
    | {"keyframes_s", "keyframe_folder", "enters_keyframes"}
)
"""Options that are bound by what is at their paths, by ids, or that change no result. All others,
new ones too, make another result."""


@dataclass(frozen=True)
class Unit:
    """One thing to do.

    Attributes:
        path: Of the source.
        fork: Run these branches; None: evaluate the source.
    """

    path: str
    fork: ForkPlan | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of it.

    Attributes:
        key: Of the result in the work folder; empty where there is none.
        error: Why there is none.
        made: It was not there before.
    """

    key: str = ""
    error: str = ""
    made: bool = False


@dataclass(frozen=True)
class Job:
    """All that a worker must know; plain data.

    Attributes:
        options: Of the evaluation.
        ids: Label to state id and exec id that the driver has found.
        folder: Of results; on a cluster one that all its machines see.
        series: Tracks are kept, too.
    """

    options: Options
    ids: Mapping[str, tuple[str, str]]
    folder: str
    series: bool = False


class Desk:
    """Opens the policies once; called with each unit.

    Args:
        job: What to do.

    Raises:
        StateMismatchError: Other weights or another configuration than the driver has.
        ExecMismatchError: Other arithmetic, so that hashes would differ.
        FlashRTError: A policy cannot be opened.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._folder = WorkFolder(job.folder)
        self._evaluator = Evaluator(job.options)
        for label, session in self._evaluator.sessions.items():
            state_id, exec_id = job.ids[label]
            if session.state_id != state_id:
                raise StateMismatchError(
                    f"policy {label!r}: expected state id {state_id} as the driver has it, found "
                    f"{session.state_id} in a worker: are these the same files?"
                )
            if session.exec_id != exec_id:
                raise ExecMismatchError(
                    f"policy {label!r}: expected exec id {exec_id} as the driver has it, found "
                    f"{session.exec_id} in a worker: another device, library or number of "
                    "threads, so that actions might differ in their last bits"
                )

    def __call__(self, unit: Unit) -> Outcome:
        """Evaluates, unless the result is there."""
        try:
            key = self._key(unit)
            if self._folder.has(key):
                try:
                    self._folder.load(key, self._job.series)
                    return Outcome(key)
                except CorruptError:
                    self._folder.remove(key)
            self._folder.save(key, self._make(unit))
            return Outcome(key, made=True)
        except FlashRTError as error:
            return Outcome(error=str(error))

    def close(self) -> None:
        """Frees the policies."""
        self._evaluator.close()

    def _make(self, unit: Unit) -> Kept:
        if unit.fork is not None:
            fan = fork(self._evaluator, unit.path, unit.fork)
            return Kept(SourceFacts(unit.path), fan=fan)
        result = self._evaluator.run(unit.path)
        runs = tuple(report.run_part(track) for track in result.tracks)
        return Kept(result.source, runs, result.tracks if self._job.series else ())

    def _key(self, unit: Unit) -> str:
        """Reads the files of the source, unless they are as they were."""
        job, options = self._job, self._job.options
        source = open_source(unit.path)
        try:
            recording = digest_of(source.files, self._folder.digests_of(unit.path))
        finally:
            source.close()
        setting = self._evaluator.setting()
        bindings = [
            [label, sorted(bind(recording, options, setting, *ids).items())]
            for label, ids in job.ids.items()
        ]
        others = [
            f"{each.name}: {getattr(options, each.name)!r}"
            for each in dataclasses.fields(options)
            if each.name not in ELSEWHERE
        ]
        plan = None if unit.fork is None else repr(dataclasses.astuple(unit.fork))
        return key_of([unit.path, bindings, others, job.series, plan])
