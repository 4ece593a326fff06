"""Moves of capsules between tiers beside what bus and disk can do; part of ``tiers``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from flashrt_ros.bench.harness import Case, Options, interleave, plain_copy
from flashrt_ros.bench.policies import SizedPolicy
from flashrt_ros.bench.report import Curve, Point, Result, Row, make_row
from flashrt_ros.bench.roofline import in_words
from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.place import Tier
from flashrt_ros.runtime.session import PolicySession

KIB, MIB = 1 << 10, 1 << 20
CUDA_SIZES = (MIB, 16 * MIB, 64 * MIB, 256 * MIB)
CPU_SIZES = (MIB, 4 * MIB, 16 * MIB)
CURVE = "moves by size of the state, wall time"
NAME = "moved"
WRITTEN, READ = "file written", "file read"
TO_PINNED, FROM_PINNED = "copy to pinned memory", "copy from pinned memory"


def add_moves(result: Result, options: Options) -> None:
    """Measures every way at each size, beside a plain copy, or a plain file, of as many bytes."""
    result.curves.append(Curve(CURVE, "state, bytes", "us"))
    sizes = CUDA_SIZES if options.cuda else CPU_SIZES
    for size_bytes in sizes[:2] if options.quick else sizes:
        with tempfile.TemporaryDirectory(prefix="flashrt_ros_bench_") as folder:
            _measure(result, options, size_bytes, Path(folder))
    result.notes.append(
        "floors of moves: a copy between the device and pinned host memory; a file written and"
        " fsynced, and a file read, which the system has in its cache."
    )


def _measure(result: Result, options: Options, size_bytes: int, folder: Path) -> None:
    session = PolicySession(
        SizedPolicy(size_bytes),
        options.device,
        store_bytes=3 * (size_bytes + 4 * KIB),
        rollback_depth=0,
        warm_up=options.warm(),
        host_store_bytes=2 * (size_bytes + MIB),
        folder=CapsuleFolder(folder),
    )
    floors = _floors(session, folder)
    ways = _ways(session)
    cases = {name: Case(call) for name, call in floors.items()}
    cases |= {name: _case(session, *way) for name, (way, _) in ways.items()}
    rounds = options.rounds(30 if size_bytes <= 64 * MIB else 10)
    # No oftener than it is timed: a disk is slow, and does not get warm.
    warm_up = min(options.warm(), rounds)
    samples = interleave(cases, rounds, session.device, warm_up, device_times=False)
    moved_bytes, size = session.layout.fixed_bytes, in_words(size_bytes)
    session.close()

    def add(name: str, floor: Row | None) -> Row:
        point = Point(CURVE, name, size_bytes)
        wall = samples[name].wall
        row = make_row(f"{size}: {name}, wall", wall, "us", moved_bytes, floor, point=point)
        result.rows.append(row)
        return row

    rows = {name: add(name, None) for name in floors}
    for name, (_, floor) in ways.items():
        add(name, rows[floor])


def _ways(session: PolicySession) -> dict[str, tuple[tuple[Tier, Tier], str]]:
    """Returns each way, from where to where, and its floor."""
    ways = [(Tier.DEVICE, Tier.DISK, WRITTEN), (Tier.DISK, Tier.DEVICE, READ)]
    if session.store.host is not None:
        ways += [(Tier.DEVICE, Tier.HOST, TO_PINNED), (Tier.HOST, Tier.DEVICE, FROM_PINNED)]
    return {f"{fro.value} to {to.value}": ((fro, to), floor) for fro, to, floor in ways}


def _case(session: PolicySession, source: Tier, target: Tier) -> Case:
    def remake() -> None:
        # A new one each time: what has been in a file need not be written there again.
        if NAME in session.store:
            session.drop(NAME)
            session.remove_files()
        session.snapshot(NAME)
        session.move(NAME, source)

    return Case(lambda: session.move(NAME, target), remake)


def _floors(session: PolicySession, folder: Path) -> dict[str, Callable[[], object]]:
    device, size_bytes = session.device, session.layout.fixed_bytes
    host_N = device.allocate_host(size_bytes)
    path = folder / "floor.bin"

    def write() -> None:
        with path.open("wb") as file:
            file.write(host_N.numpy().data)
            os.fsync(file.fileno())

    write()
    floors: dict[str, Callable[[], object]] = {WRITTEN: write, READ: path.read_bytes}
    if session.store.host is not None:
        here_N = device.allocate(size_bytes)
        floors[TO_PINNED] = plain_copy(device, host_N, here_N)[1]
        floors[FROM_PINNED] = plain_copy(device, here_N, host_N)[1]
    return floors
