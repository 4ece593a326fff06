"""Verbs by the number of pieces in which the rows lie in the store.

The store is cut up before: every other run of pages is taken, so that what is stored next must go
into the holes.
"""

from __future__ import annotations

from flashrt_ros.bench.growing import (
    READ_ME,
    Pairs,
    Place,
    grow,
    longest,
    open_session,
    row_bytes,
)
from flashrt_ros.bench.harness import Case, Options
from flashrt_ros.bench.report import Result

SEGMENTS = (1, 10, 100, 1000)
NEW_ROWS = 16
FOREIGN_TARGET = "<= 1.5 x floor on CUDA"
BY_SEGMENTS = ("verbs by segments of the context", "segments")


def run(options: Options) -> Result:
    """Measures each number in turn."""
    rows = longest(options)
    result = Result(
        "segments", f"verbs on {rows} rows of {row_bytes(options)} bytes that lie in pieces"
    )
    for segments in SEGMENTS[:3] if options.quick else SEGMENTS:
        _measure(options, rows, segments, result)
    result.notes += [
        *READ_ME,
        "A foreign capsule shares no row with the live state, so all its rows are copied; its"
        " segments lie apart in the store.",
        f"snapshot: after {NEW_ROWS} new rows; rollback: by one step, along the own lineage.",
    ]
    return result


def _measure(options: Options, rows: int, segments: int, result: Result) -> None:
    session = open_session(options, rows, depth=2)
    pool = session.store.rows
    assert pool is not None
    run = max(1, -(-rows // pool.page_rows) // segments)
    if segments > 1:
        pool.take(pool.free)
        for start in range(0, pool.pages - run + 1, run + 1):
            pool.give_back(start, run)
    grow(session, rows)
    capsule = session.snapshot("foreign", pin=True)
    span = capsule.segment.rows
    assert span is not None
    found, weight = len(span.pieces()), session.layout.fixed_bytes

    def lineage() -> None:
        session.restore("foreign")
        grow(session, NEW_ROWS)

    pairs = Pairs(session, options)
    pairs.add(
        f"restore of a foreign capsule in {found} segments",
        weight + rows * session.layout.row_bytes,
        Case(lambda: session.restore("foreign"), lambda: session.reset_()),
        Place(*BY_SEGMENTS, "restore of a foreign capsule", found),
        FOREIGN_TARGET,
    )
    pairs.add(
        f"snapshot of a context in {found} segments",
        weight + NEW_ROWS * session.layout.row_bytes,
        Case(lambda: session.snapshot("made"), lineage, lambda: session.drop("made")),
        Place(*BY_SEGMENTS, "snapshot", found),
    )
    pairs.add(
        f"rollback in a context in {found} segments",
        weight,
        Case(lambda: session.rollback(1), lineage),
        Place(*BY_SEGMENTS, "rollback", found),
    )
    pairs.measure(result)
    session.close()
