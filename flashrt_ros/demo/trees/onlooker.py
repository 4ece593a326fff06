"""Who stands beside the cell: shows cues, knocks, silences a sensor, and judges what he sees.

The trees ask him, and not the policy, whether something worked.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from geometry_msgs.msg import PointStamped, Vector3Stamped
from py_trees.behaviour import Behaviour
from py_trees.composites import Sequence
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64
from std_srvs.srv import Trigger

from flashrt_ros.demo.arm import tip_of
from flashrt_ros.demo.behaviour import Do, Until
from flashrt_ros.demo.trees.cell import AT_REST, HALF_BLOCK_M, HAND_M, REST, Array
from flashrt_ros.trees import ServiceBehaviour

CELL = "cell"
"""Name of its node."""
PLACED_M = 0.03
"""The block is where it should be within this distance."""
LIFTED_M = 0.06
"""The block hangs on the hand when its middle is so high."""
DOWN_M, UP_M = -0.09, -0.02
"""The slide when the hand is on a block, and when it has come up."""
STUCK_STATES, STUCK_M = 25, 0.02
"""Away from its place of rest the hand is stuck when it moved less in so many measurements."""
CUES_SEEN = 15
"""When he has seen this many messages of a cue, so has the policy."""
LONG_S, SHORT_S = 30.0, 0.02
LIMIT_S = 20.0
"""Of what the arm does in two seconds; only a machine that others keep busy takes longer. What has
gone wrong for good is seen at once."""
Condition = Callable[[], bool]
_NOWHERE: Array = np.full(3, np.nan)


class CellService(ServiceBehaviour):
    """Asks the cell for something; SUCCESS when it has heard."""

    kind = Trigger

    def __init__(self, verb: str, name: str) -> None:
        """Prepares the call.

        Args:
            verb: ``home`` or ``begin``.
            name: In the tree.
        """
        self.verb = verb
        super().__init__(name, policy=CELL)


class Onlooker(Node):
    """Node ``onlooker``; its behaviours are the parts of a tree that concern the world.

    Attributes:
        block_m: ``(3,)`` float64 where the block is; NaN before the first message.
        joints: ``(3,)`` float64 as measured, see ``cell.NAMES``; likewise.
    """

    def __init__(self) -> None:
        """Makes publishers, subscriptions and clients."""
        super().__init__("onlooker")
        reliable = QoSProfile(depth=10)
        self._cue = self.create_publisher(PointStamped, f"{CELL}/show_cue", reliable)
        self._knock = self.create_publisher(Vector3Stamped, f"{CELL}/knock", reliable)
        self._silence = self.create_publisher(Float64, f"{CELL}/silence", reliable)
        self.create_subscription(PointStamped, f"{CELL}/truth", self._on_truth, reliable)
        self.create_subscription(PointStamped, "cue", self._on_cue, reliable)
        self.create_subscription(JointState, "joint_states", self._on_joints, reliable)
        self.block_m, self.joints = _NOWHERE, _NOWHERE
        self._cues = 0
        self._was_down = False
        self._track: deque[Array] = deque(maxlen=STUCK_STATES)

    # What he sees

    def clock(self) -> float:
        """Seconds on a steady clock."""
        return time.monotonic()

    def ready(self) -> bool:
        """Whether the cell is there, and hears him."""
        heard = (self._cue, self._knock, self._silence)
        return all(publisher.get_subscription_count() for publisher in heard) and bool(
            np.isfinite(self.block_m).all() and np.isfinite(self.joints).all()
        )

    @property
    def hand_m(self) -> Array:
        """``(2,)`` x and y of the hand."""
        return tip_of(self.joints[:2])

    def lifted(self) -> bool:
        """Whether the block hangs in the air."""
        return bool(self.block_m[2] > LIFTED_M)

    def placed(self, goal_m: tuple[float, float]) -> bool:
        """Whether the block stands on the table at ``goal_m``, and the hand has left it."""
        away = np.hypot(*(self.block_m[:2] - goal_m))
        stands = self.block_m[2] < HALF_BLOCK_M + 0.005
        return bool(away < PLACED_M and stands and self.joints[2] > UP_M)

    # What he does

    def show_cue(self, goal_m: tuple[float, float], duration_s: float) -> None:
        """Shows where the block should go."""
        message = PointStamped()
        message.point.x, message.point.y = goal_m
        message.point.z = duration_s
        self._cues = 0
        self._cue.publish(message)

    def knock(self, velocity_m_s: tuple[float, float]) -> None:
        """Lies in wait: the block is knocked away when the hand comes down on it."""
        message = Vector3Stamped()
        message.vector.x, message.vector.y = velocity_m_s
        self._knock.publish(message)

    def silence(self, duration_s: float) -> None:
        """No joint states for a while."""
        self._silence.publish(Float64(data=duration_s))

    # The same as parts of trees

    def set_up(self) -> Behaviour:
        """Block and arm are put where an episode begins."""
        return CellService("begin", "set up the cell")

    def home(self) -> Behaviour:
        """The arm lets go, and goes home over everything."""
        rest = self.until(
            "at rest", lambda: bool(np.abs(self.joints - REST).max() < 2 * AT_REST), LIMIT_S
        )
        return Sequence("way home", memory=True, children=[CellService("home", "go home"), rest])

    def cue(self, goal_m: tuple[float, float]) -> Behaviour:
        """Shows a cue until it has been seen; it stays."""
        return self.until(
            "see the cue",
            lambda: self._cues >= CUES_SEEN,
            LIMIT_S,
            begin=lambda: self.show_cue(goal_m, LONG_S),
        )

    def hide_cue(self, goal_m: tuple[float, float]) -> Behaviour:
        """Takes it away."""
        return Do("hide the cue", lambda: self.show_cue(goal_m, SHORT_S))

    def until(
        self, name: str, condition: Condition, timeout_s: float, **options: Any
    ) -> Behaviour:
        """RUNNING until he sees that something is so; FAILURE if that takes too long."""
        return Until(name, condition, timeout_s, self.clock, **options)

    def until_past(self, name: str, y_m: float, timeout_s: float = LIMIT_S) -> Behaviour:
        """Likewise, of the hand beyond a line; FAILURE when it is stuck on the way."""
        return self.until(
            name,
            lambda: bool(self.hand_m[1] > y_m),
            timeout_s,
            begin=self._track.clear,
            hopeless=self._stuck,
        )

    def until_lifted(self, timeout_s: float = LIMIT_S) -> Behaviour:
        """Likewise, of the block in the air; FAILURE when the hand comes up without it."""
        return self.until(
            "block lifted",
            self.lifted,
            timeout_s,
            begin=self._forget_the_hand,
            hopeless=self._came_up,
        )

    def until_placed(self, goal_m: tuple[float, float], timeout_s: float = LIMIT_S) -> Behaviour:
        """Likewise, of the block at its goal."""
        return self.until("block at its goal", lambda: self.placed(goal_m), timeout_s)

    def _stuck(self) -> bool:
        left = np.hypot(*(self.hand_m - HAND_M)) > 3 * STUCK_M
        full = len(self._track) == STUCK_STATES
        return bool(left and full and np.ptp(self._track, axis=0).max() < STUCK_M)

    def _forget_the_hand(self) -> None:
        self._was_down = False

    def _came_up(self) -> bool:
        return self._was_down and bool(self.joints[2] > UP_M)

    def _on_truth(self, message: PointStamped) -> None:
        point = message.point
        self.block_m = np.array((point.x, point.y, point.z))

    def _on_cue(self, message: PointStamped) -> None:
        self._cues += 1

    def _on_joints(self, message: JointState) -> None:
        self.joints = np.array(message.position)
        self._track.append(self.hand_m)
        self._was_down |= bool(self.joints[2] < DOWN_M)
