"""The network of a recurrent policy: encoder, GRU or LSTM, head.

Shape suffixes: B batch, T control steps in time, S observation, D hidden, L layer, K mixture
mode, A action, F features of the head.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from flashrt_ros.policies.normalisation import Normalisation, Normaliser
from flashrt_ros.policies.recurrent_config import RecurrentConfig

Hidden = tuple[torch.Tensor, ...]
"""``(h_LBD,)`` of a GRU, ``(h_LBD, c_LBD)`` of an LSTM."""

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
}


class Mixture(NamedTuple):
    """A Gaussian mixture with diagonal covariance, in normalised units.

    Attributes:
        logits_BK: Unnormalised log weights, ``(..., K)``.
        means_BKA: ``(..., K, A)``.
        stds_BKA: Standard deviations, ``(..., K, A)``, all positive.
    """

    logits_BK: torch.Tensor
    means_BKA: torch.Tensor
    stds_BKA: torch.Tensor

    def log_density(self, action_BA: torch.Tensor) -> torch.Tensor:
        """Log density ``(...)`` of actions ``(..., A)``."""
        z_BKA = (action_BA.unsqueeze(-2) - self.means_BKA) / self.stds_BKA
        log_BKA = -0.5 * z_BKA.square() - self.stds_BKA.log() - 0.5 * math.log(2 * math.pi)
        return torch.logsumexp(self.logits_BK.log_softmax(-1) + log_BKA.sum(-1), dim=-1)

    def likely(self) -> torch.Tensor:
        """Mean ``(..., A)`` of the mode with the greatest weight."""
        mode_B11 = self.logits_BK.argmax(-1)[..., None, None]
        return _take_mode(self.means_BKA, mode_B11)

    def draw(self, uniform_B1: torch.Tensor, normal_BA: torch.Tensor) -> torch.Tensor:
        """One sample ``(..., A)`` from a uniform ``(..., 1)`` and normals ``(..., A)``.

        The mode is found by inverting the cumulative weights: unlike ``torch.multinomial`` this
        neither synchronises with the host nor reads a global generator.
        """
        last = self.logits_BK.shape[-1] - 1
        cumulative_BK = self.logits_BK.softmax(-1).cumsum(-1)
        # The last sum can fall short of the uniform by rounding, hence the clamp.
        mode_B = (uniform_B1 >= cumulative_BK).sum(-1).clamp(max=last)
        mode_B11 = mode_B[..., None, None]
        return _take_mode(self.means_BKA, mode_B11) + normal_BA * _take_mode(
            self.stds_BKA, mode_B11
        )


def _take_mode(values_BKA: torch.Tensor, mode_B11: torch.Tensor) -> torch.Tensor:
    index = mode_B11.expand(*values_BKA.shape[:-2], 1, values_BKA.shape[-1])
    return values_BKA.gather(-2, index).squeeze(-2)


class RecurrentNetwork(nn.Module):
    """Normalisation, optional MLP encoder, recurrent layers, MLP head.

    Observations and actions are in the units of the ports; normalisation happens inside, so that
    training and control cannot differ in it. Set the statistics first (``measure_``).

    ``forward`` and ``loss`` take sequences and are for training; ``step`` takes one control step
    with the same weights and is what a plan captures. The weights of the recurrence have the
    names and shapes of ``torch.nn.GRU`` and ``torch.nn.LSTM``.

    Args:
        config: See ``RecurrentConfig``.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.observation_normaliser = nn.ModuleList(
            Normaliser(Normalisation(vector.normalisation), vector.size)
            for vector in config.observations
        )
        self.action_normaliser = Normaliser(
            Normalisation(config.action.normalisation), config.action.size
        )
        widths = [config.observation_size, *config.encoder_sizes]
        self.encoder = _mlp(widths, config.activation)
        recurrence = nn.GRU if config.cell == "gru" else nn.LSTM
        self.recurrence = recurrence(
            widths[-1], config.hidden_size, config.n_layers, batch_first=True
        )
        widths = [config.hidden_size, *config.head_sizes]
        self.trunk = _mlp(widths, config.activation)
        k, a = config.n_modes, config.action.size
        self.head = nn.Linear(widths[-1], a if config.head == "deterministic" else k * (1 + 2 * a))

    def measure_(self, observation_NS: torch.Tensor, action_NA: torch.Tensor) -> None:
        """Sets all statistics from samples ``(..., S)`` and ``(..., A)``."""
        parts = self.split(observation_NS.reshape(-1, self.config.observation_size))
        for normaliser, part_NS in zip(self._normalisers(), parts, strict=True):
            normaliser.measure_(part_NS)
        self.action_normaliser.measure_(action_NA.reshape(-1, self.config.action.size))

    def require_statistics(self, where: str) -> None:
        """Refuses a network whose statistics were never set.

        Raises:
            CheckpointError: Naming ``where``, the port and the statistic.
        """
        for vector, normaliser in zip(self.config.observations, self._normalisers(), strict=True):
            normaliser.require(f"{where}: {vector.key}")
        self.action_normaliser.require(f"{where}: {self.config.action.key}")

    def split(self, observation_BS: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The observations ``(..., S)`` of all ports as one view per port."""
        sizes = [vector.size for vector in self.config.observations]
        return torch.split(observation_BS, sizes, dim=-1)

    def forward(
        self, observation_BTS: torch.Tensor, hidden: Hidden | None = None
    ) -> tuple[torch.Tensor, Hidden]:
        """Actions of a sequence, in the action's units.

        Args:
            observation_BTS: Observations of all ports, concatenated, float32.
            hidden: State before the first step; zeros if None.

        Returns:
            ``(B, T, A)``, of a mixture the most likely mode's mean, and the state after the last
            step.
        """
        feature_BTF, hidden = self._sequence(observation_BTS, hidden)
        prediction = self.predict(feature_BTF)
        action_BTA = prediction.likely() if isinstance(prediction, Mixture) else prediction
        return self.action_normaliser.restore(action_BTA), hidden

    def loss(
        self,
        observation_BTS: torch.Tensor,
        action_BTA: torch.Tensor,
        mask_BT: torch.Tensor | None = None,
        hidden: Hidden | None = None,
    ) -> torch.Tensor:
        """Imitation loss: squared error, or negative log likelihood of a mixture.

        Args:
            observation_BTS: As for ``forward``.
            action_BTA: Actions to imitate, in the action's units.
            mask_BT: Weight of each step; None weighs all alike.
            hidden: State before the first step; zeros if None.

        Returns:
            Scalar, the weighted mean over steps, in normalised units.

        An open-loop policy learns from each sequence's first observation alone, so its sequences
        shall be no longer than the horizon.
        """
        if self.config.open_loop:
            observation_BTS = observation_BTS[:, :1].expand_as(observation_BTS)
        feature_BTF, _ = self._sequence(observation_BTS, hidden)
        prediction = self.predict(feature_BTF)
        target_BTA = self.action_normaliser.normalise(action_BTA)
        if isinstance(prediction, Mixture):
            loss_BT = -prediction.log_density(target_BTA)
        else:
            loss_BT = (prediction - target_BTA).square().mean(-1)
        if mask_BT is None:
            return loss_BT.mean()
        return (loss_BT * mask_BT).sum() / mask_BT.sum()

    def step(
        self,
        observation_BS: torch.Tensor,
        h_BD: Sequence[torch.Tensor],
        c_BD: Sequence[torch.Tensor] = (),
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """One control step, pure: the caller writes the new state.

        Single cells are called rather than the recurrence as a whole: cuDNN would allocate a
        workspace, and a captured and a plain call might take different kernels.

        Args:
            observation_BS: Observations of all ports, concatenated.
            h_BD: Hidden state of each layer.
            c_BD: Cell state of each layer, for an LSTM.

        Returns:
            Features ``(B, F)`` for ``predict``, and the new ``h`` and ``c`` of each layer.
        """
        x_BD = self.encode(observation_BS)
        new_h: list[torch.Tensor] = []
        new_c: list[torch.Tensor] = []
        for layer in range(self.config.n_layers):
            weights = [
                getattr(self.recurrence, f"{name}_l{layer}")
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            if self.config.cell == "gru":
                x_BD = torch.gru_cell(x_BD, h_BD[layer], *weights)
            else:
                x_BD, cell_BD = torch.lstm_cell(x_BD, (h_BD[layer], c_BD[layer]), *weights)
                new_c.append(cell_BD)
            new_h.append(x_BD)
        return self.trunk(x_BD), new_h, new_c

    def encode(self, observation_BS: torch.Tensor) -> torch.Tensor:
        """What the recurrence reads: normalised, then through the encoder; ``(..., S)``."""
        parts = [
            normaliser.normalise(part)
            for normaliser, part in zip(
                self._normalisers(), self.split(observation_BS), strict=True
            )
        ]
        encoded: torch.Tensor = self.encoder(torch.cat(parts, dim=-1))
        return encoded

    def predict(self, feature_BF: torch.Tensor) -> torch.Tensor | Mixture:
        """Normalised action ``(..., A)``, or its distribution."""
        raw: torch.Tensor = self.head(feature_BF)
        if self.config.head == "deterministic":
            return raw.tanh() if self.config.tanh else raw
        k, a = self.config.n_modes, self.config.action.size
        logits_BK, means, scales = torch.split(raw, [k, k * a, k * a], dim=-1)
        shape = (*raw.shape[:-1], k, a)
        means_BKA = means.reshape(shape)
        stds_BKA = F.softplus(scales).reshape(shape) + self.config.min_std
        return Mixture(logits_BK, means_BKA.tanh() if self.config.tanh else means_BKA, stds_BKA)

    def _sequence(
        self, observation_BTS: torch.Tensor, hidden: Hidden | None
    ) -> tuple[torch.Tensor, Hidden]:
        before: object = hidden
        if hidden is not None and self.config.cell == "gru":
            before = hidden[0]
        out_BTD, after = self.recurrence(self.encode(observation_BTS), before)
        return self.trunk(out_BTD), after if isinstance(after, tuple) else (after,)

    def _normalisers(self) -> list[Normaliser]:
        return [item for item in self.observation_normaliser if isinstance(item, Normaliser)]


def _mlp(widths: Sequence[int], activation: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width_in, width_out in itertools.pairwise(widths):
        layers += [nn.Linear(width_in, width_out), _ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)
