"""What a robot's hybrid policy adds to its language model: observations in, actions out.

Tensor suffixes: T tokens, D width of the model, A action.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.policies.hybrid.robot_config import ImageConfig, RobotConfig
from flashrt_ros.policies.normalisation import Normalisation, Normaliser
from flashrt_ros.runtime.policy import Buffers

_CHANNELS = 64


class ImageStem(nn.Module):
    """An image to a few tokens: patches, one mixing convolution, a mean over each cell."""

    def __init__(self, config: ImageConfig, width: int) -> None:
        super().__init__()
        cells = config.patch * config.grid
        self.cell = (config.height // cells, config.width // cells)
        self.patches = nn.Conv2d(3, _CHANNELS, config.patch, config.patch)
        self.mix = nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1)
        self.project = nn.Linear(_CHANNELS, width)
        self.place = nn.Parameter(0.02 * torch.randn(config.grid**2, width))

    def forward(self, image_CHW: torch.Tensor) -> torch.Tensor:
        """``(3, H, W)`` from 0 to 1 to ``(T, D)``, cells row by row."""
        x = functional.gelu(self.patches(2.0 * image_CHW.unsqueeze(0) - 1.0))
        x = functional.gelu(self.mix(x))
        cells_TC = functional.avg_pool2d(x, self.cell)[0].flatten(1).t()
        return torch.as_tensor(self.project(cells_TC)) + self.place


class RobotNetwork(nn.Module):
    """Language model, projections of the observations, and the bounds of the action.

    Args:
        config: See ``RobotConfig``.
        language: A trained language model of ``config.model``; None for random weights.
    """

    def __init__(self, config: RobotConfig, language: HybridModel | None = None) -> None:
        super().__init__()
        width = config.model.hidden_size
        self.config = config
        self.language = HybridModel(config.model) if language is None else language
        self.normalisers = nn.ModuleList(
            Normaliser(Normalisation(vector.normalisation), vector.size)
            for vector in config.observations
        )
        self.projections = nn.ModuleList(
            nn.Linear(vector.size, width) for vector in config.observations
        )
        self.stems = nn.ModuleList(ImageStem(image, width) for image in config.images)
        mode = Normalisation(config.action.normalisation)
        self.action_normaliser = Normaliser(mode, config.action.size)

    def require_statistics(self, where: str) -> None:
        """Refuses statistics that were never set.

        Raises:
            CheckpointError: As ``Normaliser.require``.
        """
        pairs = zip(self.normalisers, self.config.observations, strict=True)
        for normaliser, vector in (*pairs, (self.action_normaliser, self.config.action)):
            assert isinstance(normaliser, Normaliser)
            normaliser.require(f"{where}: {vector.key}")

    def observe(self, inputs: Buffers) -> torch.Tensor:
        """Returns the tokens of one observation, ``(T, D)`` in the model's dtype."""
        parts = []
        for n, vector in enumerate(self.config.observations):
            normaliser = self.normalisers[n]
            assert isinstance(normaliser, Normaliser)
            parts.append(self.projections[n](normaliser.normalise(inputs[vector.key])[None]))
        parts += [self.stems[n](inputs[image.key]) for n, image in enumerate(self.config.images)]
        return torch.cat(parts).to(self.config.model.torch_dtype)

    def choose(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """The likeliest bin behind each token, ``(T,)`` int64 tokens."""
        config = self.config
        logits = self.language.logits(hidden_TD, config.first_bin, config.n_bins)
        return logits.argmax(-1) + config.first_bin

    def actions(self, tokens_A: torch.Tensor) -> torch.Tensor:
        """Tokens ``(..., A)`` to the middle of their bins, float32 in the action's units."""
        bins_A = (tokens_A - self.config.first_bin).float()
        return self.action_normaliser.restore((2.0 * bins_A + 1.0) / self.config.n_bins - 1.0)

    def tokens(self, actions_A: torch.Tensor) -> torch.Tensor:
        """The inverse, ``(..., A)`` int64; what lies beyond the bounds takes the outermost bin."""
        scaled_A = (self.action_normaliser.normalise(actions_A) + 1.0) / 2.0
        bins_A = (scaled_A * self.config.n_bins).floor().long()
        return bins_A.clamp(0, self.config.n_bins - 1) + self.config.first_bin
