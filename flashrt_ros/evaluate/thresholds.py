"""Thresholds of the command line: ``mae>0.05``, ``joint:elbow.max>=0.2``, ``policy:act.stale>3``.

Grammar: ``[policy:LABEL.][joint:NAME.]METRIC OPERATOR NUMBER``, blanks around the operator as you
like. The condition that fails is written. Without ``policy:`` it is judged for each run; what has
no value fails, since nothing was shown.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashrt_ros.errors import InvalidArgumentError

Run = Mapping[str, Any]
"""One entry of the report's ``runs``."""

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(
    r"(?:policy:(?P<policy>.+?)\.)?(?:joint:(?P<joint>.+)\.)?(?P<metric>\w+)"
    r"\s*(?P<operator>>=|<=|>|<)\s*(?P<number>[-+]?[\d.]+(?:e[-+]?\d+)?)",
    re.IGNORECASE,
)
JOINT_METRICS = (
    "mae",
    "rmse",
    "max",
    "bias",
    "lag_steps",
    "lag_ms",
    "lag_correlation",
    "mae_at_lag",
    "state_lag_steps",
    "state_lag_ms",
    "state_mae",
    "state_mae_at_lag",
    "baseline_hold_mae",
    "baseline_mean_mae",
    "jerk",
    "recorded_jerk",
)
"""Numbers of one element; of a run it is the mean over its elements, of ``max`` the largest."""


def _mean(run: Run, key: str) -> float | None:
    values = [joint[key] for joint in run["joints"] if joint[key] is not None]
    return sum(values) / len(values) if values else None


def _largest(run: Run, key: str) -> float | None:
    values = [abs(joint[key]) for joint in run["joints"] if joint[key] is not None]
    return max(values) if values else None


def _over_hold(run: Run) -> float | None:
    mae, hold = _mean(run, "mae"), _mean(run, "baseline_hold_mae")
    return mae / hold if mae is not None and hold else None


def _agreement(run: Run) -> float | None:
    values = [g["agreement"] for g in run["gripper"] or () if g["agreement"] is not None]
    return min(values) if values else None


def _splice(run: Run) -> float | None:
    values = [v for v in (run["splice"] or {}).get("max_difference", ()) if v is not None]
    return max(values) if values else None


RUN_METRICS: Mapping[str, Callable[[Run], float | None]] = {
    "max": lambda run: _largest(run, "max"),
    "lag_steps": lambda run: _largest(run, "lag_steps"),
    "lag_ms": lambda run: _largest(run, "lag_ms"),
    "steps": lambda run: run["steps"],
    "stepped": lambda run: run["stepped"],
    "skipped": lambda run: run["skipped"],
    "stale": lambda run: sum(each["stale"] for each in run["inputs"]),
    "gaps": lambda run: sum(each["gaps"] for each in run["inputs"]),
    "latency_p50": lambda run: run["latency_ms"]["p50"],
    "latency_p90": lambda run: run["latency_ms"]["p90"],
    "latency_p99": lambda run: run["latency_ms"]["p99"],
    "latency_max": lambda run: run["latency_ms"]["max"],
    "mae_over_hold": _over_hold,
    "gripper_agreement": _agreement,
    "splice_max": _splice,
}
"""Numbers of a whole run, besides the means of ``JOINT_METRICS``."""


@dataclass(frozen=True)
class Threshold:
    """One condition that must not hold.

    Attributes:
        expression: As it was written.
        policy: Label; empty: every policy.
        joint: Name of the element; empty: the run as a whole.
        metric: See ``RUN_METRICS`` and ``JOINT_METRICS``.
        operator: ``>``, ``>=``, ``<`` or ``<=``.
        number: What is compared with.
    """

    expression: str
    policy: str
    joint: str
    metric: str
    operator: str
    number: float

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Reads one.

        Raises:
            InvalidArgumentError: It has another form, or there is no such metric.
        """
        found = _FORM.fullmatch(text.strip())
        try:
            number = float(found["number"]) if found is not None else 0.0
        except ValueError:
            found = None
        if found is None:
            raise InvalidArgumentError(
                "--fail-if: expected [policy:LABEL.][joint:NAME.]METRIC>NUMBER, such as mae>0.05 "
                f"or joint:elbow.max>=0.2, found {text!r}"
            )
        joint, metric = found["joint"] or "", found["metric"]
        known = sorted({*JOINT_METRICS} if joint else {*JOINT_METRICS, *RUN_METRICS})
        if metric not in known:
            where = "a joint has" if joint else "there are"
            raise InvalidArgumentError(
                f"--fail-if {text!r}: no metric {metric!r}; {where} {', '.join(known)}"
            )
        return cls(text.strip(), found["policy"] or "", joint, metric, found["operator"], number)

    def check(self, labels: Sequence[str]) -> None:
        """Raises InvalidArgumentError if it is about a policy that does not take part."""
        if self.policy and self.policy not in labels:
            raise InvalidArgumentError(
                f"--fail-if {self.expression!r}: no run of policy {self.policy!r}; there are "
                f"{', '.join(labels)}"
            )

    def check_joint(self, names: Collection[str]) -> None:
        """Raises InvalidArgumentError if it is about an element that no action has."""
        if self.joint and self.joint not in names:
            raise InvalidArgumentError(
                f"--fail-if {self.expression!r}: no joint {self.joint!r}; there are "
                f"{', '.join(names)}"
            )

    def judge(self, runs: Sequence[Run]) -> list[dict[str, Any]]:
        """One entry of the report's ``thresholds`` for each run that it concerns.

        Raises:
            InvalidArgumentError: It concerns none; says which policies and joints there are.
        """
        if not runs:  # no source could be evaluated
            return [self._entry(self.policy, "", None, True)]
        found = []
        for run in runs:
            if self.policy and run["policy"] != self.policy:
                continue
            value = self._value(run)
            failed = value is None or _OPERATORS[self.operator](value, self.number)
            found.append(self._entry(run["policy"], run["source"], value, failed))
        if not found:
            labels = ", ".join(dict.fromkeys(run["policy"] for run in runs)) or "none"
            raise InvalidArgumentError(
                f"--fail-if {self.expression!r}: no run of policy {self.policy!r}; there are "
                f"{labels}"
            )
        return found

    def _entry(
        self, policy: str, source: str, value: float | None, failed: bool
    ) -> dict[str, Any]:
        return {
            "expression": self.expression,
            "policy": policy,
            "source": source,
            "value": value,
            "passed": not failed,
        }

    def _value(self, run: Run) -> float | None:
        if self.joint:
            joints = {joint["name"]: joint for joint in run["joints"]}
            if self.joint not in joints:
                raise InvalidArgumentError(
                    f"--fail-if {self.expression!r}: no joint {self.joint!r}; there are "
                    f"{', '.join(joints)}"
                )
            value: float | None = joints[self.joint][self.metric]
            return value
        if self.metric in RUN_METRICS:
            return RUN_METRICS[self.metric](run)
        return _mean(run, self.metric)
