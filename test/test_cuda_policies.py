"""The conformance suite on a GPU, where plans really are captured graphs.

Here ``plain`` compares captured with plain calls, and ``restore`` and ``forks`` run over replays.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from chunk_predictors import Looking, Remembering, Straight
from suspect_policies import Counter, Item, Learning, OldOutput, Planned, Sound
from test_recurrent import BASE, trained

from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.policies.recurrent_config import RecurrentConfig
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

pytestmark = pytest.mark.cuda

RECURRENT = {
    "gru": BASE,
    "lstm": replace(BASE, cell="lstm", encoder_sizes=(16,), head_sizes=(16,)),
    "horizon": replace(BASE, horizon=4),
    "open loop": replace(BASE, cell="lstm", horizon=5, open_loop=True, tanh=True),
    "gmm": replace(BASE, head="gmm", tanh=True),
    "gmm lstm": replace(BASE, head="gmm", cell="lstm", horizon=6),
    "likely": replace(BASE, head="gmm", draw="likely"),
    "wide": replace(BASE, hidden_size=512, n_layers=3, encoder_sizes=(512,), head_sizes=(512,)),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_conforms(name: str) -> None:
    report = check_policy(trained(RECURRENT[name]), device="cuda")
    assert report.ok, str(report)
    quiet = set() if RECURRENT[name].draws_noise else {"noise.key", "noise.counter"}
    assert set(report.inert) == quiet


@pytest.mark.parametrize("predictor", [Straight, Remembering, Looking])
def test_chunked_conforms(predictor: type[Straight]) -> None:
    report = check_policy(ChunkedPolicy(predictor(4), 3), device="cuda")
    assert report.ok, str(report)


@pytest.mark.parametrize("policy", [Sound, Planned])
def test_plain_policies_conform(policy: type[Policy]) -> None:
    report = check_policy(policy(), device="cuda")
    assert report.ok, str(report)


@pytest.mark.parametrize("config", [BASE, replace(BASE, cell="lstm", horizon=4)])
def test_a_gpu_acts_as_a_cpu_does_within_rounding(config: RecurrentConfig) -> None:
    rows = torch.randn(10, 5, generator=torch.Generator().manual_seed(1))
    runs = []
    for device in ("cpu", "cuda"):
        session = PolicySession(trained(config), device=device)
        runs.append(
            torch.stack(
                [
                    session.step({"observation.state": row[:3], "observation.cue": row[3:]}).values
                    for row in rows
                ]
            )
        )
        session.close()
    torch.testing.assert_close(*runs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("policy", "check"),
    [(Item, "host"), (OldOutput, "garbage"), (Learning, "parameters"), (Counter, "plain")],
)
def test_broken_policies_are_caught(policy: type[Policy], check: str) -> None:
    report = check_policy(policy(), device="cuda")
    assert check in report.failures, str(report)
