"""Moves of capsules between tiers, and control periods beside them and without them.

A move is of use on a robot only if no control step notices it. So a loop steps at 1 kHz, and a
thread copies whole capsules to the host or to disk and back, like the storage thread of the node.
"""

from __future__ import annotations

import queue
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.moves import add_moves
from flashrt_ros.bench.policies import OBSERVATION, SizedPolicy
from flashrt_ros.bench.report import Result, make_row
from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.moves import Move
from flashrt_ros.runtime.place import Tier
from flashrt_ros.runtime.session import PolicySession

PERIOD_S = 1e-3
SWITCH_INTERVAL_S = 5e-4
"""As in the node's process."""
TARGET = "p99 within 10 % of that without moves"


@dataclass
class Periods:
    """What one run of the loop saw; times in milliseconds of the steady clock.

    Attributes:
        late_ms: From each deadline to the start of its step.
        step_ms: Length of each step, with its wait for the action.
        period_ms: From the end of each step to the end of the next.
        moves: Moves that were committed.
        moved_bytes: Bytes that they moved.
        begin_ms: Time of the control thread to begin a move.
        commit_ms: Time of the control thread to commit one.
        seconds: How long all took.
    """

    late_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    period_ms: list[float] = field(default_factory=list)
    moves: int = 0
    moved_bytes: int = 0
    begin_ms: list[float] = field(default_factory=list)
    commit_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0


class _Mover:
    """The storage thread: copies one move after another."""

    def __init__(self, session: PolicySession) -> None:
        self._session = session
        self._jobs: queue.SimpleQueue[Move | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[Move] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="storage", daemon=True)
        self._thread.start()

    def carry(self, move: Move) -> None:
        self._jobs.put(move)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (move := self._jobs.get()) is not None:
            if self._session.must_fetch(move):
                self._session.fetch(move)
            else:
                self._session.carry(move)
            self.done.put(move)


def control_periods(
    session: PolicySession,
    steps: int,
    tier: Tier | None,
    period_s: float = PERIOD_S,
) -> Periods:
    """Steps ``session`` at a fixed rate, with moves of two capsules back and forth meanwhile.

    Args:
        session: Of a ``SizedPolicy``, with room for three capsules, and for two in ``tier``.
        steps: Control steps, and more, up to twenty times as many, until a move has taken place.
        tier: Where capsules go and come back from; None: nothing moves.
        period_s: Length of a control period.
    """
    found = Periods()
    for name in ("one", "two"):
        session.snapshot(name, replace=True)
    mover = _Mover(session)
    way = [(name, to) for to in (tier, Tier.DEVICE) for name in ("one", "two")]
    turn, under_way = 0, False
    observation = {OBSERVATION: [1.0]}
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    begun_s = deadline_s = last_s = time.perf_counter()
    try:
        for step in range(20 * steps):
            if step >= steps and (tier is None or found.moves):
                break
            deadline_s += period_s
            while (left_s := deadline_s - time.perf_counter()) > 0:
                time.sleep(left_s)
            start_s = time.perf_counter()
            session.step(observation)
            end_s = time.perf_counter()
            found.late_ms.append((start_s - deadline_s) * 1e3)
            found.step_ms.append((end_s - start_s) * 1e3)
            found.period_ms.append((end_s - last_s) * 1e3)
            last_s = end_s
            if tier is None:
                continue
            if under_way and not mover.done.empty():
                move = mover.done.get()
                if session.must_fetch(move):
                    session.take(move)
                    mover.carry(move)
                    continue
                committed_s = time.perf_counter()
                session.commit_move(move)
                found.commit_ms.append((time.perf_counter() - committed_s) * 1e3)
                found.moves += 1
                found.moved_bytes += session.layout.fixed_bytes
                under_way = False
            elif not under_way:
                name, to = way[turn % len(way)]
                assert to is not None  # as ``tier`` is not
                turn += 1
                began_s = time.perf_counter()
                begun = session.begin_move(name, to)
                found.begin_ms.append((time.perf_counter() - began_s) * 1e3)
                if begun is not None:
                    mover.carry(begun)
                    under_way = True
        found.seconds = time.perf_counter() - begun_s
    finally:
        sys.setswitchinterval(interval_s)
        mover.close()
        if under_way and session.must_fetch(move := mover.done.get()):
            session.give_back(move)
        elif under_way:
            session.commit_move(move)
    for name in ("one", "two"):
        session.drop(name)
    session.remove_files()
    return found


def run(options: Options) -> Result:
    """Measures the loop alone and beside moves, in turns, so that drift hits both."""
    result = Result(
        "tiers", f"moves of capsules; control periods at {1 / PERIOD_S:g} Hz beside them"
    )
    add_moves(result, options)
    size_bytes = (1 << 20) if options.quick or not options.cuda else (256 << 20)
    steps, rounds = (50, 1) if options.quick else (2000, 3)
    with tempfile.TemporaryDirectory() as folder:
        session = PolicySession(
            SizedPolicy(size_bytes),
            device=options.device,
            store_bytes=4 * (size_bytes + 4096),
            rollback_depth=0,
            preview_sets=0,
            warm_up=options.warm(),
            host_store_bytes=2 * (size_bytes + 4096),
            folder=CapsuleFolder(Path(folder)),
        )
        if session.store.host is None:
            result.notes.append(f"no host tier: {session.host_reason}")
        tiers = [None, Tier.DISK] if session.store.host is None else [None, Tier.HOST, Tier.DISK]
        control_periods(session, options.warm(20), None)
        found: dict[Tier | None, list[Periods]] = {tier: [] for tier in tiers}
        for _ in range(rounds):
            for tier in tiers:
                found[tier].append(control_periods(session, steps, tier))
        session.close()
    for label in ("late_ms", "step_ms", "period_ms"):
        floor = None
        for tier, several in found.items():
            samples = [sample for periods in several for sample in getattr(periods, label)]
            words = "alone" if tier is None else f"beside moves to {tier.value} and back"
            row = make_row(
                f"{label.removesuffix('_ms')} {words}",
                samples,
                "ms",
                floor=floor,
                target="" if floor is None else TARGET,
            )
            floor = floor or row
            result.rows.append(row)
    for tier, several in found.items():
        if tier is not None:
            result.notes.append(_note(tier, several, size_bytes))
    return result


def _note(tier: Tier, several: list[Periods], size_bytes: int) -> str:
    moves = sum(periods.moves for periods in several)
    seconds = sum(periods.seconds for periods in several)
    gb_per_s = sum(periods.moved_bytes for periods in several) / max(seconds, 1e-9) / 1e9
    verbs = [
        f"{label} {max((s for p in several for s in getattr(p, name)), default=0.0):.3f} ms"
        for label, name in (("begin", "begin_ms"), ("commit", "commit_ms"))
    ]
    return (
        f"{tier.value}: {moves} moves of {size_bytes} bytes in {seconds:.1f} s, {gb_per_s:.1f}"
        f" GB/s on average; longest on the control thread: {', '.join(verbs)}"
    )
