"""Times images and commands of the node for the benchmark ``path``.

Run as ``python -m flashrt_ros.ros.path_peer SECONDS SETTLE_S RATE_HZ``; prints a JSON line when it
begins and one at the end. All clocks are those of one machine.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import JointState

from flashrt_ros.contract.cdr import peek_stamp
from flashrt_ros.msg import PolicyStep
from flashrt_ros.ros.bench_peer import LATENESS, RELIABLE, spinning, wait_for

TAIL_S = 0.5
"""For the last messages to come."""


def record(seconds: float, settle_s: float, rate_hz: float) -> None:
    """Watches the node, of so many control periods a second, once it has run for ``settle_s``."""
    steps: list[PolicyStep] = []
    commands: list[tuple[int, int]] = []
    late: list[list[float]] = []

    def command(cdr: bytes) -> None:
        received_ns = time.time_ns()
        commands.append((peek_stamp(cdr), received_ns))

    def diagnose(message: DiagnosticArray) -> None:
        for status in message.status:
            for pair in status.values if status.name.endswith("control period") else ():
                if pair.key == LATENESS:
                    late.append([float(word) for word in pair.value.split()])

    with spinning("path_recorder") as node:
        node.create_subscription(PolicyStep, "policy/policy_step", steps.append, 1000)
        node.create_subscription(JointState, "joint_command", command, RELIABLE, raw=True)
        node.create_subscription(DiagnosticArray, "/diagnostics", diagnose, 10)
        wait_for(lambda: any(step.published for step in steps), "a published step")
        time.sleep(settle_s)
        print(json.dumps({"recording": True}), flush=True)
        steps.clear()
        time.sleep(seconds)
        seen = list(steps)
        # What comes once a second must have been said after the last step.
        time.sleep(1.0 + TAIL_S)
        wait_for(lambda: bool(late), "diagnostics")
        total, waited = images(seen, list(commands))
        print(
            json.dumps(
                {
                    "total_ms": total,
                    "waited_ms": waited,
                    "latency_ms": [step.latency_ms for step in seen],
                    "late_ms": late[-1],
                    "missed": missed(seen, rate_hz),
                    "reasons": sorted({step.hold_reason for step in seen if step.hold_reason}),
                }
            )
        )


def missed(steps: list[Any], rate_hz: float) -> int:
    """Control periods from the first to the last of these steps that have none."""
    times_s = [step.header.stamp.sec + step.header.stamp.nanosec / 1e9 for step in steps]
    if not times_s:
        return 0
    return max(0, round((times_s[-1] - times_s[0]) * rate_hz) + 1 - len(times_s))


def images(steps: list[Any], commands: list[tuple[int, int]]) -> tuple[list[float], list[float]]:
    """Of each image that a step was the first to use, from publication to the step's command.

    Args:
        steps: ``PolicyStep`` in order.
        commands: Of each its stamp and its reception, nanoseconds, in order.

    Returns:
        Milliseconds in all, and those from its reception to the begin of the step.
    """
    total: list[float] = []
    waited: list[float] = []
    used: dict[str, int] = {}
    place = 0
    for step in steps:
        stamp = step.header.stamp
        step_ns = stamp.sec * 10**9 + stamp.nanosec
        # The command of a step is stamped before its record is.
        while place + 1 < len(commands) and commands[place + 1][0] <= step_ns:
            place += 1
        fits = place < len(commands) and commands[place][0] <= step_ns
        for seen in step.observations:
            if not seen.topic.endswith("image_raw"):
                continue
            image_ns = seen.stamp.sec * 10**9 + seen.stamp.nanosec
            fresh = used.get(seen.topic) not in (None, image_ns)
            used[seen.topic] = image_ns
            if fresh and fits and step.published:
                total.append((commands[place][1] - image_ns) / 1e6)
                waited.append(seen.age_ms)
    return total, waited


if __name__ == "__main__":
    record(*(float(word) for word in sys.argv[1:4]))
