"""The client of a soak: verbs in turn at a steady rate, and all that the node says meanwhile.

Run as ``python -m flashrt_ros.ros.soak_peer OPTIONS`` with the arguments of ``soak`` as one JSON
object. Prints a JSON line for each interval, with what happened in it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node

from flashrt_ros.msg import PolicyStep
from flashrt_ros.ros.bench_peer import spinning
from flashrt_ros.srv import (
    Command,
    DropCapsule,
    Fork,
    GetCapsule,
    ListCapsules,
    LoadCapsule,
    Preview,
    ResetEpisode,
    Restore,
    Rollback,
    SaveCapsule,
    Snapshot,
)

ANSWER_S = 30.0
"""A call without an answer by then counts as lost."""
NAMES = 20
"""Capsules and files that are written over and over."""
KEPT = 20
"""Different errors that are kept with their words."""


def verbs() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """All verbs in turn, for ever: service, type, fields; each must succeed at a healthy node."""
    for turn in count():
        name, branch = f"soak_{turn % NAMES}", f"branch_{turn % NAMES}"
        yield "snapshot", Snapshot, {"name": name, "replace": True}
        yield "fork", Fork, {"name": name, "names": [branch]}
        yield "preview", Preview, {"names": [branch]}
        yield "restore", Restore, {"name": name, "publish": True}
        yield "list_capsules", ListCapsules, {"include_automatic": True}
        yield "get_capsule", GetCapsule, {"name": name}
        yield "rollback", Rollback, {"steps": 1, "publish": True}
        yield "save_capsule", SaveCapsule, {"name": name, "file": name, "replace": True}
        yield "drop_capsule", DropCapsule, {"name": name}
        yield "load_capsule", LoadCapsule, {"file": name, "name": name}
        yield "restore", Restore, {"name": branch, "publish": True, "set_seed": True, "seed": turn}
        yield "drop_capsule", DropCapsule, {"name": branch}
        yield "pause", Command, {}
        yield "resume", Command, {}
        yield "reset_episode", ResetEpisode, {"set_seed": True, "seed": turn}


class Interval:
    """What happened since the last report; filled by the node's thread and the caller's."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.errors: Counter[str] = Counter()
        self.steps: list[PolicyStep] = []
        self.took_ms: list[float] = []
        self.calls: Counter[str] = Counter()
        self._last_tick: int | None = None
        self._gaps = 0

    def error(self, words: str) -> None:
        """Counts an error by its words."""
        with self.lock:
            if words in self.errors or len(self.errors) < KEPT:
                self.errors[words] += 1
            else:
                self.errors["others"] += 1

    def step(self, step: PolicyStep) -> None:
        """Takes a control step; ticks without a record are counted."""
        with self.lock:
            if self._last_tick is not None:
                self._gaps += max(0, step.tick - self._last_tick - 1)
            self._last_tick = step.tick
            self.steps.append(step)

    def diagnose(self, message: DiagnosticArray) -> None:
        """Every entry that is an error is one."""
        for status in message.status:
            if status.level == DiagnosticStatus.ERROR:
                self.error(f"diagnostics: {status.name}: {status.message}")

    def take(self) -> dict[str, Any]:
        """What happened, and begins anew."""
        with self.lock:
            steps, self.steps = self.steps, []
            took, self.took_ms = self.took_ms, []
            calls, self.calls = self.calls, Counter()
            errors, self.errors = self.errors, Counter()
            gaps, self._gaps = self._gaps, 0
        return {
            "calls": dict(calls),
            "took_ms": took,
            "steps": len(steps),
            "published": sum(step.published for step in steps),
            "records_lost": gaps,
            "latency_ms": [step.latency_ms for step in steps],
            "errors": dict(errors),
        }


def soak(seconds: float, rate_hz: float, interval_s: float) -> None:
    """Calls verbs until the time is up."""
    with spinning("soak") as node:
        interval = Interval()
        node.create_subscription(PolicyStep, "policy/policy_step", interval.step, 1000)
        clients = _clients(node)
        _wait_until_moving(interval)
        # Only now: what is said before the robot moves is about the start.
        node.create_subscription(DiagnosticArray, "/diagnostics", interval.diagnose, 100)
        interval.take()
        begun_s = next_s = report_s = time.monotonic()
        for service, _, fields in verbs():
            now_s = time.monotonic()
            if now_s - report_s >= interval_s:
                _report(interval, now_s - begun_s)
                report_s += interval_s
            if now_s - begun_s >= seconds:
                break
            _call(interval, clients[service], service, fields)
            # Where an answer takes longer than its share the next call follows at once.
            next_s = max(next_s + 1.0 / rate_hz, time.monotonic() - 1.0)
            time.sleep(max(0.0, next_s - time.monotonic()))
        if interval.calls:  # what is left since the last whole interval
            _report(interval, time.monotonic() - begun_s)


def _clients(node: Node) -> dict[str, tuple[Any, Any]]:
    clients: dict[str, tuple[Any, Any]] = {}
    for service, kind, _ in verbs():
        if service not in clients:
            clients[service] = (node.create_client(kind, f"policy/{service}"), kind)
        if service == "reset_episode":
            break
    for client, _ in clients.values():
        if not client.wait_for_service(60.0):
            raise TimeoutError(f"no service {client.srv_name}")
    return clients


def _wait_until_moving(interval: Interval) -> None:
    end_s = time.monotonic() + 60.0
    while not any(step.published for step in list(interval.steps)):
        if time.monotonic() > end_s:
            raise TimeoutError("the node does not publish commands")
        time.sleep(0.05)


def _call(
    interval: Interval, client: tuple[Any, Any], service: str, fields: dict[str, Any]
) -> None:
    arrived = threading.Event()
    begun_s = time.perf_counter()
    future = client[0].call_async(client[1].Request(**fields))
    future.add_done_callback(lambda _: arrived.set())
    if not arrived.wait(ANSWER_S):
        client[0].remove_pending_request(future)
        interval.error(f"{service}: no answer in {ANSWER_S:g} s")
        return
    took_ms = (time.perf_counter() - begun_s) * 1e3
    answer = future.result()
    with interval.lock:
        interval.took_ms.append(took_ms)
        interval.calls[service] += 1
    if not answer.success:
        interval.error(f"{service}: code {answer.error_code}: {answer.message}")


def _report(interval: Interval, at_s: float) -> None:
    print(json.dumps({"at_s": at_s, **interval.take()}), flush=True)


if __name__ == "__main__":
    soak(**json.loads(sys.argv[1]))
