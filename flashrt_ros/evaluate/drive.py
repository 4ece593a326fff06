"""Drives one session over the moments of a source, as the node's control thread would.

What is done at a jump in time, a new episode, a task text and an input that hinders are the
node's rules (``ros.stepper``), without its clocks: the same recording gives the same bits.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from flashrt_ros.contract.contract import Contract
from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.evaluate.columns import Chunks, Column
from flashrt_ros.evaluate.elements import Elements
from flashrt_ros.evaluate.limits import Limiter, LimiterStanding
from flashrt_ros.evaluate.timeline import Moment
from flashrt_ros.evaluate.track import Track
from flashrt_ros.runtime.number import check_int
from flashrt_ros.runtime.session import PolicySession

CHUNK = "chunk.actions"
_STALE = re.compile(r"stale \d+ ms > ([\d.e+]+) ms")


@dataclass(frozen=True)
class Pace:
    """When plans begin and are adopted, for policies that plan beside the control steps.

    Attributes:
        delay: Control periods from the observation of a plan to its adoption; 0: at once.
        plan_ahead: Rows left of a chunk with which the next plan begins; None: ``delay``.
    """

    delay: int = 0
    plan_ahead: int | None = None

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError where one of them is below 0."""
        check_int("delay", self.delay, 0)
        if self.plan_ahead is not None:
            check_int("plan_ahead", self.plan_ahead, 0)


@dataclass(frozen=True)
class DriverStanding:
    """What a driver knows besides its session.

    Attributes:
        episode: Of the moment taken last; None: none was.
        task: The same.
        limiter: What it would have sent so far; None: without a contract.
    """

    episode: int | None
    task: str | None
    limiter: LimiterStanding | None


