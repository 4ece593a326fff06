"""Verbs on rows: what a snapshot copies, how a rollback and a scattered capsule cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashrt_ros.bench.harness import Case, Options, Samples, contiguous_copy, interleave
from flashrt_ros.bench.policies import OBSERVATION, GrowingPolicy
from flashrt_ros.bench.report import Count, Result, Row, make_row
from flashrt_ros.runtime.session import PolicySession

ROW_BYTES = 4 << 10
CUDA_ROW_BYTES = 16 << 10
"""Keys and values of eight layers with two heads of 256, in 16 bits."""
ROWS, QUICK_ROWS = 16 << 10, 2 << 10
MOST = 1 << 10
NEW_ROWS = (1, 16, 256)
SEGMENTS = (1, 10, 100, 1000)
FOREIGN_TARGET = "<= 1.5 x floor on CUDA"


def run(options: Options) -> Result:
    """Measures each in turn, with its floor."""
    rows = QUICK_ROWS if options.quick else ROWS
    result = Result(
        "rows", f"verbs on a context of up to {rows} rows of {_row_bytes(options)} bytes"
    )
    _lineage(options, rows, result)
    for segments in SEGMENTS[:3] if options.quick else SEGMENTS:
        _foreign(options, rows, segments, result)
    result.notes += [
        "wall: from the call until the bytes are there; device: without waits for the host.",
        "A foreign capsule shares no row with the live state, so all its rows are copied; its"
        " segments lie apart in the store.",
    ]
    return result


def _session(options: Options, rows: int, depth: int) -> PolicySession:
    row_bytes = _row_bytes(options)
    policy = GrowingPolicy(rows + MOST, row_bytes, MOST)
    # Room for three whole contexts: what is left over from the least is halved.
    store_bytes = 5 * (rows + MOST) * row_bytes + (64 << 10)
    return PolicySession(policy, options.device, store_bytes=store_bytes, rollback_depth=depth)


def _row_bytes(options: Options) -> int:
    return CUDA_ROW_BYTES if options.device.startswith("cuda") else ROW_BYTES


def _grow(session: PolicySession, rows: int) -> None:
    while rows > 0:
        session.step({OBSERVATION: np.full(1, min(rows, MOST), np.float32)})
        rows -= MOST


def _lineage(options: Options, rows: int, result: Result) -> None:
    """Snapshots after new rows, and rollbacks by one step in a short and in a long context."""
    session = _session(options, rows, depth=2)
    short = rows // 8
    _grow(session, short)
    session.snapshot("short", pin=True)
    _grow(session, rows - short)
    session.snapshot("long", pin=True)

    def go(name: str, new: int) -> None:
        session.restore(name)
        _grow(session, new)

    cases: dict[str, Case] = {}
    floors: dict[str, str] = {}
    moved: dict[str, int] = {}

    def add(name: str, size_bytes: int, case: Case) -> None:
        floor, copy = contiguous_copy(session.device, size_bytes)
        floors[name] = f"{floor} beside {name}"
        cases[floors[name]], cases[name] = Case(copy), case
        moved[name] = moved[floors[name]] = size_bytes

    weight = session.layout.fixed_bytes
    for length in (short, rows):
        name = "short" if length == short else "long"

        def rolled(name: str = name) -> None:
            go(name, 1)

        add(f"rollback at {length} rows", weight, Case(lambda: session.rollback(1), rolled))
        rolled()
        found = _bytes_of(session, lambda: session.rollback(1))
        words = f"bytes copied by a rollback at {length} rows: the fixed part"
        result.counts.append(Count(words, found, weight, "all"))
    for new in NEW_ROWS:

        def grown(new: int = new) -> None:
            go("long", new)

        size_bytes = weight + new * session.layout.row_bytes
        case = Case(lambda: session.snapshot("made"), grown, lambda: session.drop("made"))
        add(f"snapshot after {new} new rows", size_bytes, case)
        grown()
        found = _bytes_of(session, lambda: session.snapshot("made"))
        session.drop("made")
        words = f"bytes copied by a snapshot after {new} new rows: the fixed part and these"
        result.counts.append(Count(words, found, size_bytes, "all"))
    samples = interleave(cases, _rounds(options, session), session.device)
    for name, floor in floors.items():
        _add_rows(result, name, floor, samples, moved[name])
    session.close()


def _foreign(options: Options, rows: int, segments: int, result: Result) -> None:
    """Restores all rows of a capsule that lies in about so many segments."""
    session = _session(options, rows, depth=0)
    pool = session.store.rows
    assert pool is not None
    pages = -(-rows // pool.page_rows)
    run = max(1, pages // segments)
    if segments > 1:
        pool.take(pool.free)
        for start in range(0, pool.pages - run + 1, run + 1):
            pool.give_back(start, run)
    _grow(session, rows)
    capsule = session.snapshot("foreign", pin=True)
    span = capsule.segment.rows
    assert span is not None
    size_bytes = session.layout.fixed_bytes + rows * session.layout.row_bytes
    floor, copy = contiguous_copy(session.device, size_bytes)
    name = f"restore of a foreign capsule in {len(span.pieces())} segments"
    floor = f"{floor} beside {name}"
    cases = {
        floor: Case(copy),
        name: Case(lambda: session.restore("foreign"), lambda: session.reset_()),
    }
    samples = interleave(cases, _rounds(options, session), session.device)
    _add_rows(result, name, floor, samples, size_bytes, FOREIGN_TARGET)
    session.close()


def _rounds(options: Options, session: PolicySession) -> int:
    return options.rounds(200 if session.device.torch_device.type == "cuda" else 20)


def _add_rows(
    result: Result,
    name: str,
    floor_name: str,
    samples: dict[str, Samples],
    size_bytes: int,
    target: str = "",
) -> None:
    for kind in ("wall", "device"):
        mine = getattr(samples[name], kind)
        if not mine:
            continue
        least: Row = make_row(
            f"{floor_name}, {kind}", getattr(samples[floor_name], kind), size_bytes=size_bytes
        )
        result.rows += [
            least,
            make_row(f"{name}, {kind}", mine, "us", size_bytes, least, target),
        ]


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
