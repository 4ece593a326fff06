"""The demonstration end to end: `flashrt_ros demo` with one episode for each way to go on.

Arm, policy and experiment are separate processes with DDS between them, as a user has it. Pinned:
the table, the JSON and the bag say what happened; nothing is left running after the end, an
interruption or a failed start, and a failed start says why.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

pytest.importorskip("rclpy")
pytestmark = [pytest.mark.ros, pytest.mark.slow]

LIMIT_S = 400.0
"""A generous limit: it only decides how long a failure takes."""
WEIGHTS = Path(__file__).parents[1] / "flashrt_ros" / "demo" / "weights"


class Command:
    """``flashrt_ros demo`` in a process whose descendants can be found again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = f"DEMO_TEST={uuid.uuid4().hex}"

    def start(self, *words: str) -> subprocess.Popen[str]:
        name, value = self.mark.split("=")
        root = str(Path(__file__).parents[1])
        environment = {
            **os.environ,
            name: value,
            "PYTHONPATH": root,
            "TMPDIR": str(self.directory),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "flashrt_ros.demo.run", *words],
            cwd=self.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def left_running(self) -> list[str]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    assert command.left_running() == []


def test_one_episode_for_each_way(command: Command, tmp_path: Path) -> None:
    from rosbags.highlevel import AnyReader

    demo = command.start("--episodes", "1", "--bag", "run", "--json", "result.json")
    out, _ = demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 0, out
    assert "(a) restore the capsule, go on              1 of 1" in out
    assert "(b) reset plainly, go on                    0 of 1" in out
    assert "(c) go on as it is                          0 of 1" in out
    assert out.count("branch-0, seed") == 1
    assert "fault" not in out

    result = json.loads((tmp_path / "result.json").read_text())
    assert result["faults"] == []
    assert result["ways"]["restore"]["reached"] == 1
    assert [branch["reached"] for branch in result["branches"]] == [True, True]
    # Two seeds: had the seed no effect, the commands from the same state would be near equal.
    assert result["branches_apart_m"] > 0.005
    assert 0 < result["capsule_bytes"] < 10_000
    assert f"a capsule weighs {result['capsule_bytes']} bytes" in out
    assert set(result["verbs_ms"]) >= {"snapshot", "restore", "fork", "reset_episode", "resume"}

    with AnyReader([tmp_path / "run"]) as reader:
        counts = {connection.topic: connection.msgcount for connection in reader.connections}
        steps = [
            reader.deserialize(data, connection.msgtype)
            for connection, _, data in reader.messages()
            if connection.topic == "/policy/policy_step"
        ]
    for topic in ("/joint_states", "/joint_command", "/cue", "/policy/capsule_event"):
        assert counts[topic] > 0, topic
    assert counts["/tree_snapshot"] > 10
    assert any(step.published and step.capsule for step in steps)
    assert any(seen.present for step in steps for seen in step.observations)
    check_reproduction(tmp_path / "run", len(steps), tmp_path / "other")


def check_reproduction(bag: Path, steps: int, other: Path) -> None:
    """Every action is computed again, restores and forks included; one weight is noticed."""
    from flashrt_ros.evaluate.reproduce.finding import Verdict
    from flashrt_ros.evaluate.reproduce.work import reproduce
    from flashrt_ros.ros.share import shared

    contract = shared("config/demo_arm.contract.yaml")
    found = reproduce(bag, "cue_reach", contract)
    assert found.verdict is Verdict.REPRODUCED, found.text()
    assert found.reproduced == found.steps == steps
    assert found.verbs["restore"] >= 3
    assert found.verbs["fork"] == 2
    shutil.copytree(WEIGHTS, other)
    tensors = load_file(other / "model.safetensors")
    name, weight = next((n, w) for n, w in tensors.items() if w.is_floating_point())
    weight.view(-1)[0] += 0.25
    save_file(tensors, other / "model.safetensors")
    changed = reproduce(bag, str(other), contract)
    assert changed.verdict is Verdict.DIFFERS, name
    assert [change.what for change in changed.changes] == ["policy.weights"]


def test_an_interruption_ends_all_processes(command: Command, tmp_path: Path) -> None:
    demo = command.start("--episodes", "50", "--no-bag")
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("episode 1"):
            break
    assert len(command.left_running()) == 3
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 130


def test_killed_it_leaves_nothing_behind(command: Command) -> None:
    demo = command.start("--episodes", "50", "--no-bag")
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("episode 1"):
            break
    demo.kill()
    demo.wait(timeout=LIMIT_S)
    demo.stdout.close()
    deadline_s = time.monotonic() + LIMIT_S
    while command.left_running() and time.monotonic() < deadline_s:
        time.sleep(0.1)


def test_a_failed_start_says_why(command: Command) -> None:
    demo = command.start("--episodes", "1", "--no-bag", "--policy", "no_such_policy")
    out, _ = demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 1
    assert "no_such_policy" in out
    assert "the policy did not start: it is still unconfigured" in out
    assert "policy.log" in out


def test_an_existing_bag_is_refused_before_anything_moves(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    demo = command.start("--episodes", "1", "--bag", "run")
    out, _ = demo.communicate(timeout=LIMIT_S)
    assert demo.returncode != 0
    assert "run: exists; name a directory that does not" in out
    assert "episode" not in out


def test_wrong_numbers_are_refused(command: Command) -> None:
    demo = command.start("--episodes", "0")
    out, _ = demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 2
    assert "--episodes: expected at least 1, found 0" in out
