"""ACT checkpoints on a GPU: whole plans captured, and a capsule in the middle goes on bit-equally.

The suite compares captured with plain calls and restores over replays.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from act_files import SMALL, VARIANTS, observations, write_act

from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

pytestmark = pytest.mark.cuda


def rows_of(variant: str, count: int) -> list[dict[str, torch.Tensor]]:
    inputs: dict[str, Any] = {**SMALL, **VARIANTS[variant]}["input_features"]
    return list(itertools.islice(observations(inputs), count))


@pytest.mark.parametrize("variant", VARIANTS)
def test_conforms(tmp_path: Path, variant: str) -> None:
    report = check_policy(load_policy(write_act(tmp_path, **VARIANTS[variant])), device="cuda")
    assert report.ok, str(report)


@pytest.mark.parametrize("variant", ["everything", "ensemble", "pre-norm"])
def test_a_gpu_acts_as_a_cpu_does_within_rounding(tmp_path: Path, variant: str) -> None:
    directory = write_act(tmp_path, **VARIANTS[variant])
    runs = []
    for device in ("cpu", "cuda"):
        session = PolicySession(load_policy(directory), device=device)
        runs.append(torch.stack([session.step(row).values for row in rows_of(variant, 12)]))
        session.close()
    torch.testing.assert_close(*runs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("variant", ["camera", "ensemble"])
def test_a_capsule_in_the_middle(tmp_path: Path, variant: str) -> None:
    session = PolicySession(load_policy(write_act(tmp_path, **VARIANTS[variant])), device="cuda")
    rows = rows_of(variant, 30)
    for row in rows[:6]:
        session.step(row)
    session.snapshot("middle")
    first, unlike = (
        torch.stack([session.step(row).values for row in rows[6:18]]) for _ in range(2)
    )
    session.restore("middle")
    again = torch.stack([session.step(row).values for row in rows[6:18]])
    assert torch.equal(first, again)
    assert not torch.equal(first, unlike)
    session.close()
