"""What the conformance suite found, in words."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Status(enum.Enum):
    """How one check ended."""

    PASSED = "passed"
    """The policy keeps the rule."""
    FAILED = "FAILED"
    """It does not; the problems say where."""
    SKIPPED = "skipped"
    """Not run, because an earlier check failed that it stands on."""


@dataclass(frozen=True)
class Result:
    """One check.

    Attributes:
        name: Short name, e.g. ``restore``.
        rule: What holds of a sound policy, as a sentence.
        status: See ``Status``.
        problems: What was found instead, one sentence each.
    """

    name: str
    rule: str
    status: Status
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """All checks of one policy on one device.

    Attributes:
        family: The policy's family.
        device: Name of the device.
        steps: Control steps of an episode in the checks.
        results: In the order run.
        inert: State buffers that changed nothing when their value was taken from another episode,
            and why that may be so. Not a failure: the noise of a deterministic policy is inert.
    """

    family: str
    device: str
    steps: int
    results: tuple[Result, ...]
    inert: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """Whether every check ran and passed."""
        return all(result.status is Status.PASSED for result in self.results)

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of the checks that passed."""
        return tuple(item.name for item in self.results if item.status is Status.PASSED)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the checks that were not run."""
        return tuple(item.name for item in self.results if item.status is Status.SKIPPED)

    @property
    def failures(self) -> dict[str, tuple[str, ...]]:
        """Name of each check that failed, and its problems."""
        return {item.name: item.problems for item in self.results if item.status is Status.FAILED}

    def __str__(self) -> str:
        width = max(len(item.name) for item in self.results)
        lines = [f"policy {self.family!r} on {self.device}, episodes of {self.steps} steps"]
        for item in self.results:
            lines.append(f"  {item.status.value:7} {item.name:{width}}  {item.rule}")
            lines += [f"          {'':{width}}  - {problem}" for problem in item.problems]
        for name, reason in self.inert.items():
            lines.append(f"  inert   {name}: {reason}")
        count = len(self.results)
        verdict = "all kept" if self.ok else "NOT a sound policy"
        lines.append(f"{len(self.passed)} of {count} rules: {verdict}")
        return "\n".join(lines)
