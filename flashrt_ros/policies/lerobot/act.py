"""ACT checkpoints as policies: the network, its normalisation, and a queue or an ensemble."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from flashrt_ros.errors import CheckpointError, InvalidArgumentError
from flashrt_ros.policies.checkpoint import WEIGHTS
from flashrt_ros.policies.chunked import ACTION, ChunkedPolicy
from flashrt_ros.policies.fast import deviation
from flashrt_ros.policies.fast.act import FastACT
from flashrt_ros.policies.fast.mode import DTYPE, Numerics, words
from flashrt_ros.policies.fast.predictor import FastPredictor
from flashrt_ros.policies.lerobot.act_config import ACTConfig, read_act_config
from flashrt_ros.policies.lerobot.act_network import ACTNetwork
from flashrt_ros.policies.lerobot.checkpoint import LeRobotCheckpoint
from flashrt_ros.policies.lerobot.feature import Feature
from flashrt_ros.policies.lerobot.normalisation import CheckpointNormaliser, make_normaliser
from flashrt_ros.policies.lerobot.relative import read_relative
from flashrt_ros.policies.lerobot.weights import check_fit, load_into
from flashrt_ros.policies.splice import Splice, TemporalEnsemble
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, Port

PREFIX = "model."
ONLY_FOR_TRAINING = ("model.vae_encoder*", "*.num_batches_tracked")


class ACTPredictor(FastPredictor):
    """Predicts a chunk from the present observation alone; it keeps no state.

    Args:
        config: See ``ACTConfig``.
        network: With its weights.
        normaliser: Of the same checkpoint.
        fast: The network in another arithmetic, which then predicts; None: the network does.

    Raises:
        UnsupportedError: It is to be fast, but the range of the action is not known.
    """

    family: ClassVar[str] = "act"

    def __init__(
        self,
        config: ACTConfig,
        network: ACTNetwork,
        normaliser: CheckpointNormaliser,
        fast: FastACT | None = None,
    ) -> None:
        self.chunk_size = config.chunk_size
        self._fast = fast
        self._config = config
        self._network = network
        self._normaliser = normaliser
        self._module = nn.ModuleDict({"model": network, "normaliser": normaliser}).eval()
        if fast is not None:
            deviation.check_range(normaliser.width_A, self.family)
            self.exact = ACTPredictor(config, network, normaliser)
            self.numerics = words(fast.dtype)
            self._module["fast"] = fast
        vectors = (config.state, config.environment)
        self._features = (*(f for f in vectors if f is not None), *config.images)

    def config(self) -> Mapping[str, object]:
        """Sizes, choices and modes of normalisation; its statistics are among the weights."""
        return {"act": self._config.to_dict(), "normalisation": self._normaliser.modes()}

    def module(self) -> nn.Module:
        """Network and normaliser."""
        return self._module

    def layout(self) -> tuple[BufferSpec, ...]:
        """An input for each feature."""
        return tuple(
            BufferSpec(feature.name, feature.shape, torch.float32, Role.INPUT)
            for feature in self._features
        )

    def observations(self) -> tuple[Port, ...]:
        """A port for each feature; images are ``(3, H, W)`` from 0 to 1."""
        return tuple(Port(f.name, f.name, f.shape, f.names) for f in self._features)

    def action(self) -> Port:
        """The checkpoint's."""
        action = self._config.action
        return Port(ACTION, ACTION, action.shape, action.names)

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        """Predicts in the network's range."""

        def seen(feature: Feature | None) -> torch.Tensor | None:
            if feature is None:
                return None
            return self._normaliser.normalise(feature.name, inputs[feature.name])

        config = self._config
        images = [
            self._normaliser.normalise(image.name, inputs[image.name]) for image in config.images
        ]
        network = self._network if self._fast is None else self._fast
        chunk_HA.copy_(network(seen(config.state), seen(config.environment), images))

    def restore(self, actions: torch.Tensor) -> torch.Tensor:
        """Actions in the units of the port."""
        return self._normaliser.restore(actions)


def make(checkpoint: LeRobotCheckpoint, numerics: Numerics = Numerics.EXACT) -> ChunkedPolicy:
    """Makes the policy of an ACT checkpoint.

    Raises:
        CheckpointError: Something needed is missing, ill-shaped or contradictory; names it.
        UnsupportedError: It cannot be fast.
    """
    config = read_act_config(checkpoint)
    splice: Splice | None = None
    if config.temporal_ensemble_coeff is not None:
        try:
            splice = TemporalEnsemble(config.temporal_ensemble_coeff, config.chunk_size)
        except InvalidArgumentError as error:
            place = checkpoint.settings.place("temporal_ensemble_coeff")
            raise CheckpointError(f"{place}: {error}") from None
    normaliser = make_normaliser(checkpoint)
    tensors, where = checkpoint.tensors(), str(checkpoint.directory / WEIGHTS)
    with torch.device("meta"):
        # Without memory: a configuration that is not the weights' may ask for any amount.
        check_fit(ACTNetwork(config), tensors, PREFIX, ONLY_FOR_TRAINING, where)
    network = ACTNetwork(config)
    load_into(network, tensors, PREFIX, ONLY_FOR_TRAINING, where)
    fast = FastACT(network, DTYPE) if numerics is Numerics.FAST else None
    return ChunkedPolicy(
        ACTPredictor(config, network, normaliser, fast),
        config.n_action_steps,
        splice,
        relative=read_relative(checkpoint),
    )
