"""The behaviour that waits for inputs."""

from __future__ import annotations

from typing import Any

from py_trees.common import Status

from flashrt_ros.trees.linked import Linked
from flashrt_ros.trees.service import TIMEOUT_S


class WaitUntilFresh(Linked):
    """RUNNING until the policy runs on fresh inputs, then SUCCESS; FAILURE if that takes too long.

    The policy runs if ~/status says so, no older than the last restore, rollback or reset of this
    tree. While it is paused or held ~/status cannot tell; with ``held`` the inputs are judged by
    /diagnostics instead, which come once a second: none of them may have an error.

    With ``timeout_s=0`` it is a condition: SUCCESS or FAILURE at once.
    """

    def __init__(
        self,
        name: str = "",
        *,
        held: bool = False,
        policy: str = "policy",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepares the wait.

        Args:
            name: In the tree.
            held: Wait for fresh inputs only, whether or not the policy runs.
            policy: Name of the policy node.
            timeout_s: From the first tick.
        """
        super().__init__(name or ("inputs fresh" if held else "running"))
        self.held, self.policy, self.timeout_s = held, policy, timeout_s
        self._begin_s = 0.0

    def setup(self, **kwargs: Any) -> None:
        """Subscribes, or shares the subscriptions; called once, before the first tick."""
        super().setup(**kwargs)
        assert self.link is not None
        self.link.watch()

    def initialise(self) -> None:
        """Looks at the clock; called at the first tick."""
        if self.link is not None:
            self._begin_s = self.link.clock()

    def update(self) -> Status:
        """Looks at what came last; called at each tick."""
        if self.link is None:
            self.feedback_message = self.not_set_up()
            return Status.FAILURE
        news = self.link.watch()
        # A condition takes what it knows; a wait takes what came since it began.
        since_s = self._begin_s if self.timeout_s > 0.0 else float("-inf")
        words = news.why_not_fresh(since_s) if self.held else news.why_not_running()
        self.feedback_message = words
        if not words:
            return Status.SUCCESS
        if self.link.clock() - self._begin_s < self.timeout_s:
            return Status.RUNNING
        self.feedback_message = f"{self.name}: not within {self.timeout_s:g} s: {words}"
        return Status.FAILURE
