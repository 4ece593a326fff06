"""Control period of the node while inference runs, beside a bare sleep loop at the same time.

Real processes: the node, a stand-in robot, a recorder of ``~/policy_step`` and the sleep loop, all
at once on the same cores.
"""

from __future__ import annotations

from collections.abc import Sequence

from flashrt_ros.bench.camera_policy import CAMERAS
from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.report import Result, Row, make_row
from flashrt_ros.bench.stage import (
    CONTROL_HZ,
    JOINTS,
    Stage,
    joint_names,
    node_options,
    settle_s,
)

TARGET = "p99 - floor <= 2 ms"
MODULE = "flashrt_ros.bench.policies"
LOADS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "GRU 1x128": (f"{MODULE}:light", (), -1),
    "GRU 2x1000": (f"{MODULE}:heavy", (), -1),
    "plans of about 80 ms": (f"{MODULE}:beside", (), 0),
    "plans of about 80 ms, ahead": (f"{MODULE}:ahead", (), -1),
    "two cameras": ("flashrt_ros.bench.camera_policy:make", CAMERAS, -1),
}
"""What runs meanwhile: its factory, the cameras that it reads, and ``plan_ahead``."""
COUNTS = ("received", "decoded", "lost", "superseded by a newer one", "gaps")
WINDOW = 512
"""Control periods that the node's diagnostics look back over."""


def run(options: Options) -> Result:
    """Measures each load in turn."""
    result = Result("jitter", f"control loop at {CONTROL_HZ:g} Hz with inference running")
    loads = list(LOADS.items())
    for name, load in loads[:1] + loads[-1:] if options.quick else loads:
        _measure(result, options, name, *load)
    result.notes += [
        "late: from a deadline to the start of what is due then; period: distance from nominal.",
        f"late of the node is from its diagnostics, over the last {WINDOW} periods at most; its",
        "periods are those in which a step was taken. Node and sleep loop run at the same time.",
    ]
    return result


def _measure(
    result: Result,
    options: Options,
    name: str,
    factory: str,
    cameras: Sequence[str],
    plan_ahead: int,
) -> None:
    seconds = 3.0 if options.quick else 20.0
    nominal_ms = 1e3 / CONTROL_HZ
    with Stage() as stage:
        stage.peer("arm", names=joint_names(JOINTS), rate_hz=CONTROL_HZ)
        stage.cameras(cameras)
        parameters = {**node_options(options), "plan_ahead": plan_ahead}
        stage.node(factory, stage.contract(cameras), **parameters)
        recorder = stage.peer("record", seconds=seconds, settle_s=settle_s(options))
        stage.first_line(recorder)
        sleeper = stage.python(
            "flashrt_ros.bench.sleep_loop", 1.0 / CONTROL_HZ, max(seconds - 0.5, 1.0)
        )
        node = stage.result(recorder)
        slept = stage.result(sleeper)
    periods = [period for period in node["period_ms"] if period > 0]
    p50, p99, largest = node["late_ms"]
    floor = make_row(f"{name}: sleep loop, late", slept["late_ms"], "ms")
    late = Row(
        f"{name}: node, late",
        WINDOW,
        p50,
        p99,
        largest,
        "ms",
        floor=floor.case,
        ratio=p50 / floor.p50 if floor.p50 > 0 else None,
        difference=p99 - floor.p99,
        target=TARGET,
    )
    bare = make_row(
        f"{name}: sleep loop, period", [abs(p - nominal_ms) for p in slept["period_ms"]], "ms"
    )
    stepped = make_row(
        f"{name}: node, period",
        [abs(p - nominal_ms) for p in periods],
        "ms",
        floor=bare,
        target=TARGET,
    )
    latency = make_row(f"{name}: node, latency of a step", node["latency_ms"], "ms")
    result.rows += [floor, late, bare, stepped, latency]
    if cameras:
        ages_ms = node["image_age_ms"]
        result.rows.append(make_row(f"{name}: age of the images acted on", ages_ms, "ms"))
        for topic, figures in node["inputs"].items():
            if not topic.endswith("image_raw"):
                continue
            counts = ", ".join(f"{figures[key]} {key}" for key in COUNTS)
            result.notes.append(f"{name}: {topic} at {figures['rate_hz']} Hz: {counts}.")
    if plans := node["plans"]:
        waited = f"{plans['late']} control periods waited for a plan, {plans['adopted']} adopted"
        delay = plans["inference_delay p50 p99 max"]
        took = plans["latency_ms p50 p99 max"]
        result.notes.append(
            f"{name}: {waited} since the start; delay {delay} periods, {took} ms (p50 p99 max)."
        )
    missed = sum(period > 1.5 * nominal_ms for period in periods)
    words = f"{name}: {missed} of {len(periods)} periods longer than 1.5 nominal ones"
    held = f"; held: {', '.join(node['reasons'])}" if node["reasons"] else ""
    result.notes.append(f"{words}, {node['published']} steps published{held}.")
