"""What the experiment found: outcomes, times of verbs, weight of a capsule; table and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from flashrt_ros.demo.trial import Way, wilson


@dataclass(frozen=True)
class Outcome:
    """One episode.

    Attributes:
        way: Word of a ``Way``.
        trial: Index of the trial.
        target: Index of the true target.
        false_target: Index of the false one.
        reached: Whether the true target was reached.
        refused: Why the node refused the first command as unsafe; empty if it did not.
        fault: Why the episode was not carried through; empty if it was.
        nearest_m: Smallest distance of the tip to the true target after going on.
        duration_s: Of the whole episode.
    """

    way: str
    trial: int
    target: int
    false_target: int
    reached: bool
    refused: str
    fault: str
    nearest_m: float
    duration_s: float


@dataclass(frozen=True)
class Branch:
    """One branch of the fork.

    Attributes:
        name: Of the capsule.
        seed: Its noise key.
        reached: Whether the target was reached.
        fault: Why it was not run; empty if it was.
        path_m: Tip positions, one per measurement.
        commands_rad: Commands, one per control step.
    """

    name: str
    seed: int
    reached: bool
    fault: str
    path_m: list[list[float]]
    commands_rad: list[list[float]]


@dataclass
class Report:
    """All results.

    Attributes:
        seed: Of the trials.
        outcomes: One per episode.
        branches: Of the fork.
        latency_ms: Times of each verb, measured at the client.
        capsule_bytes: Weight of a capsule; 0 if none was taken.
    """

    seed: int
    outcomes: list[Outcome] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    latency_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    capsule_bytes: int = 0

    @property
    def faults(self) -> list[str]:
        """What went wrong besides targets that were not reached."""
        outcomes = [outcome.fault for outcome in self.outcomes]
        return [fault for fault in [*outcomes, *(b.fault for b in self.branches)] if fault]

    @property
    def as_expected(self) -> bool:
        """Whether restoring did better than both other ways, and both branches arrived."""
        rates = {way: self.rate(way)["reached"] for way in Way}
        others = max(rates[Way.RESET], rates[Way.AS_IT_IS])
        return rates[Way.RESTORE] > others and all(branch.reached for branch in self.branches)

    def to_dict(self) -> dict[str, object]:
        """JSON values."""
        verbs = {verb: quantiles(values) for verb, values in sorted(self.latency_ms.items())}
        return {
            "seed": self.seed,
            "ways": {way.value: self.rate(way) for way in Way},
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
            "branches": [asdict(branch) for branch in self.branches],
            "branches_apart_m": self.apart_m(),
            "first_commands_apart_rad": self.first_commands_apart_rad(),
            "verbs_ms": verbs,
            "capsule_bytes": self.capsule_bytes,
            "faults": self.faults,
        }

    def rate(self, way: Way) -> dict[str, float]:
        """Successes and episodes of one way, with the 95 % Wilson interval."""
        reached = [outcome.reached for outcome in self.outcomes if outcome.way == way.value]
        low, high = wilson(sum(reached), len(reached))
        return {"reached": sum(reached), "episodes": len(reached), "low": low, "high": high}

    def apart_m(self) -> float:
        """Largest distance between the tips of two branches at the same measurement."""
        return _apart([branch.path_m for branch in self.branches])

    def first_commands_apart_rad(self) -> float:
        """Largest difference between the first commands of two branches."""
        return _apart([branch.commands_rad[:1] for branch in self.branches])

    def table(self) -> str:
        """For people."""
        lines = [f"{'after the retreat':34}{'target reached':>16}{'95 % interval':>20}"]
        words = {
            Way.RESTORE: "(a) restore the capsule, go on",
            Way.RESET: "(b) reset plainly, go on",
            Way.AS_IT_IS: "(c) go on as it is",
        }
        for way, word in words.items():
            rate = self.rate(way)
            share = f"{rate['reached']:.0f} of {rate['episodes']:.0f}"
            interval = f"{rate['low']:.1%} to {rate['high']:.1%}"
            refused = sum(bool(o.refused) for o in self.outcomes if o.way == way.value)
            note = f"   ({refused} refused as an unsafe start)" if refused else ""
            lines.append(f"{word:34}{share:>16}{interval:>20}{note}")
        lines += ["", *self._fork_lines(), ""]
        lines.append(f"{'time of each verb, at the client':34}{'p50':>10}{'p99':>13}{'n':>7}")
        for verb, values in sorted(self.latency_ms.items()):
            found = quantiles(values)
            lines.append(
                f"  {verb:32}{found['p50']:>7.2f} ms{found['p99']:>10.2f} ms{found['n']:>7.0f}"
            )
        lines += ["", f"a capsule weighs {self.capsule_bytes} bytes"]
        lines += [f"fault: {fault}" for fault in self.faults]
        return "\n".join(lines)

    def _fork_lines(self) -> list[str]:
        if not self.branches:
            return ["fork: not run"]
        lines = []
        for branch in self.branches:
            end = branch.fault or ("target reached" if branch.reached else "target not reached")
            lines.append(f"{branch.name}, seed {branch.seed}: {end}")
        lines.append(
            f"their first commands differ by {self.first_commands_apart_rad() * 1e3:.1f} mrad, "
            f"their ways by up to {self.apart_m() * 1e3:.0f} mm"
        )
        return lines


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and number of ``values``; NaN where there are none."""
    if not values:
        return {"p50": float("nan"), "p99": float("nan"), "n": 0}
    middle, high = np.percentile(values, (50, 99))
    return {"p50": float(middle), "p99": float(high), "n": len(values)}


def _apart(rows: list[list[list[float]]]) -> float:
    if len(rows) < 2 or not rows[0] or not rows[1]:
        return 0.0
    count = min(len(rows[0]), len(rows[1]))
    difference = np.asarray(rows[0][:count]) - np.asarray(rows[1][:count])
    return float(np.hypot(difference[:, 0], difference[:, 1]).max())