class Driver:
    """One policy over one source; ``take`` each moment, then ``finish``.

    Attributes:
        label: Of the policy.
        session: Driven by nobody else meanwhile.
        before_step: Called with the moment at the boundary before each step.
    """

    def __init__(
        self,
        label: str,
        source: str,
        session: PolicySession,
        elements: Elements,
        contract: Contract | None,
        pace: Pace = Pace(),
    ) -> None:
        """Takes over a session that stands at step 0, or as a capsule left it.

        Args:
            label: Of the policy.
            source: Name of the source.
            session: A session on its policy.
            elements: Of its action.
            contract: For limits and time jumps; None: none apply.
            pace: Of plans.
        """
        self.label = label
        self.session = session
        self.before_step: Callable[[Moment], None] = lambda moment: None
        self._source = source
        self._elements = elements
        self._limiter = Limiter(contract) if contract is not None else None
        self._checks_start = contract is not None and contract.start is not None
        self._on_jump = contract.on_time_jump if contract is not None else "hold"
        asked = contract.task if contract is not None else None
        self._replans = asked is None or asked.on_change == "replan"
        self._delay, self._plan_ahead = pace.delay, pace.plan_ahead
        self._episode: int | None = None
        self._task: str | None = None
        self._refused: Counter[str] = Counter()
        self._kept = False
        size = elements.size
        self._index = Column((), np.int64)
        self._time_ns = Column((), np.int64)
        self._episodes = Column((), np.int32)
        self._stepped = Column((), np.bool_)
        self._recorded = Column((size,), np.float64)
        # Policies give float32, and so does the sampler: nothing is lost.
        self._state = Column((size,), np.float32)
        self._predicted = Column((size,), np.float32)
        self._sent = Column((size,), np.float64)
        self._latency_ms = Column((), np.float64)
        self._inputs: tuple[str, ...] = ()
        self._ages: Column | None = None
        self._faults: list[str] = []
        rows = session.arena.state.get(CHUNK)
        self._rows = rows if rows is not None and rows.ndim == 2 else None
        rows_H = 0 if self._rows is None else self._rows.shape[0]
        self._chunks = Chunks((rows_H, size))
        # Of the chunk under way: the moment of row 0, and its rows.
        self._following: tuple[int, npt.NDArray[np.float32]] | None = None
        self._splice_index = Column((), np.int64)
        self._splices = Column((size,), np.float32)
        self._nothing = np.full(size, np.nan)

    @property
    def standing(self) -> DriverStanding:
        """What it knows besides its session, for another that is to go on from there."""
        limiter = None if self._limiter is None else self._limiter.standing
        return DriverStanding(self._episode, self._task, limiter)

    def go_on(self, standing: DriverStanding) -> None:
        """Goes on as the driver that stood so; the session was restored to its state."""
        self._episode, self._task = standing.episode, standing.task
        if self._limiter is not None and standing.limiter is not None:
            self._limiter.go_on(standing.limiter)

    @property
    def starting(self) -> bool:
        """Whether the next command is a first one, which needs a measured position."""
        return self._limiter is not None and self._limiter.starting

    def take(self, moment: Moment, keep: bool = True) -> None:
        """Makes a control step of a moment, or says why not.

        Args:
            moment: The next one.
            keep: False: it leads up to what is wanted and is not in the track.
        """
        if keep and not self._kept:
            self._kept = True
            self._refused.clear()
            if self._limiter is not None:
                self._limiter.forget_counts()
        self._heed(moment)
        faults = moment.faults
        if self._checks_start and self.starting and moment.measured is None:
            faults = (*faults, f"start.measured: {moment.measured_fault}")
        if faults:
            # What comes after a fault must not be planned from before it.
            self.session.withdraw_plan()
            self._following = None
            if self._limiter is not None:
                self._limiter.miss(moment.time_ns)
            if keep:
                self._note(moment, self._nothing, self._nothing, float("nan"), "; ".join(faults))
            return
        self.before_step(moment)
        session = self.session
        chunk = session.host.chunk
        begun_ns = time.perf_counter_ns()
        action = session.step(moment.observations, self._delay, self._plan_ahead)
        latency_ms = (time.perf_counter_ns() - begun_ns) / 1e6
        predicted_A = action.values.numpy().astype(np.float64)
        sent_A = predicted_A
        if self._limiter is not None:
            sent_A = self._limiter.pass_(predicted_A, moment.measured, moment.time_ns)
        if not keep:
            return
        self._note(moment, predicted_A, sent_A, latency_ms, "")
        if self._rows is not None and session.host.chunk != chunk:
            self._note_chunk(moment.index, action.index, self._rows)

    def finish(self) -> Track:
        """The track of all moments taken; ends this driver, not its session."""
        remarks = []
        if self._limiter is not None and self._kept:
            if self._limiter.limited:
                count = self._limiter.limited
                remarks.append(
                    f"{count} command{'s were' if count != 1 else ' was'} changed by limits"
                )
            remarks += [
                f"{count} command{'s' * (count != 1)} would have been held back, the first: "
                f"{words}"
                for words, count in self._limiter.held.items()
            ]
        remarks += [f"{count} task texts were refused: {w}" for w, count in self._refused.items()]
        ages = self._ages.array() if self._ages is not None else np.empty((0, 0), np.float32)
        track = Track(
            policy=self.label,
            source=self._source,
            names=self._elements.names,
            units=self._elements.units,
            gripper=self._elements.gripper,
            period_s=self._elements.period_s,
            index_T=self._index.array(),
            time_ns_T=self._time_ns.array(),
            episode_T=self._episodes.array(),
            stepped_T=self._stepped.array(),
            recorded_TA=self._recorded.array(),
            state_TA=self._state.array(),
            predicted_TA=self._predicted.array(),
            sent_TA=self._sent.array(),
            latency_ms_T=self._latency_ms.array(),
            ages_ms={name: ages[:, i] for i, name in enumerate(self._inputs)},
            fault_T=self._faults,
            chunk_start_C=self._chunks.starts(),
            chunk_adopted_C=self._chunks.adopted(),
            chunks_CHA=self._chunks.rows(),
            chunks=self._chunks.count,
            splice_index_S=self._splice_index.array(),
            splice_SA=self._splices.array(),
            remarks=remarks,
        )
        if track.pace_s != track.period_s:
            remarks.append(
                f"control steps came every {track.pace_s * 1e3:.4g} ms, where the contract says "
                f"{track.period_s * 1e3:.4g} ms: delays and jerk go by what came, and a row of a "
                "chunk counts as one step"
            )
        return track

    def _heed(self, moment: Moment) -> None:
        """Jumps, episodes and task texts, in the node's order."""
        session = self.session
        new = self._episode is not None and moment.episode != self._episode
        if new or moment.jump:
            self._following = None
        if new or (moment.jump and self._on_jump == "reset"):
            session.withdraw_plan()
            session.reset_(session.host.task, None)
        elif moment.jump:
            session.withdraw_plan()
            session.host.cursor = session.host.length
        if (new or moment.jump) and self._limiter is not None:
            self._limiter.restart()
        self._episode = moment.episode
        if moment.task is None or moment.task == self._task:
            return
        self._task = moment.task
        if moment.task == session.host.task:
            return
        try:
            session.host.task = session.check_task(moment.task)
        except InvalidArgumentError as error:
            self._refused[str(error)] += 1
            return
        if self._replans:
            session.withdraw_plan()
            session.host.cursor = session.host.length

    def _note_chunk(self, index: int, row: int, rows: torch.Tensor) -> None:
        """A chunk was adopted; the step of ``index`` took its row ``row``."""
        rows_HA = rows.detach().to("cpu", torch.float32, copy=True).numpy()
        if self._following is not None:
            start, old_HA = self._following
            if index - start < len(old_HA):
                self._splice_index.add(index)
                self._splices.add(rows_HA[row] - old_HA[index - start])
        self._following = (index - row, rows_HA)
        self._chunks.add(index - row, index, rows_HA)

    def _note(
        self, moment: Moment, predicted_A: object, sent_A: object, latency_ms: float, fault: str
    ) -> None:
        if self._ages is None:
            self._inputs = tuple(moment.ages_ms)
            self._ages = Column((len(self._inputs),), np.float32)
        self._ages.add([moment.ages_ms.get(name, float("nan")) for name in self._inputs])
        self._index.add(moment.index)
        self._time_ns.add(moment.time_ns)
        self._episodes.add(moment.episode)
        self._stepped.add(not fault)
        self._recorded.add(moment.recorded_A)
        self._state.add(moment.state_A)
        self._predicted.add(predicted_A)
        self._sent.add(sent_A)
        self._latency_ms.add(latency_ms)
        self._faults.append(_kind(fault))


def _kind(fault: str) -> str:
    """A reason without its growing ages: a recording then has few different ones."""
    return _STALE.sub(r"stale, older than \1 ms", fault)
