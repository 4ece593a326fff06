"""Recurrent policies (GRU, LSTM), with the semantics of robomimic's BC-RNN.

At every control step one observation goes in and one action comes out. With a ``horizon`` the
hidden state is zeroed before steps 0, horizon, 2 * horizon, ... of an episode
(``ARISE-Initiative/robomimic:robomimic/algo/bc.py:BC_RNN.get_action``). There the reset is an
``if`` on a Python counter; here the counter is a state buffer and the reset a mask, so that the
step can be captured and the counter is in every capsule. Other differences: a sampled mixture
draws with its own standard deviations (robomimic's ``low_noise_eval`` replaces them by 1e-4;
the nearest to that here is ``draw = "likely"``), and a recurrence that is never reset is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.checkpoint import (
    CONFIG,
    read_config,
    read_weights_of,
    save_directory,
)
from flashrt_ros.policies.recurrent_config import FAMILY, RecurrentConfig, VectorConfig
from flashrt_ros.policies.recurrent_network import Mixture, RecurrentNetwork
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, PlanKind, Policy, Port, Ports

COUNTER = "rnn.counter"
LATCH = "rnn.open_loop_observation"
UNIFORM = "gmm.uniform"
NORMAL = "gmm.normal"


class RecurrentPolicy(Policy):
    """Runs a ``RecurrentNetwork`` over named buffers.

    State: ``rnn.h.<layer>`` ``(1, D)`` float32; ``rnn.c.<layer>`` the same for an LSTM;
    ``rnn.counter`` ``(1,)`` int64, control steps of the episode, where there is a horizon;
    ``rnn.open_loop_observation`` ``(1, S)`` float32, where the policy is open-loop; ``noise.*``
    where it samples.

    Args:
        config: See ``RecurrentConfig``.
        network: A trained network of that configuration; None for random weights, whose
            statistics must then be set.
    """

    family: ClassVar[str] = FAMILY
    plan_kind = PlanKind.NONE

    def __init__(self, config: RecurrentConfig, network: RecurrentNetwork | None = None) -> None:
        self._config = config
        self._network = (network or RecurrentNetwork(config)).eval()

    @classmethod
    def load(cls, directory: Path | str) -> RecurrentPolicy:
        """Reads a directory that ``save`` wrote.

        Raises:
            CheckpointError: A file is missing or damaged, or does not fit; names file and key.
        """
        directory = Path(directory)
        config = RecurrentConfig.from_dict(read_config(directory), str(directory / CONFIG))
        weights = read_weights_of(lambda: RecurrentNetwork(config), directory)
        policy = cls(config)
        policy._network.load_state_dict(weights)
        policy._network.require_statistics(str(directory))
        return policy

    def save(self, directory: Path | str) -> None:
        """Writes ``config.json`` and ``model.safetensors``.

        Raises:
            CheckpointError: Normalisation statistics were never set.
            StorageError: Writing failed.
        """
        self._network.require_statistics("policy")
        save_directory(Path(directory), self._config.to_dict(), self._network)

    def config(self) -> Mapping[str, object]:
        """The content of ``config.json``."""
        return self._config.to_dict()

    def module(self) -> RecurrentNetwork:
        """The network."""
        return self._network

    def layout(self) -> tuple[BufferSpec, ...]:
        """See the class."""
        config, hidden = self._config, (1, self._config.hidden_size)
        letters = ("h",) if config.cell == "gru" else ("h", "c")
        specs = [
            BufferSpec(f"rnn.{letter}.{layer}", hidden, torch.float32, Role.STATE)
            for letter in letters
            for layer in range(config.n_layers)
        ]
        if config.horizon:
            specs.append(BufferSpec(COUNTER, (1,), torch.int64, Role.STATE, "control steps"))
        if config.open_loop:
            latch = (1, config.observation_size)
            specs.append(BufferSpec(LATCH, latch, torch.float32, Role.STATE))
        if config.draws_noise:
            specs += [
                *noise.NOISE_SPECS,
                BufferSpec(UNIFORM, (1,), torch.float32, Role.SCRATCH),
                BufferSpec(NORMAL, (config.action.size,), torch.float32, Role.SCRATCH),
            ]
        for vector in config.observations:
            shape = (vector.size,)
            specs.append(BufferSpec(vector.key, shape, torch.float32, Role.INPUT, vector.unit))
        action = config.action
        specs.append(
            BufferSpec(action.key, (action.size,), torch.float32, Role.OUTPUT, action.unit)
        )
        return tuple(specs)

    def ports(self) -> Ports:
        """One port per vector of the configuration; buffers are named as the keys are."""

        def port(vector: VectorConfig) -> Port:
            shape = (vector.size,)
            return Port(vector.key, vector.key, shape, vector.names, vector.unit, vector.required)

        observations = tuple(port(vector) for vector in self._config.observations)
        return Ports(observations, port(self._config.action))

    def reset_(self, state: Buffers) -> None:
        """Zeroes everything but the noise."""
        for name, tensor in state.items():
            if not name.startswith("noise."):
                tensor.zero_()

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        """One control step; see ``Policy.act``."""
        config = self._config
        observation_BS = torch.cat([inputs[vector.key] for vector in config.observations])[None]
        h_BD = [state[f"rnn.h.{layer}"] for layer in range(config.n_layers)]
        c_BD = [
            state[f"rnn.c.{layer}"] for layer in range(config.n_layers) if config.cell == "lstm"
        ]
        h_in, c_in = h_BD, c_BD
        if config.horizon:
            counter_1 = state[COUNTER]
            fresh_1 = counter_1 % config.horizon == 0
            # Filled, not multiplied by zero, so that a NaN does not outlive the reset.
            h_in = [h.masked_fill(fresh_1, 0.0) for h in h_BD]
            c_in = [c.masked_fill(fresh_1, 0.0) for c in c_BD]
            if config.open_loop:
                state[LATCH].copy_(torch.where(fresh_1, observation_BS, state[LATCH]))
                observation_BS = state[LATCH]
            counter_1.add_(1)
        feature_BF, new_h, new_c = self._network.step(observation_BS, h_in, c_in)
        for buffer, value in zip([*h_BD, *c_BD], [*new_h, *new_c], strict=True):
            buffer.copy_(value)
        prediction = self._network.predict(feature_BF)
        if isinstance(prediction, Mixture):
            prediction = self._choose(prediction, state, outputs)
        action_BA = self._network.action_normaliser.restore(prediction)
        outputs[config.action.key].copy_(action_BA[0])

    def _choose(self, mixture: Mixture, state: Buffers, outputs: Buffers) -> torch.Tensor:
        if not self._config.draws_noise:
            return mixture.likely()
        noise.uniform_(outputs[UNIFORM], state)
        noise.normal_(outputs[NORMAL], state)
        return mixture.draw(outputs[UNIFORM][None], outputs[NORMAL][None])


def make(directory: Path | None) -> RecurrentPolicy:
    """Factory of the registered name ``recurrent``.

    Raises:
        CheckpointError: No directory was given, or it is wrong; see ``RecurrentPolicy.load``.
    """
    if directory is None:
        raise CheckpointError(
            f"policy 'recurrent' needs weights: name the directory that holds {CONFIG}"
        )
    return RecurrentPolicy.load(directory)
