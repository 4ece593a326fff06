"""A Diffusion Policy on a GPU: all denoising steps are one captured plan.

``plain`` of the conformance suite compares replays with plain calls bit for bit, ``restore`` and
``forks`` run over replays.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusion_files import CASES, config, observations, write

from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

pytestmark = pytest.mark.cuda


def run(session: PolicySession, name: str, first: int, last: int) -> torch.Tensor:
    seen = list(observations(config(**CASES[name]), last))
    return torch.stack([session.step(item).values for item in seen[first:]])


@pytest.mark.parametrize("name", CASES)
def test_conforms(name: str, tmp_path: Path) -> None:
    seen = list(observations(config(**CASES[name]), 12))
    policy = load_policy(write(tmp_path, **CASES[name]))
    report = check_policy(policy, device="cuda", observations=seen)
    assert report.ok, str(report)
    assert not report.inert


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_acts_as_a_cpu_does_within_rounding(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    directory = write(tmp_path, **CASES[name])
    runs = []
    for device in ("cpu", "cuda"):
        session = PolicySession(load_policy(directory), device=device, seed=5)
        runs.append(run(session, name, 0, 20))
        session.close()
    torch.testing.assert_close(*runs, rtol=0, atol=1e-3)
    assert (runs[0][0] - runs[0][9]).abs().max() > 0.01


def test_a_capsule_from_the_middle_of_a_chunk_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    name = "two cameras"
    session = PolicySession(load_policy(write(tmp_path, **CASES[name])), device="cuda", seed=3)
    run(session, name, 0, 11)
    session.snapshot("here")
    expected = run(session, name, 11, 40)
    assert not torch.equal(run(session, name, 11, 40), expected), "without a restore"
    session.restore("here")
    assert torch.equal(run(session, name, 11, 40), expected)
    session.close()
