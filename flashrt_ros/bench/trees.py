"""Ticks of a behaviour tree that calls the node's services, beside its twin of empty leaves.

One process ticks both in turn, so that what disturbs the machine falls on both alike; the node, a
stand-in robot and the middleware are real.
"""

from __future__ import annotations

import json
from typing import Any

from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.report import Count, Result, make_row
from flashrt_ros.bench.stage import CONTROL_HZ, JOINTS, Stage, joint_names, node_options

TICKS = 1000
TARGET = "max <= floor's max + 5000 us"
WAYS = {"spun between ticks": False, "spun by another thread": True}
"""Who runs the callbacks of the tree's node."""


def run(options: Options) -> Result:
    """Measures each way to spin in turn."""
    result = Result("trees", "ticks of a tree with a verb in every tenth, at one client")
    for name, threaded in WAYS.items():
        _measure(result, options, name, threaded)
    result.notes += [
        "empty: the same tree with leaves that run for one tick instead of verbs; ticked in turn.",
        "processor: time that the ticking thread had a processor.",
    ]
    return result


def _measure(result: Result, options: Options, name: str, threaded: bool) -> None:
    ticks = 100 if options.quick else TICKS
    with Stage() as stage:
        stage.peer("arm", names=joint_names(JOINTS), rate_hz=CONTROL_HZ)
        stage.node("flashrt_ros.bench.policies:light", stage.contract(), **node_options(options))
        peer = stage.python(
            "flashrt_ros.trees.bench_peer", json.dumps({"ticks": ticks, "threaded": threaded})
        )
        found = stage.result(peer)
    _report(result, name, found)


def _report(result: Result, name: str, found: dict[str, Any]) -> None:
    """Rows and counts of one way."""
    for kind, unit in (("", ""), (", processor", "_cpu")):
        floor = make_row(f"{name}: empty{kind}", found[f"empty{unit}_us"])
        took_us = found[f"verbs{unit}_us"]
        target = "" if kind else TARGET
        row = make_row(f"{name}: verbs{kind}", took_us, floor=floor, target=target)
        result.rows += [floor, row]
        if not kind:
            above_us = row.largest - floor.largest
            result.notes.append(
                f"{name}: the longest tick with verbs took {above_us:+.0f} us more than the"
                " longest of the empty tree (target: at most 5000)."
            )
    calls = found["calls"]
    result.counts += [
        Count(f"{name}: calls answered with success", found["done"], calls),
        Count(f"{name}: requests no longer pending", calls - found["pending"], calls, "all"),
        Count(
            f"{name}: clients gone after shutdown",
            found["clients"] - found["clients_left"],
            found["clients"],
            "all",
        ),
        Count(f"{name}: futures gone", calls - found["futures_left"], calls, "all"),
    ]
    result.notes += [f"{name}: failed: {words}" for words in found["failed"][:5]]
