"""``flashrt_ros play`` publishes recorded bytes as they are, pauses by service, ends by signal.

The player's timing is pinned without ROS in test_bag_player.py; here a real process publishes to
a real subscription.
"""

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bag_files import START_NS, joint_rows, joint_state, write_mcap

from flashrt_ros.bag.reader import BagReader

pytestmark = [pytest.mark.ros]

PATIENCE_S = 90.0
QUIET_SPINS = 10


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("ROS_LOG_DIR", str(tmp_path / "log"))
    rclpy = pytest.importorskip("rclpy")
    from rclpy.executors import SingleThreadedExecutor

    context = rclpy.Context()
    rclpy.init(context=context)
    made = rclpy.create_node("listener", context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(made)
    made.spin_until = functools.partial(spin_until, executor)
    yield made
    executor.shutdown()
    made.destroy_node()
    context.try_shutdown()


def spin_until(executor: Any, condition: Callable[[], bool], limit_s: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come"
        executor.spin_once(timeout_sec=0.05)


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "flashrt_ros.cli", "play", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ),
    )


def listen(node: Any, topic: str) -> list[bytes]:
    from rclpy.qos import QoSProfile
    from sensor_msgs.msg import JointState

    received: list[bytes] = []
    node.create_subscription(JointState, topic, received.append, QoSProfile(depth=100), raw=True)
    return received


def test_bytes_arrive_as_recorded_and_the_rest_is_named(node: Any, tmp_path: Path) -> None:
    rows = joint_rows(30)
    rows.append(("/odd", "unheard_of/msg/Thing", START_NS, b"\0\1\0\0abcd"))
    trailing = joint_state(30) + bytes(5)
    rows.append(("/joints", rows[0][1], START_NS + 30 * 50_000_000, trailing))
    bag = write_mcap(tmp_path / "a.mcap", sorted(rows, key=lambda row: row[2]))
    received = listen(node, "/joints")
    process = start(bag, "--start-paused", "--rate", 10)
    try:
        call(node, "resume")
        node.spin_until(lambda: len(received) >= 31)
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert received[:30] == [joint_state(index) for index in range(30)]
    assert received[30].rstrip(b"\0") == trailing.rstrip(b"\0")
    assert len(received[30]) - len(trailing) in range(4)  # DDS pads to four bytes
    assert "defect: /joints: 1 of 31 messages with up to 5 trailing bytes" in output
    assert "not played: /odd: 1 message of unheard_of/msg/Thing" in output
    assert "played 31 messages; latest" in output
    assert "space pauses" not in output, "there is no terminal"


def test_it_loops_pauses_and_ends_by_signal(node: Any, tmp_path: Path) -> None:
    bag = write_mcap(tmp_path / "a.mcap", joint_rows(5))
    received = listen(node, "/joints")
    process = start(bag, "--loop")
    try:
        node.spin_until(lambda: len(received) > 12)  # in the third round
        assert call(node, "pause") == "paused"
        node.spin_until(quiet(received))
        held = len(received)
        assert call(node, "resume") == "playing"
        node.spin_until(lambda: len(received) > held + 3)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert re.search(r"played \d+ messages in \d+ loops; latest", output)


def test_a_contract_keeps_recorded_commands_in_the_file(node: Any, tmp_path: Path) -> None:
    contract = Path(__file__).parents[1] / "config" / "contracts" / "aerial_arm.contract.yaml"
    rows = [
        (topic, kind, stamp_ns, data)
        for _, kind, stamp_ns, data in joint_rows(10)
        for topic in ("/servo/out/state", "/servo/in/state")
    ]
    bag = write_mcap(tmp_path / "a.mcap", rows)
    states, commands = listen(node, "/servo/out/state"), listen(node, "/servo/in/state")
    process = start(bag, "--contract", contract, "--loop")
    try:
        node.spin_until(lambda: len(states) > 15)
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert commands == []


def test_the_thread_of_its_services_ends_before_what_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the process sometimes ends by an abort; a late thread makes it certain here."""
    play = pytest.importorskip("flashrt_ros.ros.play")
    left: list[list[str]] = []

    class Watched(play.SingleThreadedExecutor):
        def spin_once(self, timeout_sec: float | None = None) -> None:
            super().spin_once(timeout_sec)
            time.sleep(0.05)

        def shutdown(self, timeout_sec: float | None = None) -> bool:
            left.append([t.name for t in threading.enumerate() if t not in before])
            return bool(super().shutdown(timeout_sec))

    monkeypatch.setenv("ROS_LOG_DIR", str(tmp_path / "log"))
    monkeypatch.setattr(play, "SingleThreadedExecutor", Watched)
    before = threading.enumerate()
    with BagReader(write_mcap(tmp_path / "a.mcap", joint_rows(3))) as bag:
        assert play.play(bag) == 0
    assert left == [[]]


def test_a_missing_topic_is_wrong_usage(tmp_path: Path) -> None:
    bag = write_mcap(tmp_path / "a.mcap", joint_rows(2))
    process = start(bag, "--topics", "/nothing")
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "no topic /nothing; it has /joints" in output


def quiet(received: list[bytes]) -> Callable[[], bool]:
    """True once nothing has come for ten recorded periods; what was on its way may come before."""
    seen, spins = len(received), 0

    def condition() -> bool:
        nonlocal seen, spins
        spins = spins + 1 if len(received) == seen else 0
        seen = len(received)
        return spins > QUIET_SPINS

    return condition


def known(node: Any) -> None:
    """Returns once the player knows all subscriptions and clients that the node has by now.

    Before, it would play to nobody, and the middleware would drop its answers. They are announced
    in order, so an answer for the client that was made last says that all are known.
    """
    from rcl_interfaces.srv import ListParameters

    client = node.create_client(ListParameters, "/flashrt_ros_play/list_parameters")
    node.spin_until(client.service_is_ready)
    for _ in range(30):
        future = client.call_async(ListParameters.Request())
        with contextlib.suppress(AssertionError):
            node.spin_until(future.done, 3.0)
            return
    raise AssertionError("the player does not answer")


def call(node: Any, name: str) -> str:
    from std_srvs.srv import Trigger

    client = node.create_client(Trigger, f"/flashrt_ros_play/{name}")
    node.spin_until(client.service_is_ready)
    known(node)
    future = client.call_async(Trigger.Request())
    node.spin_until(future.done)
    return str(future.result().message)
