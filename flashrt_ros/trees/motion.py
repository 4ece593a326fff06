"""Behaviours that let the policy move the robot, or keep it still."""

from __future__ import annotations

from flashrt_ros.trees.service import TIMEOUT_S, ServiceBehaviour

RESUME_S = 15.0


class CommandBehaviour(ServiceBehaviour):
    """A service without arguments."""

    def __init__(
        self, name: str = "", *, policy: str = "policy", timeout_s: float = TIMEOUT_S
    ) -> None:
        """Args: see ``ServiceBehaviour``."""
        super().__init__(name, policy=policy, timeout_s=timeout_s)


class Pause(CommandBehaviour):
    """No more commands; the execution state stays as it is. Others may move the robot now."""

    verb = "pause"


class Resume(CommandBehaviour):
    """Goes on after a pause, restore, rollback or a held reset.

    SUCCESS when the first command has left; FAILURE with UNSAFE_START if the robot is too far from
    where the policy would begin, or with STALE_INPUT if no fresh input comes within the node's
    ``start_timeout_s`` (10 s); a shorter ``timeout_s`` fails before it is known what came of it.
    """

    verb = "resume"

    def __init__(
        self, name: str = "", *, policy: str = "policy", timeout_s: float = RESUME_S
    ) -> None:
        """Args: see ``ServiceBehaviour``."""
        super().__init__(name, policy=policy, timeout_s=timeout_s)


class Stop(CommandBehaviour):
    """Stops and stays stopped until ``ClearStop``."""

    verb = "stop"


class ClearStop(CommandBehaviour):
    """Releases a latched stop; motion still needs ``Resume``."""

    verb = "clear_stop"
