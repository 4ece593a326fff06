"""Replays of the policy while nothing needs it, so that the first action after a rest is not slow.

A GPU that idles for seconds lowers its clocks, and a Jetson's then take some inferences to rise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flashrt_ros.ros.resumption import Options
from flashrt_ros.ros.trial import Trial
from flashrt_ros.runtime.policy import PlanKind


class Warmth:
    """Used by the control thread alone, between control steps and verbs.

    Attributes:
        replays: How often the policy was replayed for this.
    """

    def __init__(self, session: Any, trial: Trial, options: Options) -> None:
        """Begins with a session that has just been warmed up.

        Args:
            session: A ``PolicySession``.
            trial: Of it; none of its steps is open between control steps.
            options: Has ``keep_warm_s``.
        """
        self.replays = 0
        self._session = session
        self._trial = trial
        self._options = options
        self._last_ns = 0
        self._beside = session.policy.plan_kind is PlanKind.BESIDE
        self._nothing = {
            port.key: np.zeros(port.shape, np.float32)
            for port in session.policy.ports().observations
        }

    @property
    def patience_s(self) -> float:
        """How long nothing need be done; infinite if it is not asked for."""
        return self._options.keep_warm_s or float("inf")

    def used(self, now_ns: int) -> None:
        """The policy has run just now, steady clock."""
        self._last_ns = now_ns

    def turn(self, now_ns: int) -> bool:
        """Replays the policy if it has rested for long; the state stays as it is, to the bit.

        Args:
            now_ns: Steady clock.

        Raises:
            Exception: What the policy raises.
        """
        if (now_ns - self._last_ns) / 1e9 < self.patience_s:
            return False
        self._last_ns = now_ns
        self.replays += 1
        if self._beside:
            self._session.replay_plan()
            return True
        self._trial.begin()
        try:
            # As if the chunk were used up: it is the plan that takes long.
            self._session.host.cursor = self._session.host.length
            self._session.step(self._nothing)
        finally:
            self._trial.take_back()
        return True
