"""What snapshots and forks take of the store, against as many full copies of the state.

Not times: every figure is the difference of the store's own books before and after, in bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from flashrt_ros.bench.growing import grow, longest, open_session, row_bytes
from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.report import Count, Curve, Point, Result, Row
from flashrt_ros.runtime.row_pool import page_rows
from flashrt_ros.runtime.session import PolicySession

NEW_ROWS = (1, 16, 64, 256, 1024)
BRANCHES = (1, 4, 16)
RUN_ROWS = 16
FIRST, AGAIN, FORK = (
    "first snapshot, by context length",
    "next snapshot, by rows since the one before",
    "fork, by branches",
)
NAIVE = "full copies"


def run(options: Options) -> Result:
    """Takes each in turn from one session's store."""
    rows, size = longest(options), row_bytes(options)
    result = Result("memory", f"bytes that capsules of up to {rows} rows of {size} bytes take")
    result.curves += [
        Curve(FIRST, "rows", "bytes"),
        Curve(AGAIN, "new rows", "bytes"),
        Curve(FORK, "branches", "bytes"),
    ]
    for length in (rows // 8, rows // 4, rows // 2, rows):
        _first(options, length, result)
    session = open_session(options, rows, depth=0)
    grow(session, rows - NEW_ROWS[-1])
    session.snapshot("parent", pin=True)
    for new in NEW_ROWS:
        _next(session, new, result)
    for count in BRANCHES:
        _fork(session, count, result)
    session.close()
    result.notes += [
        f"x floor: against {NAIVE}, as if each capsule held all of its state. Rows are stored in"
        f" pages of {page_rows(size) * size} bytes, so what is taken is rounded up to these.",
        f"A branch takes storage once it has run: {RUN_ROWS} rows on, then a snapshot.",
    ]
    return result


def _first(options: Options, length: int, result: Result) -> None:
    session = open_session(options, length, depth=0)
    grow(session, length)
    taken = _taken(session, lambda: session.snapshot("first"))
    case = f"first snapshot at {length} rows"
    _add(result, FIRST, "taken", case, length, taken, _full(session, length))
    session.close()


def _next(session: PolicySession, new: int, result: Result) -> None:
    session.restore("parent")
    grow(session, new)
    taken = _taken(session, lambda: session.snapshot("next"))
    full = _full(session, session.host.rows)
    _add(result, AGAIN, "taken", f"snapshot after {new} new rows", new, taken, full)
    session.drop("next")


def _fork(session: PolicySession, count: int, result: Result) -> None:
    names = [f"branch{index}" for index in range(count)]
    full = count * _full(session, session.store.get("parent").host.rows)
    taken = _taken(session, lambda: session.fork("parent", names=names))
    case = f"fork into {count} branches"
    _add(result, FORK, "taken by a fork", case, count, taken, full)
    result.counts.append(Count(f"{case}: bytes taken", taken, 0, "all"))

    def run_on() -> None:
        for name in names:
            session.restore(name)
            grow(session, RUN_ROWS)
            session.snapshot(f"{name}.on")

    case = f"{count} branches, each {RUN_ROWS} rows on"
    _add(result, FORK, "taken once they have run", case, count, _taken(session, run_on), full)
    for name in names:
        session.drop(name)
        session.drop(f"{name}.on")


def _taken(session: PolicySession, call: Callable[[], object]) -> int:
    before = session.store.bytes_used
    call()
    return session.store.bytes_used - before


def _full(session: PolicySession, rows: int) -> int:
    return session.layout.fixed_bytes + rows * session.layout.row_bytes


def _add(
    result: Result, curve: str, series: str, case: str, x: int, taken: int, full: int
) -> None:
    naive = _bytes(f"{NAIVE} beside {case}", full, Point(curve, NAIVE, x))
    if any(row.point == naive.point for row in result.rows):
        naive = next(row for row in result.rows if row.point == naive.point)
    else:
        result.rows.append(naive)
    result.rows.append(_bytes(case, taken, Point(curve, series, x), naive))


def _bytes(case: str, size: int, point: Point, floor: Row | None = None) -> Row:
    ratio = size / floor.p50 if floor else None
    name = floor.case if floor else ""
    return Row(case, 1, size, size, size, "B", size, name, ratio, point=point)
