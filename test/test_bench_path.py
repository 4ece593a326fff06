"""The benchmark of the whole path: which image belongs to which command, and its policies.

A command that is matched with the image of another step shortens or lengthens every figure by a
control period, which is more than what is measured.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_ros.bench import act_policy, path
from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.policy import observations_of, parameters_of
from flashrt_ros.process import Domain, private_environment, with_this_package
from flashrt_ros.runtime.session import PolicySession

pytest.importorskip("flashrt_ros.msg")

import rclpy

from flashrt_ros.ros.path_peer import images, missed

MS = 1_000_000


def stamp(time_ns: int) -> Any:
    return SimpleNamespace(sec=time_ns // 10**9, nanosec=time_ns % 10**9)


def step(at_ms: float, image_ms: float, age_ms: float, published: bool = True) -> Any:
    seen = SimpleNamespace(topic="front/image_raw", stamp=stamp(round(image_ms * MS)))
    seen.age_ms = age_ms
    other = SimpleNamespace(topic="joint_states", stamp=stamp(0), age_ms=3.0)
    header = SimpleNamespace(stamp=stamp(round(at_ms * MS)))
    return SimpleNamespace(header=header, observations=[other, seen], published=published)


def command(stamp_ms: float, received_ms: float) -> tuple[int, int]:
    return round(stamp_ms * MS), round(received_ms * MS)


def test_each_image_counts_once_with_the_command_of_its_first_step() -> None:
    steps = [
        step(20, 5, 14),  # the first says nothing: it may not have been the first to use it
        step(40, 33, 4),
        step(60, 33, 24),
        step(80, 66, 12),
    ]
    commands = [command(19, 19.5), command(39, 39.5), command(59, 59.5), command(79, 80.5)]
    total, waited = images(steps, commands)
    assert total == [6.5, 14.5]
    assert waited == [4, 12]


def test_steps_without_a_command_of_their_own_do_not_count() -> None:
    steps = [step(20, 5, 1), step(40, 33, 4, published=False), step(60, 50, 4), step(80, 70, 4)]
    total, waited = images(steps, [command(59, 59.5), command(79, 79.25)])
    assert total == [9.5, 9.25]
    assert waited == [4, 4]
    assert images(steps[:2], []) == ([], [])


def test_periods_without_a_step_are_counted_between_the_first_and_the_last() -> None:
    times_ms = [0.0, 20.4, 39.8, 80.1, 120.0]
    steps = [SimpleNamespace(header=SimpleNamespace(stamp=stamp(int(t * MS)))) for t in times_ms]
    assert missed(steps, 50.0) == 2
    assert missed(steps[:3], 50.0) == 0
    assert missed(steps[:1], 50.0) == missed([], 50.0) == 0


def test_the_policy_plans_in_each_step_and_repeats_itself() -> None:
    policy = act_policy.small()
    observation, following = observations_of(policy)
    first = PolicySession(policy, warm_up=0)
    second = PolicySession(act_policy.small(), warm_up=0)
    for session in (first, second):
        session.step(observation)
    a, b = (session.step(following).values.numpy() for session in (first, second))
    assert np.array_equal(a, b)
    assert first.host.chunk == 2
    changed = {**following, "observation.images.wrist": torch.zeros(act_policy.SMALL_CHW)}
    third = PolicySession(act_policy.small(), warm_up=0)
    third.step(observation)
    assert not np.array_equal(third.step(changed).values.numpy(), a), "images reach the action"
    for session in (first, second, third):
        session.close()


def test_the_large_one_has_lerobots_sizes() -> None:
    policy = act_policy.large()
    assert 30e6 < parameters_of(policy) < 40e6, "without what only training runs"
    assert [port.shape for port in policy.ports().observations][1:] == [act_policy.LARGE_CHW] * 2


def test_what_is_reported_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "total_ms": [15.0, 16.0, 17.0],
        "waited_ms": [5.0, 5.0, 5.0],
        "latency_ms": [9.0] * 50,
        "late_ms": [0.1, 0.2, 0.3],
        "missed": 2,
        "reasons": [],
    }
    monkeypatch.setattr(path, "_bare", lambda policy, options: ([8.0], [8.5], [8.2]))
    monkeypatch.setattr(path, "_node", lambda options, size, seconds: found)
    result = path.run(Options(quick=True))
    added = next(row for row in result.rows if row.case.startswith("added"))
    assert (added.p50, added.largest, added.n) == (3.0, 4.0, 3)
    (kept,) = result.counts
    assert (kept.found, kept.of) == (50, 52)


@pytest.mark.ros
@pytest.mark.skipif(
    "fastrtps" not in rclpy.get_rmw_implementation_identifier(), reason="memory of Fast DDS"
)
def test_a_peer_that_is_ended_leaves_no_shared_memory(tmp_path: Path) -> None:
    """Each would leave megabytes, which stay until the machine starts anew."""
    options = json.dumps({"names": ["a"], "rate_hz": 50.0})
    words = [sys.executable, "-m", "flashrt_ros.ros.bench_peer", "arm", options]
    with contextlib.closing(Domain()) as domain:
        environment = with_this_package(private_environment(domain.id, tmp_path))
        peer = subprocess.Popen(words, env=environment)
        try:
            end_s, found = time.monotonic() + 60.0, set()
            while not found and time.monotonic() < end_s:
                time.sleep(0.1)
                maps = Path(f"/proc/{peer.pid}/maps").read_text()
                found = set(re.findall(r"/dev/shm/fastrtps_[0-9a-f]{16}", maps))
            assert found
            assert all(Path(name).exists() for name in found), "control: they are there"
            time.sleep(1.0)
            peer.terminate()
            assert peer.wait(30.0) == 0
        finally:
            peer.kill()
            peer.wait()
        assert not [name for name in found if Path(name).exists()]
