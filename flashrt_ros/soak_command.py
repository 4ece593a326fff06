"""``flashrt_ros soak``: a real node in real DDS, verbs at a steady rate, for as long as one likes.

What only time brings to light: memory, threads and descriptors that grow, latency that drifts, an
error once an hour. All that was not as it should be is printed and in the JSON, and decides about
the exit code.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros import __version__
from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.hardware.process_usage import Usage, usage_of

if TYPE_CHECKING:
    from flashrt_ros.bench.stage import Stage

POLICIES = {
    "light": "flashrt_ros.bench.policies:light",
    "beside": "flashrt_ros.bench.policies:ahead",
    "cameras": "flashrt_ros.bench.camera_policy:make",
}
"""A recurrent one, one that plans beside the control steps, and one with two cameras."""
FLAT = 0.02
"""Growth of memory that still counts as none."""
SPARE = 2
"""Threads and descriptors that may be under way in one look and not in the other."""
BUSY = 0.05
"""Share of an interval for which the node's threads, all together, had to wait for a CPU, from
which on the machine, and not the node, is behind what came late in it."""
LATE = re.compile(
    r"control step is late|no control step for|no action for longer|stale \d+ ms"
    r"|older than the last|no fresh input within|code (13|18):"
)
"""Words of faults that a node has which gets no CPU: late steps, old input, time-outs."""
FIGURES = re.compile(r"\d+(\.\d+)?")
"""Would make one fault many."""
STAMP = re.compile(r"\[(\d+\.\d+)\]")
"""Of a line of the log, seconds."""
SETTLED = 0.2
"""Share of the time after which memory has to be flat: pools and allocators fill up first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``soak``."""
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default: 30)")
    parser.add_argument(
        "--policy",
        choices=POLICIES,
        default="light",
        help="recurrent, planning beside the control steps, or with two cameras (default: light)",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument(
        "--rate", type=float, default=10.0, metavar="HZ", help="verbs a second (default: 10)"
    )
    parser.add_argument(
        "--interval", type=float, default=10.0, metavar="S", help="between lines (default: 10)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")


def run(arguments: argparse.Namespace) -> int:
    """Runs the soak; 1 if memory grew, or anything was not as it should be."""
    seconds = 60.0 * arguments.minutes
    if not 0.0 < 5 * arguments.interval <= seconds or arguments.rate <= 0.0:
        raise InvalidArgumentError(
            f"soak: expected --rate above 0 and at least five intervals in the time, found "
            f"--rate {arguments.rate:g}, --minutes {arguments.minutes:g}, --interval "
            f"{arguments.interval:g}"
        )
    from flashrt_ros.bench.camera_policy import CAMERAS
    from flashrt_ros.bench.stage import CONTROL_HZ, JOINTS, Stage, joint_names

    print(f"{'min':>6} {'RSS MiB':>8} {'GPU MiB':>8} {'thr':>4} {'fds':>4} {HEAD}")
    cameras = CAMERAS if arguments.policy == "cameras" else ()
    with Stage() as stage:
        stage.peer("arm", names=joint_names(JOINTS), rate_hz=CONTROL_HZ)
        stage.cameras(cameras)
        node = stage.node(
            POLICIES[arguments.policy],
            stage.contract(cameras),
            device=arguments.device,
            capsule_dir=stage.folder / "capsules",
        )
        options = {"seconds": seconds, "rate_hz": arguments.rate, "interval_s": arguments.interval}
        peer = stage.python("flashrt_ros.ros.soak_peer", json.dumps(options))
        samples = _watch(stage, node, peer)
        files = len(list((stage.folder / "capsules").iterdir()))
        errors = _words_of(stage, node)
        last_words = "" if peer.wait(60.0) == 0 else stage.last_words(peer)
    report = judge(samples, errors, last_words)
    report["options"] = {**options, "policy": arguments.policy, "device": arguments.device}
    report |= {"version": __version__, "files": files, "samples": samples}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1))
    _tell(report)
    return 1 if report["findings"] else 0


HEAD = f"{'calls':>6} {'p50 ms':>7} {'p99 ms':>7} {'steps':>6} {'p50 ms':>7} {'p99 ms':>7} errors"


def _watch(
    stage: Stage, node: subprocess.Popen[str], peer: subprocess.Popen[str]
) -> list[dict[str, Any]]:
    """A sample for each line that the peer prints, until it ends."""
    samples: list[dict[str, Any]] = []
    waited_s, at_s = usage_of(node.pid).waited_s, 0.0
    assert peer.stdout is not None
    for line in peer.stdout:
        if not line.startswith("{"):
            continue
        sample = json.loads(line)
        took, latency = sample.pop("took_ms"), sample.pop("latency_ms")
        sample["took_ms p50 p99 max"] = _spread(took)
        sample["latency_ms p50 p99 max"] = _spread(latency)
        usage = usage_of(node.pid) if node.poll() is None else Usage()
        sample["usage"] = vars(usage)
        share = (usage.waited_s - waited_s) / max(sample["at_s"] - at_s, 1e-3)
        sample |= {"wall_s": time.time(), "waited_share": share}
        waited_s, at_s = usage.waited_s, sample["at_s"]
        if node.poll() is not None:
            sample["errors"][f"the node ended with {node.returncode}"] = 1
        samples.append(sample)
        gpu = "-" if usage.device_bytes is None else f"{usage.device_bytes / 2**20:.1f}"
        print(
            f"{sample['at_s'] / 60:6.1f} {usage.resident_bytes / 2**20:8.1f} {gpu:>8} "
            f"{usage.threads:4} {usage.descriptors:4} {sum(sample['calls'].values()):6} "
            f"{sample['took_ms p50 p99 max'][0]:7.2f} {sample['took_ms p50 p99 max'][1]:7.2f} "
            f"{sample['steps']:6} {sample['latency_ms p50 p99 max'][0]:7.2f} "
            f"{sample['latency_ms p50 p99 max'][1]:7.2f} {sum(sample['errors'].values())}",
            flush=True,
        )
    return samples


def _spread(values: list[float]) -> tuple[float, float, float]:
    if not values:
        return (float("nan"),) * 3
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[int(0.99 * (len(ordered) - 1))], ordered[-1]


def _words_of(stage: Stage, node: subprocess.Popen[str]) -> list[str]:
    """Lines of the node's log that are errors."""
    time.sleep(0.5)
    lines = stage.words(node).splitlines()
    return [line for line in lines if line.startswith(("[ERROR]", "[FATAL]", "Traceback"))]


