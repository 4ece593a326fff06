"""The benchmark of trees, without processes.

Pinned: both libraries are measured, and one that is not installed is named instead; a row tells
whether its longest tick was preempted or waited; and the twins differ in their leaves only, so
that one begins a verb wherever the other begins an empty leaf.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from flashrt_ros.bench import trees
from flashrt_ros.bench.harness import Options

FOUND: dict[str, Any] = {
    **{"empty_us": [1.0, 2.0], "empty_cpu_us": [1.0, 2.0]},
    **{"verbs_us": [3.0, 900.0], "verbs_cpu_us": [2.0, 300.0]},
    **{"waited": [0, 1], "preempted": [0, 4], "failed": []},
    **{"calls": 2, "done": 2, "pending_before": 0, "pending": 0},
    **{"clients": 9, "clients_left": 0, "futures_left": 0},
}


@pytest.mark.parametrize("absent", ["", "behaviortreepy"])
def test_what_is_not_installed_is_said(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else name)
    monkeypatch.setattr(trees, "_measure", lambda options, asked: FOUND)
    result = trees.run(Options(quick=True))
    measured = {row.case.partition(",")[0] for row in result.rows}
    assert measured == {"py_trees"} | (set() if absent else {"BehaviorTree.CPP"})
    words = "BehaviorTree.CPP: behaviortreepy is not installed: not measured"
    assert (words in result.notes) is bool(absent)
    assert any("300 us, was preempted 4 times and waited 1 times" in n for n in result.notes)


@pytest.mark.parametrize("left", [0, 1])
def test_what_is_left_behind_misses_its_target(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {**FOUND, "pending": left, "clients_left": left, "futures_left": left}
    monkeypatch.setattr(trees, "_measure", lambda options, asked: found)
    counts = trees.run(Options(quick=True)).counts
    assert {count.met for count in counts if count.target} == {not left}


@pytest.mark.parametrize("library", ["py_trees", "BehaviorTree.CPP"])
def test_the_twins_begin_leaves_in_the_same_ticks(library: str) -> None:
    pytest.importorskip("rclpy")
    pytest.importorskip("flashrt_ros.srv")
    pytest.importorskip(trees.LIBRARIES[library])
    from tree_rig import FakeNode

    from flashrt_ros.trees.bench_peer import EVERY, TWINS, Tick

    node = FakeNode()
    twins = importlib.import_module(TWINS[library]).make(node)

    def begun(tick: Tick, count: Callable[[], int]) -> list[int]:
        seen = []
        for index in range(2 * EVERY * twins.leaves):
            before = count()
            assert tick() == ""
            node.spin()
            seen += [index] if count() > before else []
        return seen

    verbs = begun(twins.verbs, lambda: len(node.server.log))
    assert len(verbs) >= 2 * twins.leaves
    assert max(b - a for a, b in itertools.pairwise(verbs)) <= EVERY
    assert twins.link.clients == 9
    assert begun(twins.empty, lambda: len(node.server.log)) == []
    twins.close()
    assert node.clients == []
