"""ACT with random weights and two cameras, planned and averaged in every control step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from flashrt_ros.bench.camera_policy import CAMERAS
from flashrt_ros.bench.policies import ACTION_SIZE, OBSERVATION, OBSERVATION_SIZE
from flashrt_ros.policies.chunked import ACTION, ChunkedPolicy, ChunkPredictor
from flashrt_ros.policies.lerobot.act_config import ACTConfig
from flashrt_ros.policies.lerobot.act_network import ACTNetwork
from flashrt_ros.policies.lerobot.feature import Feature, Kind
from flashrt_ros.policies.splice import TemporalEnsemble
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.policy import Buffers, Policy, Port

COEFFICIENT = 0.01
"""Of the average over chunks, as in the paper."""
SMALL_CHW, LARGE_CHW = (3, 32, 48), (3, 480, 640)


class RandomACT(ChunkPredictor):
    """An ACT network without normalisation.

    Args:
        image: ``(C, H, W)`` of both cameras.
        width: Of the transformer; the feed-forward layers are 6.25 times as wide.
        chunk_size: Rows predicted.
        encoder_layers: Of the transformer.
    """

    family: ClassVar[str] = "bench_act"

    def __init__(
        self, image: tuple[int, int, int], width: int, chunk_size: int, encoder_layers: int
    ) -> None:
        self.chunk_size = chunk_size
        self._images = tuple(
            Feature(f"observation.images.{name}", Kind.VISUAL, image) for name in CAMERAS
        )
        self._config = ACTConfig(
            state=Feature(OBSERVATION, Kind.STATE, (OBSERVATION_SIZE,)),
            environment=None,
            images=self._images,
            action=Feature("action", Kind.ACTION, (ACTION_SIZE,)),
            chunk_size=chunk_size,
            n_action_steps=1,
            temporal_ensemble_coeff=COEFFICIENT,
            vision_backbone="resnet18",
            replace_final_stride_with_dilation=False,
            pre_norm=False,
            dim_model=width,
            n_heads=8,
            dim_feedforward=25 * width // 4,
            feedforward_activation="relu",
            n_encoder_layers=encoder_layers,
            n_decoder_layers=1,
            latent_dim=32,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self._network = ACTNetwork(self._config).eval()

    def config(self) -> Mapping[str, object]:
        """Of the network."""
        return self._config.to_dict()

    def module(self) -> nn.Module:
        """The network."""
        return self._network

    def layout(self) -> tuple[BufferSpec, ...]:
        """A vector and two images."""
        vector = BufferSpec(OBSERVATION, (OBSERVATION_SIZE,), torch.float32, Role.INPUT)
        images = (BufferSpec(f.name, f.shape, torch.float32, Role.INPUT) for f in self._images)
        return (vector, *images)

    def observations(self) -> tuple[Port, ...]:
        """As ``layout``."""
        images = (Port(f.name, f.name, f.shape) for f in self._images)
        return (Port(OBSERVATION, OBSERVATION, (OBSERVATION_SIZE,)), *images)

    def action(self) -> Port:
        """Seven elements."""
        return Port("action", ACTION, (ACTION_SIZE,))

    def predict(
        self, state: Buffers, inputs: Buffers, chunk_HA: torch.Tensor, outputs: Buffers
    ) -> None:
        """See ``ChunkPredictor.predict``."""
        images = [inputs[feature.name] for feature in self._images]
        chunk_HA.copy_(self._network(inputs[OBSERVATION], None, images))


def small() -> Policy:
    """For a CPU: it runs, and that is all."""
    return _ensembled(RandomACT(SMALL_CHW, 64, 16, 1))


def large() -> Policy:
    """LeRobot's default sizes: 34 M parameters without the encoder that only training runs."""
    return _ensembled(RandomACT(LARGE_CHW, 512, 100, 4))


def _ensembled(predictor: RandomACT) -> Policy:
    return ChunkedPolicy(predictor, splice=TemporalEnsemble(COEFFICIENT, predictor.chunk_size))
