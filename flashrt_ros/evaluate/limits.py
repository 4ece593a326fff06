"""What the node would have sent of an action: its start check, limits and steps, without motion.

The arm of a recording does not follow our commands, so limits of a step are counted from what
would have been sent before, and a first command is compared with where the arm then was.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.messages import Values
from flashrt_ros.contract.output import ActionShaper
from flashrt_ros.contract.start import GateStanding, StartGate

MISS_LIMIT_S = 0.5
"""The node's parameter ``miss_limit_s``."""


@dataclass(frozen=True)
class LimiterStanding:
    """What a limiter knows, for another that is to go on from there.

    Attributes:
        starting: The next command is a first one.
        last: Topic to the command sent last.
        missing_since_ns: Recorded time since when no action came; None: one came last.
        gate: Of the start check.
    """

    starting: bool
    last: Mapping[str, tuple[float, ...]]
    missing_since_ns: int | None
    gate: GateStanding


@dataclass
class Limiter:
    """The last gate of the node, as ``ros.commander`` and ``ros.motion`` are it.

    Where the node would hold until a person says otherwise (an unsafe first command, a frame that
    is refused) this one goes on with the next step, as if that person answered at once: the
    command counts as held back, and the next one as a first one.

    Attributes:
        contract: Whose limits apply.
        starting: The next command is a first one, which needs a measured position.
        limited: Commands that limits have changed.
        held: Why nothing would have left, in words with the first one's numbers, and how often.
    """

    contract: Contract
    starting: bool = True
    limited: int = 0
    held: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Nothing was sent so far."""
        self._shaper = ActionShaper(self.contract)
        self._gate = StartGate(self.contract)
        self._last: dict[str, Values] = {}
        self._firsts: dict[str, str] = {}
        self._missing_since_ns: int | None = None
        self._stops = any(output.on_miss == "stop" for output in self.contract.actions)
        self._nothing = np.full(self._shaper.size, np.nan)

    @property
    def standing(self) -> LimiterStanding:
        """What it knows, its counts apart; ``go_on`` of another limiter takes it."""
        last = {topic: tuple(values.tolist()) for topic, values in self._last.items()}
        return LimiterStanding(self.starting, last, self._missing_since_ns, self._gate.standing)

    def go_on(self, standing: LimiterStanding) -> None:
        """Goes on as the limiter that stood so; counts go on, too."""
        self.starting = standing.starting
        self._last = {topic: np.array(values) for topic, values in standing.last.items()}
        self._missing_since_ns = standing.missing_since_ns
        self._gate.go_on(standing.gate)

    def forget_counts(self) -> None:
        """What led up to here does not count."""
        self.limited = 0
        self.held.clear()
        self._firsts.clear()

    def restart(self) -> None:
        """A reset, a restore or a jump in time: the next command is a first one."""
        self.starting = True

    def miss(self, now_ns: int) -> None:
        """A control step without an action; what ``on_miss`` sends ends motion at some time."""
        if self.starting:
            return
        if self._missing_since_ns is None:
            self._missing_since_ns = now_ns
        if self._stops or now_ns - self._missing_since_ns >= MISS_LIMIT_S * 1e9:
            self.starting = True

    def pass_(
        self, action_A: npt.ArrayLike, measured: npt.NDArray[np.float32] | None, now_ns: int
    ) -> Values:
        """``(A,)`` float64, what would have been sent; NaN where nothing would have left.

        Args:
            action_A: As the policy gave it, contract units.
            measured: As ``Sample.measured``.
            now_ns: Recorded time.
        """
        values = np.array(action_A, dtype=np.float64)
        last = self._last
        if self.starting:
            self._gate.arm_()
            last = self._shaper.at_rest(measured)
        self._missing_since_ns = None
        if np.isfinite(values).all():
            admitted = self._gate.admit(values, measured, now_ns)
            if admitted.action is None:
                return self._hold("unsafe start: the first command is too far away")
            values = admitted.action
        shaped = self._shaper.shape(values, last)
        if shaped.dropped:
            return self._hold(shaped.dropped)
        self.starting = False
        self._last = {**last, **shaped.commands}
        self.limited += bool(shaped.limited)
        return shaped.action

    def _hold(self, words: str) -> Values:
        # Numbers differ from one command to the next: the first one's stand for all.
        self.held[self._firsts.setdefault(_NUMBER.sub("#", words), words)] += 1
        self.starting = True
        return self._nothing


_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
