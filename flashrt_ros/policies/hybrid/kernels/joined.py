"""Weights of several linear layers as one, so that a kernel reads them in one go."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


def joined(linears: Sequence[nn.Linear]) -> torch.Tensor:
    """One weight over those of several layers, which become parts of it.

    The first call for some layers copies them, so it must come before a graph is captured, and
    none for some of them before that for all.
    """
    weights = [one.weight for one in linears]
    whole = weights[0].untyped_storage().data_ptr()
    if any(
        weight.untyped_storage().data_ptr() != whole
        or weight.data_ptr() != before.data_ptr() + before.numel() * before.element_size()
        for before, weight in pairwise(weights)
    ):
        with torch.no_grad():
            parts = torch.cat(weights).split([len(weight) for weight in weights])
        for one, part in zip(linears, parts, strict=True):
            one.weight.data = part
    rows = sum(len(one.weight) for one in linears)
    first = linears[0].weight.detach()
    return first.as_strided((rows, first.shape[1]), (first.shape[1], 1))
