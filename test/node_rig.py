"""A policy node in its own process and an arm beside it in the test, over real DDS.

The arm stands still at the last command or at ``position``, and publishes joint states at 50 Hz
from the rig's executor: ``spin`` and everything that waits let time pass for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import rclpy
import yaml
from builtin_interfaces.msg import Time
from contract_examples import contract_dict
from diagnostic_msgs.msg import DiagnosticArray
from flashrt_ros.msg import CapsuleEvent, PolicyStatus, PolicyStep
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import JointState

from flashrt_ros import srv

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 30.0
"""Only decides how long a failure takes."""
CONFIGURE, CLEANUP, ACTIVATE, DEACTIVATE = 1, 2, 3, 4


def write_contract(folder: Path, **changes: Any) -> Path:
    """The small test contract without its cue, as a file."""
    fields = contract_dict(**changes)
    fields["observations"] = fields["observations"][:1]
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump(fields), encoding="utf-8")
    return path


class NodeRig:
    """One node process with everything that it says.

    Attributes:
        position: Where the arm stands; None: it publishes nothing.
        follows: The arm goes where it is commanded.
    """

    def __init__(
        self,
        folder: Path,
        domain: int,
        namespace: str = "",
        policy: str = "node_policies:follow",
        contract: Path | None = None,
        parameters: Mapping[str, object] | None = None,
    ) -> None:
        os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        self.position: list[float] | None = [0.1, 0.2]
        self.follows = True
        self.stamp_ns: int | None = None
        self.commands: list[JointState] = []
        self.steps: list[PolicyStep] = []
        self.events: list[CapsuleEvent] = []
        self.statuses: list[PolicyStatus] = []
        self.diagnostics: list[DiagnosticArray] = []
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node(
            "arm_of_the_test", context=self.context, namespace=namespace or None
        )
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        latched = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        for cls, topic, qos, into in (
            (JointState, "joint_command", 10, self._commanded),
            (PolicyStep, "policy/policy_step", 100, self.steps.append),
            (CapsuleEvent, "policy/capsule_event", 100, self.events.append),
            (PolicyStatus, "policy/status", latched, self.statuses.append),
            (DiagnosticArray, "/diagnostics", 10, self.diagnostics.append),
        ):
            self.node.create_subscription(cls, topic, into, qos)
        self._states = self.node.create_publisher(JointState, "joint_states", 1)
        self.node.create_timer(0.02, self._publish)
        values = {
            "policy": policy,
            "contract": contract or write_contract(folder),
            "autostart": True,
            **(parameters or {}),
        }
        command = [sys.executable, str(ROOT / "scripts" / "policy_node"), "--ros-args"]
        for key, value in values.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            command += ["-p", f"{key}:={text}"]
        if namespace:
            command += ["-r", f"__ns:={namespace}"]
        env = {
            **os.environ,
            "ROS_DOMAIN_ID": str(domain),
            "ROS_LOG_DIR": str(folder / "log"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "test"), str(ROOT)]),
        }
        self.log = folder / "node.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def __enter__(self) -> NodeRig:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.executor.shutdown()
        self.node.destroy_node()
        self.context.try_shutdown()

    def _commanded(self, message: JointState) -> None:
        self.commands.append(message)
        if self.follows and self.position is not None:
            self.position = list(message.position)

    def _publish(self) -> None:
        if self.position is None:
            return
        message = JointState(name=["a", "b"], position=self.position, velocity=[0.0, 0.0])
        message.header.stamp = self.node.get_clock().now().to_msg()
        if self.stamp_ns is not None:
            message.header.stamp = Time(sec=self.stamp_ns // 10**9, nanosec=self.stamp_ns % 10**9)
        self._states.publish(message)

    def spin(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.executor.spin_once(timeout_sec=0.01)

    def until(self, true: Callable[[], object], what: str) -> None:
        """Lets time pass until something is so."""
        end_s = time.monotonic() + LIMIT_S
        while not true():
            assert self.process.poll() is None, f"the node ended:\n{self.said()}"
            assert time.monotonic() < end_s, f"expected {what}:\n{self.said()}"
            self.executor.spin_once(timeout_sec=0.05)

    def until_mode(self, mode: int, reason: str = "") -> PolicyStatus:
        """Lets time pass until the newest status has this mode and these words."""

        def true() -> bool:
            last = self.statuses[-1] if self.statuses else None
            return last is not None and last.mode == mode and reason in last.reason

        self.until(true, f"mode {mode} {reason!r}, not {self.statuses[-1:]}")
        return self.statuses[-1]

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def begin(self, name: str, /, cls: Any = None, **fields: Any) -> tuple[Any, Any]:
        """Sends a request; returns client and future."""
        cls = cls or getattr(srv, "".join(word.capitalize() for word in name.split("_")))
        client = self.node.create_client(cls, f"policy/{name}")
        self.until(client.service_is_ready, f"service {name}")
        request = cls.Request()
        for key, value in fields.items():
            setattr(request, key, value)
        return client, client.call_async(request)

    def call(self, service: str, /, cls: Any = None, **fields: Any) -> Any:
        """The response of one of the node's services."""
        client, future = self.begin(service, cls, **fields)
        self.until(future.done, f"an answer of {service}")
        self.node.destroy_client(client)
        return future.result()

    def command(self, name: str, **fields: Any) -> Any:
        """One of pause, resume, stop and clear_stop."""
        return self.call(name, srv.Command, **fields)

    def transition(self, number: int) -> bool:
        request = ChangeState.Request()
        request.transition.id = number
        return bool(self.call("change_state", ChangeState, transition=request.transition).success)

    def end(self, number: int = signal.SIGINT, times: int = 1) -> int:
        """Ends the node as a person does; returns its exit code."""
        for _ in range(times):
            self.process.send_signal(number)
            time.sleep(0.02)
        end_s = time.monotonic() + LIMIT_S
        while self.process.poll() is None:
            assert time.monotonic() < end_s, f"the node does not end:\n{self.said()}"
            self.executor.spin_once(timeout_sec=0.01)
        return int(self.process.returncode)
