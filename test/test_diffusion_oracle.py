"""Our Diffusion Policy gives LeRobot's actions to the last bit, given the same noise, on the CPU.

LeRobot reads the checkpoints of the tests with its own processors, deques and schedulers, over 52
control steps and more than six plans. Its noise is what our runtime draws in the same plan.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from diffusion_files import CASES, config, observations, write
from lerobot_oracle import Oracle, oracle

from flashrt_ros.policies.diffusion.predictor import NOISE
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.session import PolicySession

pytestmark = oracle

SEED, STEPS = 5, 52


def drawn(session: PolicySession) -> Iterator[torch.Tensor]:
    """The noise of each plan of an episode, ``(draws, 1, H, A)``."""
    shape = session.layout.find(NOISE).shape
    state = {"noise.key": torch.tensor([SEED]), "noise.counter": torch.tensor([0])}
    while True:
        noise.normal_(plan := torch.empty(shape), state)
        yield plan


def feed(theirs: Oracle, plans: Iterator[torch.Tensor], patch: pytest.MonkeyPatch) -> None:
    """Lets LeRobot take this noise: its argument, and what the scheduler draws in each step."""
    scheduler = importlib.import_module("diffusers.schedulers.scheduling_ddpm")
    predict = theirs.policy.predict_action_chunk

    def predict_fed(batch: dict[str, torch.Tensor], noise: None = None) -> torch.Tensor:
        first, *added = next(plans)
        left = iter(added)
        patch.setattr(scheduler, "randn_tensor", lambda *_, **__: next(left))
        chunk: torch.Tensor = predict(batch, noise=first)
        assert not list(left), "LeRobot draws less than we do"
        return chunk

    patch.setattr(theirs.policy, "predict_action_chunk", predict_fed)


@pytest.mark.parametrize("name", CASES)
def test_actions_are_bit_equal(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write(tmp_path, **CASES[name])
    policy = load_policy(directory)
    session = PolicySession(policy, seed=SEED, rollback_depth=0, warm_up=0)
    rows = list(observations(config(**CASES[name]), STEPS))

    def ours(seed: int) -> torch.Tensor:
        session.reset_(seed=seed)
        return torch.stack([session.step(row).values for row in rows])

    theirs = Oracle(directory)
    feed(theirs, drawn(session), monkeypatch)
    expected = theirs.run(rows)
    assert 6 * policy.n_action_steps < STEPS
    assert torch.equal(ours(SEED), expected)
    # The controls: other noise, another observation between two plans, another bias.
    assert (ours(SEED + 1) - expected).abs().max() > 0.05
    steps = policy.n_action_steps
    rows[steps] = rows[0]
    changed = ours(SEED)
    assert torch.equal(changed[:steps], expected[:steps])
    assert not torch.equal(changed[steps:], expected[steps:])
    with torch.no_grad():
        policy.module().get_parameter("diffusion.unet.final_conv.1.bias").add_(0.01)
    assert (ours(SEED) - expected).abs().max() > 1e-3
