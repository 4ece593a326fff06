"""Pins recurrent policies to a slow reference of robomimic's BC-RNN, and to torch's own cells.

The reference keeps its hidden state as robomimic does: ``None`` before the first use, a Python
counter, an ``if``. The policy under test keeps both in buffers. If they ever differ, a policy
trained there would act differently here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.recurrent import RecurrentPolicy
from flashrt_ros.policies.recurrent_config import RecurrentConfig, VectorConfig
from flashrt_ros.policies.recurrent_network import Mixture, RecurrentNetwork
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import Role
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

STATE = VectorConfig("observation.state", 3, ("a", "b", "c"), "rad", "mean_std")
CUE = VectorConfig("observation.cue", 2, (), "m", "min_max", required=False)
ACTION = VectorConfig("action", 2, ("a", "b"), "rad", "quantiles")
BASE = RecurrentConfig((STATE, CUE), ACTION, hidden_size=8, n_layers=2)


def trained(config: RecurrentConfig, seed: int = 0) -> RecurrentPolicy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = RecurrentNetwork(config)
        network.measure_(torch.randn(50, config.observation_size), torch.randn(50, 2) * 3 + 1)
    return RecurrentPolicy(config, network)


def allocate(policy: RecurrentPolicy) -> tuple[dict[str, torch.Tensor], ...]:
    roles = ({Role.STATE}, {Role.INPUT}, {Role.OUTPUT, Role.SCRATCH})
    return tuple(
        {s.name: torch.zeros(s.shape, dtype=s.dtype) for s in policy.layout() if s.role in wanted}
        for wanted in roles
    )


@torch.no_grad()
def run(policy: RecurrentPolicy, observation_TS: torch.Tensor) -> torch.Tensor:
    state, inputs, outputs = allocate(policy)
    policy.reset_(state)
    actions = []
    for row in observation_TS:
        inputs["observation.state"].copy_(row[:3])
        inputs["observation.cue"].copy_(row[3:])
        policy.act(state, inputs, outputs)
        actions.append(outputs["action"].clone())
    return torch.stack(actions)


@torch.no_grad()
def robomimic(policy: RecurrentPolicy, observation_TS: torch.Tensor) -> torch.Tensor:
    """``BC_RNN.get_action`` with torch's whole recurrence, one step at a time."""
    config, network = RecurrentConfig.from_dict(policy.config()), policy.module()
    hidden, counter, latched, actions = None, 0, None, []
    for row in observation_TS:
        if hidden is None or (config.horizon and counter % config.horizon == 0):
            hidden = None
            if config.open_loop:
                latched = row.clone()
        counter = counter + 1
        used = latched if config.open_loop else row
        action_B1A, hidden = network(used[None, None], hidden)
        actions.append(action_B1A[0, 0])
    return torch.stack(actions)


VARIANTS = {
    "gru": BASE,
    "lstm": replace(BASE, cell="lstm"),
    "mlps": replace(BASE, encoder_sizes=(16, 8), head_sizes=(16,), activation="elu", tanh=True),
    "horizon": replace(BASE, horizon=4),
    "lstm horizon": replace(BASE, cell="lstm", horizon=1),
    "open loop": replace(BASE, cell="lstm", horizon=5, open_loop=True),
    "likely mode": replace(BASE, head="gmm", draw="likely", horizon=3),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_acts_as_robomimic(name: str) -> None:
    policy = trained(VARIANTS[name])
    observation_TS = torch.randn(13, 5, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(run(policy, observation_TS), robomimic(policy, observation_TS))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_steps_equal_the_sequence_that_was_trained(cell: str) -> None:
    policy = trained(replace(BASE, cell=cell))
    observation_TS = torch.randn(20, 5, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        action_BTA, _ = policy.module()(observation_TS[None])
    torch.testing.assert_close(run(policy, observation_TS), action_BTA[0])


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_cells_are_those_of_torch(cell: str) -> None:
    network = trained(replace(BASE, cell=cell)).module()
    theirs = (nn.GRU if cell == "gru" else nn.LSTM)(5, 8, 2, batch_first=True)
    theirs.load_state_dict(network.recurrence.state_dict())
    x_BTS = torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(3))
    h, c = [torch.zeros(1, 8)] * 2, [torch.zeros(1, 8)] * 2
    with torch.no_grad():
        network.encode = lambda observation_BS: observation_BS
        steps = []
        for step in range(6):
            feature_BF, h, c = network.step(x_BTS[:, step], h, c)
            steps.append(feature_BF)
        expected, _ = theirs(x_BTS)
    torch.testing.assert_close(torch.stack(steps, dim=1), expected)


def test_controls_of_the_comparison_fail() -> None:
    observation_TS = torch.randn(13, 5, generator=torch.Generator().manual_seed(1))
    base = run(trained(BASE), observation_TS)
    for change in ({"horizon": 4}, {"horizon": 5, "open_loop": True}, {"cell": "lstm"}):
        other = run(trained(replace(BASE, **change)), observation_TS)
        assert not torch.allclose(base, other), change
    # Before the first reset a horizon changes nothing.
    assert torch.equal(base[:4], run(trained(replace(BASE, horizon=4)), observation_TS)[:4])


def test_a_horizon_forgets_even_what_is_not_a_number() -> None:
    policy = trained(replace(BASE, horizon=3))
    state, inputs, outputs = allocate(policy)
    policy.reset_(state)
    state["rnn.h.0"].fill_(float("nan"))
    with torch.no_grad():
        policy.act(state, inputs, outputs)
    assert torch.isfinite(outputs["action"]).all()


def mixture() -> Mixture:
    return Mixture(
        torch.tensor([0.2, -0.3, 0.5]),
        torch.tensor([[-1.5, 0.2], [0.1, 1.0], [1.0, -0.7]]),
        torch.tensor([[0.3, 0.2], [0.1, 0.6], [0.4, 0.3]]),
    )


def test_density_is_that_of_torch() -> None:
    ours = mixture()
    theirs = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=ours.logits_BK),
        torch.distributions.Independent(
            torch.distributions.Normal(ours.means_BKA, ours.stds_BKA), 1
        ),
    )
    x_NA = torch.randn(50, 2, generator=torch.Generator().manual_seed(5)) * 2
    torch.testing.assert_close(ours.log_density(x_NA), theirs.log_prob(x_NA))


