"""A new episode, from wherever the last one ended."""

from __future__ import annotations

from typing import Any

from py_trees.behaviour import Behaviour
from py_trees.composites import Sequence

from flashrt_ros.trees.key import Key
from flashrt_ros.trees.motion import RESUME_S, Pause, Resume
from flashrt_ros.trees.verb import ResetEpisode
from flashrt_ros.trees.watch import WaitUntilFresh


class EpisodeReset(Sequence):
    """Pauses, brings the robot back, resets the episode and goes on; SUCCESS when the arm moves.

    With ``homing``: pause, homing, reset on hold, resume. Without: reset, then wait until the
    policy runs again, which takes observations newer than the reset.
    """

    def __init__(
        self,
        name: str = "new episode",
        *,
        homing: Behaviour | None = None,
        task: str | Key | None = None,
        seed: int | Key | None = None,
        policy: str = "policy",
        timeout_s: float = RESUME_S,
    ) -> None:
        """Prepares the sequence.

        Args:
            name: In the tree.
            homing: Brings robot and world to where an episode begins, while the policy is paused.
            task: As of ``ResetEpisode``.
            seed: As of ``ResetEpisode``.
            policy: Name of the policy node.
            timeout_s: For each call and the wait.
        """
        super().__init__(name, memory=True)
        options: dict[str, Any] = {"policy": policy, "timeout_s": timeout_s}
        reset = ResetEpisode(task=task, seed=seed, hold=homing is not None, **options)
        if homing is not None:
            self.add_children([Pause(**options), homing, reset, Resume(**options)])
        else:
            self.add_children([reset, WaitUntilFresh(**options)])
