"""What the design says of a memory that is not at hand, on paper: nothing is measured.

A copy reads and writes every byte, so it takes twice its bytes over the bandwidth, and a start
that does not depend on them. Two numbers come from measurement, on another GPU: how much of a
memory's bandwidth one copy reaches, and what a copy takes before its first byte.
"""

from __future__ import annotations

from flashrt_ros.bench.report import Curve, Point, Result, Row
from flashrt_ros.bench.roofline import copy_us, in_words

MIB = 1 << 20
SIZES = tuple(1 << shift for shift in range(20, 31, 2))
FIXED_BYTES = MIB
"""Of a state that is rows otherwise: what a rollback along its own lineage copies."""
START_US = 3.2
"""Of one ``cudaMemcpyAsync`` of 64 KiB on an H200, device time: ``bench copies --device cuda``."""
SHARE = 0.85
"""Of an H200's 4800 GB/s, what a copy of 256 MiB there reaches: ``bench copies --device cuda``."""
SWITCH_US, SWITCH_US_PER_MIB = 35.0, 10 / 256
"""Of one piece of physical memory on an H200, see ``runtime/device/mapped_state.py``."""
CURVE = "time by size of the state, predicted"


def run(bandwidth_gb_per_s: float) -> Result:
    """Predicts each size.

    Args:
        bandwidth_gb_per_s: Of the memory, reads and writes together, as its maker says.
    """
    result = Result(
        "predict", f"a memory of {bandwidth_gb_per_s:g} GB/s: predicted, nothing was measured"
    )
    result.curves.append(Curve(CURVE, "state, bytes", "us, predicted"))

    def predicted(size_bytes: int) -> float:
        return START_US + copy_us(size_bytes, bandwidth_gb_per_s) / SHARE

    for size_bytes in SIZES:
        least = _row(size_bytes, "full bandwidth", copy_us(size_bytes, bandwidth_gb_per_s))
        switch_us = SWITCH_US + SWITCH_US_PER_MIB * size_bytes / MIB
        result.rows += [
            least,
            _row(size_bytes, "snapshot, restore", predicted(size_bytes), least),
            _row(size_bytes, "rollback, all of it fixed", predicted(size_bytes), least),
            _row(size_bytes, "rollback, 1 MiB fixed", predicted(FIXED_BYTES), least, FIXED_BYTES),
            _row(size_bytes, "switch of one piece", switch_us, least, 0),
        ]
    result.notes += [
        f"a copy: {START_US} us + 2 x bytes / ({SHARE:g} x bandwidth); each byte is read and"
        " written. Both constants are those of an H200; at full bandwidth the first term is 0.",
        "A rollback along the own lineage copies the fixed part only, whatever the rows.",
        f"switch: {SWITCH_US:g} us + {SWITCH_US_PER_MIB * 256:g} us for each 256 MiB of a piece,"
        " once the stream is drained: calls of the driver, as the host of an H200 makes them.",
        "Caches are left out: what fits into one may be quicker.",
    ]
    return result


def _row(
    size_bytes: int, series: str, us: float, floor: Row | None = None, moved_bytes: int = -1
) -> Row:
    return Row(
        f"{in_words(size_bytes)}: {series}",
        0,
        us,
        us,
        us,
        "us",
        size_bytes if moved_bytes < 0 else moved_bytes,
        floor.case if floor else "",
        us / floor.p50 if floor else None,
        point=Point(CURVE, series, float(size_bytes)),
    )