def draws(source: Mixture, count: int) -> torch.Tensor:
    state = {"noise.key": torch.tensor([7]), "noise.counter": torch.tensor([0])}
    uniform_N1, normal_NA = torch.empty(count, 1), torch.empty(count, 2)
    noise.uniform_(uniform_N1, state)
    noise.normal_(normal_NA, state)
    many = Mixture(*(part.expand(count, *part.shape) for part in source))
    return many.draw(uniform_N1, normal_NA)


def distance(samples_N: torch.Tensor, source: Mixture, axis: int) -> float:
    """Kolmogorov and Smirnov's: greatest gap between the samples' and the true distribution."""
    x_N = samples_N.double().sort().values
    z_NK = (x_N[:, None] - source.means_BKA[:, axis]) / source.stds_BKA[:, axis]
    true_N = (torch.special.ndtr(z_NK) * source.logits_BK.softmax(-1)).sum(-1)
    seen_N = torch.arange(1, len(x_N) + 1, dtype=torch.float64) / len(x_N)
    return float((true_N - seen_N).abs().max())


def test_samples_are_distributed_as_the_density_says() -> None:
    source, count = mixture(), 40_000
    samples_NA = draws(source, count)
    # 1.63 / sqrt(N) is passed by 99 of 100 sound samplers; the seed is fixed.
    bound = 1.63 / count**0.5
    for axis in (0, 1):
        assert distance(samples_NA[:, axis], source, axis) < bound
        wider = source._replace(stds_BKA=source.stds_BKA * 1.1)
        assert distance(samples_NA[:, axis], wider, axis) > bound
    heavier = source._replace(logits_BK=source.logits_BK + torch.tensor([0.1, 0.0, 0.0]))
    assert max(distance(samples_NA[:, axis], heavier, axis) for axis in (0, 1)) > bound
    covariance = torch.cov(samples_NA.T)
    weights_K = source.logits_BK.softmax(-1)
    centred_KA = source.means_BKA - weights_K @ source.means_BKA
    expected = centred_KA.T @ (weights_K[:, None] * centred_KA)
    expected += (weights_K[:, None] * source.stds_BKA.square()).sum(0).diag()
    torch.testing.assert_close(covariance, expected, atol=0.02, rtol=0)


def test_every_mode_can_be_drawn_and_none_beyond_the_last() -> None:
    source = Mixture(torch.zeros(4), torch.arange(8.0).view(4, 2), torch.zeros(4, 2))
    edges = [0.0, 0.25, 0.5, 0.75, 1.0 - 2**-24]
    drawn = [source.draw(torch.tensor([u]), torch.zeros(2))[0].item() / 2 for u in edges]
    assert drawn == [0, 1, 2, 3, 3]
    # Rounding may leave the last cumulative weight below the greatest uniform.
    many = Mixture(torch.full((10_000,), 0.3), torch.zeros(10_000, 2), torch.ones(10_000, 2))
    assert torch.isfinite(many.draw(torch.tensor([1.0 - 2**-24]), torch.zeros(2))).all()


