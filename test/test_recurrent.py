"""Pins recurrent policies to a slow reference of robomimic's BC-RNN, and to torch's own cells.

The reference keeps its hidden state as robomimic does: ``None`` before the first use, a Python
counter, an ``if``. The policy under test keeps both in buffers. If they ever differ, a policy
trained there would act differently here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashrt_ros.policies.recurrent import RecurrentPolicy
from flashrt_ros.policies.recurrent_config import RecurrentConfig, VectorConfig
from flashrt_ros.policies.recurrent_network import RecurrentNetwork
from flashrt_ros.runtime.buffers import Role

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
