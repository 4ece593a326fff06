"""Temporal ensembling over named state equals averaging all predictions of a step at the end.

The reference keeps every chunk that was ever planned, which no robot could; the module keeps one
row and one count for each step ahead. Chunks that come late must land on the steps they are for.
"""

from __future__ import annotations

import math

import pytest
import torch
from chunk_predictors import Remembering, Straight

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.policies.splice import COUNT, CURSOR, ENSEMBLE, TemporalEnsemble
from flashrt_ros.runtime.policy import PlanKind
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

H, A, KEY = 5, 2, "observation.state"


def chunks(count: int) -> torch.Tensor:
    return torch.randn(count, H, A, generator=torch.Generator().manual_seed(2))


def average(coefficient: float, predictions: list[torch.Tensor]) -> torch.Tensor:
    """Of the predictions for one control step, oldest first, in float64."""
    weights = torch.tensor([math.exp(-coefficient * i) for i in range(len(predictions))]).double()
    rows = torch.stack(predictions).double()
    return (weights[:, None] * rows).sum(0) / weights.sum()


def fresh(splice: TemporalEnsemble) -> dict[str, torch.Tensor]:
    specs = splice.layout((H, A), "rad")
    state = {spec.name: torch.ones(spec.shape, dtype=spec.dtype) for spec in specs}
    splice.reset_(state)
    return state


@pytest.mark.parametrize("coefficient", [0.0, 0.01, 0.7, -0.7])
@pytest.mark.parametrize("late", [0, 1, 3])
def test_the_average_of_all_predictions_of_a_step(coefficient: float, late: int) -> None:
    splice = TemporalEnsemble(coefficient, H)
    state = fresh(splice)
    planned = chunks(12)
    known: dict[int, list[torch.Tensor]] = {}
    for step in range(12):
        begun = step - (late if step else 0)
        if begun >= 0:
            for row in range(H):
                known.setdefault(begun + row, []).append(planned[step][row])
            # The first comes in time, or there would be nothing to take meanwhile.
            splice.join_(state, planned[step], torch.tensor([step - begun]))
        taken = splice.take_(state)
        torch.testing.assert_close(taken, average(coefficient, known[step]).float())


def test_a_late_chunk_taken_for_one_in_time_gives_other_actions() -> None:
    taken = []
    for consumed in (2, 0):
        splice = TemporalEnsemble(0.01, H)
        state = fresh(splice)
        splice.join_(state, chunks(2)[0], torch.tensor([0]))
        for _ in range(2):
            splice.take_(state)
        splice.join_(state, chunks(2)[1], torch.tensor([consumed]))
        taken.append(splice.take_(state))
    assert not torch.equal(*taken)


def test_counts_are_the_predictions_of_each_step() -> None:
    splice = TemporalEnsemble(0.01, H)
    state = fresh(splice)
    for expected in ([1] * 5, [2, 2, 2, 2, 1], [3, 3, 3, 2, 1]):
        splice.join_(state, chunks(1)[0], torch.tensor([0]))
        assert state[COUNT].tolist() == expected
        splice.take_(state)
    for _ in range(9):
        splice.join_(state, chunks(1)[0], torch.tensor([0]))
        splice.take_(state)
    assert state[COUNT].tolist() == [5, 4, 3, 2, 1]
    splice.reset_(state)
    assert not any(state[name].any() for name in (ENSEMBLE, COUNT, CURSOR))


@pytest.mark.parametrize("predictor", [Straight, Remembering])
def test_it_plans_in_each_step_and_conforms(predictor: type[Straight]) -> None:
    policy = ChunkedPolicy(predictor(H), splice=TemporalEnsemble(0.1, H))
    assert (policy.plan_kind, policy.n_action_steps) == (PlanKind.ADVANCES, 1)
    report = check_policy(policy)
    assert report.ok, str(report)
    if predictor is Straight:
        # All of the ensemble matters: a capsule without some of it goes on otherwise. Only the
        # next row is always the same one, with a plan in each step.
        assert set(report.inert) == {CURSOR, "noise.key", "noise.counter"}


def test_an_ensemble_differs_from_a_queue() -> None:
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(8))
    runs = []
    for splice in (TemporalEnsemble(0.1, H), None):
        session = PolicySession(ChunkedPolicy(Straight(H), 1, splice))
        runs.append([session.step({KEY: row}).values for row in rows])
    assert torch.equal(runs[0][0], runs[1][0])
    assert not torch.equal(runs[0][1], runs[1][1])


def test_what_cannot_be() -> None:
    with pytest.raises(InvalidArgumentError, match=r"n_action_steps: expected 1.*found 2"):
        ChunkedPolicy(Straight(H), 2, TemporalEnsemble(0.1, H))
    with pytest.raises(InvalidArgumentError, match=r"coeff: expected .* finite sum, found -90"):
        TemporalEnsemble(-90.0, H)


@pytest.mark.parametrize("n_action_steps", [2, 5])
def test_plans_beside_are_averaged_when_they_come(n_action_steps: int) -> None:
    splice = TemporalEnsemble(0.1, H)
    policy = ChunkedPolicy(Straight(H), n_action_steps, splice, beside=True)
    assert policy.plan_kind is PlanKind.BESIDE
    report = check_policy(policy)
    assert report.ok, str(report)
    session = PolicySession(policy)
    seen = torch.randn(9, 3, generator=torch.Generator().manual_seed(4))
    net = policy.module()["predictor"]
    with torch.no_grad():
        plans = {step: net(seen[step]).view(H, A) for step in range(9)}
    taken = [session.step({KEY: seen[step]}, 2, H).values for step in range(9)]
    # One is waited for; then one begins in every second step, and counts two steps later.
    for step, action in enumerate(taken):
        begun = [b for b in (0, *range(0, step - 1, 2)) if step - b < H]
        expected = average(0.1, [plans[b][step - b] for b in begun])
        torch.testing.assert_close(action, expected.float())


def test_plans_that_write_state_cannot_run_beside() -> None:
    with pytest.raises(InvalidArgumentError, match="beside: expected a predictor whose plans"):
        ChunkedPolicy(Remembering(H), splice=TemporalEnsemble(0.1, H), beside=True)
