"""Snapshot, restore, rollback and fork of states of several sizes against one plain copy."""

from __future__ import annotations

import numpy as np

from flashrt_ros.bench.harness import Case, Options, Samples, contiguous_copy, interleave
from flashrt_ros.bench.policies import OBSERVATION, SizedPolicy
from flashrt_ros.bench.report import Curve, Point, Result, make_row
from flashrt_ros.bench.roofline import in_words
from flashrt_ros.runtime.session import PolicySession

KIB, MIB = 1 << 10, 1 << 20
CUDA_SIZES = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
CPU_SIZES = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
RATIO_TARGET = "<= 1.10 x floor on CUDA"
SMALL_TARGET = "<= 15 us on CUDA"
COPYING = ("snapshot", "restore", "rollback")
BRANCHES = 4
CURVES = {
    "wall": "verbs by size of the state, wall time",
    "device": "verbs by size of the state, device time",
}


def run(options: Options) -> Result:
    """Measures each size in turn."""
    result = Result("verbs", "verbs of a session against one contiguous copy of the same bytes")
    sizes = CUDA_SIZES if options.cuda else CPU_SIZES
    for size_bytes in sizes[:3:2] if options.quick else sizes:
        _measure(result, options, size_bytes)
    result.curves.append(Curve(CURVES["wall"], "state, bytes", "us"))
    if options.cuda:
        result.curves.append(Curve(CURVES["device"], "state, bytes", "us"))
    result.notes += [
        "wall: from the call until the bytes are there; device: without waits for the host.",
        "All cases of one size are timed in turn in one loop. Fork copies nothing.",
    ]
    return result


def _measure(result: Result, options: Options, size_bytes: int) -> None:
    weight = SizedPolicy(size_bytes)
    # One slot each: initial boundary and two more of the ring, two capsules, one in the making.
    session = PolicySession(
        weight,
        options.device,
        store_bytes=7 * (size_bytes + 4 * KIB),
        rollback_depth=3,
        warm_up=options.warm(),
    )
    copy_name, copy = contiguous_copy(session.device, session.layout.fixed_bytes)
    observation = {OBSERVATION: np.ones(1, np.float32)}
    session.snapshot("base", pin=True)
    made: list[str] = []

    def step() -> None:
        session.step(observation)

    def fork() -> None:
        made.extend(capsule.name for capsule in session.fork("base", count=BRANCHES))

    def drop() -> None:
        while made:
            session.drop(made.pop(), force=True)

    fork_name = f"fork of {BRANCHES}"
    cases = {
        copy_name: Case(copy),
        "snapshot": Case(lambda: session.snapshot("made"), step, lambda: session.drop("made")),
        "restore": Case(lambda: session.restore("base"), step),
        "rollback": Case(lambda: session.rollback(1), step),
        fork_name: Case(fork, None, drop),
    }
    rounds = options.rounds(300 if options.cuda else 30)
    samples = interleave(cases, rounds, session.device, options.warm())
    moved_bytes = session.layout.fixed_bytes
    for kind in ("wall", "device"):
        _add_rows(result, samples, kind, copy_name, size_bytes, moved_bytes)
    point = Point(CURVES["wall"], fork_name, size_bytes)
    size = in_words(size_bytes)
    result.rows.append(
        make_row(f"{size}: {fork_name}, wall", samples[fork_name].wall, point=point)
    )
    session.close()


def _add_rows(
    result: Result,
    samples: dict[str, Samples],
    kind: str,
    copy_name: str,
    size_bytes: int,
    moved_bytes: int,
) -> None:
    if not getattr(samples[copy_name], kind):
        return
    floor = None
    for name in (copy_name, *COPYING):
        target = RATIO_TARGET if size_bytes >= 64 * MIB and name in COPYING[:2] else ""
        if kind == "device" and size_bytes <= MIB and name in COPYING[:2]:
            target = SMALL_TARGET
        row = make_row(
            f"{in_words(size_bytes)}: {name}, {kind}",
            getattr(samples[name], kind),
            "us",
            moved_bytes,
            floor,
            target,
            Point(CURVES[kind], name, size_bytes),
        )
        floor = floor or row
        result.rows.append(row)
