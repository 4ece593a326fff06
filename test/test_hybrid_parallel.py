"""A whole sequence in one pass, as training takes it, against the passes over state.

What is trained must be what is served: were one formula or one mask another, weights would come
out that drive a robot elsewhere, and nothing in the training would show it.
"""

from __future__ import annotations

import pytest
import torch
from hybrid_reference import Reference, small_model
from hybrid_run import Run
from test_hybrid_model import tokens_of
from test_hybrid_mtp import guessing_model

from flashrt_ros.policies.hybrid.decode import LAST
from flashrt_ros.policies.hybrid.mtp import HIDDEN
from flashrt_ros.policies.hybrid.parallel import drafted_values, hidden_values
from flashrt_ros.runtime.buffers import ROWS_LENGTH

SEQUENCES = [tokens_of(64, seed=seed) for seed in (1, 2, 3)]


def embedded(model, sequences=SEQUENCES):  # type: ignore[no-untyped-def]
    return model.embed(torch.tensor(sequences)).transpose(0, 1)


@torch.no_grad()
@pytest.mark.parametrize("heads", [(2, 4), (2, 2)])
@pytest.mark.parametrize("chunk", [16, 64])
def test_hidden_values_are_those_of_the_reference(heads: tuple[int, int], chunk: int) -> None:
    model = small_model(linear_num_key_heads=heads[0], linear_num_value_heads=heads[1])
    found_TBD = hidden_values(model, embedded(model), chunk)
    reference = Reference(model)
    for n, tokens in enumerate(SEQUENCES):
        expected_TD = reference.hidden(reference.embed(tokens)).float()
        torch.testing.assert_close(found_TBD[:, n], expected_TD, rtol=1e-4, atol=1e-4)
    # The control: a token changes nothing before it, and something in every row behind it.
    other = [[*SEQUENCES[0][:20], 5, *SEQUENCES[0][21:]], *SEQUENCES[1:]]
    moved_T = (hidden_values(model, embedded(model, other), chunk) - found_TBD).abs().amax(-1)
    assert moved_T[:20, 0].max() < 1e-5 < moved_T[20:, 0].min()
    assert moved_T[:, 1:].max() < 1e-5


@torch.no_grad()
def test_a_wiped_state_is_that_of_a_sequence_that_begins_there() -> None:
    model = small_model()
    wiped_TB = torch.zeros(64, 3, dtype=torch.bool)
    wiped_TB[37, 1] = True
    found_TBD = hidden_values(model, embedded(model), 16, wiped_TB)
    whole_TBD = hidden_values(model, embedded(model), 16)
    moved_TB = (found_TBD - whole_TBD).abs().amax(-1)
    assert moved_TB[:, 0].max() < 1e-5
    assert moved_TB[:37, 1].max() < 1e-5 < moved_TB[37:, 1].min()
    run = Run(model)
    run.prefill(SEQUENCES[1][:37])
    for name, tensor in run.state.items():
        if name.endswith(".recurrent"):
            tensor.zero_()
    run.prefill(SEQUENCES[1][37:])
    torch.testing.assert_close(model.logits(found_TBD[-1:, 1]), run.logits, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("make", [guessing_model, lambda: small_model(seed=2, mtp=True)])
def test_drafts_are_those_of_decoding(make) -> None:  # type: ignore[no-untyped-def]
    """Drafts of a round, from every prefix; what is drafted is the next token of the sequence."""
    model, drafts, tokens = make(), 3, SEQUENCES[0]
    hidden_TBD = hidden_values(model, embedded(model), 16)
    found = drafted_values(model, hidden_TBD, embedded(model), drafts)
    for first in (1, 7, 33):
        run = Run(model, drafts)
        run.prefill(tokens[:first])
        torch.testing.assert_close(run.state[HIDDEN], hidden_TBD[first - 1 : first, 0],
                                   rtol=1e-4, atol=1e-4)  # fmt: skip
        assert int(run.state[ROWS_LENGTH]) == first
        run.state[LAST].fill_(tokens[first])
        said: list[torch.Tensor] = []

        def choose(hidden_TD: torch.Tensor, first: int = first, said=said) -> torch.Tensor:  # type: ignore[no-untyped-def]
            said.append(hidden_TD)
            return torch.tensor([tokens[first + len(said)]])

        run.decoder.draft_(run.state, choose, model.embed)
        for n, drafted_1D in enumerate(said):
            expected = found[n][first + n, :1]
            torch.testing.assert_close(drafted_1D, expected, rtol=1e-3, atol=1e-3)
        # The control: the drafts differ from each other.
        assert (said[0] - said[1]).abs().max() > 0.01


def test_every_weight_learns() -> None:
    model = small_model(mtp=True)
    hidden_TBD = hidden_values(model, embedded(model), 16)
    drafts = drafted_values(model, hidden_TBD, embedded(model), 2)
    model.logits(torch.stack([hidden_TBD, *drafts])).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name
