"""Verbs on rows: what they cost by context length, and a snapshot by the rows that are new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from flashrt_ros.bench.report import Count, Result
from flashrt_ros.runtime.session import PolicySession

NEW_ROWS = (1, 16, 256)
BY_LENGTH = ("verbs by context length", "rows")
BY_NEW = ("snapshot by new rows", "rows since the snapshot before")


def run(options: Options) -> Result:
    """Measures each in turn, with its floor."""
    rows = longest(options)
    result = Result(
        "rows", f"verbs on a context of up to {rows} rows of {row_bytes(options)} bytes"
    )
    lengths = (rows // 8, rows) if options.quick else (rows // 16, rows // 8, rows // 4, rows)
    _lineage(options, lengths, result)
    for length in lengths:
        _whole(options, length, result)
    result.notes += [
        *READ_ME,
        "snapshot of all rows: none of them is stored yet; restore of all: the live state has none"
        " of them; rollback: along the own lineage, so that no row is copied.",
    ]
    return result


def _lineage(options: Options, lengths: tuple[int, ...], result: Result) -> None:
    """Rollbacks by one step in contexts of several lengths, and snapshots after new rows."""
    session = open_session(options, lengths[-1], depth=2)
    pairs = Pairs(session, options)
    weight, grown = session.layout.fixed_bytes, 0

    def go(name: str, new: int) -> Callable[[], None]:
        def back_and_on() -> None:
            session.restore(name)
            grow(session, new)

        return back_and_on

    for length in lengths:
        grow(session, length - grown)
        grown = length
        session.snapshot(f"at{length}", pin=True)
    for length in lengths:
        rolled = go(f"at{length}", 1)
        name = f"rollback at {length} rows"
        place = Place(*BY_LENGTH, "rollback", length)
        pairs.add(name, weight, Case(lambda: session.rollback(1), rolled), place)
        rolled()
        found = _bytes_of(session, lambda: session.rollback(1))
        words = f"bytes copied by a rollback at {length} rows: the fixed part"
        result.counts.append(Count(words, found, weight, "all"))
    for new in NEW_ROWS:
        longer = go(f"at{lengths[-1]}", new)
        size_bytes = weight + new * session.layout.row_bytes
        case = Case(lambda: session.snapshot("made"), longer, lambda: session.drop("made"))
        place = Place(*BY_NEW, "snapshot", new)
        pairs.add(f"snapshot after {new} new rows", size_bytes, case, place)
        longer()
        found = _bytes_of(session, lambda: session.snapshot("made"))
        session.drop("made")
        words = f"bytes copied by a snapshot after {new} new rows: the fixed part and these"
        result.counts.append(Count(words, found, size_bytes, "all"))
    pairs.measure(result)
    session.close()


def _whole(options: Options, length: int, result: Result) -> None:
    """A snapshot and a restore that copy every row of the context."""
    session = open_session(options, length, depth=0)
    size_bytes = session.layout.fixed_bytes + length * session.layout.row_bytes
    grow(session, length)
    # What is dropped is stored no longer, so the next snapshot copies all again.
    case = Case(lambda: session.snapshot("made"), None, lambda: session.drop("made"))
    pairs = Pairs(session, options)
    place = Place(*BY_LENGTH, "snapshot of all rows", length)
    pairs.add(f"snapshot of all {length} rows", size_bytes, case, place)
    pairs.measure(result)
    session.snapshot("kept", pin=True)
    case = Case(lambda: session.restore("kept"), lambda: session.reset_())
    pairs = Pairs(session, options)
    place = Place(*BY_LENGTH, "restore of all rows", length)
    pairs.add(f"restore of all {length} rows", size_bytes, case, place)
    pairs.measure(result)
    session.close()


def _bytes_of(session: PolicySession, call: Any) -> int:
    """Bytes that ``call`` copies."""
    device, found = session.device, 0
    plain, pieces = device.copy_, device.copy_pieces_

    def copy_(dst: Any, src: Any) -> None:
        nonlocal found
        found += dst.nbytes
        plain(dst, src)

    def copy_pieces_(dst: Any, src: Any, many: Any) -> None:
        nonlocal found
        found += int(many.sizes.sum())
        pieces(dst, src, many)

    vars(device).update(copy_=copy_, copy_pieces_=copy_pieces_)
    try:
        call()
    finally:
        del device.copy_, device.copy_pieces_
    return found
