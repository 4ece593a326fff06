"""Benchmarks of hybrids beside transformers itself: it runs our weights and chooses our tokens.

``test_bench_hybrid.py`` has a stand-in; here is what it stands for, whose functions and caches
change their names from version to version.
"""

from __future__ import annotations

import pytest

from flashrt_ros.bench import decode, ttft
from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.report import Result

try:
    import transformers
except ImportError:
    transformers = None

WHY_NOT = "transformers is not installed; scripts/oracle.sh installs it and runs these tests"
pytestmark = [pytest.mark.oracle, pytest.mark.skipif(transformers is None, reason=WHY_NOT)]
ALONE = "transformers, torch alone"


def check(result: Result) -> None:
    assert all(count.met for count in result.counts)
    assert any(
        note.startswith(f"transformers {transformers.__version__} on the same weights")
        for note in result.notes
    )


def test_decode() -> None:
    result = decode.run(Options(quick=True))
    check(result)
    assert {f"{ALONE}, eager", f"{ALONE}, StaticCache"} <= {row.case for row in result.rows}
    counts = {count.case: (count.found, count.of) for count in result.counts}
    assert counts[f"greedy tokens that are those of {ALONE}"] == (64, 64)


def test_first_tokens() -> None:
    result = ttft.run(Options(quick=True))
    check(result)
    colds = [row for row in result.rows if row.case.endswith(f": {ttft.COLD}")]
    assert len(colds) == 2
    assert all(row.floor.endswith(ALONE) for row in colds)
