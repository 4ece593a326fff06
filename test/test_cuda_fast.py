"""The fast arithmetic on a GPU: near the exact one, captured whole, and bit-equal within itself.

A capsule belongs to its arithmetic: restored into the other one it is refused, unless an inexact
continuation is asked for. Which fused kernels were taken is part of that, so the Triton kernel is
compared with torch's operators.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from fast_policies import NAMES, write_named

from flashrt_ros.errors import ExecMismatchError
from flashrt_ros.policies.fast import deviation, norm
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

pytestmark = pytest.mark.cuda
FEW = ["act: everything", "act: ensemble", "diffusion: two cameras", "diffusion: ddim"]


def observations(policy: Any, count: int) -> list[dict[str, torch.Tensor]]:
    normaliser = policy._predictor._normaliser
    found = deviation.random_observations(policy.ports().observations, normaliser, seed=7)
    return list(itertools.islice(found, count))


@pytest.mark.parametrize("name", NAMES)
def test_near_the_exact_one(name: str, tmp_path: Path) -> None:
    policy: Any = load_policy(write_named(tmp_path, name), numerics="fast")
    device = torch.device("cuda:0")
    policy.module().to(device)
    policy.probe(device)
    (words,) = policy.remarks
    assert "8 observations" in words
    found = policy.compare(20, device)
    assert 0 < found.share <= deviation.LIMIT, found.words


@pytest.mark.parametrize("name", FEW)
def test_conforms(name: str, tmp_path: Path) -> None:
    report = check_policy(load_policy(write_named(tmp_path, name), numerics="fast"), device="cuda")
    assert report.ok, str(report)


@pytest.mark.parametrize("name", FEW)
def test_capsules_belong_to_their_arithmetic(name: str, tmp_path: Path) -> None:
    directory = write_named(tmp_path, name)
    fast, exact = (
        PolicySession(load_policy(directory, numerics=numerics), device="cuda", seed=3)
        for numerics in ("fast", "exact")
    )
    assert fast.state_id == exact.state_id
    rows = observations(fast.policy, 30)

    def run(session: PolicySession, first: int, last: int) -> torch.Tensor:
        return torch.stack([session.step(row).values for row in rows[first:last]])

    run(fast, 0, 11)
    fast.snapshot("here")
    expected = run(fast, 11, 30)
    assert not torch.equal(run(fast, 11, 30), expected), "without a restore"
    fast.restore("here")
    assert torch.equal(run(fast, 11, 30), expected)
    image = fast.export("here")
    with pytest.raises(ExecMismatchError, match=r"policy\.numerics"):
        exact.import_(image, "other")
    exact.import_(image, "other", allow_inexact=True)
    exact.restore("other", allow_inexact=True)
    again = run(exact, 11, 30)
    assert not torch.equal(again, expected)
    torch.testing.assert_close(again, expected, rtol=0, atol=0.1)
    for session in (fast, exact):
        session.close()


@pytest.mark.parametrize("taps", [0, 3, 5])
@pytest.mark.parametrize("shape", [(16, 512, 8), (4, 2048, 8), (7, 48, 3), (1, 16, 8)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_kernel_does_what_torch_does(
    dtype: torch.dtype, shape: tuple[int, int, int], taps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm_mish = pytest.importorskip("flashrt_ros.policies.fast.norm_kernel").norm_mish
    rows, channels, groups = shape
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, device="cuda")

    x, residual = (draw(rows, channels).to(dtype) for _ in range(2))
    weight, bias, scale, shift = (draw(channels) for _ in range(4))
    monkeypatch.setattr(norm, "triton_found", lambda: False)
    close = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {}
    for film in (None, (None, shift), (scale, shift)):
        for more in (None, residual):
            arguments = (x, weight, bias, groups, 1e-5, film, more, taps)
            for found, expected in zip(
                norm_mish(*arguments), norm.norm_mish(*arguments), strict=True
            ):
                torch.testing.assert_close(found, expected, **close)
