"""Round trips of the node's services, idle and under inference, beside a bare Trigger server.

One client calls all of them in turn, so that what disturbs the machine falls on all alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from flashrt_ros.bench.camera_policy import CAMERAS
from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.report import Result, make_row, percentile
from flashrt_ros.bench.stage import (
    CONTROL_HZ,
    JOINTS,
    Stage,
    joint_names,
    node_options,
    settle_s,
)

MODULE = "flashrt_ros.bench.policies"
BESIDE = f"{MODULE}:beside"
LOADS: dict[str, tuple[str, bool, tuple[str, ...]]] = {
    "idle (configured)": (f"{MODULE}:light", False, ()),
    "GRU 1x128 at 50 Hz": (f"{MODULE}:light", True, ()),
    "plans of about 80 ms beside": (BESIDE, True, ()),
    "GRU 2x1000 at 50 Hz": (f"{MODULE}:heavy", True, ()),
    "two cameras at 50 Hz": ("flashrt_ros.bench.camera_policy:make", True, CAMERAS),
}
"""Factory of the policy, whether the node is active, and the cameras."""


def run(options: Options) -> Result:
    """Measures each load in turn."""
    result = Result("services", "round trip of a service, from call to answer, at one client")
    loads = list(LOADS.items())
    for name, (factory, running, cameras) in [loads[0], loads[2]] if options.quick else loads:
        _measure(result, options, name, factory, running, cameras)
    result.notes += [
        "Trigger: a bare std_srvs/Trigger server in another process, called in the same loop.",
        "act: from the start of a control step to its publication, in the same run.",
    ]
    return result


def _measure(
    result: Result,
    options: Options,
    name: str,
    factory: str,
    running: bool,
    cameras: Sequence[str],
) -> None:
    with Stage() as stage:
        stage.peer("arm", names=joint_names(JOINTS), rate_hz=CONTROL_HZ)
        stage.peer("trigger")
        stage.cameras(cameras)
        node = stage.node(
            factory, stage.contract(cameras), autostart=running, **node_options(options)
        )
        if not running:
            stage.result(stage.peer("configure"))
        caller = stage.peer(
            "call",
            rounds=5 if options.quick else 200,
            running=running,
            settle_s=settle_s(options),
            rest_s=0.2 if factory == BESIDE else 0.0,
        )
        found = stage.result(caller)
        stage.end(node)
    took = found["took_us"]
    floor = make_row(f"{name}: Trigger", took["Trigger"])
    result.rows.append(floor)
    act_us = 1e3 * percentile(found["latency_ms"], 0.99) if found["latency_ms"] else 0.0
    for service in ("snapshot", "reset_episode", "restore"):
        target = ""
        if service == "snapshot":
            target = "p50 <= Trigger's + 1000 us"
            if running:
                target = f"p99 <= {act_us + 5000:.0f} us (act + 5 ms)"
        elif running:
            target = f"p99 <= {1e6 / CONTROL_HZ:.0f} us (one period)"
        result.rows.append(
            make_row(f"{name}: {service}", took[service], floor=floor, target=target)
        )
    if found["latency_ms"]:
        result.rows.append(make_row(f"{name}: act", [1e3 * v for v in found["latency_ms"]]))
    for words in found["refused"]:
        result.notes.append(f"{name}: refused: {words}")
    if running and not found["running_at_end"]:
        result.notes.append(f"{name}: the node no longer published at the end")
