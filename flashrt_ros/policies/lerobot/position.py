"""Positions of the cells of a feature map as sines and cosines."""

from __future__ import annotations

import math

import torch


def map_positions(rows: int, columns: int, width: int, device: torch.device) -> torch.Tensor:
    """Position embedding of a feature map, row by row.

    Positions count from 1 and are scaled to end at two pi, as in
    ``huggingface/lerobot:src/lerobot/policies/act/modeling_act.py:
    ACTSinusoidalPositionEmbedding2d``, whose arithmetic this repeats so that bits agree.

    Args:
        rows: Of the map.
        columns: Of the map.
        width: D, a multiple of 4: one half for the row, one for the column, each of which is sines
            and cosines in turn.
        device: Where they are calculated: not every device rounds a sine in the same way.

    Returns:
        ``(rows * columns, 1, D)`` float32.
    """
    half = width // 2
    ones = torch.ones(1, rows, columns, device=device)
    row, column = ones.cumsum(1), ones.cumsum(2)
    row = row / (row[:, -1:, :] + 1e-6) * (2 * math.pi)
    column = column / (column[:, :, -1:] + 1e-6) * (2 * math.pi)
    order = torch.arange(half, dtype=torch.float32, device=device)
    period = 10000 ** (2 * (order // 2) / half)
    parts = []
    for place in (row, column):
        angle = place.unsqueeze(-1) / period
        pairs = torch.stack((angle[..., 0::2].sin(), angle[..., 1::2].cos()), dim=-1)
        parts.append(pairs.flatten(3))
    return torch.cat(parts, dim=3).reshape(rows * columns, 1, width)
