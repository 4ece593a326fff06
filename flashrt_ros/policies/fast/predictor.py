"""Chunk predictors that can be fast: each is held against its exact self."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from flashrt_ros.policies.chunked import ChunkPredictor
from flashrt_ros.policies.exact.once import settle_
from flashrt_ros.policies.fast import deviation
from flashrt_ros.policies.lerobot.normalisation import CheckpointNormaliser


class FastPredictor(ChunkPredictor):
    """What the families with a fast arithmetic share.

    Attributes:
        exact: The predictor that a fast one is held against; None for an exact one.
    """

    exact: FastPredictor | None = None
    _normaliser: CheckpointNormaliser

    def probe(self, device: torch.device) -> None:
        """Calculates what weights alone decide; refuses to be fast where it strays too far."""
        settle_(self.module())
        if self.exact is not None:
            self.remarks = deviation.probe(self, self.exact, self._normaliser, device)

    def compare(
        self,
        count: int,
        device: torch.device,
        observations: Iterator[Mapping[str, torch.Tensor]] | None = None,
    ) -> deviation.Deviation | None:
        """See ``ChunkPredictor.compare``."""
        if self.exact is None:
            return None
        return deviation.compare(self, self.exact, self._normaliser, count, device, observations)
