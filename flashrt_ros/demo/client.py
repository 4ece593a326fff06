"""The experiment's ROS node: calls the services, plays the passer-by, watches the arm."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import rclpy
from geometry_msgs.msg import PointStamped, Vector3Stamped
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from flashrt_ros.demo.arm import JOINTS
from flashrt_ros.demo.behaviour import ARM, Home
from flashrt_ros.demo.task import HOME_RAD, Array
from flashrt_ros.demo.trial import Judge
from flashrt_ros.errors import DeadlineError
from flashrt_ros.msg import PolicyStatus, PolicyStep
from flashrt_ros.trees import PolicyLink

POLICY = "policy"
"""Name of the policy's node."""
VERBS = ("snapshot", "restore", "fork", "reset_episode", "pause", "resume")
"""Services of the policy that the trees call."""
ASK_S = 0.7
"""How often a policy that is not active yet is asked for its lifecycle state."""
NOT_READY = (PolicyStatus.UNCONFIGURED, PolicyStatus.INACTIVE, PolicyStatus.WAITING)
"""Activated does not do: it may take seconds until DDS has brought arm and policy together."""
HOME_STATES = 3
"""So many measurements in a row must show the arm at home and at rest."""
LONG_S, SHORT_S = 60.0, 0.02
"""A cue is shown for so long, if nobody hides it; and hidden by showing it for so short."""
AT_HOME_RAD, AT_REST_RAD_S = 0.02, 0.1
"""Wider than the arm's own idea of it by more than the noise of its measurements."""


