"""What a policy node says of itself: its status, and the state of its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import DurabilityPolicy, QoSProfile

from flashrt_ros.msg import PolicyStatus

if TYPE_CHECKING:
    from flashrt_ros.trees.link import PolicyLink

SILENT_S = 3.0
"""~/status and /diagnostics come once a second: after this long without, the node is gone."""
ERROR = 2
"""``DiagnosticStatus.ERROR``, which is a byte in Python."""


class News:
    """The last status and the last diagnostics of the inputs, with when they came.

    Attributes:
        status: The last one; None before the first.
    """

    def __init__(self, link: PolicyLink, group: Any) -> None:
        """Subscribes.

        Args:
            link: Whose node and clock; its generation begins anew with a restarted policy node.
            group: Callback group.
        """
        self._link = link
        self.status: PolicyStatus | None = None
        self._status_s = self._inputs_s = float("-inf")
        self._inputs: dict[str, str] = {}
        node = link.node
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._subscriptions = [
            node.create_subscription(
                PolicyStatus,
                f"{link.policy}/status",
                self._on_status,
                latched,
                callback_group=group,
            ),
            node.create_subscription(
                DiagnosticArray,
                "/diagnostics",
                self._on_diagnostics,
                QoSProfile(depth=10),
                callback_group=group,
            ),
        ]
        # As resolved by ROS: diagnostics name the node in full.
        self._of_inputs = f"{self._subscriptions[0].topic_name.rpartition('/')[0]}: input "

    def close(self) -> None:
        """Ends the subscriptions."""
        for subscription in self._subscriptions:
            self._link.node.destroy_subscription(subscription)

    def why_not_running(self) -> str:
        """Empty if the policy runs, which takes fresh inputs; else why not."""
        status = self.status
        if status is None:
            return "no ~/status yet"
        if (silent := self._silence(self._status_s, "status")) != "":
            return silent
        if status.generation < self._link.generation:
            return "no ~/status since the last verb yet"
        if status.mode == PolicyStatus.RUNNING:
            return ""
        return f"{_mode(status.mode)}: {status.reason}" if status.reason else _mode(status.mode)

    def why_not_fresh(self, since_s: float) -> str:
        """Empty if every input is fresh, running or not; else which one is not.

        Args:
            since_s: Clock; only what came after that counts.
        """
        if self._inputs_s < since_s:
            return "no /diagnostics of its inputs yet"
        if (silent := self._silence(self._inputs_s, "diagnostics")) != "":
            return silent
        return "; ".join(f"{name}: {words}" for name, words in self._inputs.items())

    def _silence(self, last_s: float, what: str) -> str:
        passed_s = self._link.clock() - last_s
        return "" if passed_s <= SILENT_S else f"no {what} for {passed_s:.1f} s: is it running?"

    def _on_status(self, message: PolicyStatus) -> None:
        before = self.status
        if before is not None and message.tick < before.tick:
            self._link.generation = 0
        self.status, self._status_s = message, self._link.clock()

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        ours = [entry for entry in message.status if entry.name.startswith(self._of_inputs)]
        if ours:
            self._inputs = {
                entry.name[len(self._of_inputs) :]: entry.message
                for entry in ours
                if ord(entry.level) >= ERROR
            }
            self._inputs_s = self._link.clock()


def _mode(number: int) -> str:
    names = ("UNCONFIGURED", "INACTIVE", "WAITING", "RUNNING", "HOLDING", "PAUSED", "STOPPED")
    return names[number] if number < len(names) else f"mode {number}"