def judge(samples: list[dict[str, Any]], errors: list[str], last_words: str) -> dict[str, Any]:
    """What the samples amount to.

    Args:
        samples: As ``_watch`` makes them.
        errors: Lines of the node's log that are errors.
        last_words: Of the peer, if it did not end well.

    Returns:
        ``findings``: what was not as it should be, in words; figures beside it.
    """
    findings: list[str] = []
    excused = Counter[str]()
    for line in errors:
        if LATE.search(line) and _busy_at(samples, line):
            excused["lines of the log"] += 1
        else:
            findings.append(f"log: {line}")
    if last_words:
        findings.append(f"the client ended early: {last_words}")
    if len(samples) < 5:
        return {"findings": [*findings, f"expected five samples or more, found {len(samples)}"]}
    counts = Counter[str]()
    for sample in samples:
        busy = sample["waited_share"] >= BUSY
        for words, number in sample["errors"].items():
            if busy and LATE.search(words):
                excused[FIGURES.sub("N", words)] += number
            else:
                counts[words] += number
        if sample["records_lost"]:
            words = "control steps without a record in ~/policy_step"
            (excused if busy else counts)[words] += sample["records_lost"]
    findings += [f"{number} x {words}" for words, number in counts.items()]
    settled = samples[int(SETTLED * len(samples)) :]
    fifth = max(1, len(settled) // 5)
    first, last = settled[:fifth], settled[-fifth:]
    growth = {}
    for name in ("resident_bytes", "device_bytes"):
        before, after = _middle(first, name), _middle(last, name)
        if before is None or after is None:
            continue
        growth[name] = after / before - 1.0
        if growth[name] > FLAT:
            findings.append(f"{name}: {before:.0f} to {after:.0f}, more than {FLAT:.0%}")
    for name in ("threads", "descriptors"):
        before, after = _middle(first, name), _middle(last, name)
        if before is not None and after is not None and after > before + SPARE:
            findings.append(f"{name}: {before:.0f} to {after:.0f}")
    return {
        "findings": findings,
        "excused": dict(excused),
        "waited_share": statistics.median(sample["waited_share"] for sample in samples),
        "growth": growth,
        "calls": sum(sum(sample["calls"].values()) for sample in samples),
        "steps": sum(sample["steps"] for sample in samples),
        "drift_ms": {
            name: [
                statistics.median(sample[f"{name} p50 p99 max"][0] for sample in part)
                for part in (first, last)
            ]
            for name in ("took_ms", "latency_ms")
        },
    }


def _busy_at(samples: list[dict[str, Any]], line: str) -> bool:
    """Whether the machine was busy in the interval in which a line was logged."""
    stamp = STAMP.search(line)
    if stamp is None:
        return False
    after = [s for s in samples if s["wall_s"] >= float(stamp[1])] or samples[-1:]
    return bool(after) and after[0]["waited_share"] >= BUSY


def _middle(samples: list[dict[str, Any]], name: str) -> float | None:
    values = [sample["usage"][name] for sample in samples]
    return None if None in values else float(statistics.median(values))


def _tell(report: dict[str, Any]) -> None:
    if "growth" in report:
        took, latency = report["drift_ms"]["took_ms"], report["drift_ms"]["latency_ms"]
        growth = ", ".join(f"{name} {value:+.2%}" for name, value in report["growth"].items())
        print(f"\n{report['calls']} calls, {report['steps']} control steps")
        print(f"from a fifth of the time to its end: {growth}")
        print(f"answers p50 {took[0]:.2f} to {took[1]:.2f} ms, ", end="")
        print(f"control steps p50 {latency[0]:.2f} to {latency[1]:.2f} ms")
        share = report["waited_share"]
        print(f"the node's threads waited for a CPU for {share:.1%} of the time (median)")
        for words, number in report["excused"].items():
            print(f"late on a busy machine: {number} x {words}")
    for finding in report["findings"]:
        print(f"FOUND: {finding}")
    print("failed" if report["findings"] else "nothing found")
