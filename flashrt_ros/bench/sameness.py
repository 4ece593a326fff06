"""Restore, then 200 steps: every byte of state and of every action equal, and what must differ.

At each of 100 random cut points the session is snapshotted, runs on, and after another episode is
restored and runs again over the same observations. The controls are the same comparison made
wrong: without the restore, and with one buffer left out of it (that buffer keeps its value from
the other episode). A buffer that then changes neither an action nor another buffer at any cut is
inert, and named. ``flashrt_ros ablate`` says more about any one policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.policies import SAMENESS, observations
from flashrt_ros.bench.report import Count, Result
from flashrt_ros.testing.ablation import FULL, NOTHING, SINGLE, ablate
from flashrt_ros.testing.episode import Observation

CUTS, STEPS, LATEST_CUT = 100, 200, 150


def run(options: Options) -> Result:
    """Compares every kind of policy at every cut."""
    result = Result("sameness", "restore, then the same steps again, byte for byte")
    cuts, steps = (3, 12) if options.quick else (CUTS, STEPS)
    for name, make in SAMENESS.items():
        report = ablate(make(), options.device, cuts, steps, _episode, latest=LATEST_CUT)
        equal, unrestored = cuts - report.find(FULL).differs, report.find(NOTHING).differs
        result.counts.append(Count(f"{name}: equal after restore", equal, cuts, "all"))
        result.counts.append(
            Count(f"{name}: control, no restore, differs", unrestored, cuts, "all")
        )
        for finding in report.findings:
            if finding.kind == SINGLE:
                case = f"{name}: control, {finding.name} left out, differs"
                target = ">= 1" if finding.differs else "inert"
                result.counts.append(Count(case, finding.differs, cuts, target))
    result.notes.append(f"{cuts} random cut points, {steps} steps after each; seeds are fixed.")
    return result


def _episode(index: int, steps: int) -> Sequence[Observation]:
    return [
        {key: torch.from_numpy(value) for key, value in row.items()}
        for row in observations(steps, seed=9 * index)
    ]