def test_a_step_draws_from_the_noise_of_its_state() -> None:
    policy = trained(replace(BASE, head="gmm", n_modes=3, tanh=True))
    session = PolicySession(policy, seed=3)
    row = {"observation.state": [0.1, 0.2, 0.3], "observation.cue": [0.5, -0.5]}
    before = {name: tensor.clone() for name, tensor in session.arena.state.items()}
    action = session.step(row).values
    network, uniform_1, normal_A = policy.module(), torch.empty(1), torch.empty(2)
    noise.uniform_(uniform_1, before)
    noise.normal_(normal_A, before)
    with torch.no_grad():
        observation_BS = torch.tensor([[0.1, 0.2, 0.3, 0.5, -0.5]])
        feature_BF, _, _ = network.step(observation_BS, [torch.zeros(1, 8)] * 2)
        drawn_BA = network.predict(feature_BF).draw(uniform_1[None], normal_A[None])
        assert torch.equal(action, network.action_normaliser.restore(drawn_BA)[0])
    assert torch.equal(session.arena.state["noise.counter"], before["noise.counter"])
    assert action.tolist() != PolicySession(policy, seed=4).step(row).values.tolist()


@pytest.mark.parametrize(
    "change",
    [*VARIANTS.values(), replace(BASE, head="gmm"), replace(BASE, head="gmm", horizon=6)],
)
def test_conforms(change: RecurrentConfig) -> None:
    report = check_policy(trained(change))
    assert report.ok, str(report)
    quiet = set() if change.draws_noise else {"noise.key", "noise.counter"}
    if change.horizon == 1:
        # Reset before each step: it has no memory, and the suite finds that out.
        assert set(report.inert) == set(allocate(trained(change))[0]) | quiet
    else:
        assert set(report.inert) == quiet


def test_training_and_control_share_statistics_and_loss() -> None:
    for change in ({}, {"head": "gmm"}, {"tanh": True, "open_loop": True, "horizon": 9}):
        config = replace(BASE, **change)
        network = trained(config).module()
        generator = torch.Generator().manual_seed(6)
        observation_BTS = torch.randn(16, 9, 5, generator=generator)
        action_BTA = observation_BTS[:, :1, :2] + observation_BTS[..., 2:4].cumsum(1) * 0.1
        mask_BT = torch.ones(16, 9)
        mask_BT[:, 5:] = 0
        optimiser = torch.optim.Adam(network.parameters(), 1e-2)
        before = network.loss(observation_BTS, action_BTA, mask_BT).item()
        for _ in range(60):
            optimiser.zero_grad()
            network.loss(observation_BTS, action_BTA, mask_BT).backward()
            optimiser.step()
        after = network.loss(observation_BTS, action_BTA, mask_BT).item()
        assert after < before - 0.02
        # What the mask hides has no influence.
        action_BTA[:, 5:] = 1e3
        assert network.loss(observation_BTS, action_BTA, mask_BT).item() == after
        assert network.loss(observation_BTS, action_BTA).item() > before


def test_an_open_loop_policy_learns_from_the_first_observation_only() -> None:
    network = trained(replace(BASE, open_loop=True, horizon=4)).module()
    observation_BTS = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(7))
    changed_BTS = observation_BTS.clone()
    changed_BTS[:, 1:] += 1
    action_BTA = torch.zeros(2, 4, 2)
    assert network.loss(observation_BTS, action_BTA) == network.loss(changed_BTS, action_BTA)
    network = trained(BASE).module()
    assert network.loss(observation_BTS, action_BTA) != network.loss(changed_BTS, action_BTA)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cell": "rnn"}, r"cell: expected one of \['gru', 'lstm'\], found 'rnn'"),
        ({"hidden_size": 0}, "hidden_size: expected a whole number of at least 1, found 0"),
        ({"n_layers": True}, "n_layers"),
        ({"min_std": 0.0}, "min_std: expected a number above 0"),
        ({"open_loop": True}, "horizon: expected at least 1, because open_loop is set"),
        ({"horizon": -1}, "horizon"),
        ({"observations": ()}, "observations: expected at least one"),
        ({"observations": (STATE, STATE)}, "names that differ"),
        ({"action": replace(ACTION, key="observation.cue")}, "names that differ"),
        ({"head": "mlp"}, "head"),
        ({"draw": "mode"}, "draw"),
    ],
)
def test_an_impossible_configuration_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        replace(BASE, **change)


def test_an_impossible_vector_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="x: names: expected 2 different names"):
        VectorConfig("x", 2, ("a", "a"))
    with pytest.raises(InvalidArgumentError, match="x: normalisation: expected one of"):
        VectorConfig("x", 2, normalisation="zscore")