class Client(Node):
    """Node ``experiment``; a ``Stage`` for the trees.

    Callbacks run in the thread of ``spinning``; all else is called by the thread that ticks.

    Attributes:
        node: Itself.
        path: Measured joint positions since ``watch``.
        commands: Commands seen since ``watch``.
    """

    def __init__(self) -> None:
        """Makes publishers, subscriptions and clients."""
        super().__init__("experiment")
        reliable = QoSProfile(depth=10)
        self._cue = self.create_publisher(PointStamped, f"{ARM}/show_cue", reliable)
        self._bump = self.create_publisher(Vector3Stamped, f"{ARM}/bump", reliable)
        self._tree = self.create_publisher(String, "tree_snapshot", reliable)
        self.create_subscription(JointState, "joint_states", self._on_state, reliable)
        self.create_subscription(JointState, "joint_command", self._on_command, reliable)
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.create_subscription(PolicyStatus, f"{POLICY}/status", self._on_status, latched)
        # Some may be lost while this process is not scheduled: then too few are counted, and the
        # policy is given more time rather than less.
        self.create_subscription(PolicyStep, f"{POLICY}/policy_step", self._on_step, reliable)
        self._steps = self._steps_before = 0
        self._seen: dict[str, int] = {}
        self._shown = PointStamped()
        self._ready = self._arm_reports = False
        self._home_states = self._unconfigured = 0
        self._lifecycle = self.create_client(GetState, f"{POLICY}/get_state")
        self._change = self.create_client(ChangeState, f"{POLICY}/change_state")
        self.node = self
        # For the whole run: each tree would have to be discovered anew by the services.
        self._links = [PolicyLink.shared(self, name) for name in (POLICY, ARM)]
        for verb in VERBS:
            self._links[0].use(verb)
        self._links[1].use(Home.verb, Home.kind)
        self._watcher: Judge | None = None
        self._content = False
        self.path: list[tuple[float, ...]] = []
        self.commands: list[tuple[float, ...]] = []

    def bring_up(
        self,
        timeout_s: float,
        alive: Callable[[], None],
        unheard: Callable[[], list[str]] = lambda: [],
    ) -> None:
        """Configures the policy, activates it once all is heard, and waits until it is ready.

        Args:
            timeout_s: For all together.
            alive: Called while waiting; raises if waiting is pointless.
            unheard: What must still be heard before the first control step; see
                ``Recorder.unheard``.

        Raises:
            DeadlineError: Naming what is missing.
        """
        deadline_s = self.clock() + timeout_s

        def wait(missing: Callable[[], list[str]]) -> None:
            while found := missing():
                alive()
                if self.clock() > deadline_s:
                    raise DeadlineError(
                        f"after {timeout_s:.0f} s there was still no {', no '.join(found)}"
                    )
                time.sleep(0.05)

        def change(number: int, words: str) -> None:
            wait(lambda: [] if self._change.service_is_ready() else ["service of the policy"])
            request = ChangeState.Request(transition=Transition(id=number))
            answer = self._change.call_async(request)
            wait(lambda: [] if answer.done() else ["answer of the policy"])
            if not answer.result().success:
                raise DeadlineError(f"the policy did not start: it is still {words}")

        change(Transition.TRANSITION_CONFIGURE, "unconfigured")
        wait(unheard)
        change(Transition.TRANSITION_ACTIVATE, "inactive")
        self.wait_until_ready(deadline_s - self.clock(), alive)

    def wait_until_ready(self, timeout_s: float, alive: Callable[[], None]) -> None:
        """Waits until all services are there, the arm reports, and the policy hears it.

        Args:
            timeout_s: For all together.
            alive: Called while waiting; raises if waiting is pointless.

        Raises:
            DeadlineError: Naming what is missing.
        """
        deadline_s = self.clock() + timeout_s
        asked_s = self.clock()
        while missing := self._missing():
            alive()
            if self.clock() > asked_s + ASK_S and self._lifecycle.service_is_ready():
                asked_s = self.clock()
                self._lifecycle.call_async(GetState.Request()).add_done_callback(
                    self._on_lifecycle
                )
            if self._unconfigured > 2:
                raise DeadlineError("the policy did not start: it is still unconfigured")
            if self.clock() > deadline_s:
                raise DeadlineError(
                    f"after {timeout_s:.0f} s there was still no {', no '.join(missing)}"
                )
            time.sleep(0.05)

    def _missing(self) -> list[str]:
        found = [f"service {name}" for link in self._links for name in link.absent()]
        if not self._ready:
            found.append("active policy that hears the arm")
        if not self._arm_reports:
            found.append("message on joint_states")
        return found

    def clock(self) -> float:
        """Seconds on a steady clock."""
        return time.monotonic()

    def latency_ms(self) -> dict[str, list[float]]:
        """See ``Theatre``."""
        return {
            verb: list(times.took_ms) for link in self._links for verb, times in link.times.items()
        }

    def destroy_node(self) -> None:
        """Releases the services first."""
        for link in self._links:
            link.release()
        super().destroy_node()

    def show_cue(self, point_m: Array) -> None:
        """See ``Stage``."""
        point = self._shown.point
        point.x, point.y, point.z = float(point_m[0]), float(point_m[1]), LONG_S
        self._cue.publish(self._shown)

    def hide_cue(self) -> None:
        """See ``Stage``."""
        if self._shown.point.z == LONG_S:
            self._shown.point.z = SHORT_S
            self._cue.publish(self._shown)

    def seen(self, port: str) -> int:
        """See ``Stage``."""
        return self._seen.get(port, 0)

    def count_steps(self) -> None:
        """See ``Stage``."""
        self._steps_before = self._steps

    def steps(self) -> int:
        """See ``Stage``."""
        return self._steps - self._steps_before

    def bump(self, torque_nm: tuple[float, float], duration_s: float) -> None:
        """See ``Stage``."""
        message = Vector3Stamped()
        message.vector.x, message.vector.y = torque_nm
        message.vector.z = duration_s
        self._bump.publish(message)

    def show_tree(self, text: str) -> None:
        """Publishes a picture of the tree."""
        self._tree.publish(String(data=text))

    def look_for_home(self) -> None:
        """See ``Stage``."""
        self._home_states = 0

    def at_home(self) -> bool:
        """See ``Stage``."""
        return self._home_states >= HOME_STATES

    def watch(self, judge: Judge) -> None:
        """See ``Stage``; begins ``path`` and ``commands`` anew."""
        self._watcher = None
        self._content, self.path, self.commands = False, [], []
        self._watcher = judge

    def content(self) -> bool:
        """See ``Stage``."""
        return self._content

    def _on_lifecycle(self, done: Any) -> None:
        # It configures itself in its executor: whatever it answers, it says before or after that.
        unconfigured = done.result().current_state.id == State.PRIMARY_STATE_UNCONFIGURED
        self._unconfigured = self._unconfigured + 1 if unconfigured else 0

    def _on_status(self, message: PolicyStatus) -> None:
        self._ready = message.mode not in NOT_READY

    def _on_step(self, message: PolicyStep) -> None:
        self._steps += message.published
        self._seen = {
            part.observation: self._seen.get(part.observation, 0) + 1
            for part in message.observations
            if part.present
        }

    def _on_state(self, message: JointState) -> None:
        self._arm_reports = True
        away = max(abs(a - b) for a, b in zip(message.position, HOME_RAD, strict=True))
        speed = max(map(abs, message.velocity))
        at_home = away < AT_HOME_RAD and speed < AT_REST_RAD_S
        self._home_states = self._home_states + 1 if at_home else 0
        judge = self._watcher
        if judge is None:
            return
        found = dict(zip(message.name, message.position, strict=True))
        position = tuple(found[joint] for joint in JOINTS)
        self.path.append(position)
        if judge.see(position):
            self._content = True

    def _on_command(self, message: JointState) -> None:
        if self._watcher is not None:
            self.commands.append(tuple(message.position))


class Spinner:
    """Runs a node's callbacks in a thread of its own, while in a ``with`` block."""

    def __init__(self, node: Node) -> None:
        """Args: node: whose callbacks."""
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(node)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._spin, name="experiment-ros", daemon=True)
        self._error: BaseException | None = None

    def check(self) -> None:
        """Does nothing while all is well; else raises what a callback raised."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Spinner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._executor.wake()
        self._thread.join(timeout=5.0)
        self._executor.shutdown(timeout_sec=1.0)

    def _spin(self) -> None:
        try:
            while rclpy.ok() and not self._stop.is_set():
                self._executor.spin_once(timeout_sec=0.2)
        except BaseException as error:
            self._error = error
