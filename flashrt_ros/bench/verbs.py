"""Snapshot, restore, rollback and fork of states of several sizes against one plain copy."""

from __future__ import annotations

import numpy as np

from flashrt_ros.bench.harness import Case, Options, Samples, contiguous_copy, interleave
from flashrt_ros.bench.policies import OBSERVATION, SizedPolicy
from flashrt_ros.bench.report import Result, Row, make_row
from flashrt_ros.runtime.device import open_device
from flashrt_ros.runtime.session import PolicySession

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 64 * MIB, 256 * MIB)
RATIO_TARGET = "<= 1.15 x floor on CUDA"
COPYING = ("snapshot", "restore", "rollback")


def run(options: Options) -> Result:
    """Measures each size in turn."""
    result = Result("verbs", "verbs of a session against one contiguous copy of the same bytes")
    for size_bytes in SIZES[:2] if options.quick else SIZES:
        result.rows += _measure(options, size_bytes)
    result.notes += [
        "wall: from the call until the bytes are there; device: without waits for the host.",
        "All cases of one size are timed in turn in one loop. Fork copies nothing.",
    ]
    return result


def _measure(options: Options, size_bytes: int) -> list[Row]:
    device = open_device(options.device)
    weight = SizedPolicy(size_bytes)
    # One slot each: initial boundary and two more of the ring, two capsules, one in the making.
    session = PolicySession(
        weight, options.device, store_bytes=7 * (size_bytes + 4 * KIB), rollback_depth=3
    )
    copy_name, copy = contiguous_copy(session.device, session.layout.fixed_bytes)
    observation = {OBSERVATION: np.ones(1, np.float32)}
    session.snapshot("base", pin=True)
    made: list[str] = []

    def step() -> None:
        session.step(observation)

    def fork() -> None:
        made.extend(capsule.name for capsule in session.fork("base", count=4))

    def drop() -> None:
        while made:
            session.drop(made.pop(), force=True)

    cases = {
        copy_name: Case(copy),
        "snapshot": Case(lambda: session.snapshot("made"), step, lambda: session.drop("made")),
        "restore": Case(lambda: session.restore("base"), step),
        "rollback": Case(lambda: session.rollback(1), step),
        "fork of 4": Case(fork, None, drop),
    }
    rounds = options.rounds(300 if device.torch_device.type == "cuda" else 30)
    samples = interleave(cases, rounds, session.device)
    rows = _rows(size_bytes, copy_name, samples, session.layout.fixed_bytes)
    session.close()
    return rows


def _rows(
    size_bytes: int, copy_name: str, samples: dict[str, Samples], moved_bytes: int
) -> list[Row]:
    size = f"{size_bytes // MIB} MiB" if size_bytes >= MIB else f"{size_bytes // KIB} KiB"
    floor = make_row(f"{size}: {copy_name}, wall", samples[copy_name].wall, size_bytes=moved_bytes)
    rows = [floor]
    for name in COPYING:
        target = RATIO_TARGET if size_bytes >= 64 * MIB and name != "rollback" else ""
        rows.append(
            make_row(f"{size}: {name}, wall", samples[name].wall, "us", moved_bytes, floor, target)
        )
    if samples[copy_name].device:
        floor = make_row(
            f"{size}: {copy_name}, device", samples[copy_name].device, size_bytes=moved_bytes
        )
        rows.append(floor)
        rows += [
            make_row(f"{size}: {name}, device", samples[name].device, "us", moved_bytes, floor)
            for name in COPYING
        ]
    rows.append(make_row(f"{size}: fork of 4, wall", samples["fork of 4"].wall))
    return rows
