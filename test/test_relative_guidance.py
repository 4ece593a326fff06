"""Real-time chunking of relative actions: the chunk under way is told from the state of now.

A chunk is relative to what the robot's state was at its plan. The reference keeps chunks in
Python, absolute, and takes the present state off before each plan, in LeRobot's order: subtract,
then normalise. A plan that was drawn to the rows as they were predicted would differ from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusion_files import STATE, config, observations
from test_diffusion_policy import given
from test_real_time import RTC, diffusion
from test_relative import make_relative

from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.policies.diffusion.checkpoint import make, make_predictor
from flashrt_ros.policies.diffusion.predictor import DiffusionPredictor
from flashrt_ros.policies.guidance import Prefix, prefix_weights
from flashrt_ros.policies.lerobot.checkpoint import read_checkpoint
from flashrt_ros.policies.lerobot.relative import read_relative
from flashrt_ros.policies.normalisation import STATISTICS, Normalisation, Normaliser
from flashrt_ros.policies.relative import REFERENCE
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

H, A, DELAY, STEPS = 15, 2, 3, 40
MASK = torch.tensor([1.0, 0.0])
WHOLE = {"n_action_steps": H}


def checkpoint(directory: Path, **options: Any) -> Path:
    """Guided; the first of two elements is relative."""
    path = diffusion(directory, RTC, **{**WHOLE, **options})
    return make_relative(path, exclude_joints=["grip"], action_names=["arm", "grip"])


def fixed(path: Path) -> tuple[ChunkedPolicy, DiffusionPredictor, torch.Tensor]:
    """The policy, its predictor, and the noise that it gets in every plan."""
    found = read_checkpoint(path)
    relative = read_relative(found)
    predictor = make_predictor(found, relative=relative)
    noise = given(predictor)
    return ChunkedPolicy(predictor, H, relative=relative), predictor, noise


@torch.no_grad()
def reference(
    predictor: DiffusionPredictor,
    noise_NBHA: torch.Tensor,
    seen: list[dict[str, torch.Tensor]],
    from_now: bool,
) -> torch.Tensor:
    """Actions of chunks kept in Python, planned with ``DELAY`` rows left and joined so much later.

    Args:
        predictor: Its network and normalisers are used.
        noise_NBHA: Of every plan.
        seen: An observation for each control step.
        from_now: Whether the chunk under way is made relative to the state of the new plan, or
            stays so to that of its own.
    """
    network, normaliser = predictor.module()["diffusion"], predictor.module()["normaliser"]
    last_HA: torch.Tensor | None = None
    coming_HA: torch.Tensor | None = None
    cursor, age, then_A, actions = 0, 0, torch.zeros(A), []
    for step, observation in enumerate(seen):
        if coming_HA is not None and age == DELAY:
            last_HA, coming_HA, cursor = coming_HA, None, DELAY
        left = 0 if last_HA is None else H - cursor
        if coming_HA is None and left <= DELAY:
            now_A = observation[STATE][:A] * MASK
            rows_HA, weights_H = torch.zeros(H + 1, A), torch.zeros(H + 1)
            if left and last_HA is not None:
                told_HA = last_HA[cursor:] - (now_A if from_now else then_A)
                rows_HA[1 : 1 + left] = normaliser.action.normalise(told_HA)
                end = torch.tensor([min(RTC["execution_horizon"], left)])
                weights_H[1:] = prefix_weights("LINEAR", torch.tensor([DELAY]), end, H)
            both = {k: torch.stack([seen[max(0, step - 1)][k], v]) for k, v in observation.items()}
            both = {name: normaliser.normalise(name, value) for name, value in both.items()}
            condition = network.condition(both[STATE], [], both["observation.environment_state"])
            prefix = Prefix(rows_HA.unsqueeze(0), weights_H, RTC["max_guidance_weight"])
            sample_HA = network.sample(condition, noise_NBHA, prefix)[0, 1:]
            coming_HA, then_A, age = normaliser.restore(sample_HA) + now_A, now_A, 0
            if not left:
                last_HA, coming_HA, cursor = coming_HA, None, 0
        assert last_HA is not None
        actions.append(last_HA[cursor])
        cursor, age = cursor + 1, age + 1
    return torch.stack(actions)


def test_plans_are_drawn_to_what_is_executed_meanwhile(tmp_path: Path) -> None:
    policy, predictor, noise = fixed(checkpoint(tmp_path))
    seen = list(observations(config(), STEPS))
    session = PolicySession(policy)
    found = torch.stack([session.step(row, DELAY).values for row in seen])
    # Rounding: the reference goes through absolute actions, and each chunk feeds the next.
    expected = reference(predictor, noise, seen, from_now=True)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    other = reference(predictor, noise, seen, from_now=False)
    assert torch.equal(other[:H], expected[:H]), "the first chunk has nothing to keep to"
    assert float((other - expected)[H:].abs().max()) > 0.05


def test_of_a_robot_that_stands_still_they_are_the_plain_ones_to_the_bit(tmp_path: Path) -> None:
    seen = list(observations(config(), STEPS))
    for row in seen:
        row[STATE] = seen[0][STATE]
    plain, relative = (
        PolicySession(make(read_checkpoint(path)), seed=3)
        for path in (diffusion(tmp_path / "a", RTC, **WHOLE), checkpoint(tmp_path / "b"))
    )
    for row in seen:
        expected = plain.step(row, DELAY).values + row[STATE][:A] * MASK
        assert torch.equal(relative.step(row, DELAY).values, expected)


def test_what_the_chunk_is_relative_to_is_in_the_capsule(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, n_action_steps=8, num_inference_steps=2)
    report = check_policy(make(read_checkpoint(path)))
    assert report.ok, str(report)
    session = PolicySession(make(read_checkpoint(path)), seed=3)
    seen = list(observations(config(), STEPS))
    for row in seen[:6]:
        session.step(row, DELAY)
    if session.planning:
        session.withdraw_plan()
    session.snapshot("cut")

    def onwards() -> torch.Tensor:
        return torch.stack([session.step(row, DELAY).values for row in seen[6:30]])

    first = onwards()
    session.restore("cut")
    assert torch.equal(onwards(), first)
    session.restore("cut")
    session.arena.state[REFERENCE].zero_()
    assert not torch.equal(onwards(), first)


@pytest.mark.parametrize("mode", Normalisation)
def test_a_difference_is_that_of_two_values(mode: Normalisation) -> None:
    normaliser = Normaliser(mode, 3)
    if STATISTICS[mode]:
        low, high = STATISTICS[mode]
        # The second element never moved in the training data.
        moved = {"mean": [0.5, 2.0, -1.0], "std": [0.3, 0.0, 2.0]}
        limits = {low: [-1.0, 2.0, 0.0], high: [2.0, 2.0, 0.5]}
        normaliser.set_(moved if mode is Normalisation.MEAN_STD else limits)
    one, other = torch.tensor([0.1, 2.0, 0.3]), torch.tensor([0.7, 2.5, -0.2])
    found = normaliser.normalise_difference(other - one)
    expected = normaliser.normalise(other) - normaliser.normalise(one)
    if STATISTICS[mode]:
        assert found[1] == 0
        assert abs(expected[1]) > 1e6, "what one step of the robot would be worth otherwise"
        found, expected = found[[0, 2]], expected[[0, 2]]
    torch.testing.assert_close(found, expected)
