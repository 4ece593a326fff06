"""Ticks of a behaviour tree that calls the node's services, beside its twin of empty leaves.

One process ticks both in turn, so that what disturbs the machine falls on both alike; the node, a
stand-in robot and the middleware are real.
"""

from __future__ import annotations

import importlib.util
import json
from typing import Any

from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.report import Count, Result, make_row
from flashrt_ros.bench.stage import CONTROL_HZ, JOINTS, Stage, joint_names, node_options

TICKS = 1000
TARGET = "max <= floor's max + 5000 us"
LIBRARIES = {"py_trees": "py_trees", "BehaviorTree.CPP": "behaviortreepy"}
"""By name, the module that has it."""
WAYS = {"spun between ticks": False, "spun by another thread": True}
"""Who runs the callbacks of the tree's node."""


def run(options: Options) -> Result:
    """Measures each way to spin in turn, with each library."""
    result = Result("trees", "ticks of a tree with a verb in every tenth, at one client")
    for library, module in LIBRARIES.items():
        if importlib.util.find_spec(module) is None:
            result.notes.append(f"{library}: {module} is not installed: not measured")
            continue
        for name, threaded in WAYS.items():
            asked = {"library": library, "ticks": TICKS, "threaded": threaded}
            if options.quick:
                asked["ticks"] = TICKS // 10
            _report(result, f"{library}, {name}", _measure(options, asked))
    result.notes += [
        "empty: the same tree with leaves that run for one tick instead of verbs; ticked in turn.",
        "processor: time that the ticking thread had a processor.",
        "waited: for a lock, as that of Python; preempted: the kernel ran another thread first.",
    ]
    return result


def _measure(options: Options, asked: dict[str, Any]) -> dict[str, Any]:
    with Stage() as stage:
        stage.peer("arm", names=joint_names(JOINTS), rate_hz=CONTROL_HZ)
        stage.node("flashrt_ros.bench.policies:light", stage.contract(), **node_options(options))
        return stage.result(stage.python("flashrt_ros.trees.bench_peer", json.dumps(asked)))


def _report(result: Result, name: str, found: dict[str, Any]) -> None:
    """Rows and counts of one way."""
    for kind, unit in (("", ""), (", processor", "_cpu")):
        floor = make_row(f"{name}: empty{kind}", found[f"empty{unit}_us"])
        took_us = found[f"verbs{unit}_us"]
        target = "" if kind else TARGET
        row = make_row(f"{name}: verbs{kind}", took_us, floor=floor, target=target)
        result.rows += [floor, row]
        if not kind:
            worst = took_us.index(max(took_us))
            result.notes.append(
                f"{name}: the longest tick with verbs took {row.largest - floor.largest:+.0f} us"
                f" more than the longest of the empty tree (target: at most 5000); it had a"
                f" processor for {found['verbs_cpu_us'][worst]:.0f} us, was preempted"
                f" {found['preempted'][worst]} times and waited {found['waited'][worst]} times."
            )
    calls, waited = found["calls"], found["waited"]
    left = found["pending"] - found["pending_before"]
    result.counts += [
        Count(f"{name}: ticks with verbs that waited for nothing", waited.count(0), len(waited)),
        Count(f"{name}: calls answered with success", found["done"], calls),
        Count(f"{name}: requests no longer pending", calls - left, calls, "all"),
        Count(
            f"{name}: clients gone after shutdown",
            found["clients"] - found["clients_left"],
            found["clients"],
            "all",
        ),
        Count(f"{name}: futures gone", calls - found["futures_left"], calls, "all"),
    ]
    result.notes += [f"{name}: failed: {words}" for words in found["failed"][:5]]
