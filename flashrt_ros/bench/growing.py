"""Sessions whose state grows by rows; verbs on them, each timed beside one copy of its bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashrt_ros.bench.harness import Case, Options, contiguous_copy, interleave
from flashrt_ros.bench.policies import OBSERVATION, GrowingPolicy
from flashrt_ros.bench.report import Curve, Point, Result, make_row
from flashrt_ros.runtime.session import PolicySession

ROW_BYTES = 4 << 10
CUDA_ROW_BYTES = 16 << 10
"""Keys and values of eight layers with two heads of 256, in 16 bits."""
ROWS, QUICK_ROWS = 16 << 10, 2 << 10
MOST = 1 << 10
"""Rows of one step at most."""
READ_ME = (
    "wall: from the call until the bytes are there; device: without waits for the host.",
    "Each floor is one copy of the bytes that the verb beside it must move.",
)


def longest(options: Options) -> int:
    """Returns the rows of the longest context that is measured."""
    return QUICK_ROWS if options.quick else ROWS


def row_bytes(options: Options) -> int:
    """Returns the size of a row."""
    return CUDA_ROW_BYTES if options.cuda else ROW_BYTES


def open_session(options: Options, rows: int, depth: int) -> PolicySession:
    """Returns a session with room for ``rows`` rows, and for three such contexts in its store."""
    policy = GrowingPolicy(rows + MOST, row_bytes(options), MOST)
    # What is left over from the least is halved.
    store_bytes = 5 * (rows + MOST) * row_bytes(options) + (64 << 10)
    return PolicySession(
        policy,
        options.device,
        store_bytes=store_bytes,
        rollback_depth=depth,
        warm_up=options.warm(),
    )


def grow(session: PolicySession, rows: int) -> None:
    """Takes control steps until there are ``rows`` rows more."""
    while rows > 0:
        session.step({OBSERVATION: np.full(1, min(rows, MOST), np.float32)})
        rows -= MOST


@dataclass(frozen=True)
class Place:
    """Where on which curve a verb is drawn, its floor beside it.

    Attributes:
        curve: Title, without the kind of time.
        x_label: Of the axis.
        series: The verb.
        x: Of this one.
    """

    curve: str
    x_label: str
    series: str
    x: float


class Pairs:
    """Cases of one session, each with one copy of the bytes that it must move; timed in turn."""

    def __init__(self, session: PolicySession, options: Options) -> None:
        self._session = session
        self._options = options
        self._cases: dict[str, Case] = {}
        self._pairs: list[tuple[str, str, int, str, Place]] = []

    def add(self, name: str, size_bytes: int, case: Case, place: Place, target: str = "") -> None:
        """Adds a case that moves ``size_bytes``."""
        words, copy = contiguous_copy(self._session.device, size_bytes)
        floor = f"{words} beside {name}"
        self._cases[floor], self._cases[name] = Case(copy), case
        self._pairs.append((name, floor, size_bytes, target, place))

    def measure(self, result: Result) -> None:
        """Times all, and adds rows and curves."""
        rounds = self._options.rounds(200 if self._options.cuda else 20)
        samples = interleave(self._cases, rounds, self._session.device, self._options.warm())
        for name, floor_name, size_bytes, target, place in self._pairs:
            for kind in ("wall", "device"):
                mine = getattr(samples[name], kind)
                if not mine:
                    continue
                curve = Curve(f"{place.curve}, {kind} time", place.x_label, "us")
                if curve not in result.curves:
                    result.curves.append(curve)
                floor = make_row(
                    f"{floor_name}, {kind}",
                    getattr(samples[floor_name], kind),
                    "us",
                    size_bytes,
                    point=Point(curve.title, f"floor of {place.series}", place.x),
                )
                point = Point(curve.title, place.series, place.x)
                row = make_row(f"{name}, {kind}", mine, "us", size_bytes, floor, target, point)
                result.rows += [floor, row]
