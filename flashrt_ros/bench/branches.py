"""What branches cost, each part by itself: fork, materialise, switch; and whole previews.

*Fork* makes the capsule of a branch, *materialise* writes its state into a spare set, *switch*
puts a set that is written already into the place of another. A switch waits until the stream is
drained, so it is timed on an idle stream and behind one copy that is still to be done.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flashrt_ros.bench.harness import Case, Options, Samples, contiguous_copy, interleave
from flashrt_ros.bench.policies import OBSERVATION, SizedPolicy
from flashrt_ros.bench.report import Curve, Point, Result, Row, make_row
from flashrt_ros.bench.roofline import in_words
from flashrt_ros.runtime.session import PolicySession

KIB, MIB = 1 << 10, 1 << 20
CUDA_SIZES = (MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
CPU_SIZES = (64 * KIB, MIB, 16 * MIB)
BRANCHES = (1, 4, 16)
BY_SIZE = "fork, materialise and switch by size of the state, wall time"
BY_BRANCHES = "preview by branches, wall time"
TARGETS = {256 * MIB: "<= 100 us on CUDA", 1024 * MIB: "<= 200 us on CUDA"}
SWITCH, BEHIND = "switch, idle stream", "switch behind one copy"


def run(options: Options) -> Result:
    """Measures each size in turn, then previews of one size."""
    result = Result("branches", "fork, materialise and switch apart; previews of branches")
    sizes = CUDA_SIZES if options.cuda else CPU_SIZES
    words = ""
    for size_bytes in sizes[:2] if options.quick else sizes:
        words = _parts(result, options, size_bytes)
    _previews(result, options, sizes[0] if options.quick else sizes[2])
    result.curves += [Curve(BY_SIZE, "state, bytes", "us"), Curve(BY_BRANCHES, "branches", "us")]
    result.notes += [
        "switch: from one written set to another, the wait for the stream included.",
        "preview: x floor is against restore and step of as many branches, one after another,"
        " which leaves the live state behind; a preview keeps it.",
        words,
    ]
    return result


def _open(options: Options, size_bytes: int) -> PolicySession:
    return PolicySession(
        SizedPolicy(size_bytes),
        options.device,
        store_bytes=3 * (size_bytes + 4 * KIB),
        rollback_depth=0,
        warm_up=options.warm(),
        preview_sets=2,
    )


def _parts(result: Result, options: Options, size_bytes: int) -> str:
    session = _open(options, size_bytes)
    memory, moved_bytes = session.arena.memory, session.layout.fixed_bytes
    copy_name, copy = contiguous_copy(session.device, moved_bytes)
    session.snapshot("base", pin=True)
    made: list[str] = []

    def fork(count: int) -> Callable[[], None]:
        return lambda: made.extend(branch.name for branch in session.fork("base", count))

    def drop() -> None:
        while made:
            session.drop(made.pop(), force=True)

    def place(number: int) -> Callable[[], None]:
        return lambda: memory.place(number, 0, 0)

    def behind() -> None:
        copy()
        memory.place(1, 0, 0)

    for number in range(2):
        session.materialise("base", number)
    cases = {
        copy_name: Case(copy),
        **{f"fork of {count}": Case(fork(count), None, drop) for count in BRANCHES},
        "materialise": Case(lambda: session.materialise("base", 0)),
        SWITCH: Case(place(1), place(0), memory.place_live),
        BEHIND: Case(behind, place(0), memory.place_live),
    }
    samples = interleave(
        cases,
        options.rounds(200 if options.cuda else 30),
        session.device,
        options.warm(),
        device_times=False,
    )
    _add_parts(result, samples, copy_name, size_bytes, moved_bytes)
    session.close()
    return memory.words


def _add_parts(
    result: Result, samples: dict[str, Samples], copy_name: str, size_bytes: int, moved_bytes: int
) -> None:
    floor: Row | None = None
    for name, found in samples.items():
        copies = name in (copy_name, "materialise")
        row = make_row(
            f"{in_words(size_bytes)}: {name}, wall",
            found.wall,
            "us",
            moved_bytes if copies else 0,
            floor if copies or name == BEHIND else None,
            TARGETS.get(size_bytes, "") if name == SWITCH else "",
            Point(BY_SIZE, name, size_bytes),
        )
        floor = floor or row
        result.rows.append(row)


def _previews(result: Result, options: Options, size_bytes: int) -> None:
    session = _open(options, size_bytes)
    observation = {OBSERVATION: np.ones(1, np.float32)}
    session.snapshot("base", pin=True)
    names = [branch.name for branch in session.fork("base", BRANCHES[-1])]

    def one_by_one(count: int) -> Callable[[], None]:
        def restore_and_step() -> None:
            for name in names[:count]:
                session.restore(name)
                session.step(observation)

        return restore_and_step

    def preview(count: int) -> Callable[[], object]:
        return lambda: session.preview(names[:count], observation)

    cases: dict[str, Case] = {}
    for count in BRANCHES:
        cases[f"{count} x (restore, step)"] = Case(one_by_one(count))
        cases[f"preview of {count}"] = Case(preview(count))
    samples = interleave(
        cases,
        options.rounds(100 if options.cuda else 20),
        session.device,
        options.warm(),
        device_times=False,
    )
    size = in_words(size_bytes)
    for count in BRANCHES:
        names_of = (f"{count} x (restore, step)", f"preview of {count}")
        points = (
            Point(BY_BRANCHES, "restore and step", count),
            Point(BY_BRANCHES, "preview", count),
        )
        floor = make_row(
            f"{size}: {names_of[0]}, wall", samples[names_of[0]].wall, point=points[0]
        )
        result.rows += [
            floor,
            make_row(
                f"{size}: {names_of[1]}, wall",
                samples[names_of[1]].wall,
                floor=floor,
                point=points[1],
            ),
        ]
    session.close()
